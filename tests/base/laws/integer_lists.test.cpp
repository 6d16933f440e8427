// SPDX-License-Identifier: MIT
// Lists of integers are read in place, from every type that callers use.
#include <rope/base/integer_list.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <unsupported/Eigen/CXX11/Tensor>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::Index;
using rope::detail::list_of;

/// Element (r, c) is 10 r + c, which only the right memory order gives.
template <class List>
void check_matrix(const List& list, Index rows, Index columns) {
  REQUIRE(list.rows == rows);
  REQUIRE(list.columns == columns);
  CHECK(list.size() == rows * columns);
  CHECK_FALSE(list.empty());
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) CHECK(list(r, c) == 10 * r + c);
  CHECK_THROWS_AS(list.as_vector("ids"), std::invalid_argument);
}

/// Element i is 3 i.
template <class List>
void check_vector(const List& list, Index count) {
  REQUIRE(list.rows == 1);
  REQUIRE(list.columns == count);
  CHECK(list.size() == count);
  CHECK(list.empty() == (count == 0));
  for (Index i = 0; i < count; ++i) {
    CHECK(list[i] == 3 * i);
    CHECK(list(0, i) == 3 * i);
  }
  CHECK(&list.as_vector("ids") == &list);
}

template <int order>
void check_matrices() {
  Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, order> ids(4, 6);
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 6; ++c) ids(r, c) = 10 * (r - 1) + c - 2;
  check_matrix(list_of(ids.block(1, 2, 3, 4)), 3, 4);
  check_matrix(list_of(ids.block(1, 2, 2, 2)), 2, 2);
  Eigen::Matrix<int, Eigen::Dynamic, Eigen::Dynamic, order> multiples(3, 5);
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 5; ++c) multiples(r, c) = r == 1 ? 3 * c : -1;
  check_vector(list_of(multiples.row(1)), 5);
  check_vector(list_of(multiples.block(1, 0, 1, 5)), 5);  // a matrix that happens to be one row
  for (int r = 0; r < 3; ++r)
    for (int c = 0; c < 5; ++c) multiples(r, c) = c == 3 ? 3 * r : -1;
  check_vector(list_of(multiples.col(3)), 3);
  check_vector(list_of(multiples.block(0, 3, 3, 1)), 3);
  check_vector(list_of(multiples.block(0, 3, 1, 1)), 1);

  Eigen::Tensor<std::int64_t, 2, order> tensor(3, 4);
  for (Index r = 0; r < 3; ++r)
    for (Index c = 0; c < 4; ++c) tensor(r, c) = 10 * r + c;
  check_matrix(list_of(tensor), 3, 4);
}

}  // namespace

TEST_CASE("lists of integers are read in place, in any memory order", "[base]") {
  check_matrices<Eigen::ColMajor>();
  check_matrices<Eigen::RowMajor>();
  const std::vector<std::uint8_t> bytes = {0, 3, 6, 9};
  const int plain[] = {0, 3, 6};
  check_vector(list_of(bytes), 4);
  check_vector(list_of(plain), 3);
  check_vector(list_of(std::array<long, 2>{0, 3}), 2);
  check_vector(list_of(std::span<const std::uint8_t>(bytes).first(2)), 2);
  check_vector(list_of(std::vector<int>{}), 0);
  Eigen::Tensor<int, 1> tensor(4);
  for (int i = 0; i < 4; ++i) tensor(i) = 3 * i;
  check_vector(list_of(tensor), 4);
}

TEST_CASE("an integer matrix with a single row or column is a vector", "[base]") {
  const int numbers[] = {0, -1, 3, -1, 6, -1, 9};
  using list = rope::detail::integer_list<int>;
  check_vector(list(numbers, 4, 2), 4);
  check_vector(list(numbers, 1, 4, 99, 2), 4);
  check_vector(list(numbers, 4, 1, 2, 99), 4);
  check_vector(list(numbers, 0, 4, 99, 2), 0);
  check_vector(list(numbers, 4, 0, 2, 99), 0);
  check_vector(list(), 0);
  CHECK(list().data == nullptr);
}

TEST_CASE("a matrix with more integers than an Index counts is a length error", "[base]") {
  using list = rope::detail::integer_list<int>;
  constexpr Index largest = std::numeric_limits<Index>::max();
  const int number = 0;
  CHECK(list(&number, largest / 3, 3, 0, 0).size() == largest / 3 * 3);
  CHECK(testing::throws_saying<std::length_error>(
      [&] { list(&number, largest / 2 + 1, 2, 0, 0); },
      "the matrix exceeds the address space, got [" + std::to_string(largest / 2 + 1) + ", 2]"));
}

TEST_CASE("an expression of integers is evaluated once, and a copy owns its memory", "[base]") {
  int evaluations = 0;
  const auto counted = Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic>::NullaryExpr(
      3, 4, [&](Eigen::Index r, Eigen::Index c) { return ++evaluations, static_cast<int>(10 * r + c); });
  using evaluated = rope::detail::evaluated_list<int>;
  const evaluated first(counted);
  CHECK(evaluations == 12);
  check_matrix(first, 3, 4);
  const evaluated second(first);
  check_matrix(second, 3, 4);
  CHECK(second.data == second.memory.data());
  CHECK(second.data != first.data);
  CHECK(evaluations == 12);
}
