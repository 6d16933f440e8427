// SPDX-License-Identifier: MIT
// EXPECT: error: .*write_pages: after k and v pass the pages

#include <cstdint>
#include <vector>

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using offset = double;
#else
using offset = std::uint16_t;
#endif

void test(rope::page_view<float>& pages, rope::head_view<float> x) {
  rope::write_pages(x, x, pages, std::vector<offset>{0, 1});
}
