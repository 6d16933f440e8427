// SPDX-License-Identifier: MIT
// EXPECT: error: .*score_matrix: give an Eigen matrix or array \[queries, keys\] in memory

#include <rope/rope.hpp>

void test(rope::head_view<float> q, rope::head_view<float> out, const bool* seen) {
#ifdef SHOULD_FAIL
  rope::attention(q, q, q, out, {.mask = rope::score_matrix(seen)});
#else
  rope::attention(q, q, q, out, {.mask = rope::score_matrix(seen, 1, 1, q.tokens, q.tokens)});
#endif
}
