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

/// a == b, for numbers whose equality is exact and meant: an option that is off, a factor of exactly 1.
template <class A, class B>
constexpr bool equal(A a, B b) {
  return std::equal_to<>{}(a, b);
}

/// Whether x is neither infinite nor NaN. Read from the bits: under -ffast-math std::isfinite may be folded
/// to true.
constexpr bool is_finite(double x) {
  constexpr std::uint64_t exponent = 0x7ff0000000000000u;
  return (std::bit_cast<std::uint64_t>(x) & exponent) != exponent;
}

/// x as a long double, in which schedules are evaluated.
constexpr long double widened(double x) { return static_cast<long double>(x); }

/// pi with all the digits of a long double; std::numbers::pi_v<long double> of libc++ has those of double.
inline constexpr long double wide_pi = 3.14159265358979323846264338327950288L;

/// Whether an Index holds the count.
template <std::integral Count>
constexpr bool is_index(Count count) {
  return std::in_range<Index>(count);
}

/// A count as an Index that holds it; without a cast where the types are equal, which compilers warn of.
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
