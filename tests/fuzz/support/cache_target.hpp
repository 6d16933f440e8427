// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_CACHE_TARGET_HPP
#define ROPE_TESTS_FUZZ_CACHE_TARGET_HPP

/// A cache and the plain model of its rows, and the operations of every cache on whole rows.

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/shown.hpp"

namespace fuzz {

template <class Cache>
struct stored_in;
template <template <class> class Cache, class T>
struct stored_in<Cache<T>> {
  using type = T;
};

/// \tparam Row  the model of a row
template <class Cache, class Row>
class cache_target {
 public:
  virtual ~cache_target() = default;
  cache_target(const cache_target&) = delete;
  cache_target& operator=(const cache_target&) = delete;

  void run(int max_steps) {
    check_all();
    for (int steps = 0; steps < max_steps && !b_.empty(); ++steps) {
      step();
      check_all();
    }
  }

 protected:
  /// The type of stored heads.
  using stored = typename stored_in<Cache>::type;

  template <class... Shape>
  cache_target(bytes& b, Index batch, const Shape&... shape)
      : b_(b), batch_(batch), cache_(batch, shape...), rows_(static_cast<std::size_t>(batch)) {}

  /// One operation of the cache and of its model.
  virtual void step() = 0;
  /// Compares them.
  virtual void check_all() = 0;
  /// Removes all tokens of both.
  virtual void clear() = 0;
  /// Everything that the cache returns.
  virtual bits state() const = 0;

  Row& row(Index r) { return rows_[static_cast<std::size_t>(r)]; }
  const Row& row(Index r) const { return rows_[static_cast<std::size_t>(r)]; }
  bool is_row(Index r) const { return r >= 0 && r < batch_; }
  /// One of the rows, or once in `seldom` any number.
  Index draw_index(long seldom) {
    return b_.one_in(seldom) ? static_cast<Index>(b_.integer())
                             : static_cast<Index>(b_.up_to(long(batch_) - 1));
  }

  template <class Exception, class Call>
  void rejected(thrown<Exception>, const char* claim, const Call& call) {
    const bits before = state();
    rejects<Exception>(claim, call);
    check(state() == before, "a call that throws changes nothing");
  }

  /// Makes a valid call of attention, which writes only its output.
  template <class Asked, class Call>
  void attended(const Asked& asked, const Call& call) {
    const bits before = state();
    call();
    asked.check_written();
    check(state() == before, "attention does not change a cache");
  }

  void copy_row(Index from, Index to) {
    const auto call = [&] { cache_.copy_row(from, to); };
    if (!is_row(from) || !is_row(to)) return rejected(out_of_range, "a row that there is not throws", call);
    call();
    if (from != to) row(to) = row(from);
  }
  /// \param odd  whether to give a list of another length
  template <class Integer>
  void reorder(std::vector<Integer> from, bool odd) {
    if (odd) from.push_back(0);
    const auto call = [&] { cache_.reorder(from); };
    if (odd) return rejected(invalid_argument, "a list that is not of every row throws", call);
    if (!std::all_of(from.begin(), from.end(), [&](Integer r) { return is_row(r); }))
      return rejected(out_of_range, "a row that there is not throws", call);
    call();
    const std::vector<Row> before = rows_;
    for (std::size_t r = 0; r < rows_.size(); ++r) rows_[r] = before[static_cast<std::size_t>(from[r])];
  }
  std::vector<Index> draw_rows(long seldom) {
    std::vector<Index> from;
    for (Index r = 0; r < batch_; ++r) from.push_back(draw_index(seldom));
    return from;
  }

  /// Moves it away and back, which changes nothing.
  void copy_and_clear() {
    const Cache copy = cache_;
    cache_.clear();
    cache_ = copy;
  }
  void assign_to_itself() {
    const Cache& self = cache_;
    cache_ = self;
  }
  void move_and_back() {
    Cache moved = std::move(cache_);
    bool left = cache_.batch() != 0 || !cache_.next_positions().empty();
    if constexpr (requires { cache_.keys(); })
      left = left || cache_.capacity() != 0 || cache_.keys().size() != 0;
    if constexpr (requires { cache_.axes(); }) left = left || cache_.axes() != 0;
    if constexpr (requires { cache_.coordinates(); }) left = left || cache_.coordinates().size() != 0;
    check(!left, "a cache is empty once it was moved from");
    cache_ = std::move(moved);
  }

  /// \param kind     0 to 5
  /// \param seldom   how rarely a row is invalid
  /// \param odd_one  draws whether a list of rows has another length
  template <class DrawOdd>
  void copy_or_clear(long kind, long seldom, const DrawOdd& odd_one) {
    switch (kind) {
      case 0:
        return clear();
      case 1:
        return copy_and_clear();
      case 2:
        return move_and_back();
      case 3: {
        const Index from = draw_index(seldom), to = draw_index(seldom);
        return copy_row(from, to);
      }
      case 4: {
        const std::vector<Index> from = draw_rows(seldom);
        return reorder(from, odd_one());
      }
      default:
        return assign_to_itself();
    }
  }

  /// Reads the tokens of a row that does not exist.
  void call_with_no_row() {
    using limits = std::numeric_limits<Index>;
    static const Index outside[] = {-1, limits::min(), limits::max()};
    const Index none = b_.coin() ? batch_ : b_.one_of(outside);
    rejected(out_of_range, "no row has that size", [&] { static_cast<void>(cache_.size(none)); });
    if (axes_of(cache_) == 0)
      rejected(out_of_range, "no row has these positions",
               [&] { static_cast<void>(cache_.positions(none)); });
    rejected(out_of_range, "no row has these keys", [&] { static_cast<void>(cache_.keys(none)); });
    rejected(out_of_range, "no row has these values", [&] { static_cast<void>(cache_.values(none)); });
    if constexpr (requires { cache_.coordinates(none); }) {
      rejected(out_of_range, "no row has that order", [&] { static_cast<void>(cache_.order(none)); });
      rejected(out_of_range, "no row has these coordinates",
               [&] { static_cast<void>(cache_.coordinates(none)); });
    }
    if constexpr (requires { cache_.holds_window(none, 0); })
      rejected(out_of_range, "no row has that window",
               [&] { static_cast<void>(cache_.holds_window(none, 0)); });
  }

  bytes& b_;
  Index batch_;
  Cache cache_;
  std::vector<Row> rows_;
};

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_CACHE_TARGET_HPP
