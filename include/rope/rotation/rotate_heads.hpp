// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ROTATE_HEADS_HPP
#define ROPE_ROTATION_ROTATE_HEADS_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <type_traits>
#include <vector>

#include <rope/base/integer_list.hpp>  // product_fits
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>  // check_inverse
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// For heads with different frequencies (learned per head in RoPE-Mixed and Mochi, or masked per head),
/// rotate_heads rotates each head by its own table. For heads with different tokens, heads_as_batch makes
/// each head a row of the batch.

namespace rope::inline ROPE_ABI {

/// A view with heads as rows, [batch * kv_heads, tokens, heads / kv_heads, head_dim]. Row b * kv_heads + h of
/// the result has the heads that belong to key head h in row b of `x`. A cache of such rows has different
/// tokens for each head.
///
///     const auto rows = heads_as_batch(k, kv_heads);  // [batch * kv_heads, tokens, 1, head_dim]
///     rotate<Layout>(rows, table, start);
///
/// \param x         keys, values, queries or outputs, in the memory order of bhsd, or with a batch of 1
/// \param kv_heads  the number of heads of keys and values, also if x are queries or outputs
///
/// Throws:  std::invalid_argument unless kv_heads divides the heads and, with more than one row and key head,
///          batch_stride is heads * head_stride; std::length_error if the rows exceed the address space
/// Cost:    nothing is copied
template <class T>
head_view<T> heads_as_batch(const head_view<T>& x, Index kv_heads) {
  constexpr auto name = "heads_as_batch";
  detail::check_view(name, x);
  if (kv_heads < 1 || x.heads % kv_heads != 0)
    detail::throw_invalid(name, "kv_heads must be at least 1 and divide ", x.heads, " heads, got ", kv_heads);
  if (!detail::product_fits({(std::max)(x.batch, Index{1}), kv_heads}))
    detail::throw_length(name, "", x.batch, " * ", kv_heads, " rows exceed the address space");
  const Index group = x.heads / kv_heads;
  if (x.batch > 1 && group > 0 && kv_heads > 1 && x.batch_stride != x.heads * x.head_stride)
    detail::throw_invalid(name, "the batch_stride must be that of ", x.heads, " heads, as in bhsd, got ",
                          x.batch_stride, " and a head_stride of ", x.head_stride,
                          "; copy to bhsd order, or call it for one row at a time: batch_range(b, 1)");
  return {x.data,         x.batch * kv_heads, x.tokens,
          group,          x.head_dim,         kv_heads > 1 ? group * x.head_stride : x.batch_stride,
          x.token_stride, x.head_stride};
}

namespace detail {

/// Rotates head h by tables[h], after the arguments of all heads have been checked.
///
/// Throws:  as check_rotation, check_inverse and check_written; std::invalid_argument unless there is one
///          table per head
template <class Layout, bool inverse, class T, rotation_table Table, class P, class Threads>
void rotate_heads_checked(const char* function, const head_view<T>& x, const std::vector<Table>& tables,
                          const P& positions, const Threads& threads) {
  if (static_cast<Index>(tables.size()) != x.heads)
    throw_invalid(function, "give one table per head, ", x.heads, ", got ", tables.size());
  const auto source = position_source(positions, x.tokens);
  check_heads(function, x);
  source.range(function, x.batch, x.tokens);  // checks lists also if there are no heads
  for (const Table& table : tables) {
    check_rotation<Layout>(function, x, placed(table), source);
    if (inverse) check_inverse(function, placed(table));
  }
  check_written(function, x);
  for (Index h = 0; h < x.heads; ++h) {
    const head_view<T> head = x.head_range(h, 1);
    rotate_into<Layout, inverse, true>(head, head, placed(tables[static_cast<std::size_t>(h)]), source,
                                       threads);
  }
}

}  // namespace detail

/// Rotates head h of `x` in place by tables[h]. The bits are those of one call of `rotate` per head.
///
///     std::vector<frequency_table<>> tables;
///     for (const frequencies& f : learned) tables.emplace_back(f, grid_positions({height, width}));
///     rotate_heads<interleaved>(queries, tables);
///
/// \param x       [batch, tokens, heads, head_dim]
/// \param tables  [heads], of frequency_table or placed_table; rotary_dim and first_channel may differ from
///                head to head, positions are shared
///
/// Throws:  as rotate, for any head, and std::invalid_argument unless there is one table per head; x is then
///          unchanged. If memory runs out (rows of more than 256 pairs that are converted), the heads before
///          are rotated
/// Cost:    about three times that of rotate: no two heads share a table row, so the tables are as large as x
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void rotate_heads(head_view<T> x, const std::vector<Table>& tables, const P& positions = P{},
                  const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_heads", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("rotate_heads", "x", T);
  if constexpr (!std::is_const_v<T>)
    detail::rotate_heads_checked<Layout, false>("rotate_heads", x, tables, positions, threads);
}

/// Inverse of `rotate_heads`, in place.
///
/// Throws:  as rotate_heads; x is then unchanged
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void unrotate_heads(head_view<T> x, const std::vector<Table>& tables, const P& positions = P{},
                    const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("unrotate_heads", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("unrotate_heads", "x", T);
  if constexpr (!std::is_const_v<T>)
    detail::rotate_heads_checked<Layout, true>("unrotate_heads", x, tables, positions, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(rotate_heads, 1);
ROPE_DETAIL_ASK_FOR_VIEWS(unrotate_heads, 1);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_ROTATE_HEADS_HPP
