// SPDX-License-Identifier: MIT
// EXPECT: error: .*pope: name the order of the output

#include <rope/rope.hpp>

void test(rope::head_view<float> x, rope::head_view<float> out, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::pope(x, out, table);
#else
  rope::pope<rope::half_split>(x, out, table);
#endif
}
