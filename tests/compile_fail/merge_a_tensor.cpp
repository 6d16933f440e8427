// SPDX-License-Identifier: MIT
// EXPECT: error: .*merge_attention: x must be a head_view; name the order of its axes

#include <span>

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::head_view<float> a, Eigen::Tensor<float, 4>& b, std::span<double> sums) {
#ifdef SHOULD_FAIL
  rope::merge_attention(a, sums, b, sums);
#else
  rope::merge_attention(a, sums, rope::dhsb(b), sums);
#endif
}
