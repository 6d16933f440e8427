// SPDX-License-Identifier: MIT
// EXPECT: error: .*unrotate_to: out is read-only

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using output = const float;
#else
using output = float;
#endif

void test(rope::head_view<const float> x, rope::head_view<output> out,
          const rope::frequency_table<float>& table) {
  rope::unrotate_to<rope::half_split>(x, out, table);
}
