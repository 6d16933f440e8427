// SPDX-License-Identifier: MIT
// EXPECT: error: .*polar: name the order of the output

#include <rope/rope.hpp>

void test(rope::head_view<float> x, rope::head_view<float> out, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::polar(x, out, table);
#else
  rope::polar<rope::half_split>(x, out, table);
#endif
}
