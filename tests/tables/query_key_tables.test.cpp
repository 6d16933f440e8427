// SPDX-License-Identifier: MIT
#include <rope/tables/query_key_tables.hpp>

#include <rope/attention/attention.hpp>
#include <rope/attention/weights.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/xpos.hpp>

#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"

using attention_call::axes;
using attention_call::operands;
using attention_call::random_operands;
using reference::tensor;
using rope::half_split;
using rope::Index;

namespace {

/// The result of rotating queries and keys with `rotate`.
template <class T, class S>
tensor rotated_before(operands x, const rope::frequency_table<S>& queries,
                      const rope::frequency_table<S>& keys, Index first_query) {
  auto q = attention_call::stored<T>(x.q), k = attention_call::stored<T>(x.k);
  rope::rotate<half_split>(attention_call::view(q, x.q), queries, first_query);
  rope::rotate<half_split>(attention_call::view(k, x.k), keys);
  x.q = attention_call::loaded(q, x.q);
  x.k = attention_call::loaded(k, x.k);
  return attention_call::output_of<T>(
      x, axes::bshd, [](auto a, auto b, auto c, auto out) { rope::attention(a, b, c, out); });
}

}  // namespace

static_assert(rope::attention_tables<rope::frequency_table<float>>);
static_assert(rope::attention_tables<rope::query_key_tables<double>>);
static_assert(rope::attention_tables<rope::xpos<float>>);
static_assert(!rope::attention_tables<rope::attention_options>);
static_assert(!rope::attention_tables<rope::frequencies>);

TEMPLATE_TEST_CASE("queries and keys rotate with different tables", "[tables]", float, double, Eigen::half) {
  using S = std::conditional_t<std::is_same_v<TestType, double>, double, float>;
  const std::uint32_t seed = testing::seed();
  std::mt19937 generator(seed);
  const long queries = GENERATE(1, 5, 70);
  CAPTURE(seed, queries);
  const operands x = random_operands<TestType>(generator, {2, queries, 70, 4, 2, 16, 8});
  const rope::frequency_table<S> of_queries(rope::frequencies(12), 70),
      of_keys(rope::frequencies(16, 500.0), 70);
  const tensor expected = rotated_before<TestType>(x, of_queries, of_keys, 70 - queries);
  const auto with = [&](const auto& tables, const auto&... threads) {
    return attention_call::output_of<TestType>(x, axes::bshd, [&](auto q, auto k, auto v, auto out) {
      rope::attention<half_split>(q, k, v, out, tables, {}, threads...);
    });
  };
  CHECK(with(rope::query_key_tables(of_queries, of_keys)).values == expected.values);
  CHECK(with(rope::query_key_tables(of_queries, of_keys), testing::own_threads{3}).values == expected.values);
  CHECK(with(rope::query_key_tables(of_keys, of_queries)).values != expected.values);
  CHECK(with(rope::query_key_tables(of_keys, of_keys)).values == with(of_keys).values);
}

TEST_CASE("weights of attention accept tables of queries and of keys", "[tables]") {
  std::mt19937 generator(testing::seed());
  const operands x = random_operands<float>(generator, {1, 3, 7, 2, 1, 8, 8});
  const rope::frequency_table<float> of_queries(rope::frequencies(8), 7),
      of_keys(rope::frequencies(8, 50.0), 7);
  auto q = attention_call::stored<float>(x.q), k = attention_call::stored<float>(x.k);
  std::vector<float> got(3 * 7 * 2), expected(got.size());
  const auto queries = attention_call::view(q, x.q), keys = attention_call::view(k, x.k);
  rope::attention_weights<half_split>(queries, keys, std::span(got),
                                      rope::query_key_tables(of_queries, of_keys));
  rope::rotate<half_split>(queries, of_queries, 4);
  rope::rotate<half_split>(keys, of_keys);
  rope::attention_weights(queries, keys, std::span(expected));
  CHECK(got == expected);
}

TEST_CASE("a position outside either table throws before anything is written", "[tables]") {
  std::mt19937 generator(testing::seed());
  const operands x = random_operands<float>(generator, {1, 3, 7, 1, 1, 8, 8});
  const rope::frequency_table<float> enough(rope::frequencies(8), 7),
      queries_only(rope::frequencies(8), 4, 7), short_by_one(rope::frequencies(8), 6);
  const tensor out = attention_call::output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
    for (const auto& tables : {rope::query_key_tables(short_by_one, enough), {enough, short_by_one}})
      CHECK(
          testing::throws_saying<std::out_of_range>([&] { rope::attention<half_split>(q, k, v, to, tables); },
                                                    "rope::attention: position 6 is outside"));
  });
  CHECK(out.values == tensor(1, 3, 1, 8, attention_call::unwritten).values);
  attention_call::output_of<float>(x, axes::bshd, [&](auto q, auto k, auto v, auto to) {
    CHECK_NOTHROW(rope::attention<half_split>(q, k, v, to, rope::query_key_tables(queries_only, enough)));
  });
}

static_assert(rope::rotation_table<rope::frequency_table<float>> &&
              rope::rotation_table<rope::placed_table<double>>);
static_assert(!rope::rotation_table<rope::frequencies> && !rope::rotation_table<rope::xpos<float>> &&
              !rope::rotation_table<rope::query_key_tables<float>>);
static_assert(rope::attention_tables<rope::placed_table<float>> &&
              rope::attention_tables<rope::xpos<float>::placed>);
static_assert(std::is_trivially_copyable_v<rope::placed_table<float>>);

TEST_CASE("a placed table refers to its table", "[tables]") {
  const rope::frequency_table<double> table(rope::frequencies(8), 20);
  const auto placed = table.at_channel(5);
  static_assert(std::is_same_v<decltype(placed), const rope::placed_table<double>>);
  CHECK(&placed.table() == &table);
  CHECK(placed.first_channel() == 5);
  const rope::placed_table first = table;
  CHECK(&first.table() == &table);
  CHECK(first.first_channel() == 0);
}

TEST_CASE("a negative first channel throws", "[tables]") {
  const rope::frequency_table<float> table(rope::frequencies(8), 20);
  CHECK(testing::throws_saying<std::invalid_argument>([&] { table.at_channel(-1); }, "first_channel",
                                                      "at least 0", "-1"));
  const rope::xpos<float> both(rope::frequencies(8), 20, {.center = 10});
  CHECK(testing::throws_saying<std::invalid_argument>([&] { both.at_channel(-3); }, "first_channel", "-3"));
}
