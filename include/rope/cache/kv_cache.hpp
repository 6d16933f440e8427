// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_KV_CACHE_HPP
#define ROPE_CACHE_KV_CACHE_HPP

#include <cstdint>
#include <span>

#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/cache_shape.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_tokens.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/token_coordinates.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The keys and values of the tokens a decoder has already seen.

namespace rope {
inline namespace ROPE_ABI {

/// A fixed-capacity cache of keys and values, one growing sequence per row of the batch.
///
///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// `append(k, v)` takes keys that are rotated already, and attention(q, cache, out) such queries. A token's
/// position is one more than the largest in its row, 0 in an empty row, unless `append_at` names another;
/// `shift` changes it. Tokens of images have several coordinates: token_axes, in policy.hpp. Memory is
/// [batch, kv_heads, capacity, head_dim], so the keys of one head are contiguous.
///
/// \tparam T  a channel type. 16-bit caches also take float keys and values, rounded once. std::int8_t: what
///            `quantize` makes of float or 16-bit ones, with keys() and values() of quantized_view; queries
///            are float, and keys that turn again are rounded again, by at most half a scale each time
///
/// Invariant: tokens [0, size(b)) of row b are written, the rest is indeterminate and never visible. Every
///            function that throws leaves the cache as it was. Empty once it was moved from.
template <class T>
class kv_cache : public detail::cache_shape<kv_cache<T>> {
 public:
  using value_type = T;  // a channel as it is stored
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : tokens_("kv_cache", batch, capacity, kv_heads, head_dim, value_dim == 0 ? head_dim : value_dim,
                storage) {}

  /// A cache of tokens with several coordinates.  Throws: as above
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, token_axes axes, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : tokens_("kv_cache", batch, capacity, kv_heads, head_dim, value_dim == 0 ? head_dim : value_dim,
                storage, axes) {}

  kv_cache(const kv_cache&) = default;
  kv_cache(kv_cache&&) = default;
  kv_cache& operator=(const kv_cache& other) { return *this = kv_cache(other); }  // all or nothing
  kv_cache& operator=(kv_cache&&) = default;
  /// Tokens that can be stored per row.
  Index capacity() const { return memory().slot_count(); }
  /// Whether keys are stored rotated or raw.
  key_storage storage() const { return tokens_.storage(); }
  /// Tokens stored per row.  Throws: std::invalid_argument if rows differ; ask for them one by one then
  Index size() const { return rows().common_size("kv_cache::size"); }
  /// Tokens stored in row b.  Throws: std::out_of_range if there is no such row. The same holds below
  Index size(Index b) const { return rows().size(rows().checked("kv_cache::size", b)); }
  /// Positions of the tokens of row b, [size(b)]; valid until the cache changes.  Throws: std::out_of_range;
  /// std::invalid_argument if they have coordinates
  std::span<const std::int64_t> positions(Index b) const {
    return tokens_.positions("kv_cache::positions", b);
  }
  /// What attention goes by, [size(b)]: the positions of tokens, or 0, 1, 2, ... where they have coordinates;
  /// valid until the cache changes.  Throws: std::out_of_range
  std::span<const std::int64_t> order(Index b) const {
    return rows().positions(rows().checked("kv_cache::order", b));
  }
  /// The position that the next token of each row gets, [batch]; valid until the cache changes. New queries
  /// are at `row_starts{cache.next_positions()}`.  Throws: std::invalid_argument if the largest coordinate of
  /// a row is not an integer
  std::span<const std::int64_t> next_positions() const {
    return tokens_.next_positions("kv_cache::next_positions");
  }
  /// Coordinates of a token; 0: it has a position.
  Index axes() const { return tokens_.coordinates().axes(); }
  /// Coordinates in row b, [size(b), axes]; valid until the cache changes.  Throws: std::out_of_range
  auto coordinates(Index b) const {
    const Index row = rows().checked("kv_cache::coordinates", b);
    return tokens_.coordinates().template of<detail::coordinate_map<T>>(row, rows().size(row));
  }
  /// Coordinates of all tokens, [size(0) + size(1) + ..., axes], row by row: for a table that reads raw keys.
  detail::owned_doubles<T> coordinates() const { return tokens_.coordinates().all(rows()); }
  /// Coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes].
  ///
  /// Throws:  std::invalid_argument if tokens is negative, std::out_of_range if one would be above 2^53
  detail::owned_doubles<T> next_coordinates(Index tokens = 1) const {
    return tokens_.coordinates().next_coordinates("kv_cache::next_coordinates", tokens);
  }
  /// How many of `queries` queries each row has in a call of attention without counts, [batch]; empty: all.
  /// Valid until the cache changes.  Throws: std::invalid_argument, see attention in attention.hpp
  std::span<const Index> query_counts(Index queries) const {
    return rows().newest().counts("attention", queries);
  }
  /// How many tokens at the start of row b are at positions 0, 1, 2, ..., and how many in ascending order.
  detail::ordered_tokens ordered(Index b) const { return rows().order(b); }

  /// Copies new tokens behind the stored ones.
  ///
  /// \param k        [batch, tokens, kv_heads, head_dim]; not rotated for raw storage, else rotated already
  /// \param v        [batch, tokens, kv_heads, value_dim]
  /// \param counts   any integers, [batch]: row b takes its first counts[b] tokens; empty: all of them
  /// \param threads  the caller's threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself; std::length_error if the tokens do not fit
  /// Cost:    one copy of k and v
  template <int no_layout = 0, class K, class V,  // so that append<Layout> is never this function
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    tokens_.store("kv_cache::append", k, v, tokens_.next_source("kv_cache::append"), counts, threads);
  }

  /// Rotates copies of new keys by their positions, and appends them. Until it is empty again, the cache
  /// refuses other layouts and tables that rotate otherwise, in `attention` too: a schedule that depends on
  /// length (dynamic NTK, LongRoPE) cannot change while keys of the old one are stored.
  ///
  /// \param k      [batch, tokens, kv_heads, head_dim], not rotated
  /// \param table  what k rotates by; or a normed_table, which normalises its heads before
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, holds keys of another table or
  ///          layout, or keys whose table is not known; std::out_of_range if a position is outside the table
  /// Cost:    one rotation of k and one copy of v
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append", Layout);
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_next<Layout>("kv_cache", "kv_cache::append", k, v, detail::key_way_of(table),
                                          counts, threads);
  }

  /// Copies new tokens at positions of the caller's, in any order: prefix reuse, left padding, positions that
  /// start again. Attention goes by them, not by the order of appending: `causal` admits keys at positions up
  /// to the query's, equal ones included, and `window` takes the difference. Padding on the left and other
  /// sequences in the same row are visible unless a mask hides them; for padding on the right give `counts`.
  ///
  ///     cache.append_at<Layout>(k, v, table, ids);
  ///     attention<Layout>(q, cache, out, table);
  ///
  /// \param positions  as in `rotate`
  ///
  /// Throws:  as above; std::out_of_range unless positions are within 2^53 in magnitude
  template <int no_layout = 0, class K, class V, position_form P, class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const P& positions, const detail::row_counts& counts = {},
                 const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    tokens_.store("kv_cache::append_at", k, v, detail::position_source(positions, k.tokens), counts, threads);
  }
  /// The same for keys that the cache rotates by these positions.  Throws: as above, and as its `append`
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table, position_form P,
            class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const Table& table, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append_at", Layout);
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_rotated<Layout>("kv_cache", "kv_cache::append_at", k, v,
                                             detail::key_way_of(table),
                                             detail::position_source(positions, k.tokens), counts, threads);
  }

  /// Copies new tokens to a cache with axes, at these coordinates; keys as in the first `append`.
  ///
  /// Throws:  as above; std::invalid_argument unless there is a row of as many axes for every token
  template <int no_layout = 0, class K, class V, class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const token_coordinates& coordinates,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    tokens_.store_at("kv_cache::append_at", k, v, coordinates, counts, threads);
  }
  ROPE_DETAIL_ASK_FOR_APPEND("kv_cache", heads);
  ROPE_DETAIL_ASK_FOR_APPEND_AT("kv_cache", heads);

  /// Checks that the stored keys, unless they are raw, were rotated in this layout by a table that rotates
  /// like this one.  Throws: std::invalid_argument if not
  template <class Layout, rotation_table Table>
  void check_table(const Table& table) const {
    tokens_.template check_table<Layout>("kv_cache", detail::placed(table));
  }

  /// Turns the stored keys from the angles of one table to those of another, in one pass, by the exact
  /// difference of the two angles at each position.
  ///
  ///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
  ///
  /// Throws:    std::invalid_argument unless the keys were appended with `from` and this layout, and both
  ///            tables are of the same pairs, over a range of positions, with exact angles
  /// Accuracy:  that of one more rotation
  /// Cost:      one pass over the stored keys, and a row of cos and sin per position
  template <class Layout, rotation_table From, rotation_table To>
  void rebase(const From& from, const To& to) {
    tokens_.template rebase<Layout>("kv_cache", "kv_cache::rebase", detail::placed(from), detail::placed(to));
  }

  /// Forgets every token from `size` on: the rollback of speculative decoding.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= size(); std::invalid_argument if every row is meant and
  ///          rows differ in size. The same holds for the functions below
  void truncate(Index size, batch_row row = every_row) { tokens_.truncate("kv_cache::truncate", size, row); }

  /// Forgets tokens [first, first + count); the later ones move up and keep their positions. With `shift`,
  /// which then closes the gap, this is the context shift of llama.cpp (llama_memory_seq_rm and
  /// llama_memory_seq_add):
  ///
  ///     cache.remove(keep, n);  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  ///
  /// Throws:  std::out_of_range unless first and count are at least 0 and first + count at most size()
  /// Cost:    one pass over the tokens behind
  void remove(Index first, Index count, batch_row row = every_row) {
    tokens_.remove("kv_cache::remove", first, count, row);
  }

  /// Adds `delta` to the positions of tokens [first, first + count) of raw keys: exact, and reads no key.
  ///
  /// Throws:  as `remove`, also if one would leave [-2^53, 2^53]; std::invalid_argument for rotated keys
  void shift(Index first, Index count, std::int64_t delta, batch_row row = every_row) {
    tokens_.shift("kv_cache::shift", first, count, delta, row);
  }

  /// The same for rotated keys, which turn by the exact angle of `delta` and keep their magnitude:
  ///
  ///     k' = R(delta) k,  without the attention_factor, which k has already
  ///
  /// Throws:    as above; std::invalid_argument unless the keys were appended with this layout and table, and
  ///            the table has exact angles. A schedule that depends on length has another table at another
  ///            length, and is refused with it
  /// Accuracy:  that of one more rotation every time; a stream that shifts again and again stores raw keys
  /// Cost:      one pass over the keys of these tokens
  /// Source:    K-shift of llama.cpp, which multiplies by the attention_factor once more
  template <class Layout, rotation_table Table>
  void shift(Index first, Index count, std::int64_t delta, const Table& table, batch_row row = every_row) {
    tokens_.template shift<Layout>("kv_cache", "kv_cache::shift", first, count, delta, detail::placed(table),
                                   row);
  }

  /// Makes row `to` what row `from` is, positions included: one prompt, and several ways to go on.
  ///
  ///     cache.copy_row(0, 2);
  ///
  /// Throws:  std::out_of_range if there is no such row
  void copy_row(Index from, Index to) { tokens_.copy_row("kv_cache::copy_row", from, to); }

  /// Makes every row b what row rows[b] was, positions included: the beams of a search, of which some go on
  /// more than once and others end.
  ///
  ///     const int parents[] = {1, 1, 0};
  ///     cache.reorder(parents);
  ///
  /// \param rows  any integers, [batch]
  ///
  /// Throws:  std::invalid_argument unless there is one for every row, std::out_of_range if one is no row
  /// Cost:    one copy, or one swap, of every row that changes
  void reorder(const detail::row_list& rows) { tokens_.reorder("kv_cache::reorder", rows); }

  /// Forgets every token; the capacity stays.
  void clear() { tokens_.clear(); }

  /// The stored keys [batch, size(), kv_heads, head_dim]; valid while the cache lives.  Throws:
  /// std::invalid_argument if rows differ in size
  detail::stored_view<const T> keys() const { return tokens_.keys("kv_cache::keys"); }
  /// The stored values [batch, size(), kv_heads, value_dim]; valid while the cache lives.
  detail::stored_view<const T> values() const { return tokens_.values("kv_cache::values"); }
  /// The keys of row b, [1, size(b), kv_heads, head_dim].  Throws: std::out_of_range
  detail::stored_view<const T> keys(Index b) const { return tokens_.keys("kv_cache::keys", b); }
  /// The values of row b, [1, size(b), kv_heads, value_dim].  Throws: std::out_of_range
  detail::stored_view<const T> values(Index b) const { return tokens_.values("kv_cache::values", b); }

 private:
  friend class detail::cache_shape<kv_cache<T>>;
  const auto& memory() const { return tokens_.memory(); }
  const detail::cache_rows& rows() const { return tokens_.rows(); }

  detail::stored_tokens<T, detail::value_place::own> tokens_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_KV_CACHE_HPP
