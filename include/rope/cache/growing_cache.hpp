// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_GROWING_CACHE_HPP
#define ROPE_CACHE_GROWING_CACHE_HPP

#include <cstdint>

#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/token_list.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/token_cache.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The functions of kv_cache and latent_cache on stored tokens.

namespace rope::inline ROPE_ABI {

/// The base class of kv_cache and latent_cache: one growing sequence per row of the batch, in which any token
/// can be removed or moved.
///
///     cache.evict(std::vector{3, 5, 4});
///
/// \tparam Cache  the derived class
/// \tparam T      a channel type, as in kv_cache and latent_cache
/// \tparam place  where values are stored
///
/// Invariant: tokens [0, size(b)) of row b are written. The rest of the row is indeterminate and never
///            visible. A function that throws leaves the cache unchanged. A moved-from cache is empty.
template <class Cache, class T, detail::value_place place>
class growing_cache : public token_cache<Cache, T, place, detail::cache_rows> {
  using base = token_cache<Cache, T, place, detail::cache_rows>;

 public:
  using base::keys;
  using base::size;
  using base::values;

  /// Tokens stored per row.  Throws: std::invalid_argument if rows differ in size; call size(b) then
  Index size() const { return rows().common_size(Cache::names.size); }
  /// The numbers of tokens at the start of row b at positions 0, 1, 2, ..., and in ascending order.  Throws:
  /// std::out_of_range if there is no such row
  detail::ordered_tokens ordered(Index b) const {
    return rows().ordered(rows().checked(Cache::names.ordered, b));
  }

  /// Rotates the stored keys from the angles of one table to those of another, in one pass, by the exact
  /// difference of the two angles at each position.
  ///
  ///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
  ///
  /// Throws:    std::invalid_argument for raw keys, or unless `from` and this layout rotated the keys, and
  ///            both tables have the same pairs and first channel, and exact angles at positions or, with
  ///            axes, at coordinates
  /// Accuracy:  the error of one more rotation
  /// Cost:      one pass over the stored keys, and a row of cos and sin per position
  template <class Layout = detail::unnamed_layout, rotation_table From, rotation_table To>
  void rebase(const From& from, const To& to) {
    ROPE_DETAIL_CHECK_LAYOUT("rebase", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template rebase<Layout>(Cache::names.rebase, base::cache().placed(Cache::names.rebase, from),
                                      base::cache().placed(Cache::names.rebase, to));
  }

  /// Removes tokens [first, first + count). Later tokens move to lower indices and keep their positions. With
  /// `shift` to close the gap, this is the context shift of llama.cpp (llama_memory_seq_rm and
  /// llama_memory_seq_add):
  ///
  ///     cache.remove(keep, n);  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  ///
  /// Throws:  std::out_of_range unless first and count are at least 0 and first + count at most size()
  /// Cost:    one pass over the later tokens
  void remove(Index first, Index count, batch_row row = every_row) {
    tokens_.remove(Cache::names.remove, first, count, row);
  }

  /// Removes the listed tokens, such as those with the smallest attention sums (H2O, SnapKV). Other tokens
  /// move to lower indices and keep their positions or coordinates. The next position of the row does not
  /// change, even if its newest token is removed. In contrast, `remove` of the newest tokens is a rollback:
  /// the position of the next token is then one more than the largest that remains.
  ///
  ///     cache.evict(std::vector{3, 5, 4});
  ///
  /// In a cache with axes, the remaining tokens are renumbered, so a window does not count evicted tokens.
  ///
  /// \param indices  any integers in any order: indices of tokens in the row, not positions
  ///
  /// Throws:  std::out_of_range if an index is not in [0, size()), std::invalid_argument if one is given
  ///          twice
  /// Cost:    one pass over the tokens after the first removed one, and scratch memory for the list
  void evict(const detail::token_indices& indices, batch_row row = every_row) {
    tokens_.evict(Cache::names.evict, indices, row);
  }

  /// Adds `delta` to the positions of tokens [first, first + count) in a cache of raw keys. The result is
  /// exact for integers, and no key is read.
  ///
  /// Throws:  as `remove`, also if a position would leave [-2^53, 2^53]; std::invalid_argument for rotated
  ///          keys
  void shift(Index first, Index count, std::int64_t delta, batch_row row = every_row) {
    tokens_.shift(Cache::names.shift, first, count, delta, row);
  }

  /// Adds `delta` to the positions of tokens [first, first + count) and rotates their stored keys by the
  /// exact angle of `delta`. Magnitudes do not change:
  ///
  ///     k' = R(delta) k,  without the attention_factor, which k has already
  ///
  /// Throws:    as `remove`, also if a position would leave [-2^53, 2^53]; std::invalid_argument unless this
  ///            layout and table rotated the keys, and the table has exact angles. If the schedule depends on
  ///            length, a table made for another length counts as another table. Raw keys are not read, and
  ///            the table is ignored
  /// Accuracy:  the error of one more rotation per call; for a stream that shifts repeatedly, store raw keys
  /// Cost:      one pass over the keys of these tokens
  /// Source:    K-shift of llama.cpp, which multiplies by the attention_factor once more
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void shift(Index first, Index count, std::int64_t delta, const Table& table, batch_row row = every_row) {
    ROPE_DETAIL_CHECK_LAYOUT("shift", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template shift<Layout>(Cache::names.shift, first, count, delta,
                                     base::cache().placed(Cache::names.shift, table), row);
  }
  ROPE_DETAIL_REFUSE(rebase, , (detail::lacks_tables<Arguments...>(2)),
                     "rebase: pass the table that rotated the keys, and the table of their new rotation");
  ROPE_DETAIL_REFUSE(shift, , (detail::misplaced_in_shift<Layout, Arguments...>()),
                     "shift: after delta pass the table of keys that are stored rotated, with their "
                     "layout, and then batch_row{b} for a single row");

  /// Increases the capacity to at least `capacity` tokens per row. Views and spans of the cache are no longer
  /// valid.
  ///
  ///     cache.reserve(2 * cache.capacity());
  ///
  /// Throws:  std::invalid_argument if capacity is negative, std::length_error if memory cannot hold it
  /// Cost:    nothing if capacity() is enough. Otherwise one copy of the tokens, during which the old and the
  ///          new memory are in use
  void reserve(Index capacity) { tokens_.reserve(Cache::names.reserve, capacity); }

  /// The stored keys [batch, size(), kv_heads, head_dim]; valid until the cache changes. For a latent_cache,
  /// each key is a latent followed by its rotated part, [batch, size(), 1, latent_dim + rotary_dim].  Throws:
  /// std::invalid_argument if rows differ in size
  head_view<const T> keys() const {
    return base::memory().keys().token_range(0, rows().common_size(Cache::names.keys));
  }
  /// The stored values [batch, size(), kv_heads, value_dim]; valid until the cache changes. For a
  /// latent_cache, the latents, [batch, size(), 1, latent_dim], in the memory of the keys.  Throws: as keys()
  head_view<const T> values() const {
    return base::memory().values().token_range(0, rows().common_size(Cache::names.values));
  }

 protected:
  using base::base;
  using base::rows;
  using base::tokens_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_GROWING_CACHE_HPP
