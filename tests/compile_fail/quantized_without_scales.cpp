// SPDX-License-Identifier: MIT
// EXPECT: error: .*std::int8_t needs scales, bshd\(data, scales, batch, tokens, heads, head_dim\)

#include <cstdint>

#include <rope/rope.hpp>

auto test(std::int8_t* data, [[maybe_unused]] float* scales) {
#ifdef SHOULD_FAIL
  return rope::bshd(data, 1, 2, 3, 4);
#else
  return rope::bshd(data, scales, 1, 2, 3, 4);
#endif
}
