// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: x is read-only; rotate_to

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using output = const float;
#else
using output = float;
#endif

void test(rope::head_view<output> x, const rope::frequency_table<float>& table) {
  rope::rotate<rope::half_split>(x, table);
}
