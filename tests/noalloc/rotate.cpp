// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <cstdlib>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

using testing::allocations_in;

TEST_CASE("the counter sees every way to the heap") {
  void* volatile data = nullptr;  // volatile: or the compiler leaves out an allocation that nobody reads
  const auto used = [&](void* allocated) { data = allocated, std::free(data); };
  CHECK(allocations_in([&] { used(std::malloc(1)); }) == 1);
  CHECK(allocations_in([&] { used(std::calloc(1, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::realloc(nullptr, 1)); }) == 1);
  CHECK(allocations_in([&] { used(std::aligned_alloc(64, 64)); }) == 1);
  CHECK(allocations_in([&] { data = std::vector<char>(1).data(); }) == 1);
  CHECK(allocations_in([&] { data = Eigen::ArrayXf(7).data(); }) == 1);
}

TEMPLATE_TEST_CASE("rotate and unrotate allocate nothing", "", float, double, Eigen::half, Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::frequencies(32), 100);
  std::vector<TestType> x(2 * 7 * 3 * 40, TestType(1)), y(x.size());
  const std::vector<int> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7};
  const std::span<const int> row_ids(ids), shared_ids(ids.data(), 7);

  for (const auto in : {rope::bshd(x.data(), 2, 7, 3, 40), rope::bhsd(x.data(), 2, 3, 7, 40),
                        rope::sbhd(x.data(), 7, 2, 3, 40).channels(3, 35)}) {
    auto out = in;
    out.data = y.data() + (in.data - x.data());
    CHECK(allocations_in([&] { rope::rotate<rope::half_split>(in, table, 11); }) == 0);
    CHECK(allocations_in([&] { rope::rotate<rope::interleaved>(in, table, shared_ids); }) == 0);
    CHECK(allocations_in([&] { rope::rotate<rope::interleaved>(in, out, table, row_ids); }) == 0);
    CHECK(allocations_in([&] { rope::unrotate<rope::half_split>(in, out, table); }) == 0);
  }
}
