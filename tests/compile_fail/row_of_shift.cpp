// SPDX-License-Identifier: MIT
// EXPECT: error: .*shift: after delta pass the table of keys that are stored rotated.* then batch_row.b. for

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache) {
#ifdef SHOULD_FAIL
  cache.shift(0, 4, -2, 1);
#else
  cache.shift(0, 4, -2, rope::batch_row{1});
#endif
}
