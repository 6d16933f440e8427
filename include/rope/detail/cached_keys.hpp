// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_CACHED_KEYS_HPP
#define ROPE_DETAIL_CACHED_KEYS_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/cache_memory.hpp>  // copy_channels, rotate_channels
#include <rope/detail/workspace.hpp>
#include <rope/positions.hpp>
#include <rope/ring_cache.hpp>  // no_position
#include <rope/table.hpp>
#include <rope/view.hpp>

/// Cached keys as a query reads them: widened, and rotated if they are stored raw.

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

/// Whether positions are 0, 1, 2, ...
inline bool counted(std::span<const std::int64_t> positions) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    if (positions[i] != static_cast<std::int64_t>(i)) return false;
  return true;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_CACHED_KEYS_HPP
