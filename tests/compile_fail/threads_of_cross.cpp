// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::cross: threads are an Eigen::ThreadPoolDevice or a type with threads

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::projected_context<float>& context,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  block.cross(x, context, x, table, 0, 4);
#else
  block.cross(x, context, x, table, 0, rope::this_thread{});
#endif
}
