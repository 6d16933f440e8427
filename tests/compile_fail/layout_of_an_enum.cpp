// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: a layout is a type, rotate<half_split>

#include <rope/rope.hpp>

enum class layout { interleaved, half_split };

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<layout::half_split>(x, table);
#else
  rope::rotate<rope::half_split>(x, table);
#endif
}
