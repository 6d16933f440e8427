// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_ROWS_HPP
#define ROPE_DETAIL_ATTENTION_ROWS_HPP

#include <algorithm>  // std::copy
#include <cstdint>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>
#include <rope/detail/rotation.hpp>
#include <rope/detail/visibility.hpp>
#include <rope/table.hpp>
#include <rope/view.hpp>

/// Heads as rows of the arithmetic type: the memory itself where it will do, else a rotated or widened copy
/// of a few rows in the cache.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Queries and keys that are attended to as they are.
struct no_rotation {
  static constexpr bool rotates = false;
};

/// Queries and keys that are rotated by a table while they are read.
template <class L, class S>
struct table_rotation {
  static constexpr bool rotates = true;
  using Layout = L;
  const frequency_table<S>* table;
};

/// A checked call of attention.
template <class T, class Turn>
struct attention_call {
  head_view<const T> q, k, v;
  head_view<T> out;
  visibility rules;
  Turn turn;

  Index group() const { return k.heads == 0 ? 1 : q.heads / k.heads; }
};

/// rows[n * stride + d]
template <class X>
struct row_block {
  const X* rows;
  Index stride;
};

template <class T>
using channels_map = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_channels_map = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

template <class T>
void widen(const T* from, Index count, arithmetic<T>* to) {
  channels_map<arithmetic<T>>(to, count) = const_channels_map<T>(from, count).template cast<arithmetic<T>>();
}

/// Positions of tokens from `first` on, counted from there.
struct query_positions_from {
  const visibility* rules;
  Index row, first;
  std::int64_t operator()(Index /*b*/, Index t) const { return rules->query_position(row, first + t); }
};
struct key_positions_from {
  const visibility* rules;
  Index row, first;
  std::int64_t operator()(Index /*b*/, Index t) const { return rules->key_position(row, first + t); }
};

/// Room for the copies of as many rows as are read at a time.
template <class T>
struct row_buffers {
  T* turned;
  arithmetic<T>* wide;
};

/// Tokens [first, first + tokens) of heads [head, head + heads) of row b, rotated into `to` [tokens, heads,
/// head_dim] with the bits of `rotate`.
template <class T, class Turn, class Source>
void rotate_into(const head_view<const T>& x, Index b, Index first, Index tokens, Index head, Index heads,
                 const Turn& turn, const Source& positions, T* to) {
  const head_view<const T> from = {x.at(b, first, head), 1, tokens,         heads,
                                   x.head_dim,           0, x.token_stride, x.head_stride};
  const head_view<T> out = {to, 1, tokens, heads, x.head_dim, 0, heads * x.head_dim, x.head_dim};
  using S = typename std::remove_cvref_t<decltype(*turn.table)>::scalar;
  rotation<typename Turn::Layout, false, T, S, Source>(from, out, *turn.table, positions).run(0, tokens);
}

/// Keys [first, first + count) of key head `kv`, [count, head_dim], rotated where the call rotates. Kept in
/// the channel type if `Storage` is T, else in the arithmetic type.
template <class Storage, class T, class Turn>
row_block<Storage> read_keys(const attention_call<T, Turn>& call, Index b, Index kv, Index first, Index count,
                             const row_buffers<T>& buffers) {
  row_block<T> block = {call.k.at(b, first, kv), call.k.token_stride};
  if constexpr (Turn::rotates) {
    rotate_into(call.k, b, first, count, kv, Index{1}, call.turn, key_positions_from{&call.rules, b, first},
                buffers.turned);
    block = {buffers.turned, call.k.head_dim};
  }
  if constexpr (std::is_same_v<Storage, T>) {
    return block;
  } else {
    for (Index n = 0; n < count; ++n)
      widen(block.rows + n * block.stride, call.k.head_dim, buffers.wide + n * call.k.head_dim);
    return {buffers.wide, call.k.head_dim};
  }
}

/// Values [first, first + count) of key head `kv`, [count, value_dim].
template <class Storage, class T, class Turn>
row_block<Storage> read_values(const attention_call<T, Turn>& call, Index b, Index kv, Index first,
                               Index count, const row_buffers<T>& buffers) {
  const row_block<T> block = {call.v.at(b, first, kv), call.v.token_stride};
  if constexpr (std::is_same_v<Storage, T>) {
    return block;
  } else {
    for (Index n = 0; n < count; ++n)
      widen(block.rows + n * block.stride, call.v.head_dim, buffers.wide + n * call.v.head_dim);
    return {buffers.wide, call.v.head_dim};
  }
}

/// The query heads of key head `kv` of token i, times `factor`: channel d of head g goes to to[d * step] for
/// {to, step} = place(g).
template <class T, class Turn>
void read_queries(const attention_call<T, Turn>& call, Index b, Index kv, Index i, arithmetic<T> factor,
                  const row_buffers<T>& buffers, const auto& place) {
  const Index group = call.group(), depth = call.q.head_dim;
  const T* rows = call.q.at(b, i, kv * group);
  Index stride = call.q.head_stride;
  if constexpr (Turn::rotates) {
    rotate_into(call.q, b, i, Index{1}, kv * group, group, call.turn, query_positions_from{&call.rules, b, i},
                buffers.turned);
    rows = buffers.turned;
    stride = depth;
  }
  for (Index g = 0; g < group; ++g) {
    const auto [to, step] = place(g);
    const T* row = rows + g * stride;
    for (Index d = 0; d < depth; ++d) to[d * step] = static_cast<arithmetic<T>>(row[d]) * factor;
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_ROWS_HPP
