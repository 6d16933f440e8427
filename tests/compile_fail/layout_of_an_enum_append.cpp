// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: a layout is a type, append<half_split>

#include <rope/rope.hpp>

enum class layout { interleaved, half_split };

void test([[maybe_unused]] rope::kv_cache<float>& cache, rope::head_view<float> x,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append<layout::half_split>(x, x, table);
#else
  cache.append<rope::half_split>(x, x, table);
#endif
}
