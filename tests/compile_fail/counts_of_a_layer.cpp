// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::forward: after out pass a table if it rotates, then

#include <rope/rope.hpp>

void test(const rope::multi_head_attention<float>& block, Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x,
          rope::kv_cache<float>& cache) {
  const rope::this_thread threads;
#ifdef SHOULD_FAIL
  block.forward(x, cache, x, threads);
#else
  block.forward(x, cache, x, {}, threads);
#endif
}
