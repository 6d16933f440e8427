// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention_gradient: threads are an Eigen::ThreadPoolDevice

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float, rope::half_split>& block,
          Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = x},
                                      rope::multi_head_gradients<float>{}, table, 0, 2);
#else
  rope::multi_head_attention_gradient(block, {.x = x, .batch = 1, .d_out = x},
                                      rope::multi_head_gradients<float>{}, table, 0, rope::this_thread{});
#endif
}
