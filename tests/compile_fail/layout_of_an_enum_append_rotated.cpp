// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_rotated: a layout is a type, append_rotated<half_split>

#include <rope/rope.hpp>

enum class layout { interleaved, half_split };

void test([[maybe_unused]] rope::kv_cache<float>& cache, rope::head_view<float> x,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append_rotated<layout::half_split>(x, x, table);
#else
  cache.append_rotated<rope::half_split>(x, x, table);
#endif
}
