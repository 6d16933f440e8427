// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_KV_CACHE_HPP
#define ROPE_CACHE_KV_CACHE_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>  // std::move

#include <rope/base/message.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/key_rotation.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/key_turn.hpp>
#include <rope/rotation/detail/rotation_checks.hpp>
#include <rope/rotation/layout.hpp>
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
/// `append(k, v)` takes keys that are rotated already, and attention(q, cache, out) such queries.
/// A token's position is one more than the largest in its row when it is appended, 0 in an empty row, unless
/// `append_at` names another; `shift` changes it. Memory is [batch, kv_heads, capacity, head_dim], so the
/// keys of one head are contiguous for a query that reads them all.
///
/// \tparam T  a channel type. 16-bit caches also take float keys and values, rounded once
///
/// Invariant: tokens [0, size(b)) of row b are written, the rest is indeterminate and never visible. Every
///            function that throws leaves the cache as it was. Empty once it was moved from.
template <class T>
class kv_cache {
 public:
  using value_type = T;

  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : memory_("kv_cache", batch, capacity, kv_heads, head_dim, value_dim == 0 ? head_dim : value_dim),
        rows_(batch, capacity),
        storage_(storage) {}

  kv_cache(const kv_cache&) = default;
  kv_cache(kv_cache&&) = default;
  kv_cache& operator=(const kv_cache& other) { return *this = kv_cache(other); }  // all or nothing
  kv_cache& operator=(kv_cache&&) = default;

  Index batch() const { return memory_.batch(); }
  Index kv_heads() const { return memory_.keys().heads; }
  Index head_dim() const { return memory_.keys().head_dim; }
  Index value_dim() const { return memory_.values().head_dim; }
  /// Tokens that can be stored per row.
  Index capacity() const { return memory_.slot_count(); }
  key_storage storage() const { return storage_; }
  /// Tokens stored per row.  Throws: std::invalid_argument if rows differ; ask for them one by one then
  Index size() const { return rows_.common_size("kv_cache::size"); }
  /// Tokens stored in row b.  Throws: std::out_of_range
  Index size(Index b) const { return rows_.size(rows_.checked("kv_cache::size", b)); }
  /// Positions of the tokens of row b, [size(b)]; valid until the cache changes.  Throws: std::out_of_range
  std::span<const std::int64_t> positions(Index b) const {
    return rows_.positions(rows_.checked("kv_cache::positions", b));
  }
  /// The position that the next token of each row gets, [batch]; valid until the cache changes. New queries
  /// are at `row_starts{cache.next_positions()}`.
  std::span<const std::int64_t> next_positions() const { return rows_.next(); }
  /// How many of `queries` queries each row has in a call of attention without counts, [batch]; empty: all.
  /// Valid until the cache changes.  Throws: std::invalid_argument, see attention in attention.hpp
  std::span<const Index> query_counts(Index queries) const {
    return rows_.newest().counts("attention", queries);
  }

  /// Copies new tokens behind the stored ones.
  ///
  /// \param k       [batch, tokens, kv_heads, head_dim]; for raw storage not rotated, else already rotated if
  ///                the model rotates keys: the cache cannot know by which table, so it takes no keys through
  ///                `append(k, v, table)` besides
  /// \param v       [batch, tokens, kv_heads, value_dim]
  /// \param counts  any integers, [batch]: row b takes its first counts[b] tokens; empty: every row takes all
  /// \param threads  the caller's threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's or a count is not in [0, tokens],
  ///          std::length_error if the tokens do not fit
  template <int no_layout = 0, class K, class V,  // so that append<Layout> is never this function
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    store("kv_cache::append", k, v, next_source(), counts, threads);
  }

  /// Rotates copies of new keys by their positions, and appends them. The cache then belongs to this layout
  /// and to tables that rotate like this one: a schedule that depends on length (dynamic NTK, LongRoPE)
  /// cannot be exchanged under a cache unnoticed.
  ///
  /// \param k  [batch, tokens, kv_heads, head_dim], not rotated
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, holds keys of another table or
  ///          layout, or keys whose table is not known; std::out_of_range if a position is outside the table
  template <class Layout = detail::unnamed_layout, class K, class V, rotation_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append", Layout);
    if constexpr (pair_layout<Layout>)
      store_rotated<Layout>("kv_cache::append", k, v, detail::placed(table), next_source(), counts, threads);
  }

  /// The two above at positions of the caller's, in any order: prefix reuse, left padding, positions that
  /// start again. Attention goes by them and not by the order of appending: `causal` admits keys at positions
  /// up to the query's, equal ones included, and `window` goes by the difference. Padding, and other
  /// sequences in the same row, are hidden by a mask only, at every call. (Padding on the right needs none:
  /// give `counts`.)
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
    store("kv_cache::append_at", k, v, detail::position_source(positions, k.tokens), counts, threads);
  }
  template <class Layout = detail::unnamed_layout, class K, class V, rotation_table Table, position_form P,
            class Threads = this_thread>
  void append_at(head_view<K> k, head_view<V> v, const Table& table, const P& positions,
                 const detail::row_counts& counts = {}, const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_LAYOUT("kv_cache::append_at", Layout);
    if constexpr (pair_layout<Layout>)
      store_rotated<Layout>("kv_cache::append_at", k, v, detail::placed(table),
                            detail::position_source(positions, k.tokens), counts, threads);
  }

  /// Checks that the stored keys were rotated in this layout by a table that rotates like this one. Raw keys
  /// meet every table.
  ///
  /// Throws:  std::invalid_argument
  template <class Layout, rotation_table Table>
  void check_table(const Table& table) const {
    if (!rows_.empty() && storage_ == key_storage::rotated)
      detail::require_rotation<Layout>("kv_cache", rotation_, detail::placed(table));
  }

  /// Turns the stored keys from the angles of one table to those of another, in one pass, by the exact
  /// difference of the two angles at each position.
  ///
  ///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
  ///
  /// Throws:    std::invalid_argument unless the keys were appended with `from` and this layout, and both
  ///            tables are of the same pairs, over a range of positions, with exact angles
  /// Accuracy:  that of one more rotation
  template <class Layout, rotation_table From, rotation_table To>
  void rebase(const From& from, const To& to) {
    if (storage_ == key_storage::raw) detail::refuse_rebase_of_raw_keys("kv_cache::rebase");
    check_table<Layout>(from);
    auto turn = detail::turn_between<Layout, T>("kv_cache::rebase", detail::placed(from), detail::placed(to));
    for (Index t = 0; t < capacity(); ++t)
      for (Index b = 0; b < batch(); ++b)
        if (t < size(b)) turn.turn(memory_.keys(), b, t, positions(b)[static_cast<std::size_t>(t)]);
    rotation_ = detail::rotation_by<Layout>(detail::placed(to));
  }

  /// Forgets every token from `size` on: the rollback of speculative decoding.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= size(); std::invalid_argument if every row is meant and
  ///          rows differ in size. The same holds for the functions below
  void truncate(Index size, batch_row row = every_row) {
    rows_.truncate("kv_cache::truncate", rows_.rows("kv_cache::truncate", row), size);
  }

  /// Forgets tokens [first, first + count); the later ones move up and keep their positions. With `shift`,
  /// which then closes the gap, this is the context shift of llama.cpp (llama_memory_seq_rm and
  /// llama_memory_seq_add):
  ///
  ///     cache.remove(keep, n);  cache.shift<Layout>(keep, cache.size() - keep, -n, table);
  ///
  /// Throws:  std::out_of_range unless first and count are at least 0 and first + count at most size()
  /// Cost:    one pass over the tokens behind
  void remove(Index first, Index count, batch_row row = every_row) {
    const detail::row_range rows = rows_.rows("kv_cache::remove", row);
    rows_.check_tokens("kv_cache::remove", rows, first, count);
    const Index last = first + count;
    for (Index b = rows.first; b < (std::min)(rows.last, batch()); ++b)
      memory_.move_down(b, last, first, size(b) - last);
    rows_.remove(rows, first, last);
  }

  /// Adds `delta` to the positions of tokens [first, first + count) of raw keys: exact.
  ///
  /// Throws:  as `remove`; std::out_of_range if a position would leave [-2^53, 2^53]; std::invalid_argument
  ///          if the cache stores rotated keys
  void shift(Index first, Index count, std::int64_t delta, batch_row row = every_row) {
    detail::check_shift_without_table("kv_cache::shift", storage_, delta);
    rows_.shift(rows_.checked_shift("kv_cache::shift", first, count, delta, row), first, first + count,
                delta);
  }

  /// The same for rotated keys, which turn by the exact angle of `delta` and keep their magnitude:
  ///
  ///     k' = R(delta) k,  without the attention_factor, which k has already
  ///
  /// Throws:    as above; std::invalid_argument unless the keys were appended with this layout and table, and
  ///            the table has exact angles. A schedule that depends on length has another table at another
  ///            length, and is refused with it
  /// Accuracy:  that of one more rotation every time; a stream that shifts again and again stores raw keys
  /// Source:    K-shift of llama.cpp, which multiplies by the attention_factor once more
  template <class Layout, rotation_table Table>
  void shift(Index first, Index count, std::int64_t delta, const Table& table, batch_row row = every_row) {
    if (storage_ == key_storage::raw) return shift(first, count, delta, row);
    check_table<Layout>(table);
    auto turn = detail::turn_by<Layout, T>("kv_cache::shift", detail::placed(table));
    const detail::row_range rows = rows_.checked_shift("kv_cache::shift", first, count, delta, row);
    const Index last = first + count;
    if (delta != 0)
      for (Index b = rows.first; b < (std::min)(rows.last, batch()); ++b)
        for (Index t = first; t < last; ++t) turn.turn(memory_.keys(), b, t, delta);
    rows_.shift(rows, first, last, delta);
  }

  /// Forgets every token; the capacity stays.
  void clear() { rows_.clear(); }

  /// The stored keys [batch, size(), kv_heads, head_dim]; valid while the cache lives.
  ///
  /// Throws:  std::invalid_argument if rows differ in size
  head_view<const T> keys() const {
    return memory_.keys().token_range(0, rows_.common_size("kv_cache::keys"));
  }
  /// The stored values [batch, size(), kv_heads, value_dim]; valid while the cache lives.
  head_view<const T> values() const {
    return memory_.values().token_range(0, rows_.common_size("kv_cache::values"));
  }
  /// Those of row b, [1, size(b), kv_heads, ...].  Throws: std::out_of_range
  head_view<const T> keys(Index b) const {
    return memory_.keys().batch_range(rows_.checked("kv_cache::keys", b), 1).token_range(0, size(b));
  }
  head_view<const T> values(Index b) const {
    return memory_.values().batch_range(rows_.checked("kv_cache::values", b), 1).token_range(0, size(b));
  }

 private:
  /// Where the next tokens are.
  auto next_source() const { return detail::started_rows<std::int64_t>{rows_.next()}; }

  template <class K, class V, class Source, class Threads>
  void store(const char* function, const head_view<K>& k, const head_view<V>& v, const Source& positions,
             const detail::row_counts& counts, const Threads& threads) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    memory_.check_new(function, k, v, counts);
    rows_.check_new(function, k.tokens, positions, counts);
    if (!rows_.empty()) detail::require_given_keys(function, rotation_);
    rotation_ = {};
    memory_.write_behind(rows_, k, v, counts, threads);
    rows_.append(k.tokens, counts, positions);
  }
  template <class Layout, class K, class V, class S, class Source, class Threads>
  void store_rotated(const char* function, const head_view<K>& k, const head_view<V>& v,
                     const placed_table<S>& table, const Source& positions, const detail::row_counts& counts,
                     const Threads& threads) {
    ROPE_DETAIL_CHECK_THREADS("kv_cache::append", Threads);
    memory_.check_new(function, k, v, counts);
    rows_.check_new(function, k.tokens, positions, counts);
    if (storage_ == key_storage::raw) detail::refuse_raw_keys(function);
    check_table<Layout>(table);
    detail::check_new_rotation<Layout>(function, k, counts, table, positions);
    memory_.template write_rotated_behind<Layout>(rows_, k, v, counts, table, positions, threads);
    rows_.append(k.tokens, counts, positions);
    rotation_ = detail::rotation_by<Layout>(table);
  }

  detail::cache_memory<T> memory_;
  detail::cache_rows rows_;
  key_storage storage_;
  detail::key_rotation rotation_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_KV_CACHE_HPP
