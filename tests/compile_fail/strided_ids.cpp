// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: positions are integers

#include <rope/rope.hpp>
#include <span>

/// Says neither that its elements lie next to each other nor how far apart they are.
struct every_other {
  const int* first;
  std::size_t count;
  const int* data() const { return first; }
  std::size_t size() const { return count; }
};

#ifdef SHOULD_FAIL
using list = every_other;
#else
using list = std::span<const int>;
#endif

void test(rope::head_view<float> x, const rope::frequency_table<float>& table, const list& ids) {
  rope::rotate<rope::half_split>(x, table, ids);
}
