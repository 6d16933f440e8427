// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: positions are integers: .*; threads come after them

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, table, 7.0f);
#else
  rope::rotate<rope::half_split>(x, table, 7);
#endif
}
