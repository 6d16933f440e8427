// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_rotated

#include <rope/rope.hpp>

void test(rope::latent_cache<float>& cache, rope::head_view<float> x,
          const rope::frequency_table<float>& table, const rope::token_coordinates& at) {
#ifdef SHOULD_FAIL
  cache.append_rotated<rope::half_split>(x, x, table, at);
#else
  cache.append_rotated<rope::half_split>(x, x, table, at.rows());
#endif
}
