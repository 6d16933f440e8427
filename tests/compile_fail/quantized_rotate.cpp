// SPDX-License-Identifier: MIT
// EXPECT: error: .*head_view: channels are float, double, Eigen::half or Eigen::bfloat16 here; dequantize

#include <cstdint>

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using channel = std::int8_t;
#else
using channel = float;
#endif

void test(rope::head_view<channel> keys, const rope::frequency_table<float>& table) {
  rope::rotate<rope::half_split>(keys, table);
}
