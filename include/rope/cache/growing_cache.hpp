// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_GROWING_CACHE_HPP
#define ROPE_CACHE_GROWING_CACHE_HPP

#include <cstddef>
#include <cstdint>
#include <span>

#include <rope/attention/options.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_tokens.hpp>
#include <rope/cache/detail/token_list.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/tables/table.hpp>

/// The functions of kv_cache and latent_cache on stored tokens.

namespace rope::inline ROPE_ABI::detail {

/// The names of a cache and its functions in error messages.
struct cache_names {
  const char *cache, *size, *positions, *next_positions, *rebase, *truncate, *remove, *evict, *shift,
      *copy_row, *reorder, *reserve, *keys, *values, *order, *rotation_by;
};

}  // namespace rope::inline ROPE_ABI::detail

/// A macro, because only string literals are concatenated.
#define ROPE_DETAIL_CACHE_NAMES(name)                                                                    \
  {                                                                                                      \
    .cache = name, .size = name "::size", .positions = name "::positions",                               \
    .next_positions = name "::next_positions", .rebase = name "::rebase", .truncate = name "::truncate", \
    .remove = name "::remove", .evict = name "::evict", .shift = name "::shift",                         \
    .copy_row = name "::copy_row", .reorder = name "::reorder", .reserve = name "::reserve",             \
    .keys = name "::keys", .values = name "::values", .order = name "::order",                           \
    .rotation_by = name "::rotation_by"                                                                  \
  }

namespace rope::inline ROPE_ABI {

/// The base class of kv_cache and latent_cache: one growing sequence per row of the batch. In a latent_cache
/// only the rotated part of a stored key is rotated; latents keep their bits.
///
///     cache.truncate(5, batch_row{2});
///
/// \tparam Cache  the derived class
/// \tparam T      a channel type, as in kv_cache and latent_cache
/// \tparam place  where values are stored
///
/// Invariant: tokens [0, size(b)) of row b are written, the rest is indeterminate and never visible. A
///            function that throws leaves the cache unchanged. A moved-from cache is empty.
template <class Cache, class T, detail::value_place place>
class growing_cache {
 public:
  using value_type = T;  // a stored channel

  /// Tokens that can be stored per row.
  Index capacity() const { return tokens_.memory().slot_count(); }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return tokens_.storage(); }
  /// Whether the rotation of the stored keys is known: by a table of `append` or append_rotated. False for
  /// raw keys and in an empty cache.
  bool rotates_keys() const { return tokens_.rotates_keys(); }
  /// The rotation of the stored keys, to store next to them. It is unknown if rotates_keys() is false.
  key_rotation rotation() const { return tokens_.rotation(); }
  /// The rotation() of a cache whose keys were appended with this table and layout.
  ///
  /// Throws:  std::invalid_argument if tokens have coordinates and the table is of other axes or given
  ///          entries; in a latent_cache, unless the table rotates exactly the rotated part
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  key_rotation rotation_by(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("rotation_by", Layout);
    if constexpr (pair_layout<Layout>)
      return tokens_.template rotation_of<Layout>(Cache::names.rotation_by,
                                                  placed(Cache::names.rotation_by, table));
    else
      return {};
  }
  /// Tokens stored per row.  Throws: std::invalid_argument if rows differ in size; call size(b) then
  Index size() const { return rows().common_size(Cache::names.size); }
  /// Tokens stored in row b.  Throws: std::out_of_range if there is no such row, like all functions of b
  /// below
  Index size(Index b) const { return rows().size(rows().checked(Cache::names.size, b)); }
  /// Positions of the tokens of row b, [size(b)]; valid until the cache changes.  Throws: std::out_of_range;
  /// std::invalid_argument if tokens have coordinates
  std::span<const std::int64_t> positions(Index b) const {
    return tokens_.positions(Cache::names.positions, b);
  }
  /// The positions that decide visibility in attention, [size(b)]: those of the tokens, or 0, 1, 2, ... if
  /// tokens have coordinates; valid until the cache changes.  Throws: std::out_of_range
  std::span<const std::int64_t> order(Index b) const {
    return rows().positions(rows().checked(Cache::names.order, b));
  }
  /// order(b) of one token.  Throws: std::out_of_range if there is no such row. Requires: token < size(b)
  std::int64_t order_of(Index b, std::int64_t token) const {
    return order(b)[static_cast<std::size_t>(token)];
  }
  /// Number of tokens appended to row b and not removed since: size(b).  Throws: std::out_of_range
  std::int64_t seen(Index b) const { return size(b); }
  /// Returns `options` unchanged, because this cache adds no rules.
  attention_options rules(const char* /*function*/, const attention_options& options) const {
    return options;
  }
  /// The position of the next token of each row, [batch]; valid until the cache changes. New queries are at
  /// `row_starts{cache.next_positions()}`.  Throws: std::invalid_argument if the largest coordinate of a row
  /// is not an integer
  std::span<const std::int64_t> next_positions() const {
    return tokens_.next_positions(Cache::names.next_positions);
  }
  /// The number of the `queries` queries in each row for a call of attention without counts, [batch]. Empty:
  /// all. Valid until the cache changes.  Throws: std::invalid_argument, see attention in attention.hpp
  std::span<const Index> query_counts(Index queries) const {
    return rows().newest().counts("attention", queries);
  }
  /// The record from which query_counts is computed.
  const detail::newest_tokens& newest() const { return rows().newest(); }
  /// The numbers of tokens at the start of row b at positions 0, 1, 2, ..., and in ascending order.
  detail::ordered_tokens ordered(Index b) const { return rows().order(b); }

  /// Checks that the stored keys, unless they are raw, were rotated in this layout by a table that rotates
  /// like this one.  Throws: std::invalid_argument if not
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void check_table(const Table& table) const {
    ROPE_DETAIL_CHECK_LAYOUT("check_table", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template check_table<Layout>(Cache::names.cache, placed(Cache::names.cache, table));
  }

  /// Rotates the stored keys from the angles of one table to those of another, in one pass, by the exact
  /// difference of the two angles at each position.
  ///
  ///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
  ///
  /// Throws:    std::invalid_argument unless the keys were appended with `from` and this layout, and both
  ///            tables have the same pairs, a range of positions and exact angles
  /// Accuracy:  that of one more rotation
  /// Cost:      one pass over the stored keys, and a row of cos and sin per position
  template <class Layout = detail::unnamed_layout, rotation_table From, rotation_table To>
  void rebase(const From& from, const To& to) {
    ROPE_DETAIL_CHECK_LAYOUT("rebase", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template rebase<Layout>(Cache::names.cache, Cache::names.rebase,
                                      placed(Cache::names.rebase, from), placed(Cache::names.rebase, to));
  }

  /// Removes every token from `size` on: the rollback of speculative decoding. If a token goes, the next
  /// position is one more than the largest that remains. truncate(0) starts at 0 again, also in a row whose
  /// tokens were all evicted.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= size(); std::invalid_argument if row is every_row and
  ///          rows differ in size, as do all functions with a batch_row below
  void truncate(Index size, batch_row row = every_row) { tokens_.truncate(Cache::names.truncate, size, row); }

  /// Removes tokens [first, first + count). Later tokens move up and keep their positions. With `shift` to
  /// close the gap, this is the context shift of llama.cpp (llama_memory_seq_rm and llama_memory_seq_add):
  ///
  ///     cache.remove(keep, n);  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  ///
  /// Throws:  std::out_of_range unless first and count are at least 0 and first + count at most size()
  /// Cost:    one pass over the later tokens
  void remove(Index first, Index count, batch_row row = every_row) {
    tokens_.remove(Cache::names.remove, first, count, row);
  }

  /// Removes the tokens of a list, such as those with the smallest attention sums (H2O, SnapKV). Other tokens
  /// move up and keep their positions or coordinates. The next position of the row does not change, even if
  /// its newest token is removed. In contrast, `remove` of the newest tokens is a rollback: the next token
  /// takes their positions.
  ///
  ///     cache.evict(std::vector{3, 5, 4});
  ///
  /// With axes, the remaining tokens are renumbered, so a window counts only them.
  ///
  /// \param indices  any integers in any order: indices of tokens in the row, not positions
  ///
  /// Throws:  std::out_of_range if an index is not in [0, size()), std::invalid_argument if one is given
  ///          twice
  /// Cost:    one pass over the tokens after the first that goes, and scratch memory for the list
  void evict(const detail::token_indices& indices, batch_row row = every_row) {
    tokens_.evict(Cache::names.evict, indices, row);
  }

  /// Adds `delta` to the positions of tokens [first, first + count) of raw keys. It is exact and reads no
  /// key.
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
  /// Throws:    as above; std::invalid_argument unless the keys were appended with this layout and table, and
  ///            the table has exact angles. If a schedule depends on length, the table of another length
  ///            throws
  /// Accuracy:  that of one more rotation per call; for a stream that shifts repeatedly, store raw keys
  /// Cost:      one pass over the keys of these tokens
  /// Source:    K-shift of llama.cpp, which multiplies by the attention_factor once more
  template <class Layout = detail::unnamed_layout, rotation_table Table>
  void shift(Index first, Index count, std::int64_t delta, const Table& table, batch_row row = every_row) {
    ROPE_DETAIL_CHECK_LAYOUT("shift", Layout);
    if constexpr (pair_layout<Layout>)
      tokens_.template shift<Layout>(Cache::names.cache, Cache::names.shift, first, count, delta,
                                     placed(Cache::names.shift, table), row);
  }
  ROPE_DETAIL_ASK_FOR_TURNS();

  /// Makes row `to` a copy of row `from`, including positions, for several continuations of one prompt.
  ///
  ///     cache.copy_row(0, 2);
  ///
  /// Throws:  std::out_of_range if there is no such row
  void copy_row(Index from, Index to) { copy_row(static_cast<const Cache&>(*this), from, to); }

  /// Makes row `to` a copy of row `from` of another cache, including positions, so that a prompt which was
  /// processed alone joins a batch. int8 keys and values are copied with their scales, without another
  /// rounding.
  ///
  ///     cache.copy_row(prefilled, 0, 2);
  ///
  /// If rows then have tokens of different calls, the next attention before another `append` needs counts.
  ///
  /// Throws:  std::out_of_range if there is no such row, std::invalid_argument if the caches differ in the
  ///          shape of heads, storage() or axes, or other rows store keys of another rotation;
  ///          std::length_error if the tokens do not fit
  /// Cost:    one copy of the tokens of the row
  void copy_row(const Cache& other, Index from, Index to) {
    tokens_.copy_row(Cache::names.cache, Cache::names.copy_row, other.tokens_, from, to);
  }

  /// Makes every row b a copy of row rows[b] before the call, including positions, for beam search: some
  /// beams continue more than once and others end.
  ///
  ///     const int parents[] = {1, 1, 0};
  ///     cache.reorder(parents);
  ///
  /// \param rows  any integers, [batch]
  ///
  /// Throws:  std::invalid_argument unless `rows` has an entry for every row, std::out_of_range if an entry
  ///          is not a row
  /// Cost:    one copy, or one swap, of every row that changes
  void reorder(const detail::row_list& rows) { tokens_.reorder(Cache::names.reorder, rows); }

  /// Increases the capacity to at least `capacity` tokens per row. Views and spans of the cache are no longer
  /// valid.
  ///
  ///     cache.reserve(2 * cache.capacity());
  ///
  /// Throws:  std::invalid_argument if capacity is negative, std::length_error if memory cannot hold it
  /// Cost:    nothing if capacity() is enough, otherwise one copy of the tokens; until it is done, the old
  ///          and the new memory are in use
  void reserve(Index capacity) { tokens_.reserve(Cache::names.cache, Cache::names.reserve, capacity); }

  /// Removes every token. The capacity does not change.
  void clear() { tokens_.clear(); }

  /// The stored keys [batch, size(), kv_heads, head_dim]; valid until the cache changes. For a latent_cache,
  /// each key is a latent followed by its rotated part, [batch, size(), 1, latent_dim + rotary_dim].  Throws:
  /// std::invalid_argument if rows differ in size
  head_view<const T> keys() const { return tokens_.keys(Cache::names.keys); }
  /// The stored values [batch, size(), kv_heads, value_dim]; valid until the cache changes. For a
  /// latent_cache, the latents, [batch, size(), 1, latent_dim], in the memory of the keys.  Throws: as keys()
  head_view<const T> values() const { return tokens_.values(Cache::names.values); }
  /// keys() of row b only, [1, size(b), ...].  Throws: std::out_of_range
  head_view<const T> keys(Index b) const { return tokens_.keys(Cache::names.keys, b); }
  /// values() of row b only, [1, size(b), ...].  Throws: std::out_of_range
  head_view<const T> values(Index b) const { return tokens_.values(Cache::names.values, b); }

 private:
  friend Cache;
  template <class... Shape>
  explicit growing_cache(Index batch, const Shape&... shape) : tokens_(Cache::names.cache, batch, shape...) {}
  growing_cache(const growing_cache&) = default;
  growing_cache(growing_cache&&) = default;
  growing_cache& operator=(const growing_cache& other) {
    return *this = growing_cache(other);  // all or nothing
  }
  growing_cache& operator=(growing_cache&&) = default;

  const detail::cache_rows& rows() const { return tokens_.rows(); }
  /// The table at the rotated channels of a stored key.  Throws: std::invalid_argument
  template <class Table>
  auto placed(const char* function, const Table& table) const {
    return static_cast<const Cache&>(*this).placed(function, table);
  }

  detail::stored_tokens<T, place> tokens_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_GROWING_CACHE_HPP
