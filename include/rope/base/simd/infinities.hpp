// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_INFINITIES_HPP
#define ROPE_BASE_SIMD_INFINITIES_HPP

#include <algorithm>  // std::max, std::min
#include <bit>        // std::bit_cast
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/base/channels.hpp>
#include <rope/config.hpp>

/// Infinities, told by their bits: comparisons with them do not survive -ffast-math.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// x, or the largest number of its sign where it is infinite.
template <class A>
A saturated(A x) {
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr bits magnitude = static_cast<bits>(~bits(0)) >> 1,
                 infinity = sizeof(A) == 4 ? bits(0x7f800000u) : bits(0x7ff0000000000000u);
  const bits word = std::bit_cast<bits>(x);
  return std::bit_cast<A>(static_cast<bits>(word - bits((word & magnitude) == infinity)));
}

/// Whether no number of x[0 .. count) is an infinity or NaN.
template <class X>
bool all_finite(const X* x, Index count) {
  using A = arithmetic<X>;
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr bits exponent = sizeof(A) == 4 ? bits(0x7f800000u) : bits(0x7ff0000000000000u);
  bits largest = 0;
  for (Index i = 0; i < count; ++i)
    largest = (std::max)(largest, std::bit_cast<bits>(static_cast<A>(x[i])) & exponent);
  return largest != exponent;
}

/// x as a number of A, saturated.
template <class A>
A saturated_to(double x) {
  constexpr double largest = static_cast<double>((std::numeric_limits<A>::max)());
  if constexpr (std::is_same_v<A, double>)
    return saturated(x);
  else
    return static_cast<A>((std::min)((std::max)(x, -largest), largest));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_SIMD_INFINITIES_HPP
