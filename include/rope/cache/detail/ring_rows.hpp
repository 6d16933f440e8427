// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RING_ROWS_HPP
#define ROPE_CACHE_DETAIL_RING_ROWS_HPP

#include <algorithm>
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
#include <rope/cache/detail/axes_rows.hpp>
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// The tokens in each row of a ring, and their slots.
///
/// The coordinates of the tokens of a ring with axes.

namespace rope::inline ROPE_ABI::detail {

/// The tokens of a ring_cache: per row, the next token, and the token in each slot.
///
/// Invariant: of the tokens of row b before seen(b), the sinks and those from max(oldest, sinks) on are held,
///            except positions that append_at skipped. None is skipped from run_start(b) on.
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
        run_start_(seen_.size()),
        newest_(batch),
        positions_(batch * slot_count) {}

  const ring_policy& policy() const { return policy_; }
  const newest_tokens& newest() const { return newest_; }
  std::span<const std::int64_t> seen() const { return {seen_.data(), seen_.size()}; }
  std::int64_t seen(Index b) const { return seen_[at(b)]; }
  Index size(Index b) const {
    if (run_start(b) > 0) {
      Index held = 0;
      for (const std::int64_t token : positions(b))
        if (token != no_position) ++held;
      return held;
    }
    return to_index((std::min)(seen(b), std::int64_t{policy_.sinks}) +
                    (std::max)(std::int64_t{0}, seen(b) - oldest_[at(b)]));
  }
  /// Slots of row b that were ever used. positions(b) has the token of each.
  std::int64_t order_of(Index /*b*/, std::int64_t token) const { return token; }
  Index used(Index b) const { return used_[at(b)]; }
  std::span<const std::int64_t> positions(Index b) const {
    return {positions_.data() + at(b * slots_), at(used(b))};
  }
  /// The first token of row b after which no position was skipped, or 0 if none ever was.
  std::int64_t run_start(Index b) const { return run_start_[at(b)]; }
  /// Whether token `token` is in its slot.  Requires: token >= 0
  bool holds_token(Index b, std::int64_t token) const {
    return slot(token) < used(b) && positions(b)[at(slot(token))] == token;
  }
  /// Whether no token was appended to row b, or to any row.
  bool empty(Index b) const { return seen(b) == 0; }
  bool empty() const { return empty_but(-1); }
  /// Requires:  token >= 0
  Index slot(std::int64_t token) const {
    const Index ring = slots_ - policy_.sinks;  // not positive in a moved-from cache
    if (ring <= 0) return 0;
    if (token < policy_.sinks) return to_index(token);
    return to_index(policy_.sinks + (token - policy_.sinks) % ring);
  }
  /// Whether row b has overwritten none of tokens [first, last). Sinks are never overwritten.
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

  /// Throws:  std::invalid_argument unless the positions of each row ascend, from its next one or a later one
  ///          on; std::out_of_range if one is negative or above 2^53; as range() of `positions`. With axes,
  ///          only as check_new_positions: positions are then coordinates
  template <class Source>
  void check_new(const char* function, Index tokens, const Source& positions, const row_counts& counts,
                 bool on_axes) const {
    check_new_positions(function, batch_, tokens, positions, counts);
    for (Index b = 0; b < batch_ && !on_axes; ++b) {
      std::int64_t next = seen(b);
      for (Index t = 0; t < count_of(b, tokens, counts); ++t) {
        const std::int64_t position = positions(b, t);
        check_position(function, position);
        if (position < next)
          throw_invalid(function, "a ring takes tokens in the order of their positions; give row ", b,
                        " position ", next, " or a later one, got ", position);
        next = position + 1;
      }
    }
  }
  /// Any number of tokens fits.
  void check_room(const char* /*function*/, Index /*tokens*/, const row_counts& /*counts*/) const {}
  std::span<const std::int64_t> next() const { return seen(); }
  /// Throws:  std::out_of_range unless `row` is a row or every_row
  row_range rows(const char* /*function*/, batch_row row) const {
    if (row.every) return {0, batch_};
    return {checked(row.index), row.index + 1};
  }

  /// Calls write(b, t, 1, slot) for every new token that the same append does not overwrite. These tokens
  /// have different slots, so threads may write them in any order. If threads fail after overwriting recorded
  /// tokens, forget() is called.
  template <class Threads, class Positions, class Write, class Forget>
  void for_each_new(Index tokens, const row_counts& counts, const Threads& threads, double bytes,
                    const Positions& positions, const Write& write, const Forget& forget) const {
    struct unless_done {
      const Forget& forget;
      std::atomic<bool> overwritten = false, done = false;
      ~unless_done() {
        if (overwritten && !done) forget();
      }
    } otherwise{forget};
    for_each_run(threads, batch_, tokens, counts, bytes, [&](Index b, Index first, Index count) {
      const std::int64_t kept = first_kept(positions(b, count_of(b, tokens, counts) - 1));
      for (Index t = first; t < first + count; ++t)
        if (const std::int64_t i = positions(b, t); stays(i, kept)) {
          write(b, t, Index{1}, slot(i));
          if (slot(i) < used(b) && !otherwise.overwritten) otherwise.overwritten = true;
        }
    });
    otherwise.done = true;
  }
  /// Records new tokens, token t of row b at positions(b, t), which may read next(). Calls skipped(b, slot)
  /// for every slot that is now in use without a token because positions were skipped.
  template <class Positions, class Skipped>
  void append(Index tokens, const row_counts& counts, const Positions& positions, const Skipped& skipped) {
    for (Index b = 0; b < batch_; ++b) {
      const Index count = count_of(b, tokens, counts);
      if (count == 0) continue;
      const std::int64_t last = positions(b, count - 1), kept = first_kept(last);
      for (Index t = 0; t < count; ++t)
        if (const std::int64_t i = positions(b, t); i != (t == 0 ? seen(b) : positions(b, t - 1) + 1))
          run_start_[at(b)] = i;
      if (run_start(b) > 0 && oldest_[at(b)] < run_start(b))
        drop_before(b, kept);
      else
        oldest_[at(b)] = (std::max)(oldest_[at(b)], kept);
      const Index used_before = used(b);
      for (Index t = 0; t < count; ++t) {
        const std::int64_t i = positions(b, t);
        for (; used(b) <= slot(i); ++used_[at(b)]) position_in(b, used(b)) = no_position;
        if (!stays(i, kept)) {
          oldest_[at(b)] = (std::max)(oldest_[at(b)], i + 1);
          continue;
        }
        position_in(b, slot(i)) = i;
      }
      for (Index slot = used_before; slot < used(b); ++slot)
        if (position_in(b, slot) == no_position) skipped(b, slot);
      seen_[at(b)] = last + 1;
    }
    newest_.append(tokens, counts);
  }

  /// Throws:  std::out_of_range unless 0 <= size <= seen and every token visible to the next query is held,
  ///          and with `last_token` (tokens have coordinates) also token size - 1, or if size is between 0
  ///          and run_start
  void check_truncate(const char* function, row_range rows, std::int64_t size, bool last_token) const {
    for (Index b = rows.first; b < rows.last; ++b) {
      if (size < 0 || size > seen(b))
        throw_out_of_range(function, "size must be in [0, ", seen(b), "], got ", size);
      if (size > 0 && size < run_start(b))
        throw_out_of_range(function, "positions before ", run_start(b), " of row ", b,
                           " were skipped; size must be 0 or in [", run_start(b), ", ", seen(b), "], got ",
                           size);
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
      if (size == 0) run_start_[at(b)] = 0;
      oldest_[at(b)] = (std::min)(oldest_[at(b)], (std::max)(size, std::int64_t{policy_.sinks}));
    }
  }
  /// Makes row `to` a copy of row `from` of this or another object.
  ///
  /// Requires:  the same policy; from != to in this object
  void copy_row(const ring_rows& other, Index from, Index to) {
    const std::span<const std::int64_t> held = other.positions(from);
    std::copy(held.begin(), held.end(), &position_in(to, 0));
    seen_[at(to)] = other.seen(from);
    oldest_[at(to)] = other.oldest_[at(from)];
    used_[at(to)] = other.used(from);
    run_start_[at(to)] = other.run_start(from);
    newest_.copy_row(other.newest_, from, to);
  }
  /// Throws:  std::invalid_argument unless another object has the same policy
  void check_copy(const char* function, const ring_rows& other, Index /*from*/) const {
    const auto compare = [function](const char* name, Index own, Index theirs) {
      check_equal(function, "both rings", name, own, theirs);
    };
    compare("sinks", policy_.sinks, other.policy_.sinks);
    compare("window", policy_.window, other.policy_.window);
    compare("chunk", policy_.chunk, other.policy_.chunk);
    compare("positions", static_cast<Index>(policy_.positions), static_cast<Index>(other.policy_.positions));
  }
  /// Whether tokens were appended to no row except `row`.
  bool empty_but(Index row) const {
    for (Index b = 0; b < batch_; ++b)
      if (b != row && seen(b) > 0) return false;
    return true;
  }
  void swap_rows(Index a, Index b) {
    std::swap_ranges(&position_in(a, 0), &position_in(a, 0) + (std::max)(used(a), used(b)),
                     &position_in(b, 0));
    std::swap(seen_[at(a)], seen_[at(b)]);
    std::swap(oldest_[at(a)], oldest_[at(b)]);
    std::swap(used_[at(a)], used_[at(b)]);
    std::swap(run_start_[at(a)], run_start_[at(b)]);
    newest_.swap_rows(a, b);
  }
  void clear() {
    std::fill(seen_.begin(), seen_.end(), std::int64_t{0});
    std::fill(oldest_.begin(), oldest_.end(), std::int64_t{policy_.sinks});
    std::fill(used_.begin(), used_.end(), Index{0});
    std::fill(run_start_.begin(), run_start_.end(), std::int64_t{0});
    newest_.clear();
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  std::int64_t& position_in(Index b, Index slot) { return positions_(b * slots_ + slot); }
  /// The first token after the sinks that a row keeps whose newest token is `last`.
  std::int64_t first_kept(std::int64_t last) const { return last + 1 - (slots_ - policy_.sinks); }
  /// Whether a new token is still stored after its append.
  bool stays(std::int64_t i, std::int64_t kept) const { return i < policy_.sinks || i >= kept; }
  /// Drops the tokens after the sinks and before `kept`. If positions were skipped, newer tokens may not have
  /// overwritten them.
  void drop_before(Index b, std::int64_t kept) {
    for (Index slot = policy_.sinks; slot < used(b); ++slot)
      if (std::int64_t& held = position_in(b, slot); held < kept) {
        oldest_[at(b)] = (std::max)(oldest_[at(b)], held + 1);
        held = no_position;
      }
  }

  moved_index batch_, slots_;
  ring_policy policy_;
  std::vector<std::int64_t> seen_;       // the next token of each row
  std::vector<std::int64_t> oldest_;     // the first stored token after the sinks
  std::vector<Index> used_;              // slots of each row that were ever used
  std::vector<std::int64_t> run_start_;  // see run_start()
  newest_tokens newest_;
  number_array<std::int64_t> positions_;  // [batch, slots]
};

/// Coordinates in the slots of their tokens. Each slot also stores the largest coordinate of its row up to
/// that token. After a rollback, text then continues at the right position, even if other tokens were
/// overwritten.
class ring_axes : public axes_rows {
 public:
  ring_axes() = default;
  ring_axes(const char* owner, Index batch, Index slot_count, token_axes axes)
      : axes_rows(owner, batch, slot_count, axes), slots_(slot_count), largest_(batch * slot_count) {}

  /// Throws:  std::out_of_range if `tokens` more tokens of text would exceed 2^53
  void check_next(const char* function, Index tokens) const { check_text(function, tokens); }

  /// Records new tokens at coordinate(b, t, a), before ring_rows records them. The next position of text
  /// depends on all of them, including those that later tokens of the same append overwrite.
  template <class CoordinateOf>
  void append(const ring_rows& ring, Index tokens, const row_counts& counts, const CoordinateOf& coordinate) {
    for (Index b = 0; b < batch(); ++b) {
      const std::int64_t seen = ring.seen(b);
      double most = largest(b);
      const Index count = count_of(b, tokens, counts);
      for (Index t = 0; t < count; ++t) {
        auto own = static_cast<double>(coordinate(b, t, Index{0}));
        for (Index a = 1; a < axes(); ++a) own = (std::max)(own, static_cast<double>(coordinate(b, t, a)));
        most = seen + t == 0 ? own : (std::max)(most, own);
        const Index slot = ring.slot(seen + t);
        put(b, slot, [&](Index a) { return coordinate(b, t, a); });
        largest_(at(b, slot)) = most;
      }
      go_on_behind(b, most);
    }
  }
  /// Rolls rows back to `size` tokens.
  ///
  /// Requires:  size is 0, or token size - 1 is stored
  void keep(const ring_rows& ring, row_range rows, std::int64_t size) {
    if (slots_ == 0) return;
    for (Index b = rows.first; b < rows.last; ++b)
      go_on_behind(b, size == 0 ? -1.0 : largest_(at(b, ring.slot(size - 1))));
  }
  void copy_row(const ring_axes& other, Index from, Index to, Index count) {
    axes_rows::copy_row(other, from, to, count);
    if (slots_ > 0) std::copy_n(&other.largest_(other.at(from, 0)), count, &largest_(at(to, 0)));
  }
  void swap_rows(Index a, Index b, Index count) {
    axes_rows::swap_rows(a, b, count);
    if (slots_ > 0) std::swap_ranges(&largest_(at(a, 0)), &largest_(at(a, 0)) + count, &largest_(at(b, 0)));
  }

 private:
  Index at(Index b, Index slot) const { return b * slots_ + slot; }

  moved_index slots_ = 0;
  number_array<double> largest_;  // [batch, slots]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_RING_ROWS_HPP
