// SPDX-License-Identifier: MIT
// EXPECT: error: .*rebase_keys: x must be a head_view; name the order of its axes

#include <rope/rope.hpp>

void test(float* keys, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rebase_keys<rope::half_split>(keys, 0, table, table);
#else
  rope::rebase_keys<rope::half_split>(rope::thd(keys, 1, 1, 8), 0, table, table);
#endif
}
