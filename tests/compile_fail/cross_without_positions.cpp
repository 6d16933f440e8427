// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::cross: after out pass a table if it rotates, with positions of x

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  block.cross(x, x, 1, x, table);
#else
  block.cross(x, x, 1, x, table, 0, 0);
#endif
}
