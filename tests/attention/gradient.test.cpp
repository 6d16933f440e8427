// SPDX-License-Identifier: MIT
#include <rope/attention/gradient.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <rope/rotation/gradient.hpp>
#include <rope/rotation/rotate.hpp>

#include "support/attention_call.hpp"
#include "support/attention_gradient_reference.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"
#include "support/tape.hpp"
#include "support/wide.hpp"

// Compares the closed form of the gradients with finite differences of attention, both in long double, then
// the library with the closed form, for every option and within bounds. The laws follow.

using attention_call::axes;
using attention_call::operands;
using attention_call::random;
using attention_call::stored;
using attention_call::view;
using reference::full_rule;
using reference::tensor;
using reference::wide_tensor;
using rope::bshd;
using rope::half_split;
using rope::Index;
using testing::throws_saying;

namespace {

/// Promises threads and has only one, which runs the last piece first.
struct one_after_the_other {
  Index threads() const { return 4; }
  void parallel_for(Index count, const auto& body) const {
    while (count-- > 0) body(count);
  }
};

/// A call: its operands, its upstream gradient and its options.
struct call {
  std::string name;
  attention_call::extents extents;
  full_rule rule;
};

std::vector<float> random_floats(std::mt19937& generator, std::size_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(generator()) * 0x1p-31f - 1;
  return values;
}

/// Every option alone and together with others, in shapes that fill a tile, part of a tile, and several
/// tiles.
std::vector<call> calls(std::mt19937& generator, bool small) {
  const long few = small ? 3 : 21, many = small ? 5 : 150;
  std::vector<call> all;
  const auto add = [&](const char* name, attention_call::extents e, full_rule rule) {
    all.push_back({name, e, std::move(rule)});
  };
  add("causal", {2, few, few, 2, 2, 4, 4}, {});
  add("one query against many keys", {1, 1, many, 4, 2, 6, 3}, {});
  add("full", {1, few, many, 2, 1, 6, 3}, {.basic = {.causal = false}});
  add("grouped, value_dim differs", {2, many, many, 6, 2, 5, 7}, {});
  add("scale", {1, few, few, 1, 1, 4, 4}, {.basic = {.scale = -1.7}});
  add("window", {1, many, many, 2, 2, 4, 4}, {.basic = {.window = 3}});
  add("window, both sides", {1, many, many, 2, 2, 4, 4}, {.basic = {.causal = false, .window = 2}});
  add("window with sinks", {1, many, many, 2, 1, 4, 4}, {.basic = {.window = 2}, .sinks = 2});
  add("softcap", {1, few, many, 2, 1, 4, 4}, {.basic = {.softcap = 0.6}});
  add("more queries than keys", {1, many, few, 2, 1, 4, 4},
      {.query_positions = attention_call::positions_before_keys(many, few)});
  add("sink logits", {2, few, many, 4, 2, 4, 4}, {.sink_logits = random_floats(generator, 4)});
  add("sink logits of blind queries", {1, many, few, 2, 2, 4, 4},
      {.sink_logits = random_floats(generator, 2),
       .query_positions = attention_call::positions_before_keys(many, few)});
  add("dropout", {2, few, many, 2, 1, 4, 4}, {.dropout = 0.4, .seed = 77});
  add("key counts", {2, few, many, 2, 1, 4, 4}, {.key_counts = {many, few}});
  add("padded rows", {2, many, many, 2, 1, 4, 4},
      {.sink_logits = {0.3f, -1}, .query_counts = {few, many - 1}, .key_counts = {many - 2, many}});
  add("segments", {1, many, many, 2, 1, 4, 4}, {.offsets = {0, 1, 1, few, many}});
  full_rule masked = {.basic = {.causal = false}};
  for (long n = 0; n < few * many; ++n) masked.mask.push_back(generator() % 3 != 0 && n / many != 1 ? 1 : 0);
  add("mask, one query blind", {2, few, many, 2, 1, 4, 4}, masked);
  full_rule biased = {.bias = random_floats(generator, static_cast<std::size_t>(2 * few * many)),
                      .bias_extents = {1, 2, few, many}};
  biased.bias[static_cast<std::size_t>(many + 1)] = -std::numeric_limits<float>::infinity();
  add("bias", {2, few, many, 2, 1, 4, 4}, biased);
  add("bias shared by heads and queries", {2, few, many, 2, 1, 4, 4},
      {.basic = {.softcap = 0.8},
       .bias = random_floats(generator, static_cast<std::size_t>(2 * many)),
       .bias_extents = {2, 1, 1, many}});
  full_rule ring = {.basic = {.window = 4}, .sinks = 1};
  for (long j = 0; j < many; ++j) ring.key_positions.push_back((j + 3) % many);
  for (long i = 0; i < few; ++i) ring.query_positions.push_back(many - few + i);
  add("positions out of order", {1, few, many, 2, 1, 4, 4}, ring);
  add("everything", {1, many, many, 4, 2, 5, 3},
      {.basic = {.scale = 0.9, .window = 7, .softcap = 1.5},
       .sinks = 2,
       .sink_logits = random_floats(generator, 4),
       .bias = random_floats(generator, static_cast<std::size_t>(many)),
       .bias_extents = {1, 1, 1, many},
       .offsets = {0, many / 2, many},
       .dropout = 0.3,
       .seed = 5});
  add("channels that fill no panel", {1, few, few, 2, 2, 33, 17}, {});
  add("scores without channels", {1, few, many, 2, 1, 0, 3}, {.basic = {.scale = 1}});
  add("values without channels", {1, few, many, 2, 1, 3, 0}, {});
  const auto ranges = [&generator](long queries, long keys) {
    std::vector<rope::key_range> list;
    while (queries-- > 0) {
      const long first = static_cast<long>(generator() % static_cast<unsigned long>(keys));
      list.push_back({first, queries == 1 ? 0 : keys - first - (keys - first) / 3});  // one query sees none
    }
    return list;
  };
  add("key ranges", {2, few, many, 4, 2, 4, 4}, {.key_ranges = ranges(few, many)});
  add("key ranges of each row, in segments of other options", {2, many, many, 2, 1, 4, 4},
      {.sink_logits = random_floats(generator, 2),
       .query_counts = {few, many},
       .key_counts = {many - 1, many},
       .dropout = 0.3,
       .seed = 6,
       .key_ranges = ranges(2 * many, many)});
  return all;
}

/// Several blocks of queries (750 rows of one key head, at most 240 in a block) and several tiles of keys (at
/// most 128 in one). The last ones are not full.
std::vector<call> long_calls(std::mt19937& generator) {
  const long queries = 250, keys = 230;
  const attention_call::extents one_head = {1, queries, keys, 3, 1, 5, 6};
  full_rule everything = {.basic = {.window = 150, .softcap = 1.1},
                          .sinks = 2,
                          .sink_logits = random_floats(generator, 4),
                          .bias = random_floats(generator, static_cast<std::size_t>(4 * queries * keys)),
                          .bias_extents = {1, 4, queries, keys},
                          .dropout = 0.2,
                          .seed = 9};
  for (long n = 0; n < queries * keys; ++n) everything.mask.push_back(generator() % 5 != 0 ? 1 : 0);
  full_rule shared_by_heads = everything, shared_by_queries = everything;
  shared_by_heads.bias.resize(static_cast<std::size_t>(queries * keys));
  shared_by_heads.bias_extents = {1, 1, queries, keys};
  shared_by_queries.bias.resize(static_cast<std::size_t>(4 * keys));
  shared_by_queries.bias_extents = {1, 4, 1, keys};
  std::vector<call> all = {
      {"causal", one_head, {}},
      {"more queries than keys", {1, keys, queries, 3, 1, 5, 6}, {.basic = {.softcap = 0.7}}},
      {"window with sinks", one_head, {.basic = {.window = 110}, .sinks = 3}},
      {"segments", {1, keys, keys, 3, 1, 5, 6}, {.offsets = {0, 7, 150, 190, keys}}},
      {"everything, a bias of each score", {1, queries, keys, 4, 1, 5, 6}, everything},
      {"everything, a bias shared by heads", {1, queries, keys, 4, 2, 5, 6}, shared_by_heads},
      {"everything, a bias shared by queries", {1, queries, keys, 4, 1, 5, 6}, shared_by_queries}};
  for (call& c : all)  // the first queries are before the first key
    if (c.rule.offsets.empty())
      c.rule.query_positions = attention_call::positions_before_keys(c.extents.queries, c.extents.keys);
  return all;
}

struct inputs {
  operands x;
  tensor g;
};

template <class T>
inputs random_inputs(std::mt19937& generator, const attention_call::extents& e) {
  operands x = attention_call::random_operands<T>(generator, e);
  return {std::move(x), random<T>(generator, {e.batch, e.queries, e.heads, e.value_dim})};
}

struct results {
  tensor q, k, v;
  std::vector<double> sink_logits, bias;
};

/// Calls attention_gradient on memory of any order. `run` gets the eight views and the buffers for the
/// gradients of options.
template <class T, class Run>
results gradients_with(const inputs& in, const tensor& out, const full_rule& rule, axes order, Run run) {
  const auto unwritten = [](const tensor& x) {
    return tensor(x.batch, x.tokens, x.heads, x.dim, attention_call::unwritten);
  };
  results r = {unwritten(in.x.q), unwritten(in.x.k), unwritten(in.x.v), {}, {}};
  const auto q = stored<T>(in.x.q, order), k = stored<T>(in.x.k, order), v = stored<T>(in.x.v, order),
             g = stored<T>(in.g, order), o = stored<T>(out, order);
  auto d_q = stored<T>(r.q, order), d_k = stored<T>(r.k, order), d_v = stored<T>(r.v, order);
  r.sink_logits.assign(rule.sink_logits.size(), attention_call::unwritten);
  r.bias.assign(rule.bias.size(), attention_call::unwritten);
  run(view(q, in.x.q, order), view(k, in.x.k, order), view(v, in.x.v, order), view(o, out, order),
      view(g, in.g, order), view(d_q, r.q, order), view(d_k, r.k, order), view(d_v, r.v, order),
      rope::option_gradients{.sink_logits = r.sink_logits, .bias = r.bias});
  r.q = attention_call::loaded(d_q, r.q, order);
  r.k = attention_call::loaded(d_k, r.k, order);
  r.v = attention_call::loaded(d_v, r.v, order);
  return r;
}

/// `sums`: whether to pass the log-sum-exp.
template <class T, class Threads = rope::this_thread>
results gradients(const inputs& in, const tensor& out, const full_rule& rule, std::vector<double> sums = {},
                  axes order = axes::bshd, const Threads& threads = {}) {
  std::vector<unsigned char> mask_bits;
  rope::attention_options options = rule.options(mask_bits, in.x.q.tokens, in.x.k.tokens);
  options.log_sum_exp = sums;
  return gradients_with<T>(
      in, out, rule, order,
      [&](auto q, auto k, auto v, auto o, auto g, auto d_q, auto d_k, auto d_v, auto by_options) {
        rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), options, by_options, threads);
      });
}

bool same(const results& a, const results& b) {
  return a.q.values == b.q.values && a.k.values == b.k.values && a.v.values == b.v.values &&
         a.sink_logits == b.sink_logits && a.bias == b.bias;
}

/// The output as a forward pass stores it.
template <class T>
tensor stored_output(const wide_tensor& out) {
  tensor rounded(out);
  for (std::size_t n = 0; n < out.values.size(); ++n)
    rounded.values[n] = static_cast<double>(static_cast<T>(static_cast<double>(out.values[n])));
  return rounded;
}

/// The largest error of a gradient, as a share of the sum of the magnitudes of its terms, before it is
/// rounded to its storage type. With S = |scale| dim max|q| max|k| and n keys, as for attention itself
/// (attention_reference.hpp), the relative error of a weight is 2 u ((dim + 2 + 19) S + 4 S + 5 (t + 1)) with
/// t = tiles_of_sum(n). A log-sum-exp instead of the running softmax does not increase it. The slope adds
/// value_dim + 4, the slope of a softcap 40 for its tanh and twice the error of the score divided by the cap.
/// The sums over keys, or over queries and heads of the group, add one u per rounding (roundings_of_sum). A
/// bias of magnitude 1 adds 2 to a score.
template <class A>
testing::wide gradient_bound(const inputs& in, const full_rule& rule) {
  const testing::wide u = tolerance::unit_roundoff<A>();
  const auto dim = static_cast<testing::wide>(in.x.q.dim), n = static_cast<testing::wide>(in.x.k.tokens);
  const auto rows = static_cast<double>(in.x.q.tokens * in.x.q.heads);
  const testing::wide added = reference::roundings_of_sum(rows) +
                              reference::roundings_of_sum(static_cast<double>(n)),
                      tiles = reference::tiles_of_sum(static_cast<double>(n));
  const testing::wide score = (dim + 21) * testing::abs(reference::scale_of(in.x.q.dim, rule.basic)) * dim *
                                  static_cast<testing::wide>(in.x.q.largest() * in.x.k.largest()) +
                              4;
  const testing::wide cap = rule.basic.softcap > 0 ? 40 + 2 * score / rule.basic.softcap : 0;
  return 1.01L * u *
         (2 * (2 * score + 5 * (tiles + 1)) + static_cast<testing::wide>(in.x.v.dim) + 4 + cap + added);
}

/// The largest error as a multiple of the allowed error.
template <class T>
double worst(const tensor& got, const wide_tensor& exact, const wide_tensor& size, testing::wide part) {
  double result = 0;
  for (std::size_t n = 0; n < exact.values.size(); ++n) {
    const testing::wide bound = part * size.values[n] + std::numeric_limits<float>::min();
    const testing::wide allowed = bound + (tolerance::is_16_bit<T> || !std::is_same_v<T, double>
                                               ? tolerance::ulp<T>(testing::abs(exact.values[n]) + bound) / 2
                                               : 0);
    const auto relative = static_cast<double>(testing::abs(got.values[n] - exact.values[n]) / allowed);
    result = relative <= result ? result : relative >= 0 ? relative : std::numeric_limits<double>::infinity();
  }
  return result;
}

double worst(const std::vector<double>& got, const std::vector<testing::wide>& exact,
             const std::vector<testing::wide>& size, testing::wide part) {
  double result = got.size() == exact.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t n = 0; n < exact.size(); ++n) {
    const auto relative = static_cast<double>(testing::abs(got.at(n) - exact[n]) /
                                              (part * size[n] + std::numeric_limits<float>::min()));
    result = relative <= result ? result : relative >= 0 ? relative : std::numeric_limits<double>::infinity();
  }
  return result;
}

/// Compares with the closed form, and requires the same bits for every order of the heads in memory and any
/// number of threads.
template <class T>
void check_call(std::mt19937& generator, const call& c, const std::vector<Index>& thread_counts) {
  const inputs in = random_inputs<T>(generator, c.extents);
  const wide_tensor q(in.x.q), k(in.x.k), v(in.x.v), g(in.g);
  const auto state = reference::attend(q, k, v, c.rule);
  const tensor out = stored_output<T>(state.out);
  const auto exact = reference::differentiate(q, k, v, g, wide_tensor(out), c.rule);
  const testing::wide part = gradient_bound<attention_call::arithmetic<T>>(in, c.rule);
  const auto follows = [&](const results& r) {
    CHECK(worst<T>(r.q, exact.q, exact.q_size, part) <= 1);
    CHECK(worst<T>(r.k, exact.k, exact.k_size, part) <= 1);
    CHECK(worst<T>(r.v, exact.v, exact.v_size, part) <= 1);
    CHECK(worst(r.sink_logits, exact.sink_logits, exact.sink_sizes, part) <= 1);
    CHECK(worst(r.bias, exact.bias, exact.bias_sizes, part) <= 1);
  };
  const results found = gradients<T>(in, out, c.rule);
  follows(found);
  const std::vector<double> sums(state.log_sum_exp.begin(), state.log_sum_exp.end());
  follows(gradients<T>(in, out, c.rule, sums));
  CHECK(same(gradients<T>(in, out, c.rule, {}, axes::bhsd), found));
  CHECK(same(gradients<T>(in, out, c.rule, {}, axes::sbhd), found));
  for (const Index threads : thread_counts)
    CHECK(same(gradients<T>(in, out, c.rule, {}, axes::bshd, testing::own_threads{threads}), found));
  CHECK(same(gradients<T>(in, out, c.rule, {}, axes::bshd, one_after_the_other{}), found));
}

}  // namespace

TEST_CASE("the closed form of the gradients is the derivative of attention", "[attention]") {
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  for (call c : calls(generator, true)) {
    CAPTURE(seed, c.name);
    const inputs in = random_inputs<double>(generator, c.extents);
    wide_tensor q(in.x.q), k(in.x.k), v(in.x.v);
    const wide_tensor g(in.g);
    const auto loss = [&] {
      const auto state = reference::attend(q, k, v, c.rule);
      testing::wide sum = 0;
      for (std::size_t n = 0; n < g.values.size(); ++n) sum += g.values[n] * state.out.values[n];
      return sum;
    };
    const auto exact = reference::differentiate(q, k, v, g, reference::attend(q, k, v, c.rule).out, c.rule);
    // The difference of five points has an error of step^4 / 30 times a fifth derivative, which is below 1e4
    // for scores and softcaps of order 1, plus 2^-64 of a loss below 100, divided by the step.
    const testing::wide step = 1e-4L, bound = 1e-12L;
    const auto check = [&](const char* what, auto& value, testing::wide derivative) {
      const auto was = value;
      const auto at = [&](testing::wide by) {
        value = static_cast<std::remove_reference_t<decltype(value)>>(was + by);
        const testing::wide result = loss();
        value = was;
        return result;
      };
      CAPTURE(what);
      CHECK(testing::abs((8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step) -
                         derivative) <= bound);
    };
    for (std::size_t n = 0; n < q.values.size(); n += 3) check("q", q.values[n], exact.q.values[n]);
    for (std::size_t n = 0; n < k.values.size(); n += 3) check("k", k.values[n], exact.k.values[n]);
    for (std::size_t n = 0; n < v.values.size(); n += 3) check("v", v.values[n], exact.v.values[n]);
    // Options are floats, so the step is one that floats can represent, and the error is of order step^2.
    const auto check_float = [&](float& value, testing::wide derivative) {
      if (value < -1e30f) return;
      const float was = value, up = was + 0x1p-9f, down = was - 0x1p-9f;
      value = up;
      const testing::wide above = loss();
      value = down;
      const testing::wide below = loss();
      value = was;
      CHECK(testing::abs((above - below) / (static_cast<testing::wide>(up) - down) - derivative) <=
            0x1p-18L * 20);
    };
    for (std::size_t n = 0; n < c.rule.sink_logits.size(); ++n)
      check_float(c.rule.sink_logits[n], exact.sink_logits[n]);
    for (std::size_t n = 0; n < c.rule.bias.size(); ++n) check_float(c.rule.bias[n], exact.bias[n]);
  }
}

TEMPLATE_TEST_CASE("gradients follow the closed form under every option", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  for (const call& c : calls(generator, false)) {
    CAPTURE(seed, c.name);
    check_call<TestType>(generator, c, {3});
  }
}

TEMPLATE_TEST_CASE("gradients of long sequences follow the closed form, on any number of threads",
                   "[attention]", float, double) {
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  for (const call& c : long_calls(generator)) {
    CAPTURE(seed, c.name);
    check_call<TestType>(generator, c, {2, 3, 7});
  }
}

TEMPLATE_TEST_CASE("with a table, gradients are rotated back", "[attention]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  using S = attention_call::arithmetic<T>;
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 30), keys = GENERATE(30, 70), rotary_dim = GENERATE(4, 10);
  CAPTURE(seed, queries, keys, rotary_dim);
  const inputs in = random_inputs<T>(generator, {2, queries, keys, 4, 2, 10, 3});
  const rope::frequency_table<S> table(
      rope::frequencies::custom(rope::frequencies(rotary_dim).inv_freq(), 1.25), -40, 80);
  const rope::frequency_table<S> other(rope::frequencies(rotary_dim), -40, 80);
  full_rule rule = {.basic = {.causal = false}};
  const long shorter = std::max(queries, 25L);
  rule.key_counts = {keys, shorter};
  const auto check = [&](const auto& query_table, const auto& key_table, auto gradient) {
    inputs rotated = in;
    auto q = stored<T>(in.x.q), k = stored<T>(in.x.k);
    const std::vector<std::int64_t> starts = {keys - queries, shorter - queries};
    rope::rotate<half_split>(view(q, in.x.q), query_table, rope::row_starts{starts});
    rope::rotate<half_split>(view(k, in.x.k), key_table);
    rotated.x.q = attention_call::loaded(q, in.x.q);
    rotated.x.k = attention_call::loaded(k, in.x.k);
    const tensor out = stored_output<T>(
        reference::attend(wide_tensor(rotated.x.q), wide_tensor(rotated.x.k), wide_tensor(rotated.x.v), rule)
            .out);
    results expected = gradients<T>(rotated, out, rule);
    auto d_q = stored<T>(expected.q), d_k = stored<T>(expected.k);
    rope::rotate_gradient<half_split>(view(d_q, expected.q), query_table, rope::row_starts{starts});
    rope::rotate_gradient<half_split>(view(d_k, expected.k), key_table);
    expected.q = attention_call::loaded(d_q, expected.q);
    expected.k = attention_call::loaded(d_k, expected.k);
    std::vector<unsigned char> none;
    const auto options = rule.options(none, queries, keys);
    CHECK(same(gradients_with<T>(in, out, rule, axes::bhsd,
                                 [&](auto... arguments) { gradient(options, arguments...); }),
               expected));
  };
  const auto gradient_by = [](const auto& tables, const auto& threads) {
    return
        [&](const auto& options, auto q, auto k, auto v, auto o, auto g, auto d_q, auto d_k, auto d_v, auto) {
          rope::attention_gradient<half_split>(testing::tape(q, k, v, o, g, d_q, d_k, d_v), tables, options,
                                               {}, threads);
        };
  };
  const rope::query_key_tables both(table, other);
  check(table, table, gradient_by(table, rope::this_thread{}));
  check(table, other, gradient_by(both, rope::this_thread{}));
  check(table, other, gradient_by(both, testing::own_threads{3}));
}

TEST_CASE("rows that no query attends to do not affect the gradients", "[attention]") {
  // Keys beyond the count, queries before the first key, and masked keys and values are NaN.
  std::mt19937 generator(7);
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const inputs clean = random_inputs<float>(generator, {1, 40, 70, 2, 1, 6, 5});
  full_rule rule = {.sink_logits = {0.5f, -1}, .key_counts = {37}};
  for (long i = 0; i < 40; ++i) rule.query_positions.push_back(i - 3);
  inputs dirty = clean;
  // Queries 0 .. 2 have no visible key.
  for (long d = 0; d < 6; ++d) {
    for (long h = 0; h < 2; ++h)
      for (long i = 0; i < 3; ++i) dirty.x.q(0, i, h, d) = nan;
    for (long j = 37; j < 70; ++j) dirty.x.k(0, j, 0, d) = nan;
  }
  for (long d = 0; d < 5; ++d) {
    for (long h = 0; h < 2; ++h)
      for (long i = 0; i < 3; ++i) dirty.g(0, i, h, d) = nan;
    for (long j = 37; j < 70; ++j) dirty.x.v(0, j, 0, d) = nan;
  }
  const wide_tensor q(clean.x.q), k(clean.x.k), v(clean.x.v), g(clean.g);
  const tensor out = stored_output<float>(reference::attend(q, k, v, rule).out);
  const auto exact = reference::differentiate(q, k, v, g, wide_tensor(out), rule);
  const results r = gradients<float>(dirty, out, rule);
  const testing::wide part = gradient_bound<float>(clean, rule);
  CHECK(worst<float>(r.q, exact.q, exact.q_size, part) <= 1);
  CHECK(worst<float>(r.k, exact.k, exact.k_size, part) <= 1);
  CHECK(worst<float>(r.v, exact.v, exact.v_size, part) <= 1);
  CHECK(worst(r.sink_logits, exact.sink_logits, exact.sink_sizes, part) <= 1);
  // A NaN in a key that is visible only to later queries reaches only those queries.
  inputs late = clean;
  late.x.k(0, 20, 0, 0) = nan;
  const results reached = gradients<float>(late, out, rule);
  for (long h = 0; h < 2; ++h)
    for (long d = 0; d < 6; ++d) {
      CHECK(reached.q(0, 22, h, d) == r.q(0, 22, h, d));  // at position 19
      CHECK_FALSE(rope::detail::is_finite(reached.q(0, 23, h, d)));
    }
}

TEST_CASE("keys beyond the count have zero gradients, whatever the queries contain", "[attention]") {
  std::mt19937 generator(8);
  inputs in = random_inputs<float>(generator, {1, 40, 70, 2, 1, 6, 5});
  const full_rule rule = {.basic = {.causal = false}, .key_counts = {37}};
  const tensor out = stored_output<float>(
      reference::attend(wide_tensor(in.x.q), wide_tensor(in.x.k), wide_tensor(in.x.v), rule).out);
  in.g(0, 11, 0, 2) = std::numeric_limits<double>::quiet_NaN();
  const results r = gradients<float>(in, out, rule);
  for (long j = 0; j < 37; ++j) {
    CHECK_FALSE(rope::detail::is_finite(r.k(0, j, 0, 0)));
    CHECK_FALSE(rope::detail::is_finite(r.v(0, j, 0, 2)));
  }
  for (long j = 37; j < 70; ++j) {
    for (long d = 0; d < 6; ++d) CHECK(std::bit_cast<std::uint64_t>(r.k(0, j, 0, d)) == 0);
    for (long d = 0; d < 5; ++d) CHECK(std::bit_cast<std::uint64_t>(r.v(0, j, 0, d)) == 0);
  }
}

TEST_CASE("memory may end with the last key of a row that is counted", "[attention]") {
  // Of the 4 tokens of row 1 only 2 have memory. AddressSanitizer reports any read of the others.
  const rope::frequency_table<float> table(rope::frequencies(4), 4);
  const std::vector<long> counts = {4, 2};
  std::mt19937 generator(9);
  const inputs in = random_inputs<float>(generator, {2, 4, 4, 2, 1, 4, 3});
  const rope::attention_options options = {.query_counts = counts, .key_counts = counts};
  const std::vector<float> q(in.x.q.values.begin(), in.x.q.values.end()),
      g(in.g.values.begin(), in.g.values.end());
  const auto gradients_from = [&](long tokens, bool rotates) {
    const std::vector<float> k(in.x.k.values.begin(), in.x.k.values.begin() + tokens * 4),
        v(in.x.v.values.begin(), in.x.v.values.begin() + tokens * 3);
    std::vector<float> out(2 * 4 * 2 * 3), d(120, -77);
    const auto of_q = bshd(q.data(), 2, 4, 2, 4), of_k = bshd(k.data(), 2, 4, 1, 4),
               of_v = bshd(v.data(), 2, 4, 1, 3);
    const auto result = bshd(out.data(), 2, 4, 2, 3);
    const auto tape =
        testing::tape(of_q, of_k, of_v, result, bshd(g.data(), 2, 4, 2, 3), bshd(d.data(), 2, 4, 2, 4),
                      bshd(d.data() + 64, 2, 4, 1, 4), bshd(d.data() + 96, 2, 4, 1, 3));
    if (rotates) {
      rope::attention<half_split>(of_q, of_k, of_v, result, table, options);
      rope::attention_gradient<half_split>(tape, table, options);
    } else {
      rope::attention(of_q, of_k, of_v, result, options);
      rope::attention_gradient(tape, options);
    }
    return d;
  };
  for (const bool rotates : {false, true}) CHECK(gradients_from(6, rotates) == gradients_from(8, rotates));
}

TEMPLATE_TEST_CASE("a NaN reaches only the query and key pairs that are visible", "[attention]", float,
                   double, Eigen::bfloat16) {
  using T = TestType;
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  CAPTURE(seed);
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  const long queries = 120, keys = 130, bad_query = 70, bad_key = 40, masked = 100;
  const inputs clean = random_inputs<T>(generator, {1, queries, keys, 3, 1, 6, 5});
  // A query attends to keys at most 19 positions before its own. Query 100 has no visible key.
  full_rule rule = {.basic = {.window = 20}, .sink_logits = {0.5f, -1, 2}};
  for (long n = 0; n < queries * keys; ++n) rule.mask.push_back(n / keys != masked ? 1 : 0);
  const auto position = [&](long i) { return i + keys - queries; };
  const auto sees = [&](long i, long j) { return rule.sees(0, 0, i, j, queries, keys); };
  const wide_tensor q(clean.x.q), k(clean.x.k), v(clean.x.v), g(clean.g);
  const auto state = reference::attend(q, k, v, rule);
  const tensor out = stored_output<T>(state.out);
  const results r = gradients<T>(clean, out, rule);
  const auto exact = reference::differentiate(q, k, v, g, wide_tensor(out), rule);
  const testing::wide part = gradient_bound<attention_call::arithmetic<T>>(clean, rule);
  const std::vector<double> sums(state.log_sum_exp.begin(), state.log_sum_exp.end());

  // Replaces the tokens that the NaN reaches by the exact result, and compares the others.
  const auto unreached = [&](tensor got, const wide_tensor& expected, const wide_tensor& size,
                             const auto& reaches) {
    attention_call::for_each_element(got, [&](long b, long t, long h, long d) {
      if (reaches(t)) got(b, t, h, d) = static_cast<double>(expected(b, t, h, d));
    });
    CHECK(worst<T>(got, expected, size, part) <= 1);
  };
  const auto reached = [&](const tensor& got, long t) {
    for (long h = 0; h < got.heads; ++h)
      for (long d = 0; d < got.dim; ++d) CHECK_FALSE(rope::detail::is_finite(got(0, t, h, d)));
  };
  for (const bool given : {false, true}) {
    CAPTURE(given);
    const auto of_query = [&](const inputs& in) {
      const results got = gradients<T>(in, out, rule, given ? sums : std::vector<double>());
      const auto sees_key = [&](long j) { return sees(bad_query, j); };
      unreached(got.q, exact.q, exact.q_size, [&](long i) { return i == bad_query; });
      unreached(got.k, exact.k, exact.k_size, sees_key);
      unreached(got.v, exact.v, exact.v_size, sees_key);
      reached(got.q, bad_query);
      reached(got.k, position(bad_query));
    };
    inputs in = clean;
    for (long h = 0; h < 3; ++h) in.g(0, bad_query, h, 2) = h == 1 ? infinity : nan;
    of_query(in);
    in = clean;
    for (long h = 0; h < 3; ++h) in.x.q(0, bad_query, h, 3) = nan;
    of_query(in);

    const auto of_key = [&](const results& got) {
      const auto sees_bad_key = [&](long i) { return sees(i, bad_key); };
      unreached(got.q, exact.q, exact.q_size, sees_bad_key);
      const auto visible_pair = [&](long j) { return testing::abs(j - bad_key) < 20; };
      unreached(got.k, exact.k, exact.k_size, visible_pair);
      unreached(got.v, exact.v, exact.v_size, visible_pair);
      reached(got.q, bad_key - (keys - queries));
      reached(got.k, bad_key);
    };
    in = clean;
    in.x.k(0, bad_key, 0, 4) = nan;
    of_key(gradients<T>(in, out, rule, given ? sums : std::vector<double>()));
    in = clean;
    in.x.v(0, bad_key, 0, 1) = nan;
    of_key(gradients<T>(in, out, rule, given ? sums : std::vector<double>()));

    in = clean;
    for (long h = 0; h < 3; ++h) in.x.q(0, masked, h, 0) = in.g(0, masked, h, 0) = nan;
    const results unseen = gradients<T>(in, out, rule, given ? sums : std::vector<double>());
    const auto nothing = [](long) { return false; };
    unreached(unseen.q, exact.q, exact.q_size, nothing);
    unreached(unseen.k, exact.k, exact.k_size, nothing);
    unreached(unseen.v, exact.v, exact.v_size, nothing);
    for (long d = 0; d < 6; ++d) CHECK(unseen.q(0, masked, 1, d) == 0);
    CHECK(worst(unseen.sink_logits, exact.sink_logits, exact.sink_sizes, part) <= 1);
  }
}

namespace {

/// A bias of `count` numbers of which score (i, j) has number entry(i, j), and which bias_of(list) views: its
/// gradient is the sum of those of the scores, in a fixed order for any number of threads.
void check_shared_entries(std::mt19937& generator, const attention_call::extents& e, std::size_t count,
                          const std::vector<float>& sink_logits, const auto& entry, const auto& bias_of) {
  const inputs in = random_inputs<float>(generator, e);
  const auto list = random_floats(generator, count);
  full_rule rule = {
      .basic = {.causal = false}, .sink_logits = sink_logits, .bias_extents = {1, 1, e.queries, e.keys}};
  for (long i = 0; i < e.queries; ++i)
    for (long j = 0; j < e.keys; ++j) rule.bias.push_back(list[entry(i, j)]);
  const tensor out = stored_output<float>(
      reference::attend(wide_tensor(in.x.q), wide_tensor(in.x.k), wide_tensor(in.x.v), rule).out);
  const results dense = gradients<float>(in, out, rule);
  std::vector<double> expected(count), sizes(count), scores(count);
  for (long i = 0; i < e.queries; ++i)
    for (long j = 0; j < e.keys; ++j) {
      const double slope = dense.bias[static_cast<std::size_t>(i * e.keys + j)];
      expected[entry(i, j)] += slope;
      sizes[entry(i, j)] += testing::abs(slope);
      scores[entry(i, j)] += 1;
    }
  const auto of_list = [&](const auto& threads) {
    std::vector<double> d_list(count, attention_call::unwritten);
    gradients_with<float>(in, out, rule, axes::bshd,
                          [&](auto q, auto k, auto v, auto o, auto g, auto d_q, auto d_k, auto d_v, auto) {
                            rope::attention_gradient(
                                testing::tape(q, k, v, o, g, d_q, d_k, d_v),
                                {.causal = false, .sink_logits = sink_logits, .bias = bias_of(list)},
                                {.bias = d_list}, threads);
                          });
    return d_list;
  };
  const std::vector<double> alone = of_list(rope::this_thread{});
  // The scores of an entry are added once in each order.
  const double most = *std::max_element(scores.begin(), scores.end());
  for (std::size_t n = 0; n < count; ++n)
    CHECK(testing::abs(alone[n] - expected[n]) <= 2 * most * 0x1p-53 * sizes[n]);
  for (const Index threads : {2, 3, 7}) CHECK(of_list(testing::own_threads{threads}) == alone);
}

}  // namespace

TEST_CASE("scores that share a bias entry add to its gradient in a fixed order", "[attention]") {
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  CAPTURE(seed);
  // A bias that depends on the distance, stored once: entry (i, j) is number i + j, so different blocks add
  // to the same entries.
  const long queries = 900, keys = 300;
  check_shared_entries(
      generator, {1, queries, keys, 1, 1, 4, 4}, static_cast<std::size_t>(queries + keys - 1), {},
      [](long i, long j) { return static_cast<std::size_t>(i + j); },
      [&](const std::vector<float>& list) {
        return rope::score_view<float>{list.data(), 1, 1, queries, keys, 0, 0, 1, 1};
      });
}

TEST_CASE("scores of different keys that share a bias entry add to its gradient in a fixed order",
          "[attention]") {
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  const long tokens = 1200;  // so that two threads add to the same entry
  const bool per_query = GENERATE(false, true);
  CAPTURE(seed, per_query);
  const std::vector<float> logits = {0.5f};  // without it the gradients of a softmax add up to zero
  check_shared_entries(
      generator, {1, tokens, tokens, 1, 1, 16, 16}, per_query ? static_cast<std::size_t>(tokens) : 1, logits,
      [&](long i, long) { return per_query ? static_cast<std::size_t>(i) : 0; },
      [&](const std::vector<float>& list) {
        return rope::score_matrix(list.data(), 1, 1, per_query ? tokens : 1, 1);
      });
}

TEST_CASE("a bias shared by keys differs from one shared only by queries, heads or rows", "[attention]") {
  const rope::detail::attention_shape shape = {2, 5, 7, 3, 4};
  const float entry = 0;
  const auto joins = [&](const rope::score_view<float>& bias) {
    return rope::detail::joins_keys(bias, shape);
  };
  CHECK_FALSE(joins(rope::score_matrix(&entry, 2, 3, 5, 7)));
  CHECK_FALSE(joins(rope::score_matrix(&entry, 1, 1, 1, 7)));
  CHECK(joins(rope::score_matrix(&entry, 1, 1, 1, 1)));
  CHECK(joins(rope::score_matrix(&entry, 2, 3, 5, 1)));
  CHECK(joins({&entry, 1, 1, 5, 7, 0, 0, 1, 1}));  // by distance
  CHECK(joins({&entry, 2, 3, 5, 7, 105, 35, 7, 0}));
}

TEST_CASE("a bias shared by scores differs from one with an entry for each score", "[attention]") {
  const rope::detail::attention_shape shape = {2, 5, 7, 3, 4};
  const float entry = 0;
  const auto own = [&](const rope::score_view<float>& bias) {
    return rope::detail::has_own_entries(bias, shape);
  };
  CHECK(own(rope::score_matrix(&entry, 2, 3, 5, 7)));
  CHECK_FALSE(own(rope::score_matrix(&entry, 1, 3, 5, 7)));
  CHECK_FALSE(own(rope::score_matrix(&entry, 2, 1, 5, 7)));
  CHECK_FALSE(own(rope::score_matrix(&entry, 2, 3, 1, 7)));
  CHECK_FALSE(own(rope::score_matrix(&entry, 2, 3, 5, 1)));
  CHECK(own({&entry, 2, 3, 5, 7, 8, 16, 48, 240 + 100}));  // axes in any order, with gaps between them
  CHECK_FALSE(own({&entry, 2, 3, 5, 7, 105, 35, 1, 1}));   // by distance
  CHECK_FALSE(own({&entry, 2, 3, 5, 7, 105, 0, 7, 1}));
  CHECK_FALSE(own({&entry, 2, 3, 5, 7, 105, 35, -7, 1}));
  CHECK_FALSE(own({&entry, 2, 3, 5, 7, 105, 34, 7, 1}));  // heads share one entry
}

TEST_CASE("a hidden score that is inf - inf changes no gradient under a softcap", "[attention]") {
  const std::vector<float> q = {1, 1, 1e20f, 1e20f}, v = {1, 2, 3}, g = {1, 1};
  const bool sees[] = {true, false, true, true, false, true};
  const rope::attention_options options = {
      .scale = 1, .causal = false, .softcap = 1, .mask = rope::score_matrix(sees, 1, 1, 2, 3)};
  const auto gradients_for = [&](float hidden) {
    const std::vector<float> k = {0.1f, 0.2f, hidden, -hidden, 0.3f, -0.1f};
    std::vector<float> out(2), d(4 + 6 + 3);
    const auto of_q = bshd(q.data(), 1, 2, 1, 2), of_k = bshd(k.data(), 1, 3, 1, 2),
               of_v = bshd(v.data(), 1, 3, 1, 1);
    const auto result = bshd(out.data(), 1, 2, 1, 1);
    rope::attention(of_q, of_k, of_v, result, options);
    rope::attention_gradient(
        testing::tape(of_q, of_k, of_v, result, bshd(g.data(), 1, 2, 1, 1), bshd(d.data(), 1, 2, 1, 2),
                      bshd(d.data() + 4, 1, 3, 1, 2), bshd(d.data() + 10, 1, 3, 1, 1)),
        options);
    return d;
  };
  CHECK(gradients_for(1e20f) == gradients_for(1));
}

TEST_CASE("without keys, queries or batch rows the gradients are zero", "[attention]") {
  for (const attention_call::extents e : {attention_call::extents{1, 3, 0, 2, 1, 4, 4},
                                          {1, 0, 3, 2, 1, 4, 4},
                                          {0, 3, 3, 2, 1, 4, 4},
                                          {1, 3, 3, 0, 0, 4, 4},
                                          {1, 3, 3, 0, 2, 4, 4},
                                          {1, 3, 3, 2, 1, 4, 0},
                                          {1, 3, 3, 2, 1, 0, 0}}) {
    std::mt19937 generator(1);
    const inputs in = random_inputs<float>(generator, e);
    const results r = gradients<float>(in, in.g, {});
    for (const tensor* x : {&r.q, &r.k, &r.v}) CHECK(x->values == std::vector<double>(x->values.size(), 0.0));
  }
}

TEST_CASE("an invalid backward pass throws before anything is written", "[attention]") {
  std::mt19937 generator(2);
  const inputs in = random_inputs<float>(generator, {1, 3, 5, 4, 2, 6, 4});
  const tensor out(1, 3, 4, 4);
  const rope::frequency_table<float> shorter(rope::frequencies(6), 4), wide(rope::frequencies(8), 5);
  std::vector<float> other(1000);
  const std::vector<float> logits = {1, 2, 3, 4};
  const results r = gradients_with<float>(
      in, out, {}, axes::bshd,
      [&](auto q, auto k, auto v, auto o, auto g, auto d_q, auto d_k, auto d_v, auto) {
        const auto rejects = [&](const char* text, auto call) {
          CHECK(throws_saying<std::invalid_argument>(call, "rope::attention_gradient: ", text));
        };
        rejects("out must be [1, 3, 4, 4], got [1, 3, 4, 6]",
                [&] { rope::attention_gradient(testing::tape(q, k, v, q, g, d_q, d_k, d_v)); });
        rejects("d_out must be",
                [&] { rope::attention_gradient(testing::tape(q, k, v, o, q, d_q, d_k, d_v)); });
        rejects("d_q must be [1, 3, 4, 6]",
                [&] { rope::attention_gradient(testing::tape(q, k, v, o, g, d_k, d_k, d_v)); });
        rejects("d_k must be [1, 5, 2, 6]",
                [&] { rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_q, d_v)); });
        rejects("d_v must be [1, 5, 2, 4]",
                [&] { rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_k)); });
        for (const int written : {0, 1, 2})
          rejects("the channels of a view that is written must not overlap, got a stride of 0", [&] {
            auto tape = testing::tape(q, k, v, o, g, d_q, d_k, d_v);
            (written == 0 ? tape.d_q : written == 1 ? tape.d_k : tape.d_v).token_stride = 0;
            rope::attention_gradient(tape);
          });
        rejects("v must be [1, 5, 2, 4]", [&] {
          rope::attention_gradient(testing::tape(q, k, v.token_range(0, 4), o, g, d_q, d_k, d_v));
        });
        rejects("q and k must have the same head_dim", [&] {
          rope::attention_gradient(testing::tape(q.channels(0, 5), k, v, o, g, d_q, d_k, d_v));
        });
        rejects("q.heads must be a multiple of k.heads, got 3 and 2", [&] {
          rope::attention_gradient(testing::tape(q.head_range(0, 3), k, v, o, g, d_q, d_k, d_v));
        });
        rejects("window must not be negative", [&] {
          rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), {.window = -1});
        });
        rejects("sink_logits must be empty or have length 4", [&] {
          rope::attention_options options;
          options.sink_logits = std::span(logits).first(3);
          rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), options);
        });
        std::vector<double> three(3);
        rejects("the gradient with respect to sink_logits must have their length, 0, got 3", [&] {
          rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), {}, {.sink_logits = three});
        });
        const std::vector<float> by_distance(17);
        rejects("the gradient with respect to bias needs strides that are not negative, got -1", [&] {
          rope::attention_options relative;
          relative.bias = {by_distance.data() + 8, 1, 1, q.tokens, k.tokens, 0, 0, -1, 1};
          rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), relative, {.bias = three});
        });
        rejects(
            "the gradient with respect to bias must have length 0, from the first entry of the bias in "
            "memory to its last (0 without options.bias), got 3",
            [&] {
              rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), {}, {.bias = three});
            });
        rejects("the gradient with respect to bias must have length 17, from", [&] {
          rope::attention_options with_gaps;
          with_gaps.bias = {by_distance.data(), 1, 1, q.tokens, k.tokens, 0, 0, 6, 1};
          rope::attention_gradient(testing::tape(q, k, v, o, g, d_q, d_k, d_v), with_gaps, {.bias = three});
        });
        rejects("rotary_dim must not exceed head_dim, got 8 of 6", [&] {
          rope::attention_gradient<half_split>(testing::tape(q, k, v, o, g, d_q, d_k, d_v), wide);
        });
        CHECK(throws_saying<std::out_of_range>(
            [&] {
              rope::attention_gradient<half_split>(testing::tape(q, k, v, o, g, d_q, d_k, d_v), shorter);
            },
            "rope::attention_gradient: position 4 is outside the table's [0, 4)"));
      });
  for (const tensor* x : {&r.q, &r.k, &r.v})
    CHECK(x->values == std::vector<double>(x->values.size(), attention_call::unwritten));
}
