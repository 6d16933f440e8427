// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP
#define ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP

#include <cstdint>

#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>

/// How attention rotates queries and keys: tokens while they are read, and whole operands of the backward
/// pass.

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
  rotation_plan<Layout, false, T, S>(from, out, table).run(positions, 0, tokens);
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
    rotate_all<Layout, true, T>(d_x, d_x, table, positions, threads, reverse_rotation::transpose);
}

// Queries and keys rotated by the positions that attention gives them, and gradients rotated back. A query
// that sees nothing and a key past its row's count need no row of the table: they turn by any that is there,
// and nothing reads them.

struct attending_queries {
  const visibility& rule;
  std::int64_t unused;  // a position of the table

  std::int64_t operator()(Index b, Index t) const {
    return rule.has_no_key_in_range(b, t) ? unused : rule.query_position(b, t);
  }
};

struct attended_keys {
  const visibility& rule;
  std::int64_t unused;

  std::int64_t operator()(Index b, Index t) const {
    return t < rule.key_count(b) ? rule.key_position(b, t) : unused;
  }
};

template <class T>
struct rotated_pair {
  head_view<const T> q, k;
};

/// Copies of q and k, rotated; valid until the next call with the same T on the same thread.
///
/// Requires:  the options are checked
/// Throws:    as `rotate`, before anything is written
template <class Layout, class T, class S, class Threads = this_thread>
rotated_pair<T> rotated_operands(const char* function, const head_view<const T>& q,
                                 const head_view<const T>& k, const query_key_tables<S>& tables,
                                 const visibility& rule, const Threads& threads = {}) {
  const placed_table<S>&query_table = tables.queries(), &key_table = tables.keys();
  const attending_queries query_positions = {rule, query_table.table().first()};
  const attended_keys key_positions = {rule, key_table.table().first()};
  check_rotations<Layout>(function, q, k, tables, rule);
  struct rotated_copies {};
  T* memory = workspace<rotated_copies, T>(q.size() + k.size());
  const head_view<T> rotated_q = bhsd(memory, q.batch, q.heads, q.tokens, q.head_dim);
  const head_view<T> rotated_k = bhsd(memory + q.size(), k.batch, k.heads, k.tokens, k.head_dim);
  rotate_where_seen<Layout>(q, rotated_q, query_table, query_positions, threads);
  rotate_where_seen<Layout>(k, rotated_k, key_table, key_positions, threads);
  return {rotated_q, rotated_k};
}

/// Turns gradients with respect to the rotated queries and keys into gradients with respect to the unrotated
/// ones, in place.
template <class Layout, class T, class S, class Threads>
void rotate_gradients_back(const head_view<T>& d_q, const head_view<T>& d_k,
                           const query_key_tables<S>& tables, const visibility& rule,
                           const Threads& threads) {
  const placed_table<S>&query_table = tables.queries(), &key_table = tables.keys();
  const attending_queries query_positions = {rule, query_table.table().first()};
  const attended_keys key_positions = {rule, key_table.table().first()};
  rotate_gradient_where_seen<Layout>(d_q, query_table, query_positions, threads);
  rotate_gradient_where_seen<Layout>(d_k, key_table, key_positions, threads);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_ROTATED_TOKENS_HPP
