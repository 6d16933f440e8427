// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: x must be a head_view; name the order of its axes

#include <rope/rope.hpp>

void test(float* x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, table, 3);
#else
  rope::rotate<rope::half_split>(rope::thd(x, 1, 1, 8), table, 3);
#endif
}
