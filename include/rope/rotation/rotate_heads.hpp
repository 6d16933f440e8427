// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ROTATE_HEADS_HPP
#define ROPE_ROTATION_ROTATE_HEADS_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Heads that turn differently: frequencies learned per head (RoPE-Mixed, Mochi), or masked per head.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What can be wrong with any of the heads, found before the first of them is written.
///
/// Throws:  as check_rotation; std::invalid_argument unless there is one table per head
template <class Layout, class T, rotation_table Table, class P>
void check_heads(const char* function, const head_view<T>& x, const std::vector<Table>& tables,
                 const P& positions) {
  if (static_cast<Index>(tables.size()) != x.heads)
    throw_invalid(function, "give one table per head, ", x.heads, ", got ", tables.size());
  const auto source = position_source(positions, x.tokens);
  for (const Table& table : tables) check_rotation<Layout>(function, x, placed(table), source);
}

}  // namespace detail

/// Rotates head h of `x` in place by tables[h], as `rotate` does: the same bits as one call per head.
///
///     std::vector<frequency_table<>> tables;
///     for (const frequencies& f : learned) tables.emplace_back(f, grid_positions({height, width}));
///     rotate_heads<interleaved>(queries, tables);
///
/// \param x       [batch, tokens, heads, head_dim]
/// \param tables  [heads], of frequency_table or placed_table; rotary_dim and place may differ from head to
///                head, positions are shared
///
/// Throws:  as rotate, for any head, and std::invalid_argument unless there is one table per head; x is then
///          unchanged
/// Cost:    about three times that of rotate: no two heads share a row, so the tables are as large as x
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = std::int64_t,
          class Threads = this_thread>
void rotate_heads(head_view<T> x, const std::vector<Table>& tables, const P& positions = P{},
                  const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_heads", Layout, P, Threads);
  const detail::kept_positions<P> kept = positions;
  detail::check_heads<Layout>("rotate_heads", x, tables, kept);
  for (Index h = 0; h < x.heads; ++h)
    rotate<Layout>(x.head_range(h, 1), tables[static_cast<std::size_t>(h)], kept, threads);
}

/// Undoes `rotate_heads` in place, as `unrotate` does.
///
/// Throws:  as rotate_heads; x is then unchanged
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = std::int64_t,
          class Threads = this_thread>
void unrotate_heads(head_view<T> x, const std::vector<Table>& tables, const P& positions = P{},
                    const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("unrotate_heads", Layout, P, Threads);
  const detail::kept_positions<P> kept = positions;
  detail::check_heads<Layout>("unrotate_heads", x, tables, kept);
  for (Index h = 0; h < x.heads; ++h)
    unrotate<Layout>(x.head_range(h, 1), tables[static_cast<std::size_t>(h)], kept, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(rotate_heads, 1);
ROPE_DETAIL_ASK_FOR_VIEWS(unrotate_heads, 1);

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_ROTATE_HEADS_HPP
