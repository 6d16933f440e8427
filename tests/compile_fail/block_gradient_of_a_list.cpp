// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention_gradient: after the gradients pass a table if the block rotates

#include <vector>

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table,
          const std::vector<int>& positions) {
#ifdef SHOULD_FAIL
  rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = x},
                                      rope::multi_head_gradients<float>{}, positions);
#else
  rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = x},
                                      rope::multi_head_gradients<float>{}, table, positions);
#endif
}
