// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: a layout is interleaved, half_split or a type with static first and second

#include <rope/rope.hpp>

struct layout {
  static rope::Index first(rope::Index i, rope::Index /*pairs*/) { return i; }
#ifdef SHOULD_FAIL
  static rope::Index second(rope::Index i) { return i + 1; }
#else
  static rope::Index second(rope::Index i, rope::Index pairs) { return i + pairs; }
#endif
};

void test(rope::head_view<float> x, const rope::frequency_table<float>& table) {
  rope::rotate<layout>(x, table);
}
