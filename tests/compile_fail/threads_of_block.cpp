// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::forward: after out pass a table

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x) {
#ifdef SHOULD_FAIL
  block.forward(x, 1, x, 5);
#else
  block.forward(x, 1, x, rope::this_thread{});
#endif
}
