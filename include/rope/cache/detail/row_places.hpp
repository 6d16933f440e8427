// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ROW_PLACES_HPP
#define ROPE_CACHE_DETAIL_ROW_PLACES_HPP

#include <algorithm>  // std::all_of, std::copy_n, std::fill, std::max, std::max_element, std::swap_ranges
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>  // std::swap

#include <rope/base/integer_list.hpp>  // product_fits
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>  // doubles
#include <rope/cache/detail/token_list.hpp>
#include <rope/config.hpp>

/// The positions or coordinates of the tokens in each row of a cache, and the next position of each row. Text
/// is a token with the same integer coordinate on every axis.

namespace rope::inline ROPE_ABI::detail {

/// Rows [first, last) of a batch.
struct row_range {
  Index first;
  Index last;
};

/// The largest magnitude of a position in a cache.
inline constexpr std::int64_t position_limit = std::int64_t{1} << 53;

/// Coordinates [tokens, axes]. Those of a token are contiguous. owned_doubles explains why the type depends
/// on T.
template <class T>
using coordinate_map = Eigen::Map<
    const Eigen::Array<typename doubles<T>::type, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

/// The places of the tokens of a cache: one position each, or a coordinate on each of several axes.
///
/// Invariant: the `largest` of row b is the largest number of the tokens that row b holds, has evicted since
///            its last rollback, or has overwritten in a ring; -1 if there are none. next()[b] is
///            floor(largest) + 1. A moved-from object has no axes and no rows. Without axes there is no
///            memory.
///
/// \tparam X  std::int64_t for positions, double for coordinates
template <class X>
class row_places {
  static constexpr bool are_positions = std::is_same_v<X, std::int64_t>;

 public:
  /// No axes.
  row_places() : capacity_(0), axes_(0) {}
  /// Requires:  extents that a cache has checked
  /// Throws:    std::length_error if the places exceed the address space
  row_places(const char* owner, Index batch, Index capacity, Index axes)
      : capacity_(capacity),
        axes_(axes),
        rows_(batch, 1, row_end{}),
        next_(batch, 1, 0),
        places_(checked_size(owner, batch, capacity, axes)),
        up_to_(are_positions ? 0 : batch * capacity) {}

  Index capacity() const { return capacity_; }
  Index axes() const { return axes_; }
  std::span<const std::int64_t> next() const { return {next_.begin(), next_.end()}; }
  /// The numbers of row b, [slots, axes].
  const X* row(Index b) const { return places_.data() + b * capacity_ * axes_; }
  X* row(Index b) { return places_.data() + b * capacity_ * axes_; }
  /// The numbers of the token in a slot of row b, [axes].
  const X* token(Index b, Index slot) const { return row(b) + slot * axes_; }

  /// The numbers of all tokens, row after row.
  template <class Rows>
  number_array<X> all(const Rows& rows) const {
    Index size = 0;
    for (Index b = 0; b < rows_.size(); ++b) size += rows.size(b);
    number_array<X> tokens(size, axes_);
    size = 0;
    for (Index b = 0; b < rows_.size(); size += rows.size(b), ++b)
      for (Index t = 0; t < rows.size(b); ++t)
        for (Index a = 0; a < axes_; ++a) tokens(size + t, a) = token(b, t)[a];
    return tokens;
  }

  /// Whether the next position of every row is an integer. True without axes.
  bool end_at_integers() const {
    return std::all_of(rows_.begin(), rows_.end(), [](const row_end& of) { return of.is_integer(); });
  }
  /// The next integer position of each row, [batch].
  ///
  /// Throws:  std::invalid_argument if the largest coordinate of a row is not an integer
  std::span<const std::int64_t> next_positions(const char* function) const {
    for (const row_end& of : rows_)
      if (!of.is_integer())
        throw_invalid(function, "the next position must be an integer, got one after a coordinate of ",
                      of.largest, "; give coordinates, see next_coordinates");
    return next();
  }
  /// The coordinates of the next `tokens` tokens of each row if they are text, [batch * tokens, axes].
  ///
  /// Throws:  std::invalid_argument if tokens is negative, std::out_of_range if a coordinate would exceed
  ///          2^53, std::length_error if the coordinates exceed the address space
  number_array<X> next_coordinates(const char* function, Index tokens) const {
    if (tokens < 0) throw_invalid(function, "tokens must not be negative, got ", tokens);
    for (const row_end& of : rows_)
      if (of.largest > 0x1p53 - static_cast<double>(tokens))
        throw_out_of_range(function, "coordinates must be at most 2^53, got ", tokens, " after ", of.largest);
    if (!product_fits({rows_.size(), tokens, axes_}, max_places))
      throw_length(function, "coordinates of ", shape_text({rows_.size(), tokens}),
                   " tokens exceed the address space");
    number_array<X> text(rows_.size() * tokens, axes_);
    for (Index b = 0; b < rows_.size(); ++b)
      for (Index t = 0; t < tokens; ++t)
        for (Index a = 0; a < axes_; ++a) text(b * tokens + t, a) = rows_(b).largest + static_cast<X>(t + 1);
    return text;
  }

  /// Records `count` new tokens of row b, before `rows` records them. Token t is at place(t, a) on axis a.
  /// The next position depends on all of them, including those that later tokens of the same append overwrite
  /// in a ring. `place` may read next().
  template <class Rows, class Place>
  void append(const Rows& rows, Index b, Index count, const Place& place) {
    const std::int64_t seen = rows.seen(b);
    X most = seen == 0 ? rows_(b).evicted : rows_(b).largest;
    for (Index t = 0; t < count; ++t) {
      const Index slot = rows.slot(seen + t);
      for (Index a = 0; a < axes_; ++a) row(b)[slot * axes_ + a] = place(t, a);
      most = add(b, slot, most);
    }
    if (count > 0) end_at(b, most);
  }
  /// Ends row b at `largest`: the next position is one more, or 0 if no token counts.
  void end_at(Index b, X largest) {
    if (largest <= none_evicted) largest = -1;
    rows_(b).largest = largest;
    next_(b) = static_cast<std::int64_t>(std::floor(static_cast<double>(largest))) + 1;
  }
  /// Rolls rows back to `size` tokens.
  ///
  /// Requires:  size is 0, or token size - 1 is stored
  template <class Rows>
  void keep(const Rows& all, row_range rows, std::int64_t size) {
    for (Index b = rows.first; b < last_of(rows); ++b) {
      if (size > 0 && size == all.seen(b)) continue;
      if (are_positions || is_evicted(b) || size == 0) {
        rows_(b).evicted = none_evicted;
        update_largest(b, to_index(size));
      } else {
        end_at(b, up_to_(b * capacity_ + all.slot(size - 1)));
      }
    }
  }
  /// Removes tokens of the rows in `range`. `rows` still counts them. Later tokens move to lower indices.
  /// With `evicts`, the next position does not change.
  template <class Rows>
  void remove(row_range range, const Rows& rows, const token_list& tokens, bool evicts) {
    for (Index b = range.first; b < last_of(range); ++b) {
      const Index size = rows.size(b);
      tokens.for_each_run([&, &evicted = rows_(b).evicted](Index first, Index last) {
        if (evicts)
          evicted = (std::max)(evicted, *std::max_element(row(b) + first * axes_, row(b) + last * axes_));
        else if (last == size)
          evicted = none_evicted;
      });
      tokens.for_each_kept(size, [&](Index from, Index to, Index count) {
        std::copy_n(row(b) + from * axes_, count * axes_, row(b) + to * axes_);
      });
      if (!evicts) update_largest(b, size - tokens.size());
    }
  }
  /// Puts the `size` tokens of row b at 0, 1, 2, ...
  void number(Index b, Index size) {
    for (Index t = 0; t < size; ++t) row(b)[t] = t;
    rows_(b).evicted = none_evicted;
    end_at(b, size - 1);
  }
  /// Throws:  std::out_of_range if a number would leave [-2^53, 2^53]. This includes the largest evicted one
  ///          of a row if it moves too
  template <class Rows>
  void check_shift(const char* function, row_range range, const Rows& rows, Index first, Index last,
                   std::int64_t delta) const {
    const auto check_moved = [&](X x) {
      const auto whole = static_cast<std::int64_t>(x);
      if (delta < -position_limit - whole || delta > position_limit - whole)
        throw_out_of_range(function, are_positions ? "positions" : "coordinates",
                           " must stay within 2^53 in magnitude, got ", x, " and a delta of ", delta);
    };
    for (Index b = range.first; b < last_of(range); ++b) {
      for (Index i = first * axes_; i < last * axes_; ++i) check_moved(row(b)[i]);
      if (moves_evicted(b, rows, first, last)) check_moved(rows_(b).evicted);
    }
  }
  template <class Rows>
  void shift(row_range range, const Rows& rows, Index first, Index last, std::int64_t delta) {
    for (Index b = range.first; b < last_of(range); ++b) {
      for (Index i = first * axes_; i < last * axes_; ++i) row(b)[i] = moved(row(b)[i], delta);
      X& evicted = rows_(b).evicted;
      if (moves_evicted(b, rows, first, last)) evicted = moved(evicted, delta);
      update_largest(b, rows.size(b));
    }
  }
  /// Copies the first `size` slots of row `from` of this or another object with as many axes to row `to`.
  void copy_row(const row_places& other, Index from, Index to, Index size) {
    if (axes_ == 0) return;
    std::copy_n(other.row(from), size * axes_, row(to));
    if (!are_positions)
      std::copy_n(other.up_to_.data() + from * other.capacity_, size, up_to_.data() + to * capacity_);
    rows_(to) = other.rows_(from);
    next_(to) = other.next_(from);
  }
  void swap_rows(Index a, Index b, Index size) {
    if (axes_ == 0) return;
    std::swap_ranges(row(a), row(a) + size * axes_, row(b));
    X* const up_to = up_to_.data();
    if (!are_positions)
      std::swap_ranges(up_to + a * capacity_, up_to + a * capacity_ + size, up_to + b * capacity_);
    std::swap(rows_(a), rows_(b));
    std::swap(next_(a), next_(b));
  }
  void clear() {
    for (row_end& of : rows_) of = {};
    std::fill(next_.begin(), next_.end(), std::int64_t{0});
  }

 private:
  /// The most places that fit the address space.
  static constexpr Index max_places = (std::numeric_limits<Index>::max)() / Index(sizeof(X));
  /// Below every place.
  static constexpr X none_evicted = -(X{1024} * 1024 * 1024 * 1024 * 1024 * 1024);
  struct row_end {
    bool is_integer() const { return equal(largest, std::floor(largest)); }
    X largest = -1;
    X evicted = none_evicted;  // the largest number of the tokens evicted since the last rollback
  };

  bool is_evicted(Index b) const { return rows_(b).evicted > none_evicted; }
  /// Whether a shift of tokens [first, last) of row b also moves its `evicted`: if it moves the newest token.
  template <class Rows>
  bool moves_evicted(Index b, const Rows& rows, Index first, Index last) const {
    return first < last && last == rows.size(b) && is_evicted(b);
  }
  /// x + delta, rounded once. Integers are added first, because a double may not hold a delta beyond 2^53.
  static X moved(X x, std::int64_t delta) {
    const auto whole = static_cast<std::int64_t>(x);
    return static_cast<X>(whole + delta) + (x - static_cast<X>(whole));
  }

  static Index checked_size(const char* owner, Index batch, Index capacity, Index axes) {
    if (!product_fits({batch, capacity, axes}, max_places))
      throw_length(owner, "coordinates of ", axes, " axes for ", shape_text({batch, capacity}),
                   " tokens exceed the address space");
    return batch * capacity * axes;
  }
  /// No row without axes.
  Index last_of(row_range rows) const { return axes_ > 0 ? rows.last : 0; }

  /// The largest of `most` and the numbers in a slot, recorded there unless a number is a position.
  X add(Index b, Index slot, X most) {
    const X* const at_slot = token(b, slot);
    most = (std::max)(most, *std::max_element(at_slot, at_slot + axes_));
    if (!are_positions) up_to_(b * capacity_ + slot) = most;
    return most;
  }
  /// Updates the largest number of row b, which has `size` tokens.
  void update_largest(Index b, Index size) {
    X most = rows_(b).evicted;
    for (Index t = 0; t < size; ++t) most = add(b, t, most);
    end_at(b, most);
  }

  moved_index capacity_, axes_;
  number_array<row_end> rows_;       // [batch]
  number_array<std::int64_t> next_;  // [batch]
  number_array<X> places_;           // [batch, capacity, axes]
  number_array<X> up_to_;            // [batch, capacity]: the largest of the row up to the token in each slot
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_ROW_PLACES_HPP
