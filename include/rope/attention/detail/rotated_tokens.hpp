// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP
#define ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP

#include <rope/attention/detail/visibility.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>

/// Rotation of queries and keys in attention: of tokens while they are read, and of whole operands in the
/// backward pass.

namespace rope::inline ROPE_ABI::detail {

/// Rotates tokens [first, first + tokens), at regular strides, of heads [head, head + heads) of row b into
/// `to` [tokens, heads, head_dim], with the bits of `rotate`.
template <class Layout, class Tokens, class T, class S, class Source>
void rotate_into(const Tokens& x, Index b, Index first, Index tokens, Index head, Index heads,
                 const placed_table<S>& table, const Source& positions, T* to) {
  const head_view<const T> from = {x.at(b, first, head), 1, tokens,         heads,
                                   x.head_dim,           0, x.token_stride, x.head_stride};
  const head_view<T> out = {to, 1, tokens, heads, x.head_dim, 0, heads * x.head_dim, x.head_dim};
  rotation_plan<Layout, false, T, S>(from, out, table).run(positions, 0, tokens);
}

/// Rotates queries and keys by their positions in attention. If `inverse`, converts gradients with respect to
/// rotated queries and keys to gradients with respect to unrotated ones. Outputs may be the inputs.
///
/// A query without visible keys and a key past its row's count need no row of the table. They are rotated by
/// the table's first row, and the result is never read. If no query has a visible key, a table without rows
/// is enough.
template <class Layout, bool inverse, class T, class S, class Threads>
void rotate_operands(const head_view<const T>& q, const head_view<T>& to_q, const head_view<const T>& k,
                     const head_view<T>& to_k, const query_key_tables<S>& tables, const visibility& rules,
                     const Threads& threads) {
  const auto rotate = [&](const auto& x, const auto& to, const placed_table<S>& table,
                          const auto& positions) {
    if (table.table().rows() > 0)
      rotate_all<Layout, inverse, T>(x, to, table, positions, threads, reverse_rotation::transpose);
  };
  rotate(q, to_q, tables.queries(), [&, unused = tables.queries().table().first()](Index b, Index t) {
    return rules.has_no_key_in_range(b, t) ? unused : rules.query_position(b, t);
  });
  rotate(k, to_k, tables.keys(), [&, unused = tables.keys().table().first()](Index b, Index t) {
    return t < rules.key_count(b) ? rules.key_position(b, t) : unused;
  });
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP
