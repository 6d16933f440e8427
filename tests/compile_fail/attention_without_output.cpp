// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: the fourth argument is the view that is written, attention\(q, k, v, out, ...\)

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
auto test(rope::head_view<float> x, const rope::frequency_table<>& table) {
  return rope::attention<rope::half_split>(x, x, x, table);
}
#else
auto test(rope::head_view<float> x, rope::head_view<float> out, const rope::frequency_table<>& table) {
  return rope::attention<rope::half_split>(x, x, x, out, table);
}
#endif
