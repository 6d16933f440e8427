// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: x must be a head_view; name the order of its axes

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& q, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& out) {
#ifdef SHOULD_FAIL
  rope::attention(rope::dhsb(q), k, k, rope::dhsb(out));
#else
  rope::attention(rope::dhsb(q), rope::dhsb(k), rope::dhsb(k), rope::dhsb(out));
#endif
}
