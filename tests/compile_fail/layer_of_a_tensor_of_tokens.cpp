// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::forward: tokens are row-major Eigen matrices

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Tensor<float, 2, Eigen::RowMajor>& x) {
#ifdef SHOULD_FAIL
  block.forward(x, 1, x);
#else
  using matrix = Eigen::Map<Eigen::Matrix<float, 4, 4, Eigen::RowMajor> >;
  block.forward(matrix(x.data()), 1, matrix(x.data()));
#endif
}
