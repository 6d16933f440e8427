// SPDX-License-Identifier: MIT
// EXPECT: error: .*shift_keys: x must be a head_view; name the order of its axes

#include <vector>

#include <rope/rope.hpp>

void test(std::vector<float>& keys, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::shift_keys<rope::half_split>(keys, -3, table);
#else
  rope::shift_keys<rope::half_split>(rope::thd(keys.data(), 1, 1, 8), -3, table);
#endif
}
