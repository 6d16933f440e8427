// SPDX-License-Identifier: MIT
// EXPECT: error: .*permute_rows: a layout is interleaved, half_split

#include <rope/rope.hpp>

struct bad {};

void test(Eigen::MatrixXf& rows) {
#ifdef SHOULD_FAIL
  rope::permute_rows<bad, rope::half_split>(rows, 2);
#else
  rope::permute_rows<rope::interleaved, rope::half_split>(rows, 2);
#endif
}
