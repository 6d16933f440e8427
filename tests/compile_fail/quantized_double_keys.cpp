// SPDX-License-Identifier: MIT
// EXPECT: error: .*quantize: channels are float, Eigen::half or Eigen::bfloat16

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using channel = double;
#else
using channel = float;
#endif

void test(rope::head_view<const channel> k, rope::quantized_view<std::int8_t> keys) {
  rope::quantize(k, keys);
}
