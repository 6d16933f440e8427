// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_at: after both views pass the table if the cache rotates keys, then positions

#include <rope/rope.hpp>

void test(rope::latent_cache<float>& cache, rope::head_view<float> x, const rope::token_coordinates& at) {
#ifdef SHOULD_FAIL
  cache.append_at(x, x, at);
#else
  cache.append_at(x, x, at.rows());
#endif
}
