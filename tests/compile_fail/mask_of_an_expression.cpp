// SPDX-License-Identifier: MIT
// EXPECT: error: .*score_matrix: give an Eigen matrix or array \[queries, keys\] in memory

#include <rope/rope.hpp>

void test(rope::head_view<float> q, rope::head_view<float> k, rope::head_view<float> v,
          rope::head_view<float> out, const Eigen::ArrayXXf& x) {
#ifdef SHOULD_FAIL
  rope::attention(q, k, v, out, {.bias = rope::score_matrix(-x)});
#else
  rope::attention(q, k, v, out, {.bias = rope::score_matrix(x)});
#endif
}
