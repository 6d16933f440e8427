// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention_gradient: all heads and gradients have the same channel type

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using gradient = double;
#else
using gradient = float;
#endif

void test(rope::head_view<float> x, rope::head_view<gradient> d) {
  rope::attention_gradient(x, x, x, x, x, d, d, d);
}
