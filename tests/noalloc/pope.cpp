// SPDX-License-Identifier: MIT
#include <rope/rope.hpp>

#include <vector>

#include "allocations.hpp"
#include "support/catch.hpp"

using testing::allocations_in;

TEMPLATE_TEST_CASE("pope and scale_queries allocate nothing", "[noalloc]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  const rope::frequency_table<float> table(rope::pope_frequencies(12), 64);
  const rope::pope_bias bias(Eigen::ArrayXXd::Constant(3, 12, -1.0));
  const std::vector<int> ids = {3, 1, 4, 1, 5};
  std::vector<TestType> memory(2 * 5 * 3 * 16, TestType(1)), wide(2 * 5 * 3 * 28);
  const auto x = rope::bshd(memory.data(), 2, 5, 3, 16), out = rope::bhsd(wide.data(), 2, 3, 5, 28);
  CHECK(allocations_in([&] {
          rope::pope<rope::interleaved>(x, out, table, 11);
          rope::pope<rope::half_split>(x, out, table, bias, ids);
          rope::scale_queries(x, rope::llama4_query_scaling{}, 8190);
          rope::scale_queries(x, rope::log_n_query_scaling{2}, ids);
        }) == 0);
}

TEST_CASE("unrotate of given entries allocates in its first call only", "[noalloc]") {
  const Eigen::ArrayXXd angles = Eigen::ArrayXXd::Constant(64, 20, 0.5);
  const auto table = rope::table_of_angles(angles, rope::table_form::half_width);
  std::vector<float> memory(2 * 5 * 3 * 40, 1.0f);
  const auto x = rope::bshd(memory.data(), 2, 5, 3, 40);
  const auto call = [&] { rope::unrotate<rope::half_split>(x, table, 3); };
  CHECK(allocations_in([&] { rope::rotate<rope::half_split>(x, table, 3); }) == 0);
  call();
  CHECK(allocations_in(call) == 0);
}
