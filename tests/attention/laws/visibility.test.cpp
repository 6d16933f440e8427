// SPDX-License-Identifier: MIT
// The keys visible to a query, written out as masks. Hidden keys never affect its output.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_reference.hpp"
#include "support/catch.hpp"

using namespace attention_call;
using reference::attention_rule;
using pattern = std::vector<std::string>;

namespace {

/// One row per query, one column per key: '1' if the key has a weight, '.' if it has none. Every score is 0
/// and value j is the unit vector e_j, so the output channels of a query are its weights, which are all
/// equal.
pattern weights(long queries, long keys, const attention_rule& rule) {
  operands x = {tensor(1, queries, 1, 2), tensor(1, keys, 1, 2), tensor(1, keys, 1, keys)};
  for (long j = 0; j < keys; ++j) x.v(0, j, 0, j) = 1;
  const tensor out = attention<double>(x, rule);
  pattern result;
  for (long i = 0; i < queries; ++i) {
    std::string row;
    for (long j = 0; j < keys; ++j) row += out(0, i, 0, j) == 0 ? '.' : '1';
    result.push_back(row);
    const auto visible = static_cast<double>(std::count(row.begin(), row.end(), '1'));
    // A sum of ones is exact. The division rounds once, or twice if it multiplies by a reciprocal.
    const double u = 0x1p-53;
    for (long j = 0; j < keys; ++j)
      if (out(0, i, 0, j) != 0) CHECK(std::abs(out(0, i, 0, j) * visible - 1) <= 4 * u);
  }
  return result;
}

constexpr attention_rule causal = {.causal = true}, full = {.causal = false};
constexpr attention_rule causal_window = {.causal = true, .window = 2},
                         window = {.causal = false, .window = 2};

}  // namespace

TEST_CASE("the last query is aligned with the last key", "[attention]") {
  CHECK(weights(2, 5, causal) == pattern{"1111.",  //
                                         "11111"});
  CHECK(weights(3, 3, causal) == pattern{"1..",  //
                                         "11.",  //
                                         "111"});
  CHECK(weights(5, 2, causal) == pattern{"..",  //
                                         "..",  //
                                         "..",  //
                                         "1.",  //
                                         "11"});
  CHECK(weights(1, 4, causal) == pattern{"1111"});
  CHECK(weights(2, 3, full) == pattern{"111", "111"});
  CHECK(weights(3, 2, full) == pattern{"11", "11", "11"});
}

TEST_CASE("with a causal window of 2 a query attends to its own key and the one before", "[attention]") {
  CHECK(weights(2, 5, causal_window) == pattern{"..11.",  //
                                                "...11"});
  CHECK(weights(3, 3, causal_window) == pattern{"1..",  //
                                                "11.",  //
                                                ".11"});
  CHECK(weights(5, 2, causal_window) == pattern{"..",  //
                                                "..",  //
                                                "..",  //
                                                "1.",  //
                                                "11"});
}

TEST_CASE("a window of 2 without causality reaches one key on either side", "[attention]") {
  CHECK(weights(2, 5, window) == pattern{"..111",  //
                                         "...11"});
  CHECK(weights(4, 4, window) == pattern{"11..",  //
                                         "111.",  //
                                         ".111",  //
                                         "..11"});
  CHECK(weights(5, 2, window) == pattern{"..",  //
                                         "..",  //
                                         "1.",  //
                                         "11",  //
                                         "11"});
}

TEST_CASE("a window of 1 is the query's own key, and one as long as the keys hides nothing", "[attention]") {
  for (const bool is_causal : {true, false}) {
    CHECK(weights(3, 3, {.causal = is_causal, .window = 1}) == pattern{"1..", ".1.", "..1"});
    for (const long limit : {5L, 6L, 1000L, std::numeric_limits<long>::max()})
      CHECK(weights(3, 5, {.causal = is_causal, .window = limit}) == weights(3, 5, {.causal = is_causal}));
  }
}

TEST_CASE("masks apply across every boundary of a tile", "[attention]") {
  const long queries = GENERATE(63, 64, 65, 129), keys = GENERATE(63, 64, 65, 128, 129);
  for (const attention_rule& rule :
       {causal, full, causal_window, window, attention_rule{.causal = true, .window = 64},
        attention_rule{.causal = false, .window = 65}}) {
    pattern expected;
    for (long i = 0; i < queries; ++i) {
      std::string row;
      for (long j = 0; j < keys; ++j) row += reference::sees(i, j, queries, keys, rule) ? '1' : '.';
      expected.push_back(row);
    }
    CAPTURE(queries, keys, rule.causal, rule.window);
    CHECK(weights(queries, keys, rule) == expected);
  }
}

TEST_CASE("positions of keys beyond the count of a row may be anything", "[attention]") {
  const std::vector<std::int64_t> positions = {0, 1, (std::numeric_limits<std::int64_t>::min)(),
                                               (std::numeric_limits<std::int64_t>::max)()};
  const std::vector<std::int64_t> counts = {2};
  const std::vector<float> q = {1, 2}, k = {1, 0, 0, 1, 5, 5, 5, 5}, v = {1, 2, 3, 4, 9, 9, 9, 9};
  std::vector<float> out(2), expected(2);
  const auto of = [](auto& x, rope::Index tokens) { return rope::bshd(x.data(), 1, tokens, 1, 2); };
  rope::attention(of(q, 1), of(k, 2), of(v, 2), of(expected, 1));
  rope::attention(of(q, 1), of(k, 4), of(v, 4), of(out, 1),
                  {.key_positions = positions, .key_counts = counts});
  CHECK(out == expected);
}

TEMPLATE_TEST_CASE("a query without visible keys gives zeros", "[attention]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  std::mt19937 generator(21);
  const auto is_zero = [](const tensor& out, long queries) {
    bool zero = true;
    for_each_element(
        out, [&](long b, long t, long h, long d) { zero = zero && (t >= queries || out(b, t, h, d) == 0); });
    return zero;
  };
  // Causal, with more queries than keys: the first 70 of 75 queries are before the first key.
  const operands before = random_operands<TestType>(generator, {2, 75, 5, 4, 2, 8, 3});
  CHECK(is_zero(attention<TestType>(before, causal), 70));
  CHECK_FALSE(is_zero(attention<TestType>(before, causal), 71));
  // Without causality and with a window of 3, key 0 is visible to a query up to two positions before it.
  CHECK(is_zero(attention<TestType>(before, {.causal = false, .window = 3}), 68));
  CHECK_FALSE(is_zero(attention<TestType>(before, {.causal = false, .window = 3}), 69));
  const operands nothing = random_operands<TestType>(generator, {2, 75, 0, 4, 2, 8, 3});
  for (const attention_rule& rule : {causal, full, causal_window, window})
    CHECK(is_zero(attention<TestType>(nothing, rule), 75));
}

TEST_CASE("scores of ten thousand select the largest and do not overflow", "[attention]") {
  const long keys = GENERATE(1, 3, 64, 65, 200);
  const double scale = GENERATE(1e4, -1e4);
  CAPTURE(keys, scale);
  operands x = {tensor(1, 2, 2, 1, 1), tensor(1, keys, 1, 1, -scale / 1e4), tensor(1, keys, 1, 1)};
  for (long j = 0; j < keys; ++j) x.v(0, j, 0, 0) = static_cast<double>(j + 1);
  const attention_rule rule = {.scale = scale, .causal = false};

  // Every score is -1e4: the result is the mean of the values 1 .. keys. The sums are exact. The division is
  // as in `weights`.
  const double mean = static_cast<double>(keys + 1) / 2, u = 0x1p-24;
  for (const double value : attention<float>(x, rule).values) CHECK(std::abs(value - mean) <= 4 * u * mean);

  // One score is +1e4, at any index.
  const long winner = GENERATE_COPY(0L, keys / 2, keys - 1);
  x.k(0, winner, 0, 0) = scale / 1e4;
  const auto chosen = static_cast<double>(winner + 1);
  for (const double value : attention<float>(x, rule).values)
    CHECK(std::abs(value - chosen) <= 4 * u * chosen);
}

#if !defined(__FAST_MATH__)

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

tensor head_of(const tensor& out, long b, long t, long h) {
  tensor one(1, 1, 1, out.dim);
  for (long d = 0; d < out.dim; ++d) one(0, 0, 0, d) = out(b, t, h, d);
  return one;
}

}  // namespace

TEMPLATE_TEST_CASE("hidden keys and values never reach a query", "[attention]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  const std::uint32_t seed = 22;
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 3, 70), keys = 71, query = GENERATE_COPY(0L, queries / 2, queries - 1);
  const double poison = GENERATE(as<double>{}, not_a_number, infinite, -infinite);
  const operands x = random_operands<TestType>(generator, {2, queries, keys, 4, 2, 9, 5});
  for (const attention_rule& rule :
       {causal, causal_window, window, attention_rule{.causal = false, .window = 33, .softcap = 3}}) {
    CAPTURE(seed, queries, query, poison, rule.causal, rule.window);
    const tensor expected = attention<TestType>(x, rule);
    operands poisoned = x;
    for_each_element(x.k, [&](long b, long j, long h, long d) {
      if (b != 0 || h != 1 || !reference::sees(query, j, queries, keys, rule))
        poisoned.k(b, j, h, d) = poison;
    });
    for_each_element(x.v, [&](long b, long j, long h, long d) {
      if (b != 0 || h != 1 || !reference::sees(query, j, queries, keys, rule))
        poisoned.v(b, j, h, d) = poison;
    });
    for_each_element(x.q, [&](long b, long i, long h, long d) {
      if (b != 0 || h < 2 || i != query) poisoned.q(b, i, h, d) = poison;
    });
    const tensor got = attention<TestType>(poisoned, rule);
    for (const long h : {2, 3}) CHECK(same_bits(head_of(got, 0, query, h), head_of(expected, 0, query, h)));
  }
}

#endif
