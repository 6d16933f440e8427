// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_rotated: after both views pass the table that rotated the keys, then positions

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append_rotated<rope::half_split>(x, x, 3, table);
#else
  cache.append_rotated<rope::half_split>(x, x, table, 3);
#endif
}
