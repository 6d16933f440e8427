// SPDX-License-Identifier: MIT
// EXPECT: error: .*row_starts and segments: the integers must be in memory that outlives the call

#include <rope/rope.hpp>

void test(rope::head_view<float> x, const rope::frequency_table<float>& table, const Eigen::ArrayXi& starts) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, table, rope::row_starts(starts - 1));
#else
  rope::rotate<rope::half_split>(x, table, rope::row_starts(starts));
#endif
}
