// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_KV_CACHE_HPP
#define ROPE_CACHE_KV_CACHE_HPP

#include <cstdint>
#include <span>

#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/cache_memory.hpp>  // value_place
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/growing_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/view.hpp>

/// A cache of the keys and values of all previous tokens.

namespace rope::inline ROPE_ABI {

/// A fixed-capacity cache of keys and values, one growing sequence per row of the batch.
///
///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// `append(k, v)` takes rotated keys, and attention(q, cache, out) takes rotated queries. The position of a
/// new token is one more than the largest in its row, evicted tokens included, 0 if there are none, unless
/// `append_at` sets another. `shift` changes it. Tokens of images have several coordinates: see token_axes in
/// policy.hpp. Memory is [batch, kv_heads, capacity, head_dim], so the keys of one head are contiguous.
/// growing_cache.hpp has the functions on stored tokens: size, keys, truncate, remove, shift, rebase, ...
///
/// \tparam T  a channel type. 16-bit caches also take float keys and values, rounded once. std::int8_t: float
///            or 16-bit keys and values are stored as by `quantize`, keys() and values() return a
///            quantized_view, and queries are float. Every later rotation rounds these keys again, by at most
///            half a scale
///
/// Invariant: tokens [0, size(b)) of row b are written, the rest is indeterminate and never visible. A
///            function that throws leaves the cache unchanged. A moved-from cache is empty.
template <class T>
class kv_cache : public growing_cache<kv_cache<T>, T, detail::value_place::own>,
                 public cache_shape<kv_cache<T>> {
  using base = growing_cache<kv_cache<T>, T, detail::value_place::own>;

 public:
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : base(batch, capacity, kv_heads, head_dim, value_dim == 0 ? head_dim : value_dim, storage) {}

  /// A cache of tokens with several coordinates.  Throws: as above
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, token_axes axes, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : kv_cache(batch, capacity, kv_heads, head_dim, value_dim, storage) {
    tokens_.put_on_axes("kv_cache", axes);
  }

  /// Number of coordinates of a token, or 0 if it has one position instead.
  Index axes() const { return tokens_.coordinates().axes(); }
  /// Coordinates of the tokens of row b, [size(b), axes]; valid until the cache changes.  Throws:
  /// std::out_of_range
  auto coordinates(Index b) const {
    const Index row = rows().checked("kv_cache::coordinates", b);
    return tokens_.coordinates().template of<detail::coordinate_map<T>>(row, rows().size(row));
  }
  /// Coordinates of one token, [axes].  Requires: there are such a row and token
  const double* coordinates_of(Index b, std::int64_t token) const {
    return tokens_.coordinates().token(b, detail::to_index(token));
  }
  /// Coordinates of all tokens, [size(0) + size(1) + ..., axes], row after row: for the table that rotates
  /// raw keys.
  detail::owned_doubles<T> coordinates() const { return tokens_.coordinates().all(rows()); }
  /// Coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes].
  ///
  /// Throws:  std::invalid_argument if tokens is negative, std::out_of_range if one would be above 2^53
  detail::owned_doubles<T> next_coordinates(Index tokens = 1) const {
    return tokens_.coordinates().next_coordinates("kv_cache::next_coordinates", tokens);
  }

  /// Appends copies of new tokens.
  ///
  /// \param k        [batch, tokens, kv_heads, head_dim]; unrotated for raw storage, otherwise already
  ///                 rotated. A cache of std::int8_t also takes quantized views: integers and scales are
  ///                 copied without another rounding
  /// \param v        [batch, tokens, kv_heads, value_dim]
  /// \param counts   any integers, [batch]: row b takes its first counts[b] tokens; empty: all of them
  /// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself; std::length_error if the tokens do not fit
  /// Cost:    one copy of k and v
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V,
            class Threads = this_thread>  // append<Layout> is another
  void append(const K& k, const V& v, const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    tokens_.store("kv_cache::append", k, v, tokens_.next_source("kv_cache::append", k.tokens), counts,
                  threads);
  }

  /// Rotates copies of new keys by their positions, and appends them. Until it is empty again, the cache
  /// rejects other layouts and tables that rotate differently, in `attention` too: a schedule that depends on
  /// length (dynamic NTK, LongRoPE) cannot change while the cache stores keys of the old schedule.
  ///
  /// \param k      [batch, tokens, kv_heads, head_dim], not rotated
  /// \param table  the table that rotates k, or a normed_table, which normalises the heads first
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, or keys of another, or an
  ///          unknown, table or layout; std::out_of_range if a position is outside the table
  /// Cost:    one rotation of k and one copy of v
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append", Layout);
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_next<Layout>(
          "kv_cache", "kv_cache::append", head_view<const std::remove_const_t<K>>(k),
          head_view<const std::remove_const_t<V>>(v), detail::key_transform_of(table), counts, threads);
  }

  /// Appends new tokens at the given positions, in any order: prefix reuse, left padding, restarting
  /// positions. Attention uses these positions, not the order of appending: `causal` admits keys at positions
  /// up to and including that of the query, and `window` limits the difference. Left padding and other
  /// sequences in the same row are visible unless a mask hides them. For right padding pass `counts`.
  ///
  ///     cache.append_at<Layout>(k, v, table, ids);
  ///     attention<Layout>(q, cache, out, table);
  ///
  /// \param positions  as in `rotate`
  ///
  /// Throws:  as above; std::out_of_range unless positions are within 2^53 in magnitude
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V, position_form P,
            class Threads = this_thread>
  void append_at(const K& k, const V& v, const P& positions, const detail::row_counts& counts = {},
                 const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    tokens_.store("kv_cache::append_at", k, v, detail::position_source(positions, k.tokens), counts, threads);
  }
  /// Rotates copies of new keys by the given positions, and appends them.  Throws: as above, and as `append`
  /// with a table
  template <class Layout = detail::unnamed_layout, class K, class V, key_table Table, position_form P,
            class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const Table& table, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append_at", Layout);
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_rotated<Layout>("kv_cache", "kv_cache::append_at", k, v,
                                             detail::key_transform_of(table),
                                             detail::position_source(positions, k.tokens), counts, threads);
  }

  /// Appends new tokens at the given coordinates to a cache with axes. Keys are as in `append` without a
  /// table.
  ///
  /// Throws:  as above; std::invalid_argument unless there is a row of axes() coordinates for every token
  template <int no_layout = 0, detail::new_heads K, detail::new_heads V, class Threads = this_thread>
  void append_at(const K& k, const V& v, const token_coordinates& coordinates,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_at", Threads);
    tokens_.store("kv_cache::append_at", k, v, coordinates, counts, threads);
  }

  /// Appends copies of keys that `table` rotated before: saved to disk, in another cache or on another
  /// machine. The cache then treats them as keys that it rotated: `append`, `attention`, `shift` and `rebase`
  /// work.
  ///
  ///     restored.append_rotated<Layout>(keys, values, table, positions);
  ///
  /// \param k          as in `append` without a table
  /// \param table      the table that rotated k. It is not applied again, and no position has to be in it;
  ///                   compare rotation_by<Layout>(table) with the rotation() that was stored with k
  /// \param positions  as in append_at, or token_coordinates; `{}`: the next positions, or the coordinates of
  ///                   a table of coordinates
  ///
  /// Throws:  as append_at; std::invalid_argument if the cache stores raw keys, or keys of another, or an
  ///          unknown, table or layout
  /// Cost:    one copy of k and v
  template <class Layout = detail::unnamed_layout, detail::new_heads K, detail::new_heads V,
            rotation_table Table, detail::place_form P = detail::next_tokens, class Threads = this_thread>
  void append_rotated(const K& k, const V& v, const Table& table, const P& positions = {},
                      const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append_rotated", Layout);
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append_rotated", Threads);
    if constexpr (pair_layout<Layout>)
      tokens_.template store_as_rotated<Layout>("kv_cache", "kv_cache::append_rotated", k, v,
                                                detail::placed(table),
                                                detail::place_source(positions, k.tokens), counts, threads);
  }
  /// The table at the channel at which it rotates a stored key: unchanged.
  template <class Table>
  auto placed(const char* /*function*/, const Table& table) const {
    return detail::placed(table);
  }
  ROPE_DETAIL_ASK_FOR_APPEND("kv_cache", heads);
  ROPE_DETAIL_ASK_FOR_APPEND_AT("kv_cache", heads);
  ROPE_DETAIL_ASK_FOR_APPEND_ROTATED("kv_cache");

 private:
  friend base;
  friend class cache_shape<kv_cache<T>>;
  static constexpr detail::cache_names names = ROPE_DETAIL_CACHE_NAMES("kv_cache");
  using base::rows;
  using base::tokens_;
  const auto& memory() const { return tokens_.memory(); }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_KV_CACHE_HPP
