// SPDX-License-Identifier: MIT
// EXPECT: error: .*hadamard_transform: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(Eigen::Tensor<float, 4>& x) {
#ifdef SHOULD_FAIL
  rope::hadamard_transform(x);
#else
  rope::hadamard_transform(rope::dhsb(x));
#endif
}
