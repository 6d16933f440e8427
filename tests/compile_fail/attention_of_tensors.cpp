// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: x is a head_view; name the order of its axes

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& q, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& out) {
#ifdef SHOULD_FAIL
  rope::attention(rope::bshd(q), k, k, rope::bshd(out));
#else
  rope::attention(rope::bshd(q), rope::bshd(k), rope::bshd(k), rope::bshd(out));
#endif
}
