// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: after both views pass the table if the cache rotates keys, then counts

#include <vector>

#include <rope/rope.hpp>

void test(rope::latent_cache<float>& cache, rope::head_view<float> x) {
#ifdef SHOULD_FAIL
  cache.append(x, x, std::vector<float>{3});
#else
  cache.append(x, x, std::vector<int>{3});
#endif
}
