// SPDX-License-Identifier: MIT
// EXPECT: error: .*head_view: a channel type is

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using channel = int;
#else
using channel = float;
#endif

void test(channel* data, const rope::frequency_table<float>& table) {
  rope::rotate<rope::half_split>(rope::thd(data, 1, 1, 8), table);
}
