// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention: tokens are a row-major Eigen matrix, map or block

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
constexpr int order = Eigen::ColMajor;  // Eigen's default
#else
constexpr int order = Eigen::RowMajor;
#endif

using tokens = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, order>;

void test(const rope::multi_head_attention<float>& block, const tokens& x,
          Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>& out) {
  block.forward(x, 1, out);
}
