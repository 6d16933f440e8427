// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

using testing::allocations_in;

TEST_CASE("the counter detects every way to allocate", "[noalloc]") {
  void* volatile data = nullptr;  // volatile: otherwise the compiler removes an allocation that nothing reads
  const auto used = [&](void* allocated) { data = allocated, std::free(data); };
  CHECK(allocations_in([&] { used(std::malloc(1)); }) == 1);
  CHECK(allocations_in([&] { used(std::calloc(1, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::realloc(nullptr, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::aligned_alloc(64, 64)); }) == 1);
  CHECK(allocations_in([&] { data = std::vector<char>(1).data(); }) == 1);
  CHECK(allocations_in([&] { data = Eigen::ArrayXf(7).data(); }) == 1);
}

namespace {

/// All calls with one form of positions, in both directions, in place and out of place.
template <class Layout, class T, class S, class P>
long allocations_of(rope::head_view<T> x, rope::head_view<T> out, const rope::frequency_table<S>& table,
                    const P& positions) {
  const rope::head_view<const T> in = x;
  return allocations_in([&] {
    rope::rotate<Layout>(x, table, positions);
    rope::unrotate<Layout>(x, table, positions);
    rope::rotate_to<Layout>(in, out, table, positions);
    rope::unrotate_to<Layout>(in, out, table, positions);
    rope::rotate<Layout>(x, out, table, positions);
    rope::unrotate<Layout>(x, out, table, positions);
  });
}

struct user_layout {
  static constexpr rope::Index first(rope::Index i, rope::Index pairs) { return pairs + i; }
  static constexpr rope::Index second(rope::Index i, rope::Index /*pairs*/) { return i; }
};

template <class T, class S>
void check_all_forms() {
  const rope::frequency_table<S> table(rope::frequencies(32), 100);
  std::vector<T> memory(2 * 7 * 3 * 40, T(1)), other(memory.size());
  const std::vector<int> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7}, starts = {90, 4};
  const std::vector<std::int64_t> offsets = {0, 2, 2, 7}, segment_starts = {5, 0, 70};
  const std::span<const int> row_ids(ids), shared_ids(ids.data(), 7);
  const Eigen::Map<const Eigen::ArrayXXi> matrix_ids(ids.data(), 2, 7);

  const auto check = [&]<class Layout>(Layout) {
    for (const auto x : {rope::bshd(memory.data(), 2, 7, 3, 40), rope::bhsd(memory.data(), 2, 3, 7, 40),
                         rope::sbhd(memory.data(), 7, 2, 3, 40).channels(3, 35)}) {
      auto out = x;
      out.data = other.data() + (x.data - memory.data());
      CHECK(allocations_of<Layout>(x, out, table, row_ids) == 0);
      if constexpr (std::is_same_v<T, float> && std::is_same_v<S, float> &&
                    !std::is_same_v<Layout, user_layout>) {
        // The code that reads a position depends neither on the channel type nor on that of the table.
        CHECK(allocations_of<Layout>(x, out, table, 11) == 0);
        CHECK(allocations_of<Layout>(x, out, table, shared_ids) == 0);
        CHECK(allocations_of<Layout>(x, out, table, matrix_ids) == 0);
        CHECK(allocations_of<Layout>(x, out, table, rope::row_starts{starts}) == 0);
        CHECK(allocations_of<Layout>(x, out, table, rope::segments<std::int64_t>{offsets, segment_starts}) ==
              0);
      }
    }
  };
  check(rope::interleaved{});
  check(rope::half_split{});
  check(user_layout{});
}

}  // namespace

TEMPLATE_TEST_CASE("rotate and unrotate allocate nothing in any form", "[noalloc]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_all_forms<TestType, float>();
  check_all_forms<TestType, double>();
}

TEMPLATE_TEST_CASE("rotate allocates nothing for data larger than the caches", "[noalloc]", float,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::frequencies(128), 600);
  std::vector<TestType> memory(600 * 4 * 128, TestType(1)), other(memory.size());
  const auto x = rope::bhsd(memory.data(), 1, 4, 600, 128), out = rope::bshd(other.data(), 1, 600, 4, 128);
  CHECK(allocations_of<rope::half_split>(x, out, table, 0) == 0);
  CHECK(allocations_of<rope::interleaved>(x, out, table, 0) == 0);
}

TEST_CASE("views and their parts allocate nothing", "[noalloc]") {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> matrix(3, 80);
  CHECK(allocations_in([&] { rope::thd(matrix, 2).channels(4, 8).head_range(1, 1).token_range(0, 2); }) == 0);
}
