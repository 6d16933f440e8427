// SPDX-License-Identifier: MIT
// EXPECT: error: .*unrotate: positions are integers

#include <rope/rope.hpp>
#include <span>

#ifdef SHOULD_FAIL
using id = bool;
#else
using id = unsigned char;
#endif

void test(rope::head_view<float> x, const rope::frequency_table<float>& table, std::span<const id> mask) {
  rope::unrotate<rope::interleaved>(x, table, mask);
}
