// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/xpos.hpp>

#include <stdexcept>
#include <type_traits>

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace rope;
using testing::throws_saying;

static_assert(rotation_table<frequency_table<float>> && rotation_table<placed_table<double>>);
static_assert(!rotation_table<frequencies> && !rotation_table<xpos<float>> &&
              !rotation_table<query_key_tables<float>>);
static_assert(attention_tables<placed_table<float>> && attention_tables<xpos<float>::placed>);
static_assert(std::is_trivially_copyable_v<placed_table<float>>);

TEST_CASE("a placed table refers to its table", "[tables]") {
  const frequency_table<double> table(frequencies(8), 20);
  const auto placed = table.at_channel(5);
  static_assert(std::is_same_v<decltype(placed), const placed_table<double>>);
  CHECK(&placed.table() == &table);
  CHECK(placed.first_channel() == 5);
  const placed_table first = table;
  CHECK(&first.table() == &table);
  CHECK(first.first_channel() == 0);
}

TEST_CASE("a negative first channel throws", "[tables]") {
  const frequency_table<float> table(frequencies(8), 20);
  CHECK(throws_saying<std::invalid_argument>([&] { table.at_channel(-1); }, "first_channel", "at least 0",
                                             "-1"));
  const xpos<float> both(frequencies(8), 20, {.center = 10});
  CHECK(throws_saying<std::invalid_argument>([&] { both.at_channel(-3); }, "first_channel", "-3"));
}
