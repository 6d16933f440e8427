// SPDX-License-Identifier: MIT
// EXPECT: error: .*shift: after delta pass the table of keys that are stored rotated, with their layout

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.shift<rope::half_split>(0, 4, -2);
#else
  cache.shift<rope::half_split>(0, 4, -2, table);
#endif
}
