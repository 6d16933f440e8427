// SPDX-License-Identifier: MIT
// Selected keys: a list of all keys is attention to all of them, the order of a list is the order of its
// sums, and every list follows its definition together with all other options.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <rope/attention/gradient.hpp>
#include <rope/attention/weight_sums.hpp>
#include <rope/attention/weights.hpp>
#include <rope/positions/selected_keys.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"

using attention_call::operands;
using reference::tensor;
using testing::same_bits;

namespace {

template <class T, class Threads = rope::this_thread>
tensor attend_to(const operands& x, const rope::attention_options& options, const Threads& threads = {}) {
  return attention_call::output_of<T>(x, testing::axes::bhsd, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, options, threads);
  });
}

/// The largest difference, or infinity if one number is NaN.
double distance(const tensor& a, const tensor& b) {
  double worst = 0;
  for (std::size_t n = 0; n < a.values.size(); ++n)
    if (const double off = std::abs(a.values[n] - b.values.at(n)); !(off <= worst))
      worst = off > worst ? off : std::numeric_limits<double>::infinity();
  return worst;
}

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
      CHECK(distance(in_order_out, all) <= bound_of_two<TestType>());
      // A decoding step reads them with the same kernel.
      if (queries == 1) CHECK(same_bits(in_order_out, all));
      CHECK(distance(attend_to<TestType>(x, {.causal = causal, .selected = {shuffled.data(), shape}}), all) <=
            bound_of_two<TestType>());
    }
  }
}

TEMPLATE_TEST_CASE("selected keys follow the definition together with every other option", "[attention]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 92;
  features::dice dice(seed);
  for (int draw = 0; draw < 60; ++draw) {
    CAPTURE(seed, draw);
    features::setting s = features::draw(dice, draw % 6 == 5 ? 3000 : 300);
    if (draw % 4 == 3) features::give_ranges(dice, s);
    features::give_selected(dice, s);
    const operands x = attention_call::random_operands<TestType>(dice.generator(), s.e);
    const features::result exact = features::definition(s, x);
    std::vector<double> sums(exact.log_sum_exp.size(), -7), sums_of_two = sums;
    const tensor got = attend_to<TestType>(x, s.with(sums));
    CHECK(features::out_error<TestType>(exact, got) <= 1);
    CHECK(features::log_sum_error<TestType>(exact, sums) <= 1);
    CHECK(same_bits(attend_to<TestType>(x, s.with(sums_of_two), testing::own_threads(2)), got));
    CHECK(same_bits(sums_of_two, sums));

    using A = attention_call::arithmetic<TestType>;
    const auto q = testing::stored<TestType>(x.q), k = testing::stored<TestType>(x.k);
    std::vector<A> weights(exact.weights.size(), -1);
    rope::attention_weights(attention_call::view(q, x.q), attention_call::view(k, x.k), weights, s.options);
    CHECK(features::weight_error(exact, weights) <= 1);

    // The log-sum-exp of these weights: each weight has an error below 200 u and is at most 1.
    std::vector<A> by_key(static_cast<std::size_t>(s.e.batch * s.e.heads * s.e.keys), -1);
    rope::attention_weight_sums(attention_call::view(q, x.q), attention_call::view(k, x.k),
                                std::span<A>(by_key), s.options);
    double worst = 0;
    const auto keys = static_cast<std::size_t>(s.e.keys), queries = static_cast<std::size_t>(s.e.queries);
    for (std::size_t n = 0; n < by_key.size(); ++n) {
      double sum = 0;
      for (std::size_t i = 0; i < queries; ++i)
        sum += exact.weights[(n / keys * queries + i) * keys + n % keys];
      if (const double off = std::abs(static_cast<double>(by_key[n]) - sum); !(off <= worst))
        worst = off > worst ? off : std::numeric_limits<double>::infinity();
    }
    CHECK(worst <= 200 * static_cast<double>(s.e.queries + 1) *
                       static_cast<double>(std::numeric_limits<A>::epsilon()));
  }
}

namespace {

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

}  // namespace

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
  CHECK(distance(got, expected) <= bound_of_two<float>());
  CHECK(distance(got, attend_to<float>(x, {.selected = once})) > 1e-3);
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
  const auto reports = [&](const rope::attention_options& options, const char* rule, const char* got) {
    bool written = false;
    attention_call::output_of<float>(x, testing::axes::bshd, [&](auto q, auto k, auto v, auto out) {
      CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::attention(q, k, v, out, options); },
                                                          "attention: ", rule, got));
      for (rope::Index n = 0; n < out.size(); ++n)
        written = written || out.data[n] != static_cast<float>(attention_call::unwritten);
    });
    CHECK(!written);
  };
  reports({.selected = {list.data(), {.queries = 4, .keys = 5}}}, "selected must have 3 or 6 queries",
          "got 4");
  reports({.selected = {list.data(), {.queries = 3, .key_heads = 4, .keys = 5}}},
          "selected must have 1 list for each query or 2, one for each key head", "got 4");
  reports({.dropout = 0.5, .selected = {list.data(), {.queries = 3, .keys = 5}}},
          "selected keys have no dropout; give a mask of the same keys", "got 0.5");
  list[5] = 5;
  reports({.selected = {list.data(), {.queries = 3, .keys = 5}}},
          "selected keys must be in [0, 5), or -1 where a list ends", "got 5 for query 1 of row 0");
  list[5] = -2;
  reports({.selected = {list.data(), {.queries = 3, .keys = 5}}}, "or -1 where a list ends",
          "got -2 for query 1");
  list[5] = 4;
  const std::vector<std::int64_t> counts = {5, 4}, queries = {1, 3};
  reports(
      {.query_counts = queries, .key_counts = counts, .selected = {list.data(), {.queries = 3, .keys = 5}}},
      "selected keys must be in [0, 4)", "got 4 for query 1 of row 1");
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
