// SPDX-License-Identifier: MIT
// EXPECT: error: .*selected_keys: entries are std::int32_t or std::int64_t, because -1 ends a list

#include <rope/rope.hpp>

#include <cstdint>

#ifdef SHOULD_FAIL
using entry = std::uint32_t;
#else
using entry = std::int32_t;
#endif

void test(rope::head_view<float> q, rope::head_view<float> k, rope::head_view<float> out,
          const Eigen::Matrix<entry, Eigen::Dynamic, Eigen::Dynamic>& lists) {
  rope::attention(q, k, k, out, {.selected = lists});
}
