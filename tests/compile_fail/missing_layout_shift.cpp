// SPDX-License-Identifier: MIT
// EXPECT: error: .*shift: name the layout

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.shift(0, 4, -2, table);
#else
  cache.shift<rope::half_split>(0, 4, -2, table);
#endif
}
