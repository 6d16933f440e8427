// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: k and v have the channel type of q and out, or both the same 16-bit type or std::int8_t

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using key = Eigen::half;
#else
using key = const float;
#endif

void test(rope::head_view<float> q, rope::head_view<key> k, rope::head_view<const float> v,
          rope::head_view<float> out) {
  rope::attention(q, k, v, out);
}
