// SPDX-License-Identifier: MIT
#include <rope/tables/row_maker.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/same_table.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::Index;
using rope::row_maker;
using testing::same_table;
using testing::throws_saying;

/// 37 pairs, which are two blocks and a part of one. Some of them do not rotate along every axis.
frequencies on_axes(Index axes, double attention_factor) {
  Eigen::ArrayXXd inv_freq(37, axes);
  for (Index i = 0; i < 37; ++i)
    for (Index a = 0; a < axes; ++a)
      inv_freq(i, a) = (i + a) % 4 == 3 ? 0
                                        : std::pow(-1.0, static_cast<double>(a)) /
                                              std::pow(1.3, static_cast<double>(i + a));
  return frequencies::custom(inv_freq, attention_factor);
}

/// Compares the rows and the table of a maker with those of a frequency_table.
template <class S, class Coordinates>
void check_rows(const frequencies& of, const Coordinates& coordinates) {
  const row_maker<S> maker(of);
  const frequency_table<S> expected(of, coordinates);
  std::vector<S> rows(static_cast<std::size_t>(expected.rows() * of.rotary_dim()));
  maker.write(coordinates, rows);
  for (Index r = 0; r < expected.rows(); ++r)
    for (Index i = 0; i < of.pairs(); ++i) {
      const auto cos = static_cast<std::size_t>(r * of.rotary_dim() + i);
      REQUIRE(rows[cos] == expected.cos(r)[i]);
      REQUIRE(rows[cos + static_cast<std::size_t>(of.pairs())] == expected.sin(r)[i]);
    }
  std::vector<std::byte> memory(maker.memory_size(expected.rows()) + 3, std::byte{7});
  for (std::size_t offset = 0; offset <= 3; ++offset) {
    const frequency_table<S> table = maker.table(coordinates, std::span(memory).subspan(offset));
    REQUIRE(same_table(table, expected));
    REQUIRE(reinterpret_cast<std::uintptr_t>(table.coordinates().data()) % alignof(double) == 0);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("rows and tables of a row_maker are those of a frequency_table", "[tables][row_maker]",
                   float, double) {
  const std::uint64_t seed = 48;
  CAPTURE(seed);
  testing::random random(seed);
  for (const double attention_factor : {1.0, 0.7})
    for (const Index axes : {1, 2, 3}) {
      CAPTURE(attention_factor, axes);
      const frequencies of = on_axes(axes, attention_factor);
      Eigen::ArrayXXd real(6, axes);
      for (Index r = 0; r < real.rows(); ++r)
        for (Index a = 0; a < axes; ++a) real(r, a) = random.scaled(-10, 20);
      real.row(1).setZero();
      const Eigen::ArrayXXi whole = (real * 16).cast<int>();
      const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> floats =
          real.cast<float>().matrix();
      check_rows<TestType>(of, real);
      check_rows<TestType>(of, whole);
      check_rows<TestType>(of, floats);
      check_rows<TestType>(of, real.topRows(2) * 2);
      check_rows<TestType>(of, real.topRows(0));
    }
}

TEMPLATE_TEST_CASE("a row at a position is that of a frequency_table", "[tables][row_maker]", float, double) {
  const frequencies of = on_axes(1, 1.25);
  const row_maker<TestType> maker(of);
  std::vector<TestType> row(static_cast<std::size_t>(maker.rotary_dim()));
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-77}, std::int64_t{131071}, std::int64_t{1} << 40,
        -(std::int64_t{1} << 62)}) {
    CAPTURE(position);
    maker.write(position, row);
    const frequency_table<TestType> table(of, position, position + 1);
    CHECK(std::equal(row.begin(), row.begin() + 37, table.cos(position).data()));
    CHECK(std::equal(row.begin() + 37, row.end(), table.sin(position).data()));
  }
}

TEST_CASE("a table of a row_maker uses the given memory, and a copy of it does not", "[tables][row_maker]") {
  const frequencies of = on_axes(2, 1);
  const row_maker<> maker(of);
  const Eigen::Array2Xd places = (Eigen::Array2Xd(2, 2) << 3, 4.5, -2, 8).finished();
  const auto first = places.topRows(1), second = places.bottomRows(1);
  const frequency_table<> at_first(of, first), at_second(of, second);
  std::vector<std::byte> memory(maker.memory_size(1));
  frequency_table<> table = maker.table(first, memory);
  const auto* entries = reinterpret_cast<const std::byte*>(table.cos(0).data());
  CHECK(entries >= memory.data());
  CHECK(entries < memory.data() + memory.size());
  const frequency_table<> copy = table;
  frequency_table<> assigned(of, second);
  assigned = table;
  frequency_table<> moved = std::move(table);
  CHECK(moved.cos(0).data() == reinterpret_cast<const float*>(entries));
  CHECK(table.rows() == 0);
  table = maker.table(second, memory);
  CHECK(same_table(table, at_second));
  CHECK(same_table(copy, at_first));
  CHECK(same_table(assigned, at_first));
  // The memory of a table may be gone when another table is assigned to it.
  table = at_first;
  std::fill(memory.begin(), memory.end(), std::byte{});
  CHECK(same_table(table, at_first));
}

TEST_CASE("invalid rows of a row_maker throw before anything is written", "[tables][row_maker]") {
  const row_maker<> one(frequencies(8)), maker(on_axes(2, 1));
  const auto untouched = std::vector<float>(2 * 74, 5);
  std::vector<float> rows = untouched, row(7, 5);
  std::vector<std::byte> memory(maker.memory_size(2), std::byte{5});
  const std::vector<std::byte> unwritten = memory;
  Eigen::ArrayXXd places = Eigen::ArrayXXd::Zero(2, 2);
  const auto rejected = [&](const auto& coordinates, const auto&... parts) {
    return throws_saying<std::invalid_argument>([&] { maker.write(coordinates, rows); }, parts...) &&
           throws_saying<std::invalid_argument>([&] { maker.table(coordinates, memory); }, parts...) &&
           rows == untouched && memory == unwritten;
  };
  CHECK(rejected(places.leftCols(1), "row_maker: coordinates must be [rows, 2], got [2, 1]"));
  places(1, 1) = 0x1p53 + 2;
  CHECK(rejected(places, "at most 2^53 in magnitude, got 9007199254740994", "at row 1, axis 1"));
  places(1, 1) = std::numeric_limits<double>::infinity();
  CHECK(rejected(places, "row_maker: a coordinate must be finite"));
  CHECK(rejected(Eigen::Array<std::int64_t, 2, 2>::Constant(std::numeric_limits<std::int64_t>::min()),
                 "row_maker: a coordinate must be finite"));
  places(1, 1) = 1;
  CHECK(throws_saying<std::invalid_argument>([&] { maker.write(places.topRows(1), rows); },
                                             "row_maker::write: 1 rows of 37 pairs have 74 entries", "148"));
  CHECK(throws_saying<std::invalid_argument>([&] { maker.table(places, std::span(memory).subspan(1)); },
                                             "row_maker::table: the memory of 2 rows must have at least "
                                             "memory_size(2) = " +
                                                 std::to_string(memory.size()) + " bytes, got " +
                                                 std::to_string(memory.size() - 1)));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { maker.write(3, rows); }, "row_maker::write: a position needs frequencies of one axis, got 2"));
  CHECK(throws_saying<std::invalid_argument>([&] { one.write(3, row); }, "8 entries, got memory of 7"));
  CHECK(throws_saying<std::length_error>(
      [&] { one.write(std::numeric_limits<std::uint64_t>::max(), std::span(rows).first(8)); }, "below 2^63"));
  CHECK(rows == untouched);
  CHECK(row == std::vector<float>(7, 5));
  CHECK(memory == unwritten);
  CHECK(throws_saying<std::invalid_argument>([&] { maker.memory_size(-1); }, "must not be negative, got -1"));
  CHECK(throws_saying<std::length_error>([&] { maker.memory_size(std::numeric_limits<Index>::max()); },
                                         "exceed the address space"));
  CHECK(throws_saying<std::invalid_argument>([] { row_maker<>(on_axes(1, 0x1p-130)); },
                                             "rope::row_maker: attention_factor"));
  frequencies gone = on_axes(1, 1);
  const frequencies taken = std::move(gone);
  CHECK(throws_saying<std::invalid_argument>([&] { row_maker<>{gone}; },
                                             "rope::row_maker: frequencies must have a pair, got 0"));
}
