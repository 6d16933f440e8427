// SPDX-License-Identifier: MIT
#include <rope/rotation/normed_table.hpp>

#include <rope/rotation/rotate.hpp>

#include <type_traits>
#include <vector>

#include "support/catch.hpp"

using rope::head_norm;
using rope::normed_table;

namespace {

template <class Table>
concept rotates = requires(rope::head_view<float> x, const Table& table) {
  rope::rotate<rope::half_split>(x, table);
};

}  // namespace

TEST_CASE("a normed table keeps the norm, the table and its first channel", "[rotation][head_norm]") {
  const std::vector<double> weight(8, 2.0);
  const rope::frequency_table<float> table(rope::frequencies(4), 10);
  const head_norm<double> norm = {.weight = weight, .epsilon = 0.5};
  const normed_table plain(norm, table), placed(norm, table.at_channel(4));
  static_assert(std::is_same_v<decltype(plain), const normed_table<float, double>>);
  CHECK(plain.norm().weight.data() == weight.data());
  CHECK(plain.norm().epsilon == 0.5);
  CHECK(&plain.table().table() == &table);
  CHECK(plain.table().first_channel() == 0);
  CHECK(placed.table().first_channel() == 4);
}

TEST_CASE("calls that would rotate without the norm do not accept a normed table", "[rotation][head_norm]") {
  using table = rope::frequency_table<float>;
  using normed = normed_table<float, float>;
  static_assert(rope::key_table<table> && rope::key_table<rope::placed_table<float>> &&
                rope::key_table<normed>);
  static_assert(rope::rotation_table<table> && !rope::rotation_table<normed>);
  static_assert(rotates<table> && !rotates<normed>);
  static_assert(!rope::key_table<head_norm<float>> && !rope::key_table<int>);
  SUCCEED();
}
