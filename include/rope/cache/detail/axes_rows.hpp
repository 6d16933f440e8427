// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_AXES_ROWS_HPP
#define ROPE_CACHE_DETAIL_AXES_ROWS_HPP

#include <algorithm>  // std::copy, std::copy_n, std::fill, std::max_element, std::min, std::swap_ranges
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>  // std::move, std::swap
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>  // doubles
#include <rope/base/storage.hpp>
#include <rope/cache/detail/cache_rows.hpp>  // row_range
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/token_list.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// The coordinates of the tokens in each row of a cache with axes. cache_rows.hpp counts the tokens.

namespace rope::inline ROPE_ABI::detail {

/// [tokens, axes], the axes of a token contiguous. For the dependence on the channel type T see
/// owned_doubles.
template <class T>
using coordinate_map = Eigen::Map<
    const Eigen::Array<typename doubles<T>::type, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

/// The coordinates of the tokens of a cache, and the next position of text in each row.
///
/// Invariant: largest(b) is the largest coordinate on any axis of the tokens that row b holds or has evicted
///            since its last rollback, -1 if there are none, and next_[b] = floor(largest(b)) + 1. A
///            moved-from object has no axes and no rows. Without axes there is no memory.
class axes_rows {
 public:
  /// No axes: every token has one position, stored in cache_rows or ring_rows.
  axes_rows() : batch_(0), capacity_(0), axes_(0) {}
  /// Requires:  extents that a cache has checked
  /// Throws:    std::length_error if the coordinates exceed the address space
  axes_rows(const char* owner, Index batch, Index capacity, token_axes axes)
      : batch_(batch),
        capacity_(capacity),
        axes_(axes.count),
        largest_(at(batch), -1.0),
        evicted_(at(batch), none_evicted),
        next_(at(batch), 0),
        coordinates_(checked_size(owner, batch, capacity, axes.count)) {}

  Index axes() const { return axes_; }
  Index batch() const { return batch_; }
  /// The first `size` tokens of row b.
  template <class Map>
  Map of(Index b, Index size) const {
    return Map(row(b), size, axes_);
  }
  /// Coordinates of token t of row b, [axes].
  const double* token(Index b, Index t) const { return row(b) + t * axes_; }

  /// The coordinates of all tokens, row after row.
  template <class Rows>
  number_array<double> all(const Rows& rows) const {
    Index size = 0;
    for (Index b = 0; b < batch_; ++b) size += rows.size(b);
    number_array<double> tokens(size, axes_);
    size = 0;
    for (Index b = 0; b < batch_; size += rows.size(b), ++b)
      for (Index t = 0; t < rows.size(b); ++t)
        for (Index a = 0; a < axes_; ++a) tokens(size + t, a) = token(b, t)[a];
    return tokens;
  }

  /// The next integer position of each row, [batch].
  ///
  /// Throws:  std::invalid_argument if the largest coordinate of a row is not an integer
  std::span<const std::int64_t> next_positions(const char* function) const {
    for (const double largest : largest_)
      if (!equal(largest, std::floor(largest)))
        throw_invalid(function, "the next position must be an integer, got one after a coordinate of ",
                      largest, "; give coordinates, see next_coordinates");
    return {next_.data(), next_.size()};
  }
  /// The coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes].
  ///
  /// Throws:  std::invalid_argument if tokens is negative, std::out_of_range if a coordinate would exceed
  ///          2^53
  number_array<double> next_coordinates(const char* function, Index tokens) const {
    if (tokens < 0) throw_invalid(function, "tokens must not be negative, got ", tokens);
    check_text(function, tokens);
    number_array<double> text(batch_ * tokens, axes_);
    for (Index b = 0; b < batch_; ++b)
      for (Index t = 0; t < tokens; ++t)
        for (Index a = 0; a < axes_; ++a)
          text(b * tokens + t, a) = largest_[at(b)] + static_cast<double>(t + 1);
    return text;
  }
  /// Throws:  std::out_of_range if `tokens` more tokens of text would exceed 2^53
  void check_text(const char* function, Index tokens) const {
    for (const double largest : largest_)
      if (largest > limit - static_cast<double>(tokens))
        throw_out_of_range(function, "coordinates must be at most 2^53, got ", tokens, " after ", largest);
  }

  /// Appends new tokens to rows of size(b) tokens. Token t of row b is at coordinate(b, t, a) on axis a.
  /// `coordinate` may read next_positions().
  template <class Rows, class CoordinateOf>
  void append(const Rows& rows, Index tokens, const row_counts& counts, const CoordinateOf& coordinate) {
    for (Index b = 0; b < batch_; ++b) {
      const Index size = rows.size(b), count = count_of(b, tokens, counts);
      for (Index t = 0; t < count; ++t)
        for (Index a = 0; a < axes_; ++a) row(b)[(size + t) * axes_ + a] = coordinate(b, t, a);
      find_largest(b, size, size + count, size > 0 ? largest(b) : none_evicted);
    }
  }
  /// Sets token t of row b to coordinate(a) on every axis a.
  template <class CoordinateOf>
  void put(Index b, Index t, const CoordinateOf& coordinate) {
    for (Index a = 0; a < axes_; ++a) row(b)[t * axes_ + a] = static_cast<double>(coordinate(a));
  }
  double largest(Index b) const { return largest_[at(b)]; }
  /// Sets the largest coordinate of row b. The next text begins one after it.
  void go_on_behind(Index b, double largest) {
    largest_[at(b)] = largest;
    next_[at(b)] = static_cast<std::int64_t>(std::floor(largest)) + 1;
  }
  /// Checks nothing, because the functions that append check the positions of text.
  void check_next(const char* /*function*/, Index /*tokens*/) const {}
  /// Reduces rows to their first `size` tokens.
  template <class Rows>
  void keep(const Rows& all, row_range rows, std::int64_t size) {
    for (Index b = rows.first; b < last_of(rows); ++b) {
      if (size < all.size(b) || size == 0) evicted_[at(b)] = none_evicted;
      find_largest(b, 0, to_index(size));
    }
  }
  /// Removes tokens [first, last) of rows, which still have size(b) tokens. Later tokens move up.
  template <class Rows>
  void remove(row_range range, const Rows& rows, Index first, Index last) {
    for (Index b = range.first; b < last_of(range); ++b) {
      const Index size = rows.size(b);
      std::copy(row(b) + last * axes_, row(b) + size * axes_, row(b) + first * axes_);
      if (first < last && last == size) evicted_[at(b)] = none_evicted;
      find_largest(b, 0, size - (last - first));
    }
  }
  /// Removes the listed tokens of rows, which still have size(b) tokens. largest(b) does not change.
  template <class Rows>
  void evict(row_range range, const Rows& rows, const token_list& tokens) {
    for (Index b = range.first; b < last_of(range); ++b) {
      evicted_[at(b)] = largest(b);
      tokens.for_each_kept(rows.size(b), [&](Index from, Index to, Index count) {
        std::copy_n(row(b) + from * axes_, count * axes_, row(b) + to * axes_);
      });
    }
  }
  /// Throws:  std::out_of_range if a coordinate, or the largest of a row that evicted it, would leave
  ///          [-2^53, 2^53]
  template <class Rows>
  void check_shift(const char* function, row_range range, const Rows& rows, Index first, Index last,
                   std::int64_t delta) const {
    const auto check_moved = [&](double x) {
      const auto whole = static_cast<std::int64_t>(x);
      if (delta < -position_limit - whole || delta > position_limit - whole)
        throw_out_of_range(function, "coordinates must stay within 2^53 in magnitude, got ", x,
                           " and a delta of ", delta);
    };
    for (Index b = range.first; b < last_of(range); ++b) {
      for (Index i = first * axes_; i < last * axes_; ++i) check_moved(row(b)[i]);
      if (moves_evicted(b, rows, first, last)) check_moved(evicted_[at(b)]);
    }
  }
  template <class Rows>
  void shift(row_range range, const Rows& rows, Index first, Index last, std::int64_t delta) {
    for (Index b = range.first; b < last_of(range); ++b) {
      for (Index i = first * axes_; i < last * axes_; ++i) row(b)[i] = moved(row(b)[i], delta);
      if (moves_evicted(b, rows, first, last)) evicted_[at(b)] = moved(evicted_[at(b)], delta);
      find_largest(b, 0, rows.size(b));
    }
  }
  /// Copies the first `size` tokens of row `from` of an object with as many axes, this or another, to row
  /// `to`.
  void copy_row(const axes_rows& other, Index from, Index to, Index size) {
    if (axes_ == 0) return;
    std::copy_n(other.row(from), size * axes_, row(to));
    largest_[at(to)] = other.largest_[at(from)];
    evicted_[at(to)] = other.evicted_[at(from)];
    next_[at(to)] = other.next_[at(from)];
  }
  /// Throws:  std::length_error if the coordinates exceed the address space
  template <class Rows>
  void reserve(const char* owner, const Rows& rows, Index capacity) {
    number_array<double> larger(checked_size(owner, batch_, capacity, axes_));
    for (Index b = 0; b < batch_ && axes_ > 0; ++b)
      std::copy_n(row(b), rows.size(b) * axes_, larger.data() + b * capacity * axes_);
    coordinates_ = std::move(larger);
    capacity_ = capacity;
  }
  void swap_rows(Index a, Index b, Index size) {
    if (axes_ == 0) return;
    std::swap_ranges(row(a), row(a) + size * axes_, row(b));
    std::swap(largest_[at(a)], largest_[at(b)]);
    std::swap(evicted_[at(a)], evicted_[at(b)]);
    std::swap(next_[at(a)], next_[at(b)]);
  }
  void clear() {
    std::fill(largest_.begin(), largest_.end(), -1.0);
    std::fill(evicted_.begin(), evicted_.end(), none_evicted);
    std::fill(next_.begin(), next_.end(), std::int64_t{0});
  }

 private:
  static constexpr double limit = 0x1p53;

  /// Below every coordinate.
  static constexpr double none_evicted = -0x1p60;
  bool is_evicted(Index b) const { return evicted_[at(b)] > none_evicted; }
  /// Whether a shift of tokens [first, last) of row b also moves evicted_: if it moves the newest token.
  template <class Rows>
  bool moves_evicted(Index b, const Rows& rows, Index first, Index last) const {
    return first < last && last == rows.size(b) && is_evicted(b);
  }
  /// x + delta, rounded once: a delta beyond 2^53 may not be a double.
  static double moved(double x, std::int64_t delta) {
    const double whole = std::trunc(x);
    return static_cast<double>(static_cast<std::int64_t>(whole) + delta) + (x - whole);
  }

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static Index checked_size(const char* owner, Index batch, Index capacity, Index axes) {
    constexpr Index most = static_cast<Index>(static_cast<std::size_t>(-1) / 2 / sizeof(double));
    if (batch > 0 && capacity > 0 && axes > most / batch / capacity)
      throw_length(owner, "coordinates of ", axes, " axes for ", shape_text({batch, capacity}),
                   " tokens exceed the address space");
    return batch * capacity * axes;
  }
  /// The end of `rows`, limited to the batch: cache_rows counts one row in a batch without rows.
  Index last_of(row_range rows) const { return (std::min)(rows.last, Index{batch_}); }
  const double* row(Index b) const { return coordinates_.data() + b * capacity_ * axes_; }
  double* row(Index b) { return coordinates_.data() + b * capacity_ * axes_; }

  /// Finds the largest coordinate of row b: of tokens [first, last), of evicted ones, and `before`.
  void find_largest(Index b, Index first, Index last, double before = none_evicted) {
    double largest = (std::max)(before, evicted_[at(b)]);
    if (first < last)
      largest = (std::max)(largest, *std::max_element(row(b) + first * axes_, row(b) + last * axes_));
    go_on_behind(b, largest > none_evicted ? largest : -1.0);
  }

  moved_index batch_, capacity_, axes_;
  std::vector<double> largest_;
  std::vector<double> evicted_;  // largest(b) when tokens were last evicted, or none_evicted
  std::vector<std::int64_t> next_;
  number_array<double> coordinates_;  // [batch, capacity, axes]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_AXES_ROWS_HPP
