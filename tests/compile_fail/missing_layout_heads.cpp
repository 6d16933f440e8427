// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_heads: name the layout

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const std::vector<rope::frequency_table<float>>& tables) {
#ifdef SHOULD_FAIL
  rope::rotate_heads(x, tables);
#else
  rope::rotate_heads<rope::half_split>(x, tables);
#endif
}
