// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention_options: positions are lists of std::int64_t

#include <rope/rope.hpp>

#include <cstdint>
#include <vector>

#ifdef SHOULD_FAIL
using integer = int;
#else
using integer = std::int64_t;
#endif

void test(rope::head_view<float> q, rope::head_view<float> out, const std::vector<integer>& positions) {
  rope::attention(q, q, q, out, {.query_positions = positions, .key_positions = positions});
}
