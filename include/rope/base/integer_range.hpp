// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_INTEGER_RANGE_HPP
#define ROPE_BASE_INTEGER_RANGE_HPP

#include <cstdint>
#include <initializer_list>
#include <limits>

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// Checks of sums of positions and products of extents. Overflow is undefined in C++, so it is detected
/// before the operation.

namespace rope::inline ROPE_ABI::detail {

/// Whether a + b is a position.
constexpr bool sum_is_position(std::int64_t a, std::int64_t b) {
  using limits = std::numeric_limits<std::int64_t>;
  return b > 0 ? a <= (limits::max)() - b : a >= (limits::min)() - b;
}

/// Whether a - b is a position.
constexpr bool difference_is_position(std::int64_t a, std::int64_t b) {
  using limits = std::numeric_limits<std::int64_t>;
  return b < 0 ? a <= (limits::max)() + b : a >= (limits::min)() + b;
}

/// a + b.
///
/// Throws:  std::out_of_range unless the sum is a position
inline std::int64_t position_sum(const char* function, std::int64_t a, std::int64_t b) {
  if (!sum_is_position(a, b))
    throw_out_of_range(function, "positions must fit a signed integer of 64 bits, got ", a, " + ", b);
  return a + b;
}

/// a - b.
///
/// Throws:  std::out_of_range unless the difference is a position
inline std::int64_t position_difference(const char* function, std::int64_t a, std::int64_t b) {
  if (!difference_is_position(a, b))
    throw_out_of_range(function, "positions must fit a signed integer of 64 bits, got ", a, " - ", b);
  return a - b;
}

/// Whether the product of extents, none of them negative, is at most `most`.
constexpr bool product_fits(std::initializer_list<Index> extents,
                            Index most = (std::numeric_limits<Index>::max)()) {
  for (const Index extent : extents)
    if (extent == 0) return true;
  Index product = 1;
  for (const Index extent : extents) {
    if (extent > most / product) return false;
    product *= extent;
  }
  return true;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_INTEGER_RANGE_HPP
