// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_EXACT_HPP
#define ROPE_BASE_EXACT_HPP

#include <bit>       // std::bit_cast
#include <concepts>  // std::integral, std::same_as
#include <cstdint>
#include <functional>  // std::equal_to
#include <utility>     // std::in_range

#include <rope/config.hpp>

/// Comparisons and conversions that compilers warn of, or optimise away, for places where they are meant.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// a == b for numbers that were stored and not computed: an option that is off, a sum of nothing, a factor of
/// exactly 1.
template <class A, class B>
constexpr bool equal(A a, B b) {
  return std::equal_to<>{}(a, b);
}

/// Read from the bits, so that it also holds under -ffast-math, where std::isfinite may be folded to true.
constexpr bool is_finite(double x) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000u;
  return (std::bit_cast<std::uint64_t>(x) & exponent) != exponent;
}

/// A number in the arithmetic that schedules are evaluated in.
constexpr long double widened(double x) { return static_cast<long double>(x); }

/// Whether an Index holds the count.
template <std::integral Count>
constexpr bool is_index(Count count) {
  return std::in_range<Index>(count);
}

/// A count that an Index holds, as one: no cast where the types are the same, as int64 is on most machines.
template <std::integral Count>
constexpr Index to_index(Count count) {
  if constexpr (std::same_as<Count, Index>)
    return count;
  else
    return static_cast<Index>(count);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_EXACT_HPP
