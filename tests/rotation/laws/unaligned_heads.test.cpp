// SPDX-License-Identifier: MIT
// At every offset in memory, contiguous heads rotate with the bits of one channel at a time, and nothing
// around them is touched.
#include <cstddef>
#include <cstdint>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/heads.hpp"
#include "support/tensor.hpp"

using namespace rope;
using testing::guarded_memory;

namespace {

constexpr Index line = 64;

/// The first element of memory that is `past` elements after the beginning of a cache line.
template <class T>
T* place(guarded_memory<T>& memory, Index past) {
  T* first = memory.data() + line / Index(sizeof(T));
  while (reinterpret_cast<std::uintptr_t>(first) % std::uintptr_t(line) !=
         static_cast<std::uintptr_t>(past) * sizeof(T))
    ++first;
  return first;
}

template <class Layout, class T, bool back>
void rotate_view(const head_view<T>& x, const head_view<T>& out, const frequency_table<T>& table) {
  const bool in_place = x.data == out.data;
  if constexpr (back)
    in_place ? unrotate<Layout>(x, table, 3) : unrotate_to<Layout>(x, out, table, 3);
  else
    in_place ? rotate<Layout>(x, table, 3) : rotate_to<Layout>(x, out, table, 3);
}

/// Tokens of heads, in place or from one buffer to another, that begin `past` and `out_past` elements after
/// the beginning of a cache line.
template <class Layout, class T, bool back>
void check(Index heads, Index head_dim, Index past, Index out_past, bool in_place, bool gap) {
  constexpr Index tokens = 2;
  CAPTURE(testing::name_of<Layout>, back, heads, head_dim, past, out_past, in_place, gap);
  const frequency_table<T> table(frequencies(head_dim, 30.0), 9);
  const Index between = gap ? head_dim + 3 : head_dim, size = tokens * heads * between + 4 * line;
  guarded_memory<T> memory(size), other(size);
  const auto view = [&](guarded_memory<T>& of, Index at) {
    return head_view<T>{place(of, at),   1,      tokens, heads, head_dim, tokens * heads * between,
                        heads * between, between};
  };
  const head_view<T> x = view(memory, past), out = in_place ? x : view(other, out_past);
  memory.fill(x, 71);
  std::vector<T> expected(static_cast<std::size_t>(x.size()));
  const auto copy = bshd(expected.data(), 1, tokens, heads, head_dim);
  testing::copy_heads(x, copy);
  if constexpr (back)
    unrotate<testing::scalar_twin<Layout>>(copy, table, 3);
  else
    rotate<testing::scalar_twin<Layout>>(copy, table, 3);
  rotate_view<Layout, T, back>(x, out, table);
  CHECK(testing::same_heads(out, copy));
  CHECK((in_place ? memory : other).untouched_outside(out));
  if (!in_place) CHECK(memory.untouched());
}

}  // namespace

TEMPLATE_TEST_CASE("heads that begin within a cache line rotate with the same bits", "[rotation]", float,
                   double) {
  testing::for_each_layout([](auto layout) {
    using Layout = decltype(layout);
    for (const Index head_dim : {16, 24, 32, 48, 64, 80, 96, 100, 112, 128, 144, 256})
      for (const Index heads : {1, 2, 3, 8, 17})
        for (Index past = 0; past < line / Index(sizeof(TestType)); ++past) {
          check<Layout, TestType, false>(heads, head_dim, past, past, true, false);
          check<Layout, TestType, true>(heads, head_dim, past, past, true, false);
          check<Layout, TestType, false>(heads, head_dim, past, past, false, false);
          check<Layout, TestType, false>(heads, head_dim, past, (past + 4) % 8, false, false);
          check<Layout, TestType, false>(heads, head_dim, past, past, true, true);
        }
  });
}
