// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP
#define ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP

#include <concepts>  // std::integral
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>  // std::in_range

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Checks of the arguments of a table.

namespace rope::inline ROPE_ABI::detail {

/// A position as a signed 64-bit integer.
///
/// Throws:  std::length_error if an unsigned position exceeds the range of that type, because it would become
///          negative
template <std::integral Position>
std::int64_t checked_position(const char* function, Position position) {
  if (!std::in_range<std::int64_t>(+position))  // + promotes bool and characters
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
  if (!difference_is_position(to, from) || !std::in_range<Index>(to - from))
    throw_length(function, "too many positions in [", from, ", ", to, ")");
  return to_index(to - from);
}

/// Returns the number of rows.
///
/// Throws:  std::invalid_argument if there is no pair; std::length_error if the entries exceed the address
///          space
template <class S>
Index checked_entries(Index rows, Index pairs, const char* function) {
  if (pairs == 0)
    throw_invalid(
        function,
        "frequencies must have a pair, got 0: they were moved from, so give those that they were moved to");
  if (rows > (std::numeric_limits<Index>::max)() / static_cast<Index>(2 * sizeof(S)) / pairs)
    throw_length(function, rows, " rows of ", pairs, " pairs exceed the address space");
  return rows;
}

/// The type of entries in messages.
template <class S>
inline constexpr const char* type_name = std::is_same_v<S, float> ? "float" : "double";

/// Returns the attention_factor m.
///
/// Throws:  std::invalid_argument if m is not a normal number of S, [2^-126, 2^128 - 2^104] for float and
///          [2^-1022, 2^1024 - 2^971] for double, because m cos would overflow or lose digits
template <class S>
double checked_magnitude(double attention_factor, const char* function = "frequency_table") {
  using limits = std::numeric_limits<S>;
  if (attention_factor < static_cast<double>((limits::min)()) ||
      attention_factor > static_cast<double>((limits::max)()))
    throw_invalid(function, "attention_factor must be in [2^", limits::min_exponent - 1, ", 2^",
                  limits::max_exponent, " - 2^", limits::max_exponent - limits::digits,
                  "], the normal numbers of ", type_name<S>, ", got ", attention_factor);
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
std::uint64_t checked_fingerprint(const frequencies& of, const char* function) {
  return mix_inv_freq(bit_cast<std::uint64_t>(checked_magnitude<S>(of.attention_factor(), function)), of);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_TABLE_ARGUMENTS_HPP
