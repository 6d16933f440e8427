// SPDX-License-Identifier: MIT
// EXPECT: error: .*permute_rows: threads are an Eigen::ThreadPoolDevice or a type with threads

#include <rope/rope.hpp>

void test(Eigen::MatrixXf& rows) {
#ifdef SHOULD_FAIL
  rope::permute_rows<rope::interleaved, rope::half_split>(rows, 2, 0, 0, 5);
#else
  rope::permute_rows<rope::interleaved, rope::half_split>(rows, 2);
#endif
}
