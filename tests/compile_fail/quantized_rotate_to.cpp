// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_to: x and out have the same channel type, or x is float and out half or bfloat16

#include <cstdint>

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using channel = std::int8_t;
#else
using channel = Eigen::half;
#endif

void test(rope::head_view<const float> k, rope::head_view<channel> keys,
          const rope::frequency_table<float>& table) {
  rope::rotate_to<rope::half_split>(k, keys, table);
}
