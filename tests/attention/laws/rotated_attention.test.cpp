// SPDX-License-Identifier: MIT
// attention<Layout> rotates queries and keys as `rotate` does, and depends only on distances.
#include <rope/attention/attention.hpp>

#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/catch.hpp"
#include "support/reference.hpp"
#include "support/wide.hpp"

using namespace attention_call;
using reference::attention_rule;
using rope::frequency_table;
using rope::half_split;
using rope::interleaved;

namespace {

/// A user-defined layout: it pairs the outermost channels first.
struct nested {
  static constexpr rope::Index first(rope::Index i, rope::Index /*pairs*/) { return i; }
  static constexpr rope::Index second(rope::Index i, rope::Index pairs) { return 2 * pairs - 1 - i; }
};

/// attention<Layout>, which must not change q and k.
template <class Layout, class T, class S>
tensor rotated_attention(const operands& x, const frequency_table<S>& table, const attention_rule& rule,
                         axes order = axes::bshd) {
  const std::vector<std::int64_t> positions = positions_before_keys(x.q.tokens, x.k.tokens);
  rope::attention_options options = options_of(rule);
  options.query_positions = positions;
  return output_of<T>(x, order, [&](auto q, auto k, auto v, auto out) {
    rope::attention<Layout>(q, k, v, out, table, options);
    CHECK(same_bits(std::vector<T>(q.data, q.data + q.size()), stored<T>(x.q, order)));
    CHECK(same_bits(std::vector<T>(k.data, k.data + k.size()), stored<T>(x.k, order)));
  });
}

/// q and k rotated by the library: keys from position `start` on, and the last query at the position of the
/// last key.
template <class Layout, class T, class S>
operands rotated(const operands& x, const frequency_table<S>& table, long start = 0) {
  auto q = stored<T>(x.q), k = stored<T>(x.k);
  rope::rotate<Layout>(view(q, x.q), table, start + x.k.tokens - x.q.tokens);
  rope::rotate<Layout>(view(k, x.k), table, start);
  return {loaded(q, x.q), loaded(k, x.k), x.v};
}

template <class Layout, class T, class S>
void check_fusion(const operands& x, const frequency_table<S>& table, const attention_rule& rule) {
  const tensor expected = attention<T>(rotated<Layout, T>(x, table), rule);
  for (const axes order : {axes::bshd, axes::bhsd, axes::sbhd})
    CHECK(same_bits(rotated_attention<Layout, T>(x, table, rule, order), expected));
}

}  // namespace

TEMPLATE_TEST_CASE("attention with a table is rotate followed by attention, with the same bits",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 31;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 9, 70), keys = GENERATE(4, 70, 131), rotary_dim = GENERATE(2, 10, 18);
  const bool causal = GENERATE(true, false);
  CAPTURE(seed, queries, keys, rotary_dim, causal);
  const operands x = random_operands<TestType>(generator, {2, queries, keys, 4, 2, 18, 5});
  const rope::frequencies plain(rotary_dim), stretched = rope::frequencies::custom(plain.inv_freq(), 1.25);
  const attention_rule rule = {.causal = causal, .window = 40, .softcap = 3};
  const frequency_table<float> single(plain, -70, 131);
  const frequency_table<double> twice(stretched, -70, 131);
  check_fusion<interleaved, TestType>(x, single, rule);
  check_fusion<half_split, TestType>(x, single, rule);
  check_fusion<nested, TestType>(x, single, rule);
  check_fusion<interleaved, TestType>(x, twice, rule);
  check_fusion<half_split, TestType>(x, twice, rule);
}

namespace {

/// The error that rotating q and k adds to attention. A rotated pair has an error of at most 3.2 u times its
/// norm (tolerance.hpp), plus half an ulp of 16-bit channels. By Cauchy-Schwarz the error of a score is at
/// most twice that times |q| |k|, and dim * max|q| * max|k| is an upper bound of |q| |k|. An error e of every
/// weight changes the output by at most 2 e max|v|.
template <class T>
double rotation_share(const operands& x, const attention_rule& rule) {
  const auto u = static_cast<double>(tolerance::unit_roundoff<arithmetic<T>>());
  const double own = tolerance::is_16_bit<T> ? static_cast<double>(tolerance::unit_roundoff<T>()) : 0;
  const double largest_score =
      static_cast<double>(reference::scale_of(x.q.dim, rule) * x.q.dim) * x.q.largest() * x.k.largest();
  return 1.01 * 2 * x.v.largest() * 2 * (3.2 * u + own) * largest_score;
}

/// q and k rotated in long double.
template <class PairMap>
operands exactly_rotated(const operands& x, const rope::frequencies& frequencies, PairMap pair_map) {
  const std::vector<double> inv_freq(frequencies.inv_freq().data(),
                                     frequencies.inv_freq().data() + frequencies.pairs());
  const auto rotate = [&](const tensor& from, long start) {
    tensor to = from;
    for (long b = 0; b < from.batch; ++b)
      for (long t = 0; t < from.tokens; ++t)
        for (long h = 0; h < from.heads; ++h) {
          std::vector<testing::wide> head;
          for (long d = 0; d < from.dim; ++d) head.push_back(from(b, t, h, d));
          head = reference::rotate(head, inv_freq, start + t, pair_map);
          for (long d = 0; d < from.dim; ++d)
            to(b, t, h, d) = static_cast<double>(head[static_cast<std::size_t>(d)]);
        }
    return to;
  };
  return {rotate(x.q, x.k.tokens - x.q.tokens), rotate(x.k, 0), x.v};
}

template <class T>
double error_against(const operands& exact, const operands& x, const attention_rule& rule,
                     const tensor& got) {
  const double bound =
      reference::attention_bound<arithmetic<T>>(exact.q, exact.k, exact.v, rule) + rotation_share<T>(x, rule);
  return reference::worst_error<T>(got, reference::attention(exact.q, exact.k, exact.v, rule), bound);
}

}  // namespace

TEMPLATE_TEST_CASE("rotated attention follows its definition, and the other layout gives another result",
                   "[attention]", float, double, Eigen::half, Eigen::bfloat16) {
  const std::uint32_t seed = 32;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 9, 33), rotary_dim = GENERATE(8, 16);
  CAPTURE(seed, queries, rotary_dim);
  const operands x = random_operands<TestType>(generator, {2, queries, 33, 4, 2, 16, 5});
  const rope::frequencies frequencies(rotary_dim);
  const frequency_table<arithmetic<TestType>> table(frequencies, 33);
  const attention_rule rule = {.causal = GENERATE(true, false)};
  const operands neighbours = exactly_rotated(x, frequencies, reference::interleaved);
  const operands halves = exactly_rotated(x, frequencies, reference::half_split);
  const tensor by_neighbours = rotated_attention<interleaved, TestType>(x, table, rule);
  const tensor by_halves = rotated_attention<half_split, TestType>(x, table, rule);
  CHECK(error_against<TestType>(neighbours, x, rule, by_neighbours) <= 1);
  CHECK(error_against<TestType>(halves, x, rule, by_halves) <= 1);
  // The bound of a bfloat16 is as large as the difference.
  if (!std::is_same_v<TestType, Eigen::bfloat16>) {
    const double clearly_wrong = tolerance::is_16_bit<TestType> ? 4 : 100;
    CHECK(error_against<TestType>(neighbours, x, rule, by_halves) > clearly_wrong);
    CHECK(error_against<TestType>(halves, x, rule, by_neighbours) > clearly_wrong);
  }
}

TEMPLATE_TEST_CASE("shifting every position does not change the output", "[attention]", float, double) {
  const std::uint32_t seed = 33;
  std::mt19937 generator(seed);
  const operands x = random_operands<TestType>(generator, {1, 5, 20, 4, 2, 16, 5});
  const rope::frequencies frequencies(16, 500000.0);
  const attention_rule rule;
  for (const long start : {-5000L, -3L, 1L, 1000L, 100000L, 1L << 30}) {
    CAPTURE(seed, start);
    const frequency_table<TestType> table(frequencies, start, start + 20);
    const tensor shifted = attention<TestType>(rotated<half_split, TestType>(x, table, start), rule);
    CHECK(error_against<TestType>(exactly_rotated(x, frequencies, reference::half_split), x, rule, shifted) <=
          1);
  }
}

TEST_CASE("keys hidden by a window do not change the positions of visible ones", "[attention]") {
  std::mt19937 generator(34);
  const operands x = random_operands<double>(generator, {1, 3, 1007, 2, 1, 16, 5});
  const frequency_table<double> table(rope::frequencies(16), 1007);
  const attention_rule rule = {.window = 5};
  operands end = {x.q, tensor(1, 7, 1, 16), tensor(1, 7, 1, 5)};
  for_each_element(end.k, [&](long, long t, long, long d) { end.k(0, t, 0, d) = x.k(0, 1000 + t, 0, d); });
  for_each_element(end.v, [&](long, long t, long, long d) { end.v(0, t, 0, d) = x.v(0, 1000 + t, 0, d); });
  const operands exact = exactly_rotated(end, rope::frequencies(16), reference::interleaved);
  CHECK(error_against<double>(exact, end, rule, rotated_attention<interleaved, double>(end, table, rule)) <=
        1);
  CHECK(error_against<double>(exact, end, rule, rotated_attention<interleaved, double>(x, table, rule)) <= 1);
}

TEST_CASE("a position outside the table throws before anything is written", "[attention]") {
  const rope::frequencies frequencies(4);
  const operands x = {tensor(2, 3, 2, 4, 1), tensor(2, 8, 1, 4, 1), tensor(2, 8, 1, 4, 1)};
  for (const frequency_table<float>& table :
       {frequency_table<float>(frequencies, 7), frequency_table<float>(frequencies, 1, 9),
        frequency_table<float>(frequencies, 0)}) {
    CAPTURE(table.first(), table.last());
    const tensor out = output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
      CHECK_THROWS_AS(rope::attention<half_split>(q, k, v, to, table), std::out_of_range);
    });
    CHECK(out.values == tensor(2, 3, 2, 4, unwritten).values);
  }
  CHECK_NOTHROW(rotated_attention<half_split, float>(x, frequency_table<float>(frequencies, 8), {}));
}

TEST_CASE("a rotary_dim above head_dim throws before anything is written", "[attention]") {
  const operands x = {tensor(2, 3, 2, 4, 1), tensor(2, 8, 1, 4, 1), tensor(2, 8, 1, 4, 1)};
  const frequency_table<float> table(rope::frequencies(6), 8);
  const tensor out = output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
    CHECK_THROWS_AS(rope::attention<half_split>(q, k, v, to, table), std::invalid_argument);
    CHECK_THROWS_AS(rope::attention<half_split>(q, k, v.token_range(0, 7), to, table), std::invalid_argument);
  });
  CHECK(out.values == tensor(2, 3, 2, 4, unwritten).values);
}

TEST_CASE("queries without visible keys need no row of the table", "[attention]") {
  std::mt19937 generator(35);
  const operands x = random_operands<float>(generator, {2, 9, 4, 2, 1, 8, 3});
  const frequency_table<float> exact(rope::frequencies(8), 4), wide(rope::frequencies(8), -5, 4);
  CHECK(same_bits(rotated_attention<interleaved, float>(x, exact, {}),
                  rotated_attention<interleaved, float>(x, wide, {})));

  // Without causality every key is visible to them, from position -5 on.
  const attention_rule full = {.causal = false};
  CHECK_THROWS_AS((rotated_attention<interleaved, float>(x, exact, full)), std::out_of_range);
  CHECK_NOTHROW(rotated_attention<interleaved, float>(x, wide, full));

  const frequency_table<float> empty(rope::frequencies(8), 0);
  operands none = random_operands<float>(generator, {2, 9, 0, 2, 1, 8, 3});
  CHECK(rotated_attention<interleaved, float>(none, empty, {}).values == tensor(2, 9, 2, 3).values);
  none = random_operands<float>(generator, {0, 9, 4, 2, 1, 8, 3});
  CHECK_NOTHROW(rotated_attention<interleaved, float>(none, empty, {}));
}
