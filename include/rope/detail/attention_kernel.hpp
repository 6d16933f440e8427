// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_KERNEL_HPP
#define ROPE_DETAIL_ATTENTION_KERNEL_HPP

#include <algorithm>  // std::min, std::max
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>  // arithmetic
#include <rope/detail/workspace.hpp>
#include <rope/softmax.hpp>
#include <rope/view.hpp>

/// Attention of rotated queries to rotated keys, tile by tile. A block of queries of one key head (every
/// query head of its group, a few tokens) meets one tile of keys at a time; the softmax is kept online, so
/// nothing of size tokens x tokens exists.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What decides which keys a query sees, and how scores become weights; already checked and completed.
struct attention_rule {
  double scale;
  bool causal;
  Index window;
  double softcap;
};

/// Keys [first, last) of a sequence.
struct key_range {
  Index first;
  Index last;
};

/// The keys that a query at `position` sees among `keys` keys at positions 0, 1, 2, ...
inline key_range visible_keys(Index position, Index keys, const attention_rule& rule) {
  Index first = 0, last = keys;
  if (rule.causal) last = position + 1;
  if (rule.window > 0) {
    first = position - (std::min)(rule.window - 1, position);
    if (!rule.causal && rule.window < keys - position) last = position + rule.window;
  }
  first = (std::max)(Index{0}, first);
  return {first, (std::max)(first, (std::min)(last, keys))};
}

template <class A>
using row_major = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using tile_map = Eigen::Map<row_major<A>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class A>
using const_tile_map = Eigen::Map<const row_major<A>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using channels_map = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_channels_map = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

/// Tokens [first, first + count) of one head as a matrix [count, head_dim] of the arithmetic type: the memory
/// itself where the types agree, else widened into `buffer`.
template <class T>
const_tile_map<arithmetic<T>> widened(const head_view<const T>& x, Index b, Index first, Index count, Index h,
                                      arithmetic<T>* buffer) {
  using A = arithmetic<T>;
  if constexpr (std::is_same_v<T, A>) {
    return {x.at(b, first, h), count, x.head_dim, Eigen::OuterStride<>(x.token_stride)};
  } else {
    for (Index t = 0; t < count; ++t)
      channels_map<A>(buffer + t * x.head_dim, x.head_dim) =
          const_channels_map<T>(x.at(b, first + t, h), x.head_dim).template cast<A>();
    return {buffer, count, x.head_dim, Eigen::OuterStride<>(x.head_dim)};
  }
}

/// Scratch of one call: sizes in elements, cut from one block of memory.
template <class A>
struct attention_scratch {
  static constexpr Index rows = 64;  // queries of a block
  static constexpr Index keys = 64;  // keys of a tile

  A* queries;   // [rows, head_dim], multiplied by the scale
  A* scores;    // [rows, keys]: scores, then weights
  A* sums;      // [rows, value_dim]: weighted sums of values
  A* key_tile;  // [keys, head_dim], for 16-bit keys
  A* value_tile;
  softmax_state<A>* states;  // [rows]

  attention_scratch(Index block_rows, Index head_dim, Index value_dim) {
    struct numbers {};
    struct softmaxes {};
    queries =
        workspace<numbers, A>(block_rows * (head_dim + keys + value_dim) + keys * (head_dim + value_dim));
    scores = queries + block_rows * head_dim;
    sums = scores + block_rows * keys;
    key_tile = sums + block_rows * value_dim;
    value_tile = key_tile + keys * head_dim;
    states = workspace<softmaxes, softmax_state<A>>(block_rows);
  }
};

/// Query tokens [first, first + count) of the query heads that share key head `kv`; every one sees at least
/// one key position, though a window may still leave it empty. Row r of a block is token r / group, query
/// head r % group.
template <class T>
void attend_block(const head_view<const T>& q, const head_view<const T>& k, const head_view<const T>& v,
                  const head_view<T>& out, const attention_rule& rule, Index b, Index kv, Index first,
                  Index count, const attention_scratch<arithmetic<T>>& scratch) {
  using A = arithmetic<T>;
  const Index group = q.heads / k.heads, rows = count * group, offset = k.tokens - q.tokens;
  const auto range_of = [&](Index row) { return visible_keys(first + row / group + offset, k.tokens, rule); };

  tile_map<A> queries(scratch.queries, rows, q.head_dim, Eigen::OuterStride<>(q.head_dim));
  for (Index r = 0; r < rows; ++r) {
    queries.row(r).array() =
        const_channels_map<T>(q.at(b, first + r / group, kv * group + r % group), q.head_dim)
            .template cast<A>() *
        static_cast<A>(rule.scale);
    scratch.states[r] = {};
  }
  tile_map<A> sums(scratch.sums, rows, v.head_dim, Eigen::OuterStride<>(v.head_dim));
  sums.setZero();

  const key_range earliest = range_of(0), latest = range_of(rows - 1);
  for (Index begin = earliest.first; begin < latest.last; begin += scratch.keys) {
    const Index keys = (std::min)(scratch.keys, latest.last - begin);
    const auto key_tile = widened(k, b, begin, keys, kv, scratch.key_tile);
    const auto value_tile = widened(v, b, begin, keys, kv, scratch.value_tile);
    tile_map<A> scores(scratch.scores, rows, keys, Eigen::OuterStride<>(scratch.keys));
    scores.noalias() = queries * key_tile.transpose();
    if (rule.softcap > 0) {
      const A cap = static_cast<A>(rule.softcap);
      scores.array() = cap * (scores.array() / cap).tanh();
    }

    // Masked keys are left out by loop bounds, so that their values never enter a product: 0 * NaN is NaN.
    const bool all_visible = earliest.last >= begin + keys && latest.first <= begin;
    for (Index r = 0; r < rows; ++r) {
      const key_range range = range_of(r);
      const Index from = (std::max)(range.first, begin) - begin,
                  to = (std::min)(range.last, begin + keys) - begin;
      if (from >= to) continue;
      auto weights = scores.row(r).segment(from, to - from);
      const A shrink = scratch.states[r].add(weights.array());
      if (shrink != A(1)) sums.row(r) *= shrink;
      if (!all_visible) sums.row(r).noalias() += weights * value_tile.middleRows(from, to - from);
    }
    if (all_visible) sums.noalias() += scores * value_tile;
  }

  for (Index r = 0; r < rows; ++r) {
    channels_map<T> result(out.at(b, first + r / group, kv * group + r % group), out.head_dim);
    if (scratch.states[r].empty())
      result.setZero();
    else
      result = (sums.row(r).array() / scratch.states[r].sum).template cast<T>();
  }
}

template <class T>
void attend(const head_view<const T>& q, const head_view<const T>& k, const head_view<const T>& v,
            const head_view<T>& out, const attention_rule& rule) {
  if (out.size() == 0) return;
  // Queries before the first key see nothing when the mask is causal.
  const Index blind = rule.causal ? (std::min)(q.tokens, (std::max)(Index{0}, q.tokens - k.tokens)) : 0;
  const Index group = q.heads / k.heads;
  const Index block = (std::max)(Index{1}, attention_scratch<arithmetic<T>>::rows / group);
  const attention_scratch<arithmetic<T>> scratch(block * group, q.head_dim, v.head_dim);
  for (Index b = 0; b < q.batch; ++b) {
    for (Index t = 0; t < blind; ++t)
      for (Index h = 0; h < q.heads; ++h) channels_map<T>(out.at(b, t, h), out.head_dim).setZero();
    for (Index kv = 0; kv < k.heads; ++kv)
      for (Index t = blind; t < q.tokens; t += block)
        attend_block(q, k, v, out, rule, b, kv, t, (std::min)(block, q.tokens - t), scratch);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_KERNEL_HPP
