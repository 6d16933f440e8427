// SPDX-License-Identifier: MIT
// EXPECT: error: .*check_table: name the layout

#include <rope/rope.hpp>

void test(const rope::ring_cache<float>& cache, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.check_table(table);
#else
  cache.check_table<rope::half_split>(table);
#endif
}
