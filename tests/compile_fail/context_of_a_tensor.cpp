// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::project_context: tokens are row-major Eigen matrices

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Tensor<float, 2, Eigen::RowMajor>& x) {
#ifdef SHOULD_FAIL
  block.project_context(x, 1);
#else
  block.project_context(Eigen::Map<Eigen::Matrix<float, 4, 4, Eigen::RowMajor> >(x.data()), 1);
#endif
}
