// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: a table is a frequency_table

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append<rope::half_split>(x, x, 3);
#else
  cache.append<rope::half_split>(x, x, table);
#endif
}
