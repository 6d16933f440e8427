// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RING_ROWS_HPP
#define ROPE_CACHE_DETAIL_RING_ROWS_HPP

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/attended_rows.hpp>  // no_token
#include <rope/cache/detail/cache_rows.hpp>
#include <rope/cache/detail/newest_tokens.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// The tokens in each row of a ring, and their slots.

namespace rope::inline ROPE_ABI::detail {

/// More about a row of a ring.
struct ring_row {
  Index used = 0;              // slots that were ever used
  std::int64_t oldest = 0;     // tokens after the sinks and before this one are not stored
  std::int64_t run_start = 0;  // see ring_rows::run_start
};

/// The tokens of a ring_cache: per row, the next token, and the token in each slot.
///
/// Invariant: of the tokens of row b before seen(b), the sinks and those from oldest(b) on are held, except
///            positions that append_at skipped. None is skipped from run_start(b) on.
class ring_rows : public slot_rows<ring_row> {
 public:
  ring_rows(const char* owner, Index batch, const ring_policy& policy, Index slot_count)
      : slot_rows(owner, batch, slot_count), policy_(policy) {}

  const ring_policy& policy() const { return policy_; }
  std::int64_t seen(Index b) const { return next()[at(b)]; }
  Index size(Index b) const {
    if (run_start(b) > 0)
      return used(b) - to_index(std::count(order_.row(b), order_.row(b) + used(b), no_token));
    return to_index((std::min)(seen(b), std::int64_t{policy_.sinks}) +
                    (std::max)(std::int64_t{0}, seen(b) - oldest(b)));
  }
  std::int64_t order_of(Index /*b*/, std::int64_t token) const { return token; }
  /// The first token of row b after which no position was skipped, or 0 if none ever was.
  std::int64_t run_start(Index b) const { return records_(b).run_start; }
  /// Whether token `token` is in its slot.  Requires: token >= 0
  bool holds_token(Index b, std::int64_t token) const {
    return slot(token) < used(b) && order_.row(b)[slot(token)] == token;
  }
  /// Whether row b has seen no token.
  bool empty(Index b) const { return seen(b) == 0; }
  /// Requires:  token >= 0
  Index slot(std::int64_t token) const {
    const Index ring = slot_count() - policy_.sinks;  // not positive in a moved-from cache
    if (ring <= 0) return 0;
    if (token < policy_.sinks) return to_index(token);
    return to_index(policy_.sinks + (token - policy_.sinks) % ring);
  }
  /// Whether row b has overwritten none of tokens [first, last). Sinks are never overwritten.
  bool holds(Index b, std::int64_t first, std::int64_t last) const {
    first = (std::max)(first, std::int64_t{policy_.sinks});
    return first >= last || records_(b).oldest <= first;
  }

  static void check_position(const char* function, std::int64_t position) {
    if (position < 0)
      throw_out_of_range(function, "a position in a sequence must not be negative, got ", position);
  }

  /// Throws:  std::invalid_argument unless the positions of each row ascend and the first is at least
  ///          seen(b); std::out_of_range if one is negative
  template <class Source>
  void check_order(const char* function, const row_tokens& added, const Source& positions) const {
    for (Index b = 0; b < batch(); ++b) {
      std::int64_t next = seen(b);
      for (Index t = 0; t < added.count(b); ++t) {
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
  void check_room(const char* /*function*/, const row_tokens& /*added*/) const {}
  /// Calls write(b, t, 1, slot) for every new token that the same append does not overwrite. These tokens
  /// have different slots, so threads may write them in any order. If threads fail or memory runs out while
  /// recorded tokens are overwritten, forget() is called.
  template <class Threads, class Positions, class Write, class Forget>
  void for_each_new(const row_tokens& added, const Threads& threads, double bytes, const Positions& positions,
                    const Write& write, const Forget& forget) const {
    struct unless_done {
      const Forget& forget;
      std::atomic<bool> overwritten = false, done = false;
      ~unless_done() {
        if (overwritten && !done) forget();
      }
    } otherwise{forget};
    added.for_each_run(threads, bytes, [&](Index b, Index first, Index count) {
      const std::int64_t kept = first_kept(positions(b, added.count(b) - 1));
      for (Index t = first; t < first + count; ++t)
        if (const std::int64_t i = positions(b, t); stays(i, kept)) {
          if (slot(i) < used(b) && !otherwise.overwritten) otherwise.overwritten = true;
          write(b, t, Index{1}, slot(i));
        }
    });
    otherwise.done = true;
  }
  /// Records new tokens. Token t of row b is at positions(b, t). `positions` may call next(). Calls
  /// skipped(b, slot) for every slot that is now in use without a token because positions were skipped.
  template <class Positions, class Skipped>
  void append(const row_tokens& added, const Positions& positions, const Skipped& skipped) {
    for (Index b = 0; b < batch(); ++b) {
      const Index count = added.count(b);
      if (count == 0) continue;
      const std::int64_t last = positions(b, count - 1), kept = first_kept(last);
      for (Index t = 0; t < count; ++t)
        if (const std::int64_t i = positions(b, t); i != (t == 0 ? seen(b) : positions(b, t - 1) + 1))
          records_(b).run_start = i;
      const Index used_before = used(b);
      if (run_start(b) > 0 && oldest(b) < run_start(b)) {
        // Drops the tokens after the sinks and before `kept`. Positions were skipped, so newer tokens may not
        // have overwritten them.
        for (Index slot = policy_.sinks; slot < used_before; ++slot)
          if (std::int64_t& held = order_.row(b)[slot]; held < kept) {
            records_(b).oldest = (std::max)(records_(b).oldest, held + 1);
            held = no_token;
          }
      } else {
        records_(b).oldest = (std::max)(records_(b).oldest, kept);
      }
      for (Index t = 0; t < count; ++t) {
        const std::int64_t i = positions(b, t);
        for (; used(b) <= slot(i); ++records_(b).used) order_.row(b)[used(b)] = no_token;
        if (stays(i, kept))
          order_.row(b)[slot(i)] = i;
        else
          records_(b).oldest = (std::max)(records_(b).oldest, i + 1);
      }
      for (Index slot = used_before; slot < used(b); ++slot)
        if (order_.row(b)[slot] == no_token) skipped(b, slot);
      order_.end_at(b, last);
    }
    newest_.append(added);
  }

  /// Throws:  std::out_of_range unless 0 <= size <= seen(b) and every token visible to the next query is
  ///          held; with `last_token` (tokens have coordinates), unless token size - 1 is held too; if 0 <
  ///          size < run_start(b)
  void check_truncate(const char* function, row_range rows, std::int64_t size, bool last_token) const {
    for (Index b = rows.first; b < rows.last; ++b) {
      if (size < 0 || size > seen(b))
        throw_out_of_range(function, "size must be in [0, ", seen(b), "], got ", size);
      if (size > 0 && size < run_start(b))
        throw_out_of_range(function, "positions before ", run_start(b), " of row ", b,
                           " were skipped; size must be 0 or in [", run_start(b), ", ", seen(b), "], got ",
                           size);
      if (!holds(b, size + 1 - policy_.window, size) || (last_token && !holds(b, size - 1, size)))
        throw_out_of_range(function, "tokens before ", records_(b).oldest,
                           " were overwritten and the window of token ", size, " needs them");
    }
  }
  void truncate(row_range rows, std::int64_t size) {
    newest_.forget(rows.first, rows.last, [&](Index b) { return lost_tokens{0, to_index(seen(b) - size)}; });
    for (Index b = rows.first; b < rows.last; ++b) {
      for (Index slot = 0; slot < used(b); ++slot)
        if (order_.row(b)[slot] >= size) order_.row(b)[slot] = no_token;
      order_.end_at(b, size - 1);
      if (size == 0) records_(b).run_start = 0;
      records_(b).oldest = (std::min)(records_(b).oldest, size);
    }
  }
  /// Throws:  std::invalid_argument unless another object has the same policy
  void check_copy(const char* function, const ring_rows& other, Index /*from*/) const {
    check_equal(function, "both rings", "sinks", policy_.sinks, other.policy_.sinks);
    check_equal(function, "both rings", "window", policy_.window, other.policy_.window);
    check_equal(function, "both rings", "chunk", policy_.chunk, other.policy_.chunk);
    check_equal(function, "both rings", "positions", static_cast<Index>(policy_.positions),
                static_cast<Index>(other.policy_.positions));
  }

 private:
  /// The first stored token of row b after the sinks. Those at skipped positions count as stored.
  std::int64_t oldest(Index b) const { return (std::max)(records_(b).oldest, std::int64_t{policy_.sinks}); }
  /// The first token after the sinks that is kept in a row whose newest token is `last`.
  std::int64_t first_kept(std::int64_t last) const { return last + 1 - (slot_count() - policy_.sinks); }
  /// Whether a new token is still stored after its append.
  bool stays(std::int64_t i, std::int64_t kept) const { return i < policy_.sinks || i >= kept; }

  ring_policy policy_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_RING_ROWS_HPP
