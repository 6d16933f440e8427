// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP
#define ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP

#include <cmath>
#include <concepts>  // std::integral
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Checks of the arguments of a table.

namespace rope::inline ROPE_ABI::detail {

/// Whether a value of any integer type is at most `most`.  Requires: most >= 0
template <std::integral Integer>
constexpr bool at_most(Integer value, std::int64_t most) {
  if constexpr (std::is_unsigned_v<Integer>)
    return static_cast<std::uint64_t>(value) <= static_cast<std::uint64_t>(most);
  else
    return static_cast<std::int64_t>(value) <= most;
}

/// A position as a signed 64-bit integer.
///
/// Throws:  std::length_error if an unsigned position exceeds the range of that type, because it would become
///          negative
template <std::integral Position>
std::int64_t checked_position(const char* function, Position position) {
  if (!at_most(position, (std::numeric_limits<std::int64_t>::max)()))
    throw_length(function, "a position must be below 2^63, got ", position);
  return static_cast<std::int64_t>(position);
}

/// Returns a count of positions.
///
/// Throws:  std::invalid_argument if it is negative; std::length_error as checked_position
template <std::integral Count>
std::int64_t checked_count(const char* function, Count count) {
  if (count < Count{0}) throw_invalid(function, "count must not be negative, got ", count);
  return checked_position(function, count);
}

/// The number of positions in [first, last).
///
/// Throws:  std::invalid_argument if last < first; std::length_error if an Index does not hold it
template <std::integral First, std::integral Last>
Index checked_rows(const char* function, First first, Last last) {
  const std::int64_t from = checked_position(function, first), to = checked_position(function, last);
  if (to < from) throw_invalid(function, "last must not be below first, got [", from, ", ", to, ")");
  if (!difference_is_position(to, from) || !is_index(to - from))
    throw_length(function, "too many positions in [", from, ", ", to, ")");
  return to_index(to - from);
}

/// Returns the number of rows.
///
/// Throws:  std::invalid_argument if there is no pair; std::length_error if the entries exceed the address
///          space
template <class S>
Index checked_entries(Index rows, Index pairs) {
  if (pairs == 0)
    throw_invalid(
        "frequency_table",
        "frequencies must have a pair, got 0: they were moved from, so give those that they were moved to");
  if (rows > (std::numeric_limits<Index>::max)() / static_cast<Index>(2 * sizeof(S)) / pairs)
    throw_length("frequency_table", rows, " rows of ", pairs, " pairs exceed the address space");
  return rows;
}

/// Returns the attention_factor m.
///
/// Throws:  std::invalid_argument if m is not a normal number of S, [2^-126, 2^128 - 2^104] for float and
///          [2^-1022, 2^1024 - 2^971] for double, because m cos would overflow or lose digits
template <class S>
double checked_magnitude(double attention_factor) {
  using limits = std::numeric_limits<S>;
  if (attention_factor < static_cast<double>((limits::min)()) ||
      attention_factor > static_cast<double>((limits::max)()))
    throw_invalid("frequency_table", "attention_factor must be in [2^", limits::min_exponent - 1, ", 2^",
                  limits::max_exponent, " - 2^", limits::max_exponent - limits::digits,
                  "], the normal numbers of the type of its entries, got ", attention_factor);
  return attention_factor;
}

/// Folds inv_freq [pairs, axes] into a hash.
inline std::uint64_t mix_inv_freq(std::uint64_t hash, const frequencies& of) {
  return mix(hash, of.pairs(), of.axes(), [&](Index i, Index a) { return of.inv_freq(i, a); });
}

/// The fingerprint of the frequencies of a table.
///
/// Throws:  as checked_magnitude
template <class S>
std::uint64_t checked_fingerprint(const frequencies& of) {
  return mix_inv_freq(bit_cast<std::uint64_t>(checked_magnitude<S>(of.attention_factor())), of);
}

/// Checks the coordinates at(row, axis).
///
/// Throws:  std::invalid_argument if the number of columns differs from the number of axes, or a coordinate
///          is infinite, NaN or above 2^53 in magnitude. Up to 2^53 a double holds every integer
template <class At>
void check_row_coordinates(const char* function, Index axes, Index rows, Index columns, const At& at) {
  using coordinate = std::decay_t<decltype(at(Index{}, Index{}))>;
  constexpr bool whole = std::is_integral_v<coordinate>;
  static_assert(whole || std::is_same_v<coordinate, float> || std::is_same_v<coordinate, double>,
                "frequency_table: coordinates are integers, float or double; 16-bit types lose the position");
  if (columns != axes)
    throw_invalid(function, "coordinates must be [rows, ", axes, "], got ", shape_text({rows, columns}));
  const auto fits = [](coordinate value) {
    constexpr std::int64_t most = std::int64_t{1} << 53;
    if constexpr (whole)
      return at_most(value, most) &&
             (std::is_unsigned_v<coordinate> || static_cast<std::int64_t>(value) >= -most);
    else
      return is_finite(static_cast<double>(value)) && (std::abs)(static_cast<double>(value)) <= 0x1p53;
  };
  for (Index r = 0; r < rows; ++r)
    for (Index a = 0; a < axes; ++a)
      if (!fits(at(r, a))) {
        using shown = std::conditional_t<whole, coordinate, double>;
        throw_invalid(function, "a coordinate must be finite and at most 2^53 in magnitude, got ",
                      static_cast<shown>(at(r, a)), " at row ", r, ", axis ", a);
      }
}

/// Coordinates as doubles, [rows, axes].
///
/// Throws:  as check_row_coordinates
template <class Derived>
number_array<double> checked_coordinates(Index axes, const Eigen::DenseBase<Derived>& coordinates) {
  const number_array<typename Derived::Scalar> given = coordinates;
  check_row_coordinates("frequency_table", axes, given.rows(), given.cols(),
                        [&](Index r, Index a) { return given(r, a); });
  number_array<double> checked(given.rows(), given.cols());
  for (Index i = 0; i < given.size(); ++i) checked(i) = static_cast<double>(given(i));
  return checked;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP
