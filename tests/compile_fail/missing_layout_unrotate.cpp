// SPDX-License-Identifier: MIT
// EXPECT: error: .*unrotate: name the pairing

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::unrotate(x, x, table);
#else
  rope::unrotate<rope::interleaved>(x, x, table);
#endif
}
