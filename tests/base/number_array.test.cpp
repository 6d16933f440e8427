// SPDX-License-Identifier: MIT
#include <rope/base/number_array.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "support/catch.hpp"
#include "support/errors.hpp"

using rope::Index;
using rope::number_array;
using testing::throws_saying;

namespace {

number_array<int> counted(Index rows, Index columns) {
  number_array<int> array(rows, columns);
  for (Index c = 0; c < columns; ++c)
    for (Index r = 0; r < rows; ++r) array(r, c) = static_cast<int>(10 * r + c);
  return array;
}

bool same(const number_array<int>& a, const number_array<int>& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  for (Index i = 0; i < a.size(); ++i)
    if (a(i) != b(i)) return false;
  return true;
}

template <class T>
void check_memory() {
  for (const Index count : {1, 7, 1000}) {
    CAPTURE(count, sizeof(T));
    const number_array<T> array(count), copy = array;
    CHECK(reinterpret_cast<std::uintptr_t>(array.data()) % 64 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(copy.data()) % 64 == 0);
  }
  const std::size_t most = static_cast<std::size_t>(-1) / sizeof(T);
  for (const std::size_t count : {most + 1, most + 2, most + most / 2}) {
    CAPTURE(count, sizeof(T));
    CHECK(throws_saying<std::length_error>(
        [&] { rope::detail::check_block("block", count, sizeof(T)); }, "rope::block: ",
        std::to_string(count) + " elements of " + std::to_string(sizeof(T)) +
            " bytes exceed the address space"));
  }
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<number_array<float>>);
static_assert(std::is_nothrow_move_assignable_v<number_array<float>>);
static_assert(!std::is_nothrow_copy_assignable_v<number_array<float>>);
static_assert(std::is_nothrow_default_constructible_v<number_array<float>>);

TEST_CASE("a number array is column-major, and map shows its memory to Eigen", "[base]") {
  number_array<int> array = counted(3, 2);
  CHECK(array.data()[1] == 10);
  CHECK(array.data()[3] == 1);
  CHECK(array(5) == 21);
  array.map().col(1) += 100;
  CHECK(array(0, 1) == 101);
  CHECK(array(2, 1) == 121);
  CHECK(array(2, 0) == 20);
  const number_array<int>& constant = array;
  CHECK(constant(2, 1) == 121);
  CHECK(constant(1, 0) == 10);
  CHECK(constant.end() - constant.begin() == 6);
  CHECK(constant.map().data() == array.data());
  CHECK(constant.map().rows() == 3);
  CHECK(constant.map().cols() == 2);
  CHECK(same(number_array<int>(constant.map()), array));
  const Eigen::Array<int, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows = array.map();
  CHECK(same(number_array<int>(rows), array));
}

TEST_CASE("a number array is filled, multiplied and divided as a whole", "[base]") {
  number_array<double> array(2, 3, 6.0);
  CHECK(array.size() == 6);
  array *= 2;
  for (const double number : array) CHECK(number == 12);
  array /= 3;
  for (const double number : array) CHECK(number == 4);
  CHECK(number_array<double>(4).size() == 4);
  array.resize(5);
  CHECK(array.rows() == 5);
  CHECK(array.cols() == 1);
}

TEST_CASE("copies of a number array own their memory", "[base]") {
  number_array<int> array = counted(3, 2), copy = array;
  copy(0, 0) = 5;
  CHECK(array(0, 0) == 0);
  number_array<int>& self = array;
  array = self;
  CHECK(same(array, counted(3, 2)));
  array = std::move(self);
  CHECK(same(array, counted(3, 2)));
  copy = array;
  CHECK(same(copy, array));
  CHECK(copy.data() != array.data());
}

TEST_CASE("a number array that was moved from is empty", "[base]") {
  number_array<int> array = counted(3, 2);
  const int* memory = array.data();
  number_array<int> moved = std::move(array);
  CHECK(moved.data() == memory);
  CHECK(array.empty());  // NOLINT(bugprone-use-after-move): the state under test
  CHECK(array.rows() == 0);
  CHECK(array.cols() == 0);
  CHECK(array.data() == nullptr);
  array = counted(4, 1);
  array = std::move(moved);
  CHECK(array.data() == memory);
  CHECK(same(array, counted(3, 2)));
  CHECK(moved.empty());
  CHECK(moved.rows() == 0);
}

TEST_CASE("a number array over the caller's memory does not free it, and copies own theirs", "[base]") {
  int numbers[6] = {1, 2, 3, 4, 5, 6};
  {
    number_array<int> array = number_array<int>::over(numbers, 3, 2);
    CHECK(array(1, 1) == 5);
    array(1, 1) = 7;
    const number_array<int> copy = array;
    number_array<int> moved = std::move(array), assigned;
    CHECK(array.data() == nullptr);  // NOLINT(bugprone-use-after-move): the state under test
    assigned = moved;
    CHECK(moved.data() == numbers);
    numbers[0] = 9;
    CHECK(moved(0) == 9);
    CHECK(copy(0) == 1);
    CHECK(assigned(0) == 1);
    array = std::move(moved);
    CHECK(array.data() == numbers);
    array = copy;
    CHECK(same(array, copy));
    moved = copy;
    CHECK(moved.data() != numbers);
  }
  CHECK(numbers[4] == 7);
}

TEST_CASE("a number array without numbers has no memory, nor do its copies", "[base]") {
  const number_array<int> none, no_columns(3, 0), copy = none, copy_of_shape = no_columns;
  for (const number_array<int>* array : {&none, &no_columns, &copy, &copy_of_shape}) {
    CHECK(array->data() == nullptr);
    CHECK(array->begin() == array->end());
  }
  CHECK(none.rows() == 0);
  CHECK(none.cols() == 0);
  CHECK(copy_of_shape.rows() == 3);
}

TEST_CASE("a number array throws if its shape does not fit in memory", "[base]") {
  constexpr Index most = (std::numeric_limits<Index>::max)();
  CHECK(
      throws_saying<std::length_error>([] { number_array<double>(most / 8 + 1); }, "rope::number_array: ["));
  CHECK(throws_saying<std::length_error>([] { number_array<double>(most / 16, 3); }, "address space"));
  CHECK(throws_saying<std::length_error>([] { number_array<double>(-1, 3); }, "[-1, 3]"));
  CHECK(number_array<std::int64_t>(most, 0).cols() == 0);
}

TEST_CASE("numbers begin at a cache line, and blocks beyond the address space throw", "[base]") {
  check_memory<float>();
  check_memory<double>();
  check_memory<std::uint16_t>();
}
