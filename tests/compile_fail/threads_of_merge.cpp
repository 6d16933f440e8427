// SPDX-License-Identifier: MIT
// EXPECT: error: .*merge_attention: threads are an Eigen::ThreadPoolDevice or a type with threads

#include <span>

#include <rope/rope.hpp>

void test(rope::head_view<float> a, rope::head_view<const float> b, std::span<double> sums) {
#ifdef SHOULD_FAIL
  rope::merge_attention(a, sums, b, sums, 4);
#else
  rope::merge_attention(a, sums, b, sums);
#endif
}
