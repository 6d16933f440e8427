// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: name the layout

#include <rope/rope.hpp>

void test(rope::ring_cache<float>& cache, rope::head_view<float> x,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append(x, x, table);
#else
  cache.append<rope::half_split>(x, x, table);
#endif
}
