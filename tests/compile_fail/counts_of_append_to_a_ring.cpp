// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: after both views pass the table if the cache rotates keys, then counts

#include <rope/rope.hpp>

void test(rope::ring_cache<float>& cache, rope::head_view<float> x,
          const rope::frequency_table<float>& table) {
  const rope::this_thread threads;
#ifdef SHOULD_FAIL
  cache.append<rope::half_split>(x, x, table, threads);
#else
  cache.append<rope::half_split>(x, x, table, {}, threads);
#endif
}
