// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention::forward: tokens are row-major Eigen matrices.*forward\(x, cache, out

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using cache = rope::latent_cache<float>;
#else
using cache = rope::kv_cache<float>;
#endif

void test(const rope::multi_head_attention<float>& block, Eigen::Matrix<float, 4, 4, Eigen::RowMajor>& x,
          cache& seen) {
  block.forward(x, seen, x);
}
