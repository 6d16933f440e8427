// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::project_context: after the batch pass a table if it rotates

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  block.project_context(x, 1, 5);
#else
  block.project_context(x, 1, table, 5);
#endif
}
