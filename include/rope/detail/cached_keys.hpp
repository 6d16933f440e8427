// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_CACHED_KEYS_HPP
#define ROPE_DETAIL_CACHED_KEYS_HPP

#include <algorithm>  // std::copy_n, std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention.hpp>
#include <rope/config.hpp>
#include <rope/detail/cache_memory.hpp>  // copy_channels, rotate_channels
#include <rope/detail/workspace.hpp>
#include <rope/positions.hpp>
#include <rope/ring_cache.hpp>  // no_position
#include <rope/table.hpp>
#include <rope/view.hpp>

/// Cached keys as a query reads them: widened, rotated if they are stored raw, and seen by position.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The heads of a view in the type T of the query: the memory itself where the types agree, else a copy in
/// scratch that lasts until the next call with this User.
template <class User, class T, class C>
head_view<const T> widened_heads(const head_view<const C>& x) {
  if constexpr (std::is_same_v<T, C>) {
    return x;
  } else {
    const head_view<T> wide = bhsd(workspace<User, T>(x.size()), x.batch, x.heads, x.tokens, x.head_dim);
    copy_channels(x, wide);
    return wide;
  }
}

/// Raw keys of one row, rotated by the position of each; a key without a position is not visible and is left
/// out.
template <class Layout, class User, class T, class C, class S>
head_view<const T> rotated_heads(const head_view<const C>& k, const frequency_table<S>& table,
                                 std::span<const std::int64_t> positions) {
  constexpr std::int64_t none = ring_cache<C>::no_position;
  const head_view<T> turned = bhsd(workspace<User, T>(k.size()), k.batch, k.heads, k.tokens, k.head_dim);
  for (std::size_t first = 0; first < positions.size();) {
    std::size_t last = first;
    while (last < positions.size() && positions[last] != none) ++last;
    const auto count = static_cast<Index>(last - first);
    if (count > 0)
      rotate_channels<Layout>(k.token_range(static_cast<Index>(first), count),
                              turned.token_range(static_cast<Index>(first), count), table,
                              listed_positions<std::int64_t>(positions.subspan(first, last - first), count));
    first = last + (last < positions.size() ? 1 : 0);
  }
  return turned;
}

/// Whether positions are p, p + 1, p + 2, ...
inline bool contiguous(std::span<const std::int64_t> positions) {
  for (std::size_t i = 1; i < positions.size(); ++i)
    if (positions[i] - positions[0] != static_cast<std::int64_t>(i)) return false;
  return true;
}

/// Whether a query sees a key: by the order of their positions, and by their distance unless the key is one
/// of the first `sinks`.
inline bool sees(std::int64_t query, std::int64_t key, const attention_options& options, Index sinks) {
  if (options.causal && key > query) return false;
  if (options.window == 0 || (key >= 0 && key < sinks)) return true;
  return query - key < options.window && key - query < options.window;
}

/// Attention of one row in which keys are not at contiguous positions: each query sees keys by the rule
/// above, wherever they are in memory.
template <class T>
void attend_by_position(const head_view<const T>& q, const head_view<const T>& k, const head_view<const T>& v,
                        const head_view<T>& out, std::span<const std::int64_t> query_positions,
                        std::span<const std::int64_t> key_positions, Index sinks,
                        const attention_options& options) {
  struct seen_keys {};
  struct seen_values {};
  attention_options alone = options;
  alone.causal = false;
  alone.window = 0;
  for (Index i = 0; i < q.tokens; ++i) {
    const auto visible = [&](Index j) {
      return sees(query_positions[static_cast<std::size_t>(i)], key_positions[static_cast<std::size_t>(j)],
                  options, sinks);
    };
    Index count = 0, first = k.tokens, last = 0;
    for (Index j = 0; j < k.tokens; ++j)
      if (visible(j)) {
        ++count;
        first = (std::min)(first, j);
        last = j + 1;
      }
    if (count == 0) first = last = 0;
    head_view<const T> keys = k.token_range(first, last - first), values = v.token_range(first, last - first);
    if (count < last - first) {
      const head_view<T> near_keys =
          bhsd(workspace<seen_keys, T>(count * k.heads * k.head_dim), 1, k.heads, count, k.head_dim);
      const head_view<T> near_values =
          bhsd(workspace<seen_values, T>(count * v.heads * v.head_dim), 1, v.heads, count, v.head_dim);
      for (Index h = 0; h < k.heads; ++h)
        for (Index j = first, to = 0; j < last; ++j)
          if (visible(j)) {
            std::copy_n(k.at(0, j, h), k.head_dim, near_keys.at(0, to, h));
            std::copy_n(v.at(0, j, h), v.head_dim, near_values.at(0, to++, h));
          }
      keys = near_keys;
      values = near_values;
    }
    attention(q.token_range(i, 1), keys, values, out.token_range(i, 1), alone);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_CACHED_KEYS_HPP
