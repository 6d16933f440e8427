// SPDX-License-Identifier: MIT
// EXPECT: error: .*thd: x must be an Eigen::Tensor or TensorMap of rank 3; evaluate a slice, chip

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(rope::thd(x.chip(0, 0)), table);
#else
  rope::rotate<rope::half_split>(rope::bshd(x).batch_range(0, 1), table);
#endif
}
