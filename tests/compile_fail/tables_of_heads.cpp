// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: a table is a frequency_table

#include <vector>

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const std::vector<rope::frequency_table<float>>& tables) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, tables, 0);
#else
  rope::rotate_heads<rope::half_split>(x, tables, 0);
#endif
}
