// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: both views are rotated in place, and one is read-only

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using input = const float;
#else
using input = float;
#endif

void test(rope::head_view<input> q, rope::head_view<float> k, const rope::frequency_table<float>& table) {
  rope::rotate<rope::half_split>(q, k, table);
}
