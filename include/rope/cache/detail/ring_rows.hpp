// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RING_ROWS_HPP
#define ROPE_CACHE_DETAIL_RING_ROWS_HPP

#include <algorithm>  // std::copy_n, std::fill, std::max, std::min, std::swap_ranges
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>  // std::swap
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/storage.hpp>
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// The tokens that each row of a ring holds, and their slots.

namespace rope::inline ROPE_ABI::detail {

/// The bookkeeping of a ring_cache: per row, the number of tokens appended and not rolled back, and the token
/// in each slot.
///
/// Invariant: of the seen(b) tokens of row b, the sinks and those from max(oldest, sinks) on are held.
class ring_rows {
 public:
  static constexpr std::int64_t no_position = (std::numeric_limits<std::int64_t>::max)();

  ring_rows(Index batch, const ring_policy& policy, Index slot_count)
      : batch_(batch),
        slots_(slot_count),
        policy_(policy),
        seen_(at(batch)),
        oldest_(seen_.size(), policy.sinks),
        used_(seen_.size()),
        newest_(batch),
        positions_(batch * slot_count) {}

  const ring_policy& policy() const { return policy_; }
  const newest_tokens& newest() const { return newest_; }
  std::span<const std::int64_t> seen() const { return {seen_.data(), seen_.size()}; }
  std::int64_t seen(Index b) const { return seen_[at(b)]; }
  Index size(Index b) const {
    return to_index((std::min)(seen(b), std::int64_t{policy_.sinks}) +
                    (std::max)(std::int64_t{0}, seen(b) - oldest_[at(b)]));
  }
  /// Slots of row b that were ever used. positions(b) has the token in each.
  Index used(Index b) const { return used_[at(b)]; }
  std::span<const std::int64_t> positions(Index b) const {
    return {positions_.data() + at(b * slots_), at(used(b))};
  }
  bool empty() const {
    for (const std::int64_t n : seen_)
      if (n > 0) return false;
    return true;
  }
  /// Requires:  token >= 0
  Index slot(std::int64_t token) const {
    const Index ring = slots_ - policy_.sinks;  // not positive in a moved-from cache
    if (ring <= 0) return 0;
    if (token < policy_.sinks) return to_index(token);
    return to_index(policy_.sinks + (token - policy_.sinks) % ring);
  }
  /// Whether row b has overwritten none of tokens [first, last); sinks never are.
  bool holds(Index b, std::int64_t first, std::int64_t last) const {
    first = (std::max)(first, std::int64_t{policy_.sinks});
    return first >= last || oldest_[at(b)] <= first;
  }

  Index checked(Index b) const { return checked("ring_cache", b); }
  Index checked(const char* function, std::int64_t b) const { return checked_row(function, b, batch_); }
  static void check_position(const char* function, std::int64_t position) {
    if (position < 0)
      throw_out_of_range(function, "a position in a sequence must not be negative, got ", position);
  }

  /// Checks nothing: a ring accepts any number of tokens and sets their positions itself.
  template <class Source>
  void check_new(const char* /*function*/, Index /*tokens*/, const Source& /*positions*/,
                 const row_counts& /*counts*/) const {}
  std::span<const std::int64_t> next() const { return seen(); }
  /// Throws:  std::out_of_range unless `row` is a row or every_row
  row_range rows(const char* /*function*/, batch_row row) const {
    if (row.every) return {0, batch_};
    return {checked(row.index), row.index + 1};
  }

  /// Calls write(b, t, 1, slot) for every new token that is not overwritten by the same append. These tokens
  /// have different slots, so threads may write them in any order. If threads fail after overwriting recorded
  /// tokens, forget() is called.
  template <class Threads, class Write, class Forget>
  void for_each_new(Index tokens, const row_counts& counts, const Threads& threads, double bytes,
                    const Write& write, const Forget& forget) const {
    struct unless_done {
      const Forget& forget;
      std::atomic<bool> overwritten = false, done = false;
      ~unless_done() {
        if (overwritten && !done) forget();
      }
    } otherwise{forget};
    for_each_run(threads, batch_, tokens, counts, bytes, [&](Index b, Index first, Index count) {
      for (Index t = first; t < first + count; ++t)
        if (const std::int64_t i = seen(b) + t; stays(b, i, end_of(b, tokens, counts))) {
          write(b, t, Index{1}, slot(i));
          if (slot(i) < used(b) && !otherwise.overwritten) otherwise.overwritten = true;
        }
    });
    otherwise.done = true;
  }
  /// Records new tokens.
  template <class Source>
  void append(Index tokens, const row_counts& counts, const Source& /*positions*/) {
    for (Index b = 0; b < batch_; ++b) {
      const std::int64_t end = end_of(b, tokens, counts);
      for (std::int64_t i = seen(b); i < end; ++i) {
        if (!stays(b, i, end)) continue;
        position_in(b, slot(i)) = i;
        used_[at(b)] = (std::max)(used(b), slot(i) + 1);
      }
      oldest_[at(b)] = (std::max)(oldest_[at(b)], end - (slots_ - policy_.sinks));
      seen_[at(b)] = end;
    }
    newest_.append(tokens, counts);
  }

  /// Throws:  std::out_of_range unless 0 <= size <= seen and every token visible to the next query is held,
  ///          and with `last_token` (tokens have coordinates) also token size - 1
  void check_truncate(const char* function, row_range rows, std::int64_t size, bool last_token) const {
    for (Index b = rows.first; b < rows.last; ++b) {
      if (size < 0 || size > seen(b))
        throw_out_of_range(function, "size must be in [0, ", seen(b), "], got ", size);
      if (!holds(b, size + 1 - policy_.window, size) || (last_token && !holds(b, size - 1, size)))
        throw_out_of_range(function, "tokens before ", oldest_[at(b)],
                           " were overwritten and the window of token ", size, " needs them");
    }
  }
  void truncate(row_range rows, std::int64_t size) {
    newest_.forget(rows.first, rows.last, [&](Index b) { return lost_tokens{0, to_index(seen(b) - size)}; });
    for (Index b = rows.first; b < rows.last; ++b) {
      for (Index slot = 0; slot < used(b); ++slot)
        if (position_in(b, slot) >= size) position_in(b, slot) = no_position;
      seen_[at(b)] = size;
      oldest_[at(b)] = (std::min)(oldest_[at(b)], (std::max)(size, std::int64_t{policy_.sinks}));
    }
  }
  void copy_row(Index from, Index to) {
    std::copy_n(&position_in(from, 0), used(from), &position_in(to, 0));
    seen_[at(to)] = seen(from);
    oldest_[at(to)] = oldest_[at(from)];
    used_[at(to)] = used(from);
    newest_.copy_row(from, to);
  }
  void swap_rows(Index a, Index b) {
    std::swap_ranges(&position_in(a, 0), &position_in(a, 0) + (std::max)(used(a), used(b)),
                     &position_in(b, 0));
    std::swap(seen_[at(a)], seen_[at(b)]);
    std::swap(oldest_[at(a)], oldest_[at(b)]);
    std::swap(used_[at(a)], used_[at(b)]);
    newest_.swap_rows(a, b);
  }
  void clear() {
    std::fill(seen_.begin(), seen_.end(), std::int64_t{0});
    std::fill(oldest_.begin(), oldest_.end(), std::int64_t{policy_.sinks});
    std::fill(used_.begin(), used_.end(), Index{0});
    newest_.clear();
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  std::int64_t& position_in(Index b, Index slot) { return positions_(b * slots_ + slot); }
  std::int64_t end_of(Index b, Index tokens, const row_counts& counts) const {
    return seen(b) + count_of(b, tokens, counts);
  }
  /// Whether token i is held once tokens up to `end` are appended.
  bool stays(Index b, std::int64_t i, std::int64_t end) const {
    return i < policy_.sinks || i >= (std::max)(oldest_[at(b)], end - (slots_ - policy_.sinks));
  }

  moved_index batch_, slots_;
  ring_policy policy_;
  std::vector<std::int64_t> seen_;    // tokens of each row so far
  std::vector<std::int64_t> oldest_;  // of the tokens after the sinks, the first that is held
  std::vector<Index> used_;           // slots of each row that were ever written
  newest_tokens newest_;
  number_array<std::int64_t> positions_;  // [batch, slots]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_RING_ROWS_HPP
