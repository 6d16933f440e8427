// SPDX-License-Identifier: MIT
// EXPECT: error: .*cross_attention_gradient: after the gradients pass a table if the block rotates, with

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::cross_attention_gradient(block, {.x = x, .context = x, .batch = 1, .d_out = x},
                                 rope::multi_head_gradients<float>{}, table);
#else
  rope::cross_attention_gradient(block, {.x = x, .context = x, .batch = 1, .d_out = x},
                                 rope::multi_head_gradients<float>{}, table, 0, 0);
#endif
}
