// SPDX-License-Identifier: MIT
// EXPECT: error: .*scale_queries: a rule is

#include <cstdint>

#include <rope/rope.hpp>

void test(rope::head_view<float> q) {
#ifdef SHOULD_FAIL
  rope::scale_queries(q, 3, 0);
#else
  rope::scale_queries(
      q, [](std::int64_t) { return 3; }, 0);
#endif
}
