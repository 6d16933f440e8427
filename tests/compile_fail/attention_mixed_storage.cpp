// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: k and v have the channel type of q and out, or both the same 16-bit type or std::int8_t

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using query = double;
#else
using query = float;
#endif

void test(rope::head_view<query> q, rope::head_view<const Eigen::bfloat16> k,
          rope::head_view<Eigen::bfloat16> v, rope::head_view<query> out) {
  rope::attention(q, k, v, out);
}
