// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: after out pass the tables

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::attention<rope::half_split>(x, x, x, x, table, 5);
#else
  rope::attention<rope::half_split>(x, x, x, x, table, rope::attention_options{});
#endif
}
