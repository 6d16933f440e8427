// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: a table is a frequency_table

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, 3);
#else
  rope::rotate<rope::half_split>(x, table, 3);
#endif
}
