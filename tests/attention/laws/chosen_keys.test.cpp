// SPDX-License-Identifier: MIT
// Keys that are chosen for each query, as a range or as a list. A range gives the bits of the rule that it
// describes, and agrees with a mask of the same keys to rounding.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/attention/gradient.hpp>
#include <rope/attention/weight_sums.hpp>
#include <rope/attention/weights.hpp>
#include <rope/positions/key_ranges.hpp>
#include <rope/positions/selected_keys.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/xpos.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

using attention_call::operands;
using reference::tensor;
using testing::largest_difference;
using testing::same_bits;

namespace {

using range_list = std::vector<rope::key_range>;

template <class T, class Threads = rope::this_thread>
tensor attend_to(const operands& x, const rope::attention_options& options, const Threads& threads = {}) {
  return attention_call::output_of<T>(x, testing::axes::bshd, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, options, threads);
  });
}

/// Compares outputs, log-sum-exps and weights with the definition, on one thread and on two.
template <class T>
features::result check_definition(const features::setting& s, const operands& x) {
  const features::result exact = features::definition(s, x);
  std::vector<double> sums(exact.log_sum_exp.size(), -7), sums_of_two = sums;
  const tensor got = attend_to<T>(x, s.with(sums));
  CHECK(features::out_error<T>(exact, got) <= 1);
  CHECK(features::log_sum_error<T>(exact, sums) <= 1);
  CHECK(same_bits(attend_to<T>(x, s.with(sums_of_two), testing::own_threads(2)), got));
  CHECK(same_bits(sums_of_two, sums));

  const auto q = testing::stored<T>(x.q), k = testing::stored<T>(x.k);
  std::vector<attention_call::arithmetic<T>> weights(exact.weights.size(), -1);
  rope::attention_weights(attention_call::view(q, x.q), attention_call::view(k, x.k), weights, s.options);
  CHECK(features::weight_error(exact, weights) <= 1);
  return exact;
}

/// Compares the bits of attention that rotates by a table with those of attention after `rotate`.
template <class Layout, class T>
void check_rotation(const features::setting& s, const operands& x) {
  const rope::frequency_table<float> table(rope::frequencies(x.q.dim), -700, 1400);
  auto q = testing::stored<T>(x.q), k = testing::stored<T>(x.k);
  rope::rotate<Layout>(attention_call::view(q, x.q), table, s.query_positions);
  rope::rotate<Layout>(attention_call::view(k, x.k), table, s.key_positions);
  const operands rotated = {testing::loaded(q, x.q), testing::loaded(k, x.k), x.v};
  const tensor got = attention_call::output_of<T>(
      x, testing::axes::bhsd, [&](auto q_view, auto k_view, auto v_view, auto out) {
        rope::attention<Layout>(q_view, k_view, v_view, out, table, s.options);
      });
  CHECK(same_bits(got, attend_to<T>(rotated, s.options)));
}

/// Whether a call with these options writes nothing and throws a message with `rule` and `got`.
bool rejects(const operands& x, const rope::attention_options& options, const char* rule, const char* got) {
  bool rejected = false;
  attention_call::output_of<float>(x, testing::axes::bshd, [&](auto q, auto k, auto v, auto out) {
    rejected = testing::throws_saying<std::invalid_argument>([&] { rope::attention(q, k, v, out, options); },
                                                             "attention: ", rule, got);
    for (rope::Index n = 0; n < out.size(); ++n)
      rejected = rejected && out.data[n] == static_cast<float>(attention_call::unwritten);
  });
  return rejected;
}

/// The ranges of [batch * queries] queries. The last query is aligned with the last key.
template <class RangeOf>
range_list ranges_of(const attention_call::extents& e, long batch, const RangeOf& range_of) {
  range_list ranges;
  for (long b = 0; b < batch; ++b)
    for (long i = 0; i < e.queries; ++i) ranges.push_back(range_of(e.keys - e.queries + i));
  return ranges;
}

}  // namespace

TEMPLATE_TEST_CASE("ranges that describe a rule give the same bits as the rule", "[attention]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  features::dice dice(71);
  // Decoding steps, a prefill, and a chunk of a prefill. Several splits of keys, and ranges that end within a
  // tile.
  const attention_call::extents all[] = {{2, 1, 2500, 4, 2, 16, 12},
                                         {1, 3, 1300, 6, 2, 7, 5},
                                         {2, 200, 200, 4, 2, 8, 8},
                                         {1, 90, 700, 2, 1, 8, 8}};
  for (const auto& e : all) {
    CAPTURE(e.queries, e.keys);
    const operands x = attention_call::random_operands<TestType>(dice.generator(), e);
    for (const long rows : {1L, e.batch}) {
      const auto causal = ranges_of(e, rows, [](long t) { return rope::key_range{0, t + 1}; });
      CHECK(same_bits(attend_to<TestType>(x, {.key_ranges = causal}), attend_to<TestType>(x, {})));
      // `causal` is ignored.
      CHECK(same_bits(attend_to<TestType>(x, {.causal = false, .key_ranges = causal}),
                      attend_to<TestType>(x, {})));
      const auto everything = ranges_of(e, rows, [&](long) { return rope::key_range{0, e.keys}; });
      CHECK(same_bits(attend_to<TestType>(x, {.key_ranges = everything}),
                      attend_to<TestType>(x, {.causal = false})));
      const long window = 77;
      const auto near = ranges_of(e, rows, [&](long t) {
        return rope::key_range{std::max(0L, t - window + 1), std::min(t + 1, window)};
      });
      CHECK(same_bits(attend_to<TestType>(x, {.key_ranges = near}),
                      attend_to<TestType>(x, {.window = window})));
    }
  }
}

TEST_CASE("packed rows of a batch, and padded segments, attend as each row of segments does alone",
          "[attention]") {
  features::dice dice(77);
  const long tokens = 160;
  const attention_call::extents e = {2, tokens, tokens, 4, 2, 8, 6};
  const operands x = attention_call::random_operands<float>(dice.generator(), e);
  const std::vector<std::int64_t> offsets[] = {{0, 40, 41, tokens}, {0, 130, tokens}},
                                  lengths[] = {{31, 0, 119}, {7, 30}};
  for (const bool causal : {true, false}) {
    range_list packed, padded;
    for (const std::size_t b : {0u, 1u}) {
      for (const rope::key_range& r : rope::segment_ranges(offsets[b], causal)) packed.push_back(r);
      for (const rope::key_range& r : rope::segment_ranges(offsets[b], causal, lengths[b]))
        padded.push_back(r);
    }
    const tensor got = attend_to<float>(x, {.key_ranges = packed}),
                 real = attend_to<float>(x, {.key_ranges = padded});
    for (long b = 0; b < 2; ++b) {
      const auto row = [b](const tensor& all) {
        tensor one(1, all.tokens, all.heads, all.dim);
        std::copy_n(all.values.begin() + b * static_cast<long>(one.values.size()), one.values.size(),
                    one.values.begin());
        return one;
      };
      const auto at = static_cast<std::size_t>(b);
      const tensor alone =
          attend_to<float>({row(x.q), row(x.k), row(x.v)}, {.causal = causal, .query_offsets = offsets[at]});
      CHECK(same_bits(row(got), alone));
      for (std::size_t segment = 0; segment + 1 < offsets[at].size(); ++segment)
        for (long t = offsets[at][segment]; t < offsets[at][segment + 1]; ++t) {
          const bool is_padding = t >= offsets[at][segment] + lengths[at][segment];
          for (long h = 0; h < e.heads; ++h)
            for (long c = 0; c < e.value_dim; ++c) {
              if (is_padding) CHECK(real(b, t, h, c) == 0);
              if (causal && !is_padding) CHECK(real(b, t, h, c) == alone(0, t, h, c));
            }
        }
    }
  }
}

TEMPLATE_TEST_CASE("ranges follow the definition together with every other option", "[attention]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 72;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice, draw % 6 == 5 ? 3000 : 300);
    features::give_ranges(dice, s);
    const operands x = attention_call::random_operands<TestType>(dice.generator(), s.e);
    check_definition<TestType>(s, x);
  }
}

TEMPLATE_TEST_CASE("a range and a mask of the same keys differ by rounding", "[attention]", float, double) {
  features::dice dice(73);
  const attention_call::extents e = {2, 130, 420, 4, 2, 16, 16};
  const operands x = attention_call::random_operands<TestType>(dice.generator(), e);
  range_list ranges;
  const std::unique_ptr<bool[]> mask(new bool[static_cast<std::size_t>(e.batch * e.queries * e.keys)]());
  for (long n = 0; n < e.batch * e.queries; ++n) {
    const long first = dice.up_to(e.keys), count = dice.up_to(e.keys - first);
    ranges.push_back({first, count});
    std::fill_n(mask.get() + n * e.keys + first, count, true);
  }
  const tensor by_range = attend_to<TestType>(x, {.key_ranges = ranges}),
               by_mask = attend_to<TestType>(
                   x,
                   {.causal = false, .mask = rope::score_matrix(mask.get(), e.batch, 1, e.queries, e.keys)});
  // Weighted means of values in [-1, 1) of at most 420 keys: twice the bound of one of them.
  const double bound = 2 * 60 * static_cast<double>(std::numeric_limits<TestType>::epsilon());
  const double worst = largest_difference(by_mask, by_range);
  CHECK(worst <= bound);
  CHECK(worst < 1);
}

TEMPLATE_TEST_CASE("ranges use the index of a key, and rotation uses its position", "[attention]", float,
                   Eigen::bfloat16) {
  features::dice dice(74);
  for (const long queries : {2L, 60L})
    for (int order = 0; order < 3; ++order) {
      CAPTURE(queries, order);
      features::setting s;
      s.e = {2, queries, 150, 4, 2, 8, 6};
      for (long n = 0; n < s.e.batch * s.e.queries; ++n) s.query_positions.push_back(dice.up_to(600) - 300);
      for (long n = 0; n < s.e.batch * s.e.keys; ++n)
        s.key_positions.push_back(order == 0 ? n % s.e.keys : order == 1 ? n * 3 : dice.up_to(600) - 300);
      s.options.query_positions = s.query_positions;
      s.options.key_positions = s.key_positions;
      features::give_ranges(dice, s);
      const operands x = attention_call::random_operands<TestType>(dice.generator(), s.e);
      check_rotation<rope::half_split, TestType>(s, x);
      check_rotation<rope::interleaved, TestType>(s, x);
    }
}

TEST_CASE("keys outside of every range may contain anything", "[attention]") {
  features::dice dice(75);
  const auto nan = static_cast<double>(std::numeric_limits<float>::quiet_NaN());
  for (const long queries : {1L, 3L, 150L}) {
    CAPTURE(queries);
    const attention_call::extents e = {1, queries, 2000, 4, 2, 16, 16};
    operands x = attention_call::random_operands<float>(dice.generator(), e);
    range_list ranges;
    for (long i = 0; i < queries; ++i) ranges.push_back({300 + i, 700 + i % 7});
    const tensor clean = attend_to<float>(x, {.key_ranges = ranges});
    for (long j = 0; j < e.keys; ++j)
      if (j < 300 || j >= 300 + queries + 706)
        for (long h = 0; h < e.kv_heads; ++h) {
          for (long c = 0; c < e.dim; ++c) x.k(0, j, h, c) = nan;
          for (long c = 0; c < e.value_dim; ++c) x.v(0, j, h, c) = nan;
        }
    CHECK(same_bits(attend_to<float>(x, {.key_ranges = ranges}), clean));
  }
}

TEST_CASE("invalid ranges throw and nothing is written", "[attention]") {
  features::dice dice(76);
  const attention_call::extents e = {2, 3, 5, 2, 1, 4, 4};
  const operands x = attention_call::random_operands<float>(dice.generator(), e);
  const range_list four(4), fits(3, {0, 5}),
      negative = {{0, 1}, {-1, 2}, {0, 0}}, short_of = {{0, 1}, {0, 2}, {1, -1}},
      beyond = {{0, 1}, {2, 4}, {0, 0}},
      huge = {{2, std::numeric_limits<rope::Index>::max()}, {0, 0}, {0, 0}};
  CHECK(rejects(x, {.key_ranges = four}, "key_ranges must be empty or have length 3 or 6", "got 4"));
  CHECK(rejects(x, {.key_ranges = negative}, "key_ranges must lie within the 5 keys of the call",
                "got {first = -1, count = 2} for query 1"));
  CHECK(rejects(x, {.key_ranges = short_of}, "within the 5 keys", "got {first = 1, count = -1} for query 2"));
  CHECK(rejects(x, {.key_ranges = beyond}, "within the 5 keys", "got {first = 2, count = 4} for query 1"));
  CHECK(rejects(x, {.key_ranges = huge}, "within the 5 keys", "for query 0"));
  CHECK(rejects(x, {.window = 2, .key_ranges = fits}, "so window and sinks must be 0", "got 2 and 0"));
  CHECK(rejects(x, {.sinks = 1, .key_ranges = fits}, "so window and sinks must be 0", "got 0 and 1"));
  attention_call::output_of<float>(x, testing::axes::bshd, [&](auto q, auto k, auto v, auto out) {
    const rope::xpos<float> tables(rope::frequencies(4), 16, {.center = 8});
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention<rope::half_split>(q, k, v, out, tables, {.key_ranges = fits}); },
        "xPos needs causal attention, which key_ranges replace; give a mask, got 3 key_ranges"));
  });
}

// Selected keys: a list of all keys gives attention to all of them, values are added in the order of the
// list, and every list follows its definition together with all other options.

namespace {

/// The largest difference of two results for values in [-1, 1), each within 60 roundings of the exact one.
template <class T>
double bound_of_two() {
  return 120 * static_cast<double>(std::numeric_limits<T>::epsilon());
}

}  // namespace

TEMPLATE_TEST_CASE("a list of all keys, in any order, is attention to all of them", "[attention]", float,
                   double) {
  features::dice dice(91);
  for (const long queries : {1L, 40L}) {
    CAPTURE(queries);
    const attention_call::extents e = {2, queries, 1300, 4, 2, 16, 12};
    const operands x = attention_call::random_operands<TestType>(dice.generator(), e);
    std::vector<std::int32_t> in_order, shuffled;
    for (long i = 0; i < queries; ++i) {
      for (long j = 0; j < e.keys; ++j) in_order.push_back(static_cast<std::int32_t>(j));
      shuffled.insert(shuffled.end(), in_order.begin(), in_order.begin() + e.keys);
      std::shuffle(shuffled.end() - e.keys, shuffled.end(), dice.generator());
    }
    const rope::selected_shape shape = {.queries = queries, .keys = e.keys};
    for (const bool causal : {true, false}) {
      const tensor all = attend_to<TestType>(x, {.causal = causal});
      const tensor in_order_out =
          attend_to<TestType>(x, {.causal = causal, .selected = {in_order.data(), shape}});
      CHECK(largest_difference(in_order_out, all) <= bound_of_two<TestType>());
      // A decoding step reads them with the same kernel.
      if (queries == 1) CHECK(same_bits(in_order_out, all));
      CHECK(largest_difference(
                attend_to<TestType>(x, {.causal = causal, .selected = {shuffled.data(), shape}}), all) <=
            bound_of_two<TestType>());
    }
  }
}

TEMPLATE_TEST_CASE("selected keys follow the definition together with every other option", "[attention]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 92;
  features::dice dice(seed);
  for (int draw = 0; draw < testing::draws(60); ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice, draw % 6 == 5 ? 3000 : 300);
    if (draw % 4 == 3) features::give_ranges(dice, s);
    features::give_selected(dice, s);
    const operands x = attention_call::random_operands<TestType>(dice.generator(), s.e);
    const features::result exact = check_definition<TestType>(s, x);

    using A = attention_call::arithmetic<TestType>;
    const auto q = testing::stored<TestType>(x.q), k = testing::stored<TestType>(x.k);
    // The log-sum-exp of these weights: each weight has an error below 200 u and is at most 1.
    std::vector<A> by_key(static_cast<std::size_t>(s.e.batch * s.e.heads * s.e.keys), -1);
    rope::attention_weight_sums(attention_call::view(q, x.q), attention_call::view(k, x.k),
                                std::span<A>(by_key), s.options);
    std::vector<double> sums(by_key.size());
    const auto keys = static_cast<std::size_t>(s.e.keys), queries = static_cast<std::size_t>(s.e.queries);
    for (std::size_t n = 0; n < sums.size(); ++n)
      for (std::size_t i = 0; i < queries; ++i)
        sums[n] += exact.weights[(n / keys * queries + i) * keys + n % keys];
    CHECK(largest_difference(by_key, sums) <= 200 * static_cast<double>(s.e.queries + 1) *
                                                  static_cast<double>(std::numeric_limits<A>::epsilon()));
  }
}

TEMPLATE_TEST_CASE("selected keys are rotated by their own positions", "[attention]", float,
                   Eigen::bfloat16) {
  features::dice dice(93);
  for (const long heads : {4L, 60L}) {  // in decoding, and by the prefill kernel
    features::setting s;
    s.e = {2, 3, 150, heads, 1, 8, 6};
    for (long n = 0; n < s.e.batch * s.e.queries; ++n) s.query_positions.push_back(dice.up_to(600) - 300);
    for (long n = 0; n < s.e.batch * s.e.keys; ++n) s.key_positions.push_back(dice.up_to(600) - 300);
    s.options.query_positions = s.query_positions;
    s.options.key_positions = s.key_positions;
    features::give_selected(dice, s);
    const operands x = attention_call::random_operands<TestType>(dice.generator(), s.e);
    check_rotation<rope::half_split, TestType>(s, x);
    check_rotation<rope::interleaved, TestType>(s, x);
  }
}

TEST_CASE("keys that are not selected may contain anything", "[attention]") {
  features::dice dice(94);
  const attention_call::extents e = {1, 2, 700, 4, 2, 16, 16};
  operands x = attention_call::random_operands<float>(dice.generator(), e);
  std::vector<std::int64_t> lists;
  for (long n = 0; n < 2 * 300; ++n) lists.push_back(n % 300 * 2);
  const rope::attention_options options = {.causal = false,
                                           .selected = {lists.data(), {.queries = 2, .keys = 300}}};
  const tensor clean = attend_to<float>(x, options);
  for (long j = 1; j < e.keys; j += j < 600 ? 2 : 1)
    for (long h = 0; h < e.kv_heads; ++h)
      for (long c = 0; c < e.dim; ++c)
        x.k(0, j, h, c) = x.v(0, j, h, c) = static_cast<double>(std::numeric_limits<float>::quiet_NaN());
  CHECK(same_bits(attend_to<float>(x, options), clean));
  x.v(0, 10, 1, 3) = static_cast<double>(std::numeric_limits<float>::quiet_NaN());  // a selected one
  CHECK(std::isnan(attend_to<float>(x, options)(0, 0, 3, 3)));
}

TEST_CASE("a key that is listed twice throws in debug builds and counts twice in others", "[attention]") {
  features::dice dice(95);
  const attention_call::extents e = {1, 1, 9, 1, 1, 4, 4};
  const operands x = attention_call::random_operands<float>(dice.generator(), e);
  const std::vector<int> twice = {3, 5, 3, -1, 99};
#ifdef NDEBUG
  // exp(s) counts twice, like a bias of log 2.
  const std::vector<int> once = {3, 5};
  std::vector<float> bias(9, 0);
  bias[3] = 0.69314718f;
  const tensor got = attend_to<float>(x, {.selected = twice}),
               expected = attend_to<float>(
                   x, {.bias = rope::score_matrix(bias.data(), 1, 1, 1, 9), .selected = once});
  CHECK(largest_difference(got, expected) <= bound_of_two<float>());
  CHECK(largest_difference(got, attend_to<float>(x, {.selected = once})) > 1e-3);
#else
  CHECK(testing::throws_saying<std::invalid_argument>([&] { attend_to<float>(x, {.selected = twice}); },
                                                      "attention: a list must select a key once",
                                                      "got key 3 twice for query 0 of row 0"));
#endif
}

TEST_CASE("invalid lists throw and nothing is written", "[attention]") {
  features::dice dice(96);
  const attention_call::extents e = {2, 3, 5, 4, 2, 4, 4};
  const operands x = attention_call::random_operands<float>(dice.generator(), e);
  std::vector<int> list(60, -1);
  CHECK(rejects(x, {.selected = {list.data(), {.queries = 4, .keys = 5}}},
                "selected must have 3 queries, or batch * queries = 6", "got 4"));
  CHECK(rejects(x, {.selected = {list.data(), {.queries = 3, .key_heads = 4, .keys = 5}}},
                "selected must have 1 list for each query or 2, one for each key head", "got 4"));
  CHECK(rejects(x, {.dropout = 0.5, .selected = {list.data(), {.queries = 3, .keys = 5}}},
                "selected keys have no dropout; give a mask of the same keys", "got 0.5"));
  list[5] = 5;
  CHECK(rejects(x, {.selected = {list.data(), {.queries = 3, .keys = 5}}},
                "selected keys must be in [0, 5), or -1 where a list ends", "got 5 for query 1 of row 0"));
  list[5] = -2;
  CHECK(rejects(x, {.selected = {list.data(), {.queries = 3, .keys = 5}}}, "or -1 where a list ends",
                "got -2 for query 1"));
  list[5] = 4;
  const std::vector<std::int64_t> counts = {5, 4}, queries = {1, 3};
  CHECK(rejects(
      x,
      {.query_counts = queries, .key_counts = counts, .selected = {list.data(), {.queries = 3, .keys = 5}}},
      "selected keys must be in [0, 4)", "got 4 for query 1 of row 1"));
  const tensor kept = attend_to<float>(
      x, {.query_counts = std::vector<std::int64_t>{1, 1},
          .key_counts = counts,
          .selected = {list.data(), {.queries = 3, .keys = 5}}});  // the list of a padded query is not read
  CHECK(kept(0, 0, 0, 0) == 0);                                    // an empty list
}

TEST_CASE("selected keys have no gradient", "[attention]") {
  features::dice dice(97);
  const attention_call::extents e = {1, 1, 5, 2, 1, 4, 4};
  const operands x = attention_call::random_operands<float>(dice.generator(), e);
  const std::vector<int> list = {1, 2};
  auto q = testing::stored<float>(x.q), k = testing::stored<float>(x.k), v = testing::stored<float>(x.v),
       out = q, d_q = q, d_k = k, d_v = v;
  const std::vector<float> before = d_q;
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        rope::attention_gradient(
            rope::attention_tape<float>{attention_call::view(q, x.q), attention_call::view(k, x.k),
                                        attention_call::view(v, x.v), attention_call::view(out, x.q),
                                        attention_call::view(out, x.q), attention_call::view(d_q, x.q),
                                        attention_call::view(d_k, x.k), attention_call::view(d_v, x.v)},
            {.selected = list});
      },
      "selected keys have no gradient; give a mask of the same keys, got lists of 1 queries"));
  CHECK(same_bits(d_q, before));
}
