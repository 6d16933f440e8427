// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_to: x and out have the same channel type

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using input = Eigen::half;
#else
using input = float;
#endif

void test(rope::head_view<input> x, rope::head_view<float> out, const rope::frequency_table<float>& table) {
  rope::rotate_to<rope::half_split>(x, out, table);
}
