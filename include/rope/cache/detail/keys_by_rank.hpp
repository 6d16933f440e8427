// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_KEYS_BY_RANK_HPP
#define ROPE_CACHE_DETAIL_KEYS_BY_RANK_HPP

#include <algorithm>  // std::min
#include <cstdint>

#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// Copies of the keys visible to one query, rotated by their ranks among these keys.

namespace rope::inline ROPE_ABI::detail {

/// Keys, rotated by their ranks, and values, [1, ranks, heads, ...], in the order of ranks.
template <class T>
struct keys_by_rank {
  head_view<const T> keys, values;
};

/// Copies the keys and values of key heads [head, head + heads) of row b that are visible to the query at
/// `position`, whose rank is `rank`. The copies are valid until the next call on this thread.
template <class Layout, class T, class Rows, class S>
keys_by_rank<T> read_by_rank(const Rows& rows, const placed_table<S>& table, Index b, Index head, Index heads,
                             std::int64_t position, std::int64_t rank) {
  struct ranked_keys {};
  struct ranked_values {};
  const auto k = rows.keys(b).head_range(head, heads), v = rows.values(b).head_range(head, heads);
  const Index sinks = rows.policy().sinks, count = to_index(rank + 1);
  const head_view<T> keys = bhsd(workspace<ranked_keys, T>(count * heads * k.head_dim), 1, heads, count,
                                 k.head_dim),
                     values = bhsd(workspace<ranked_values, T>(count * heads * v.head_dim), 1, heads, count,
                                   v.head_dim);
  for (Index r = 0; r < count;) {
    // Ranks r, r + 1, ... are contiguous in memory up to the end of the sinks or of the ring.
    const Index slot = rows.slot(r < sinks ? r : position - rank + r);
    const Index run = (std::min)(count - r, (slot < sinks ? sinks : k.tokens) - slot);
    rotate_channels<Layout>(k.token_range(slot, run), keys.token_range(r, run), table,
                            contiguous_positions{r});
    copy_channels(v.token_range(slot, run), values.token_range(r, run));
    r += run;
  }
  return {keys, values};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_KEYS_BY_RANK_HPP
