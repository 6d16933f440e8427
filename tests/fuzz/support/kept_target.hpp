// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_KEPT_TARGET_HPP
#define ROPE_TESTS_FUZZ_KEPT_TARGET_HPP

/// A cache that keeps every token until a call removes it: its rows are lists of tokens, which calls for one
/// row or for every row shorten.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <rope/cache/policy.hpp>

#include "fuzz/support/cache_target.hpp"
#include "fuzz/support/tokens.hpp"

namespace fuzz {

/// The tokens of a row. Evicted tokens may have had larger positions than the remaining ones: then `evicted`
/// is the largest position or coordinate of the row, and counts until a rollback.
template <class Token>
struct kept_row : std::vector<Token> {
  static constexpr double none = -0x1p60;
  double evicted = none;

  /// Tokens from `left` on are removed. A rollback of nothing changes nothing, except to no tokens.
  void roll_back(Index left) {
    if (left < static_cast<Index>(this->size()) || left == 0) evicted = none;
    this->resize(static_cast<std::size_t>(left));
  }
};

template <class Cache, class Token>
class kept_target : public cache_target<Cache, kept_row<Token>> {
  using base = cache_target<Cache, kept_row<Token>>;

 protected:
  using base::b_, base::batch_, base::cache_, base::rows_, base::row, base::is_row, base::rejected;
  using base::base;

  Index size(Index r) const { return static_cast<Index>(row(r).size()); }
  const std::vector<Token>& tokens_of(Index r) const { return row(r); }
  const Token& at(Index r, Index t) const { return row(r)[static_cast<std::size_t>(t)]; }
  /// The largest coordinate of a row when it last evicted tokens, or one below every coordinate.
  double evicted(Index r) const { return row(r).evicted; }
  bool even() const {
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const auto& of) { return of.size() == rows_[0].size(); });
  }
  Index common_size() const { return batch_ == 0 ? 0 : size(0); }
  bool empty() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const auto& of) { return of.empty(); });
  }
  /// Whether every row has room for the tokens that are to be added to it.
  bool has_room(const std::vector<std::vector<Token>>& added) const {
    bool fits = true;
    for (Index r = 0; r < batch_; ++r)
      fits = fits &&
             static_cast<Index>(added[static_cast<std::size_t>(r)].size()) <= cache_.capacity() - size(r);
    return fits;
  }
  void add(const std::vector<std::vector<Token>>& added) {
    for (std::size_t r = 0; r < rows_.size(); ++r)
      rows_[r].insert(rows_[r].end(), added[r].begin(), added[r].end());
    forgot_ = false;
  }
  void clear() override {
    cache_.clear();
    for (auto& of : rows_) of = {};
    forgot_ = false;
  }

  /// Compares keys and values of a row with its tokens.
  ///
  /// Requires:  a token has a key k and values v, [heads, value_dim]
  void check_stored(Index r) {
    const auto keys = cache_.keys(r), values = cache_.values(r);
    check(keys.batch == 1 && keys.tokens == size(r) && values.batch == 1 && values.tokens == size(r),
          "the shape of keys and values");
    for (Index t = 0; t < size(r); ++t) {
      const Token& one = at(r, t);
      for (Index h = 0; h < keys.heads; ++h)
        check(has_head<typename base::stored>(keys, t, h, one.k) &&
                  has_head<typename base::stored>(values, t, h, one.v),
              "keys and values are the stored ones, rotated as requested");
    }
  }
  /// A token of integers as in the cache, which check_stored has compared. Others as in the model.
  Token shown(Index r, Index t) const {
    Token one = at(r, t);
    if constexpr (is_quantized<typename base::stored>) {
      one.v = stored_channels(cache_.values(r), 0, t);
      one.k = {stored_channels(cache_.keys(r), 0, t)};
    }
    return one;
  }

  rope::batch_row draw_row() {
    if (b_.coin()) return rope::every_row;
    return rope::batch_row{this->draw_index(8)};
  }
  bool is_row(rope::batch_row r) const { return r.every || is_row(r.index); }
  /// Whether a call is for invalid rows. It is made then.
  template <class Call>
  bool rejected_rows(rope::batch_row r, const Call& call) {
    if (r.every && !even())
      rejected(invalid_argument, "a function of every row throws if rows differ", call);
    else if (!is_row(r))
      rejected(out_of_range, "a row that there is not throws", call);
    else
      return false;
    return true;
  }
  Index held(rope::batch_row r) const { return r.every ? common_size() : size(r.index); }
  /// The number of tokens of a row, or any number for an invalid row.
  Index most(rope::batch_row r) const { return is_row(r) && (!r.every || even()) ? held(r) : 3; }
  template <class Change>
  void for_rows(rope::batch_row r, const Change& change) {
    for (Index i = 0; i < batch_; ++i)
      if (r.every || r.index == i) change(row(i));
  }
  template <class Change>
  void for_tokens(rope::batch_row r, Index first, Index count, const Change& change) {
    for_rows(r, [&](auto& of) {
      for (Index t = first; t < first + count; ++t) change(of[static_cast<std::size_t>(t)]);
    });
  }
  std::pair<Index, Index> draw_range(rope::batch_row r) {
    const auto first = static_cast<Index>(b_.one_in(8) ? b_.integer() : b_.up_to(long(most(r))));
    const auto count = static_cast<Index>(
        b_.one_in(8) ? b_.integer() : b_.up_to(long(most(r) - std::clamp(first, Index{0}, most(r)))));
    return {first, count};
  }
  bool is_range(rope::batch_row r, Index first, Index count) const {
    return first >= 0 && count >= 0 && first <= held(r) && count <= held(r) - first;
  }

  void truncate() {
    const rope::batch_row r = draw_row();
    const auto left = static_cast<Index>(b_.one_in(5) ? b_.integer() : b_.up_to(long(most(r))));
    const auto call = [&] { cache_.truncate(left, r); };
    if (rejected_rows(r, call)) return;
    if (left < 0 || left > held(r))
      return rejected(out_of_range, "a size outside of what is held throws", call);
    call();
    forgot_ = forgot_ || left < held(r);
    for_rows(r, [&](auto& of) { of.roll_back(left); });
  }
  void remove() {
    const rope::batch_row r = draw_row();
    const auto [first, count] = draw_range(r);
    const auto call = [&, from = first, n = count] { cache_.remove(from, n, r); };
    if (rejected_rows(r, call)) return;
    if (!is_range(r, first, count)) return rejected(out_of_range, "tokens that are not held throw", call);
    call();
    forgot_ = forgot_ || count > 0;
    for_rows(r, [&, from = first, n = count](auto& of) {
      if (n > 0 && from + n == static_cast<Index>(of.size())) of.evicted = of.none;
      of.erase(of.begin() + from, of.begin() + from + n);
    });
  }

  /// Whether a shift of these tokens also moves an evicted one.
  static bool moves_evicted(const kept_row<Token>& of, Index first, Index count) {
    return count > 0 && first + count == static_cast<Index>(of.size()) && of.evicted > of.none;
  }

  /// Tokens of a list. One may be missing from the row or named twice.
  ///
  /// \param largest_of  the largest position or coordinate of a row, including evicted ones
  template <class LargestOf>
  void evict(const LargestOf& largest_of) {
    const rope::batch_row r = draw_row();
    std::vector<std::int64_t> list;
    for (long left = b_.up_to(5); left > 0; --left)
      list.push_back(b_.one_in(16) ? b_.integer() : b_.up_to(long(most(r)) - 1));
    const auto call = [&] { cache_.evict(list, r); };
    if (rejected_rows(r, call)) return;
    if (!std::all_of(list.begin(), list.end(), [&](std::int64_t i) { return i >= 0 && i < held(r); }))
      return rejected(out_of_range, "tokens that are not held throw", call);
    std::vector<std::int64_t> sorted = list;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return rejected(invalid_argument, "a token that is named twice throws", call);
    call();
    if (list.empty()) return;
    forgot_ = true;
    for (Index i = 0; i < batch_; ++i)
      if (r.every || r.index == i) {
        row(i).evicted = largest_of(i);
        for (auto at = sorted.rbegin(); at != sorted.rend(); ++at) row(i).erase(row(i).begin() + *at);
      }
  }
  /// More slots, or fewer, which changes nothing.
  void reserve() {
    const Index capacity = b_.between(-1, 12);
    const auto call = [&] { cache_.reserve(capacity); };
    if (capacity < 0) return rejected(invalid_argument, "a negative capacity throws", call);
    const bits before = this->state();
    call();
    capacity_ = std::max(capacity_, capacity);
    check(this->state() == before, "a cache that grows shows what it did");
  }
  /// A row of a copy which has lost some of its tokens.
  void take_row() {
    Cache other = cache_;
    const Index from = this->draw_index(8), to = this->draw_index(8);
    const auto call = [&] { cache_.copy_row(other, from, to); };
    if (!this->is_row(from) || !this->is_row(to))
      return rejected(out_of_range, "a row that there is not throws", call);
    const Index left = static_cast<Index>(b_.up_to(long(size(from))));
    kept_row<Token> taken = row(from);
    taken.roll_back(left);
    other.truncate(left, rope::batch_row{from});
    call();
    row(to) = taken;
    forgot_ = true;
  }

  Index capacity_ = cache_.capacity();
  bool forgot_ = false;  // tokens, since the last append
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_KEPT_TARGET_HPP
