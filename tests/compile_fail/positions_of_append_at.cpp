// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_at: after both views pass the table if the cache rotates keys, then positions

#include <rope/rope.hpp>

#include <vector>

void test(rope::kv_cache<float>& cache, rope::head_view<float> x) {
#ifdef SHOULD_FAIL
  cache.append_at(x, x, std::vector<float>{1.5f});
#else
  cache.append_at(x, x, std::vector<int>{1});
#endif
}
