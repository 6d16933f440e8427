// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_gradient: name the layout

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate_gradient(x, table);
#else
  rope::rotate_gradient<rope::interleaved>(x, table);
#endif
}
