// SPDX-License-Identifier: MIT
// EXPECT: error: .*check_table: a table is a frequency_table

#include <rope/rope.hpp>

void test(const rope::kv_cache<float>& cache, const rope::frequencies& schedule) {
#ifdef SHOULD_FAIL
  cache.check_table<rope::half_split>(schedule);
#else
  cache.check_table<rope::half_split>(rope::frequency_table<float>(schedule, 8));
#endif
}
