// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_TURNED_TOKENS_HPP
#define ROPE_ATTENTION_DETAIL_TURNED_TOKENS_HPP

#include <rope/config.hpp>
#include <rope/rotation/detail/rotation_pass.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// All that attention asks of the rotation room's inside: to turn what has been checked.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Tokens [first, first + tokens), at regular strides, of heads [head, head + heads) of row b, rotated into
/// `to` [tokens, heads, head_dim] with the bits of `rotate`.
template <class Layout, class Tokens, class T, class S, class Source>
void rotate_into(const Tokens& x, Index b, Index first, Index tokens, Index head, Index heads,
                 const placed_table<S>& table, const Source& positions, T* to) {
  const head_view<const T> from = {x.at(b, first, head), 1, tokens,         heads,
                                   x.head_dim,           0, x.token_stride, x.head_stride};
  const head_view<T> out = {to, 1, tokens, heads, x.head_dim, 0, heads * x.head_dim, x.head_dim};
  rotation<Layout, false, T, S>(from, out, table).run(positions, 0, tokens);
}

/// Every head of `x` rotated into `out`. A table without rows serves a call in which no query sees a key.
template <class Layout, class T, class S, class Source, class Threads>
void rotate_where_seen(const head_view<const T>& x, const head_view<T>& out, const placed_table<S>& table,
                       const Source& positions, const Threads& threads) {
  if (table.table().rows() > 0) rotate_all<Layout, false>(x, out, table, positions, threads);
}

/// The gradient with respect to what `rotate_where_seen` wrote becomes that with respect to what it read.
template <class Layout, class T, class S, class Source, class Threads>
void rotate_gradient_where_seen(const head_view<T>& d_x, const placed_table<S>& table,
                                const Source& positions, const Threads& threads) {
  if (table.table().rows() > 0)
    rotate_all<Layout, true, T>(d_x, d_x, table, positions, threads, way_back::transpose);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_TURNED_TOKENS_HPP
