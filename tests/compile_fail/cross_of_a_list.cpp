// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::cross: tokens are row-major Eigen matrices

#include <vector>

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x,
          std::vector<float>& context) {
#ifdef SHOULD_FAIL
  block.cross(x, context, 1, x);
#else
  block.cross(x, Eigen::Map<Eigen::Matrix<float, 4, 4, Eigen::RowMajor> >(context.data()), 1, x);
#endif
}
