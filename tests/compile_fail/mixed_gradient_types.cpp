// SPDX-License-Identifier: MIT
// EXPECT: error: .*(cannot convert|no viable conversion)

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using gradient = double;
#else
using gradient = float;
#endif

void test(rope::head_view<float> x, rope::head_view<gradient> d) {
  rope::attention_gradient(rope::attention_tape<float>{
      .q = x, .k = x, .v = x, .out = x, .d_out = x, .d_q = d, .d_k = d, .d_v = d});
}
