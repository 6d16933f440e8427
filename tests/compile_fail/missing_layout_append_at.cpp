// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_at: name the layout

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, rope::head_view<float> x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append_at(x, x, table, 5);
#else
  cache.append_at<rope::half_split>(x, x, table, 5);
#endif
}
