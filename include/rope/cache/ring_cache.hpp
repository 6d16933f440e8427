// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_RING_CACHE_HPP
#define ROPE_CACHE_RING_CACHE_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/message.hpp>
#include <rope/cache/detail/cache_memory.hpp>
#include <rope/cache/detail/key_rotation.hpp>
#include <rope/cache/detail/new_tokens.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/rotation_checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The keys and values that a sliding window still sees, in memory that does not grow.

namespace rope {
inline namespace ROPE_ABI {

/// A cache in which the oldest token that is not a sink is overwritten by the newest. Token i of a sequence
/// is in slot
///
///     i                                   for i < sinks
///     sinks + (i - sinks) mod (slots - sinks)    otherwise,       slots = sinks + window + chunk - 1
///
/// so keys lie in memory out of order; attention (attention.hpp) goes by their positions.
///
///     ring_cache<float> cache(batch, {.sinks = 4, .window = 1024}, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// \tparam T  a channel type. 16-bit caches also take float keys and values, rounded once
///
/// Invariant: of the n tokens that row b has seen, the sinks and tokens [max(oldest, sinks), n) are held,
///            with oldest <= max(0, n + 1 - window): what the next query sees. Every function that throws
///            leaves the cache as it was.
template <class T>
class ring_cache {
 public:
  using value_type = T;
  /// What `positions` shows for a slot whose token was rolled back: after every query.
  static constexpr std::int64_t no_position = (std::numeric_limits<std::int64_t>::max)();

  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, the window or the chunk is not positive, or
  ///          positions in the cache are asked of rotated keys; std::length_error if the cache exceeds the
  ///          address space
  ring_cache(Index batch, const ring_policy& policy, Index kv_heads, Index head_dim, Index value_dim = 0,
             key_storage storage = key_storage::rotated)
      : policy_(detail::checked_policy(policy, storage)),
        memory_("ring_cache", batch, policy.sinks + policy.window + policy.chunk - 1, kv_heads, head_dim,
                value_dim == 0 ? head_dim : value_dim),
        storage_(storage),
        seen_(static_cast<std::size_t>(batch)),
        oldest_(seen_.size(), policy.sinks),
        used_(seen_.size()),
        newest_(batch),
        positions_(static_cast<std::size_t>(batch * memory_.slot_count())) {}

  ring_cache(const ring_cache&) = default;
  ring_cache(ring_cache&&) = default;
  ring_cache& operator=(const ring_cache& other) { return *this = ring_cache(other); }  // all or nothing
  ring_cache& operator=(ring_cache&&) = default;
  Index batch() const { return memory_.batch(); }
  Index kv_heads() const { return memory_.keys().heads; }
  Index head_dim() const { return memory_.keys().head_dim; }
  Index value_dim() const { return memory_.values().head_dim; }
  /// Slots per row: sinks + window + chunk - 1.
  Index capacity() const { return memory_.slot_count(); }
  const ring_policy& policy() const { return policy_; }
  key_storage storage() const { return storage_; }
  /// Tokens held in row b.  Throws: std::out_of_range
  Index size(Index b) const {
    const std::int64_t n = seen_[checked_row(b)];
    return detail::to_index((std::min)(n, std::int64_t{policy_.sinks}) +
                            (std::max)(std::int64_t{0}, n - oldest_[at(b)]));
  }
  /// Position of the token in each slot of row b that was ever used, in the order of memory: that of keys(b)
  /// and values(b). Valid until the cache changes.  Throws: std::out_of_range
  std::span<const std::int64_t> positions(Index b) const {
    return {positions_.data() + checked_row(b) * at(capacity()), at(used_[at(b)])};
  }
  /// The position in its sequence that the next token of each row gets, [batch]: the tokens it has seen.
  std::span<const std::int64_t> next_positions() const { return seen_; }
  /// As in kv_cache.
  std::span<const Index> query_counts(Index queries) const { return newest_.counts("attention", queries); }
  /// The slot of the token at `position` of a sequence.  Throws: std::out_of_range if it is negative
  Index slot(std::int64_t position) const {
    check_position("ring_cache::slot", position);
    const Index ring = capacity() - policy_.sinks;  // not positive in a cache that was moved from
    if (ring <= 0) return 0;
    if (position < policy_.sinks) return detail::to_index(position);
    return detail::to_index(policy_.sinks + (position - policy_.sinks) % ring);
  }

  /// Copies new tokens, over the oldest ones where slots have run out. Of more tokens than slots only those
  /// that remain are copied: a prompt longer than `chunk` attends by `attention(q, k, v, out, table,
  /// {.window, .sinks})`, and is then appended at once.
  ///
  /// \param k       [batch, tokens, kv_heads, head_dim]; not rotated for raw storage, else rotated
  /// \param v       [batch, tokens, kv_heads, value_dim]
  /// \param counts  any integers, [batch]: row b takes its first counts[b] tokens; empty: every row takes all
  /// \param threads  the caller's threads, see base/parallel.hpp; the bits do not depend on them
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, a count is not in [0, tokens], or
  ///          the cache holds keys that it rotated itself
  template <int no_layout = 0, class K, class V,  // so that append<Layout> is never this function
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    memory_.check_new("ring_cache::append", k, v, counts);
    if (!empty()) detail::require_given_keys("ring_cache::append", rotation_);
    rotation_ = {};
    store(k.tokens, counts, threads, [&](Index b, Index t, Index slot, std::int64_t /*position*/) {
      memory_.write(k, v, b, t, 1, slot);
    });
  }

  /// Rotates copies of new keys by their positions in the sequence, and appends them.
  ///
  /// \param k  [batch, tokens, kv_heads, head_dim], not rotated
  ///
  /// Throws:  as above; std::invalid_argument if the cache stores raw keys, holds keys of another table or
  ///          layout, or keys whose table is not known; std::out_of_range if a position is outside the table
  template <class Layout = detail::unnamed_layout, class K, class V, rotation_table Table,
            class Threads = this_thread>
  void append(head_view<K> k, head_view<V> v, const Table& table, const detail::row_counts& counts = {},
              const Threads& threads = {}) {
    ROPE_DETAIL_CHECK_THREADS("ring_cache::append", Threads);
    ROPE_DETAIL_CHECK_LAYOUT("ring_cache::append", Layout);
    if constexpr (pair_layout<Layout>) store_rotated<Layout>(k, v, detail::placed(table), counts, threads);
  }

  /// Checks that the stored keys were rotated in this layout by a table that rotates like this one. Raw keys
  /// meet every table.
  ///
  /// Throws:  std::invalid_argument
  template <class Layout, rotation_table Table>
  void check_table(const Table& table) const {
    if (!empty() && storage_ == key_storage::rotated)
      detail::require_rotation<Layout>("ring_cache", rotation_, detail::placed(table));
  }

  /// Forgets the tokens at positions `size` and later: the rollback of speculative decoding. Tokens that were
  /// overwritten do not come back, so no more than `chunk` can be forgotten once slots have run out.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= next_positions() and every token that the next query sees
  ///          is still held
  void truncate(std::int64_t size, batch_row row = every_row) {
    const Index first = row.every ? 0 : static_cast<Index>(checked_row(row.index)),
                last = row.every ? batch() : first + 1;
    for (Index b = first; b < last; ++b) {
      if (size < 0 || size > seen_[at(b)])
        ROPE_THROW(std::out_of_range, detail::message("ring_cache::truncate: size must be in [0, ",
                                                      seen_[at(b)], "], got ", size));
      if (!holds(b, size + 1 - policy_.window, size))
        ROPE_THROW(std::out_of_range,
                   detail::message("ring_cache::truncate: tokens before ", oldest_[at(b)],
                                   " were overwritten and the window of token ", size, " needs them"));
    }
    newest_.forget(first, last, [&](Index b) {
      return detail::lost_tokens{0, detail::to_index(seen_[at(b)] - size)};
    });
    for (Index b = first; b < last; ++b) {
      for (Index slot = 0; slot < used_[at(b)]; ++slot)
        if (position_in(b, slot) >= size) position_in(b, slot) = no_position;
      seen_[at(b)] = size;
      oldest_[at(b)] = (std::min)(oldest_[at(b)], (std::max)(size, std::int64_t{policy_.sinks}));
    }
  }

  /// Forgets every token.
  void clear() {
    std::fill(seen_.begin(), seen_.end(), std::int64_t{0});
    std::fill(oldest_.begin(), oldest_.end(), std::int64_t{policy_.sinks});
    std::fill(used_.begin(), used_.end(), Index{0});
    newest_.clear();
  }

  /// Keys of row b in the order of memory, [1, slots in use, kv_heads, head_dim].  Throws: std::out_of_range
  head_view<const T> keys(Index b) const {
    return memory_.keys().batch_range(static_cast<Index>(checked_row(b)), 1).token_range(0, used_[at(b)]);
  }
  head_view<const T> values(Index b) const {
    return memory_.values().batch_range(static_cast<Index>(checked_row(b)), 1).token_range(0, used_[at(b)]);
  }

  /// Whether every key that a query at `position` of row b sees is still held, its own included unless it is
  /// yet to come.  Throws: std::out_of_range if there is no such row or position
  bool holds_window(Index b, std::int64_t position) const {
    checked_row(b);
    check_position("ring_cache::holds_window", position);
    const std::int64_t end = detail::advance(position, 1);
    return holds(b, end - policy_.window, end);
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  std::size_t checked_row(Index b) const {
    if (b < 0 || b >= batch())
      ROPE_THROW(std::out_of_range,
                 detail::message("ring_cache: row must be in [0, ", batch(), "), got ", b));
    return at(b);
  }
  static void check_position(const char* function, std::int64_t position) {
    if (position < 0)
      ROPE_THROW(
          std::out_of_range,
          detail::message(function, ": a position in a sequence must not be negative, got ", position));
  }
  bool empty() const {
    for (const std::int64_t n : seen_)
      if (n > 0) return false;
    return true;
  }
  /// Whether row b has overwritten none of tokens [first, last); sinks never are.
  bool holds(Index b, std::int64_t first, std::int64_t last) const {
    first = (std::max)(first, std::int64_t{policy_.sinks});
    return first >= last || oldest_[at(b)] <= first;
  }
  std::int64_t& position_in(Index b, Index slot) { return positions_[at(b * capacity() + slot)]; }

  template <class Layout, class K, class V, class S, class Threads>
  void store_rotated(const head_view<K>& k, const head_view<V>& v, const placed_table<S>& table,
                     const detail::row_counts& counts, const Threads& threads) {
    memory_.check_new("ring_cache::append", k, v, counts);
    if (storage_ == key_storage::raw) detail::refuse_raw_keys("ring_cache::append");
    check_table<Layout>(table);
    detail::check_new_rotation<Layout>(
        "ring_cache::append", k, counts, table,
        detail::started_rows<std::int64_t>{std::span<const std::int64_t>(seen_)});
    store(k.tokens, counts, threads, [&](Index b, Index t, Index slot, std::int64_t position) {
      memory_.template write_rotated<Layout>(k, v, b, t, 1, slot, table,
                                             detail::contiguous_positions{position});
    });
    rotation_ = detail::rotation_by<Layout>(table);
  }

  /// Calls write(b, t, slot, position) for every new token that stays, and keeps count of all. Those that
  /// stay have slots of their own, so threads may write them in any order.
  template <class Threads, class Write>
  void store(Index tokens, const detail::row_counts& counts, const Threads& threads, const Write& write) {
    const Index ring = capacity() - policy_.sinks;
    const auto stays = [&](Index b, std::int64_t i, std::int64_t end) {
      return i < policy_.sinks || i >= (std::max)(oldest_[at(b)], end - ring);
    };
    const auto end_of = [&](Index b) { return seen_[at(b)] + detail::count_of(b, tokens, counts); };
    detail::for_each_run(threads, batch(), tokens, counts, memory_.bytes_of(batch() * tokens),
                         [&](Index b, Index first, Index count) {
                           for (Index t = first; t < first + count; ++t)
                             if (const std::int64_t i = seen_[at(b)] + t; stays(b, i, end_of(b)))
                               write(b, t, slot(i), i);
                         });
    for (Index b = 0; b < batch(); ++b) {
      const std::int64_t end = end_of(b);
      for (std::int64_t i = seen_[at(b)]; i < end; ++i) {
        if (!stays(b, i, end)) continue;
        position_in(b, slot(i)) = i;
        used_[at(b)] = (std::max)(used_[at(b)], slot(i) + 1);
      }
      oldest_[at(b)] = (std::max)(oldest_[at(b)], end - ring);
      seen_[at(b)] = end;
    }
    newest_.append(tokens, counts);
  }

  ring_policy policy_;
  detail::cache_memory<T> memory_;
  key_storage storage_;
  detail::key_rotation rotation_;
  std::vector<std::int64_t> seen_;    // tokens of each row so far
  std::vector<std::int64_t> oldest_;  // of the tokens behind the sinks, the first that is held
  std::vector<Index> used_;           // slots of each row that were ever written
  detail::newest_tokens newest_;
  detail::storage<std::int64_t> positions_;  // [batch, slots]
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_RING_CACHE_HPP
