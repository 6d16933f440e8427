// SPDX-License-Identifier: MIT
// EXPECT: error: .*rebase: pass the table that rotated the keys

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.rebase<rope::half_split>(table);
#else
  cache.rebase<rope::half_split>(table, table);
#endif
}
