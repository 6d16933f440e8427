// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

TEST_CASE("rotating every head by its own table does not allocate", "[noalloc]") {
  std::vector<rope::frequency_table<float>> tables;
  for (const double angle : {0.1, 0.7, 2.5})
    tables.emplace_back(rope::rope_vit_mixed_frequencies(16, angle), rope::grid_positions({2, 3}));
  std::vector<float> memory(6 * 3 * 20, 1.0f);
  const std::vector<int> ids = {5, 4, 3, 2, 1, 0};
  const auto x = rope::thd(memory.data(), 6, 3, 20);
  CHECK(testing::allocations_in([&] {
          rope::rotate_heads<rope::interleaved>(x, tables);
          rope::unrotate_heads<rope::half_split>(x, tables, ids);
        }) == 0);
}

TEMPLATE_TEST_CASE("normalising and rotating does not allocate from its second call on", "[noalloc]", float,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::frequencies(16), 20);
  std::vector<TestType> memory(6 * 3 * 20, TestType(1)), other = memory, weight(20, TestType(1));
  const rope::head_norm<TestType> norm = {.weight = weight};
  const auto x = rope::thd(memory.data(), 6, 3, 20), d = rope::thd(other.data(), 6, 3, 20);
  const auto call = [&] {
    rope::normalize_and_rotate<rope::half_split>(x, d, norm, norm, table, 3);
    rope::normalize_heads_gradient(x, norm, d);
  };
  call();
  CHECK(testing::allocations_in(call) == 0);
}
