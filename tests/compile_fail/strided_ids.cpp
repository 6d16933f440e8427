// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: positions are integers

#include <rope/rope.hpp>
#include <span>

/// A range whose elements may be anywhere: it offers neither contiguity nor a stride.
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
