// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention_options.*casual|error: .*casual.*attention_options

#include <rope/rope.hpp>

void test(rope::head_view<float> x) {
#ifdef SHOULD_FAIL
  rope::attention(x, x, x, x, rope::attention_options{.casual = false});
#else
  rope::attention(x, x, x, x, rope::attention_options{.causal = false});
#endif
}
