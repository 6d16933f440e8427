// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::cross: tokens are row-major Eigen matrices

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x,
          const rope::projected_context<float>& context, Eigen::Tensor<float, 2, Eigen::RowMajor>& out) {
#ifdef SHOULD_FAIL
  block.cross(x, context, out);
#else
  block.cross(x, context, Eigen::Map<Eigen::Matrix<float, 4, 4, Eigen::RowMajor> >(out.data()));
#endif
}
