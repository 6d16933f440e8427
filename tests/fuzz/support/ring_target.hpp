// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_RING_TARGET_HPP
#define ROPE_TESTS_FUZZ_RING_TARGET_HPP

/// A ring next to the whole history of every row, and the documented rule for the token in each slot.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/ring_cache.hpp>

#include "fuzz/support/cache_target.hpp"
#include "fuzz/support/tokens.hpp"
#include "fuzz/support/wrong_option.hpp"

namespace fuzz {

/// Every token that a row took, and which of them is in each slot.
template <class Token>
struct history {
  std::vector<Token> tokens;
  std::vector<std::int64_t> positions;  // of the tokens, in ascending order
  std::int64_t seen = 0;                // one more than the last of them
  std::int64_t run = 0;                 // after the last skipped positions; 0: none were skipped
  std::set<std::int64_t> lost;          // positions of tokens that were overwritten
  std::vector<std::int64_t> owner;      // of each slot; -1: none, or one that was rolled back
  Index used = 0;                       // slots that were ever written
};

inline rope::ring_policy draw_policy(bytes& b) {
  return {.sinks = b.up_to(4), .window = b.between(1, 5), .chunk = b.between(1, 4)};
}

/// \tparam Token  has a key k and values v, [heads, value_dim]
template <class T, class Token>
class ring_target : public cache_target<rope::ring_cache<T>, history<Token>> {
  using base = cache_target<rope::ring_cache<T>, history<Token>>;

 protected:
  using base::b_, base::batch_, base::cache_, base::rows_, base::row, base::is_row, base::rejected;

  template <class... Shape>
  ring_target(bytes& b, Index batch, const rope::ring_policy& policy, const Shape&... shape)
      : base(b, batch, policy, shape...), policy_(policy) {
    clear_model();
  }

  Index slots() const { return policy_.sinks + policy_.window + policy_.chunk - 1; }
  std::size_t slot_of(std::int64_t i) const {
    return static_cast<std::size_t>(
        i < policy_.sinks ? i : policy_.sinks + (i - policy_.sinks) % (slots() - policy_.sinks));
  }
  std::int64_t seen(Index r) const { return row(r).seen; }
  /// The token at a position that was not skipped.
  const Token& at(Index r, std::int64_t i) const {
    const auto& all = row(r).positions;
    return row(r).tokens[static_cast<std::size_t>(std::lower_bound(all.begin(), all.end(), i) - all.begin())];
  }
  const std::vector<Token>& tokens_of(Index r) const { return row(r).tokens; }
  static double evicted(Index /*r*/) { return -0x1p60; }
  bool is_held(Index r, std::int64_t i) const { return row(r).owner[slot_of(i)] == i; }
  /// Whether token i, which is not after the query, is visible to a query at `position`.
  bool sees(std::int64_t position, std::int64_t i) const {
    return i < policy_.sinks || position - i < policy_.window;
  }
  /// Whether no token from the first on that is visible to a query at `position` was overwritten. Tokens from
  /// `end` on do not count, and sinks are never overwritten.
  bool holds(Index r, std::int64_t position, std::int64_t end) const {
    const std::int64_t first = std::max<std::int64_t>(position + 1 - policy_.window, policy_.sinks);
    return first >= std::min(end, position + 1) || row(r).lost.lower_bound(first) == row(r).lost.end();
  }
  bool empty() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const auto& one) { return one.seen == 0; });
  }
  void clear() override {
    cache_.clear();
    clear_model();
  }
  void add(Index r, const Token& one) { add(r, one, seen(r)); }
  void add(Index r, const Token& one, std::int64_t i) {
    history<Token>& of = row(r);
    if (i != of.seen) of.run = i;
    for (std::int64_t& owner : of.owner)
      if (owner >= policy_.sinks && owner <= i - (slots() - policy_.sinks)) {
        of.lost.insert(owner);
        owner = -1;
      }
    of.owner[slot_of(i)] = i;
    of.used = std::max(of.used, static_cast<Index>(slot_of(i)) + 1);
    of.tokens.push_back(one);
    of.positions.push_back(i);
    of.seen = i + 1;
  }

  /// The contents of the slots.
  void check_slots() {
    for (Index r = 0; r < batch_; ++r) {
      const history<Token>& one = row(r);
      check(cache_.seen()[static_cast<std::size_t>(r)] == seen(r), "a row counts the tokens it has seen");
      const auto order = cache_.order(r);
      const auto keys = cache_.keys(r), values = cache_.values(r);
      check(static_cast<Index>(order.size()) == one.used && keys.tokens == one.used &&
                values.tokens == one.used,
            "a row shows the slots that were ever used");
      Index held = 0;
      for (Index s = 0; s < one.used; ++s) {
        const std::int64_t i = one.owner[static_cast<std::size_t>(s)];
        check(order[static_cast<std::size_t>(s)] == (i < 0 ? rope::ring_cache<T>::no_position : i),
              "a slot has the token of the rule");
        if (i < 0) continue;
        ++held;
        const Token& t = at(r, i);
        for (Index h = 0; h < keys.heads; ++h)
          check(has_head<T>(keys, s, h, t.k) && has_head<T>(values, s, h, t.v),
                "a slot has the key and the value of its token");
      }
      check(cache_.size(r) <= held, "what a row counts as held is in its slots");
      for (std::int64_t p = std::max<std::int64_t>(seen(r) - 40, 0); p < seen(r) + 4; ++p) {
        // A ring has less state about positions before skipped ones.
        check(
            cache_.holds_window(r, p) == holds(r, p, seen(r)) || (p < one.run && !cache_.holds_window(r, p)),
            "a window is held when every key of it is");
        check(cache_.slot(p) == static_cast<Index>(slot_of(p)), "a token has the slot of the rule");
      }
      check(holds(r, seen(r), seen(r)), "what the next query sees is held");
    }
  }

  /// \param newest  whether the last remaining token must be stored, visible or not
  void truncate(Index index, bool every, bool newest) {
    const rope::batch_row r = every ? rope::every_row : rope::batch_row{index};
    const std::int64_t most = batch_ == 0 ? 0 : seen(every || !is_row(index) ? 0 : index);
    const std::int64_t size =
        b_.one_in(8) ? b_.integer() : most - b_.up_to(static_cast<long>(std::min<std::int64_t>(most, 9)));
    const auto call = [&] { cache_.truncate(size, r); };
    if (!every && !is_row(index)) return rejected(out_of_range, "a row that there is not throws", call);
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      if (size < 0 || size > seen(i)) return rejected(out_of_range, "a size that was not seen throws", call);
      if (size > 0 && size < row(i).run)
        return rejected(out_of_range, "positions before skipped ones do not come back", call);
      if (!holds(i, size, size) || (newest && size > 0 && !is_held(i, size - 1)))
        return rejected(out_of_range, "what the next query sees, or the last token, is overwritten", call);
    }
    call();
    for (Index i = 0; i < batch_; ++i) {
      if (!every && i != index) continue;
      history<Token>& of = row(i);
      while (!of.positions.empty() && of.positions.back() >= size)
        of.positions.pop_back(), of.tokens.pop_back();
      of.lost.erase(of.lost.lower_bound(size), of.lost.end());
      of.seen = size;
      if (size == 0) of.run = 0;
      for (std::int64_t& owner : of.owner)
        if (owner >= size) owner = -1;
    }
  }

  /// How many of the newest tokens of each row are queries, rarely more than there are.
  struct asking {
    std::vector<Index> counts;
    Index queries = 0;
    bool enough = true, held = true;
  };
  asking draw_asking() {
    asking a;
    for (Index r = 0; r < batch_; ++r) {
      const auto most =
          static_cast<long>(std::min<std::int64_t>(seen(r), b_.one_in(4) ? 12 : long(policy_.chunk)));
      const bool too_many = b_.one_in(16) && seen(r) < 400;
      const Index count = too_many ? static_cast<Index>(seen(r)) + 1 : b_.up_to(most);
      a.counts.push_back(count);
      a.queries = std::max(a.queries, count);
      a.enough = a.enough && count <= seen(r);
      for (std::int64_t p = std::max<std::int64_t>(seen(r) - count, 0); p < seen(r); ++p)
        a.held = a.held && holds(r, p, seen(r));
      if (count > 0 && row(r).run > 0)
        a.held = a.held && count <= seen(r) - row(r).run && has_ranks(r, count);
    }
    return a;
  }
  /// Whether all keys that are rotated by their ranks are stored for the newest `count` queries.
  bool has_ranks(Index r, Index count) const {
    if (policy_.positions != rope::ring_positions::cache) return true;
    bool all = true;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(seen(r), policy_.sinks); ++i)
      all = all && is_held(r, i);
    for (std::int64_t i = std::max<std::int64_t>(seen(r) - count + 1 - policy_.window, 0); i < seen(r); ++i)
      all = all && is_held(r, i);
    return all;
  }
  /// Calls f(i) for every token of a row that is visible to a query at `position`.
  template <class Call>
  void for_seen(Index r, std::int64_t position, const Call& f) const {
    for (const std::int64_t i : row(r).positions)
      if (i <= position && sees(position, i)) f(i);
  }
  /// A token of integers as in the cache, which check_slots has compared. Others as in the model.
  Token shown(Index r, std::int64_t i) const {
    Token one = at(r, i);
    if constexpr (is_quantized<T>) {
      const auto slot = static_cast<Index>(slot_of(i));
      one.v = stored_channels(cache_.values(r), 0, slot);
      one.k = {stored_channels(cache_.keys(r), 0, slot)};
    }
    return one;
  }

  rope::ring_policy policy_;

 private:
  void clear_model() {
    for (auto& one : rows_) {
      one = {};
      one.owner.assign(static_cast<std::size_t>(slots()), -1);
    }
  }
};

/// Options that do not fit a ring: another window or sinks, and those that need keys in order.
class wrong_ring_option {
 public:
  /// \param kind  0 to 4, of these
  void put_into(rope::attention_options& options, long kind, const rope::ring_policy& policy) {
    switch (kind) {
      case 0:
        options.causal = false;
        break;
      case 1:
        options.window = policy.window + 1;
        break;
      case 2:
        options.sinks = policy.sinks + 1;
        break;
      case 3:
        options.bias = {.data = &entry_};
        break;
      default:
        options.mask = {.data = &visible_};
    }
  }

 private:
  float entry_ = 0;
  bool visible_ = true;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_RING_TARGET_HPP
