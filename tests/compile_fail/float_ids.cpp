// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_to: positions are integers

#include <rope/rope.hpp>
#include <vector>

#ifdef SHOULD_FAIL
using id = float;
#else
using id = int;
#endif

void test(rope::head_view<float> x, const rope::frequency_table<float>& table, const std::vector<id>& ids) {
  rope::rotate_to<rope::half_split>(x, x, table, ids);
}
