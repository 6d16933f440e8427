// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: name the layout

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate(x, table);
#else
  rope::rotate<rope::half_split>(x, table);
#endif
}
