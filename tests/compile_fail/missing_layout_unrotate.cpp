// SPDX-License-Identifier: MIT
// EXPECT: error: .*unrotate_to: name the layout

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::unrotate_to(x, x, table);
#else
  rope::unrotate_to<rope::interleaved>(x, x, table);
#endif
}
