// SPDX-License-Identifier: MIT
#include <rope/base/owned_array.hpp>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

using rope::Index;
using rope::owned_array;
using testing::throws_saying;

namespace {

owned_array<double> counted(Index rows, Index columns) {
  owned_array<double> array(rows, columns);
  for (Index c = 0; c < columns; ++c)
    for (Index r = 0; r < rows; ++r) array(r, c) = static_cast<double>(10 * r + c);
  return array;
}

template <class A, class B>
bool same(const A& a, const B& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() && (a == b).all();
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<owned_array<float>>);
static_assert(std::is_nothrow_move_assignable_v<owned_array<float>>);
static_assert(!std::is_nothrow_copy_assignable_v<owned_array<float>>);  // or a class with one would terminate
static_assert(std::is_nothrow_default_constructible_v<owned_array<float, 1>>);

TEST_CASE("an owned array is an expression of Eigen", "[base]") {
  owned_array<double> array = counted(3, 2);
  array.col(1) += 100;
  array.row(0).setConstant(-1);
  array *= 2;
  Eigen::ArrayXXd expected(3, 2);
  expected << -2, -2, 20, 222, 40, 242;
  CHECK(same(array, expected));
  const Eigen::ArrayXXd copy = array, other(array);
  CHECK(same(copy, expected));
  CHECK(same(other, expected));
  const Eigen::Ref<const Eigen::ArrayXXd> seen = array;
  CHECK(same(array + seen, 2 * expected));
  CHECK(array.matrix().transpose().rows() == 2);
}

TEST_CASE("an owned array is column-major whatever Eigen's default is", "[base]") {
  const owned_array<double> array = counted(3, 2);
  CHECK(array.data()[1] == 10);
  CHECK(array.data()[3] == 1);
  const Eigen::Array<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows = array;
  CHECK(same(owned_array<double>(rows), array));
  CHECK(same(array.map(), array));
  CHECK(array.map().data() == array.data());
}

TEST_CASE("an owned array takes the shape of the assigned expression", "[base]") {
  owned_array<double> array = counted(3, 2);
  array = array.topRows(2);  // of itself
  CHECK(same(array, counted(2, 2)));
  array = counted(5, 1);
  CHECK(same(array, counted(5, 1)));
  array = Eigen::ArrayXXd::Zero(4, 7);
  CHECK(array.rows() == 4);
  CHECK(array.cols() == 7);
  array = owned_array<double>();
  CHECK(array.size() == 0);
  array.resize(2, 3);
  CHECK(array.cols() == 3);

  owned_array<double, 1> list = Eigen::RowVectorXd::LinSpaced(3, 0, 2);
  CHECK(list.rows() == 3);
  list = Eigen::MatrixXd::Ones(5, 1);
  CHECK(list.size() == 5);
  list.resize(7);
  CHECK(list.size() == 7);
  const owned_array<double> row(
      rope::number_array<double>(1, 3, 2.0));  // only a list is copied along its column
  CHECK(row.rows() == 1);
  CHECK(row.cols() == 3);
  double sum = 0;
  for (double& number : list) number = 1;
  for (const double number : list) sum += number;
  CHECK(sum == 7);
}

TEST_CASE("copies of an owned array own their memory", "[base]") {
  owned_array<double> array = counted(3, 2), copy = array;
  copy(0, 0) = 5;
  CHECK(array(0, 0) == 0);
  owned_array<double>& self = array;
  array = self;
  CHECK(same(array, counted(3, 2)));
  array = std::move(self);
  CHECK(same(array, counted(3, 2)));
  std::swap(array, copy);
  CHECK(array(0, 0) == 5);
  CHECK(copy(0, 0) == 0);
  std::vector<owned_array<double>> several(3, array);
  several.erase(several.begin());
  CHECK(same(several[1], array));
}

TEST_CASE("an owned array that was moved from is empty", "[base]") {
  owned_array<double> array = counted(3, 2);
  const double* memory = array.data();
  owned_array<double> moved = std::move(array);
  CHECK(moved.data() == memory);
  CHECK(array.rows() == 0);  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(array.cols() == 0);
  array = std::move(moved);
  CHECK(same(array, counted(3, 2)));
  CHECK(moved.size() == 0);
  owned_array<double, 1> list(4), other = std::move(list);
  CHECK(list.size() == 0);
  list = other;
  CHECK(list.size() == 4);
}

TEST_CASE("an owned array throws if its shape does not fit in memory", "[base]") {
  constexpr Index most = (std::numeric_limits<Index>::max)();
  CHECK(throws_saying<std::length_error>([] { owned_array<double>(most / 8 + 1, 1); },
                                         "rope::number_array: ["));
  CHECK(throws_saying<std::length_error>([] { owned_array<double>(most / 16, 3); }, "address space"));
  CHECK(throws_saying<std::length_error>([] { owned_array<double>(-1, 3); }, "[-1, 3]"));
  CHECK(owned_array<std::int64_t>(most, 0).cols() == 0);
}
