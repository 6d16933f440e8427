// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_EXP2_HPP
#define ROPE_BASE_SIMD_EXP2_HPP

#include <cfloat>  // FLT_EVAL_METHOD
#include <cstddef>
#include <cstdint>
#include <cstring>   // std::memcpy
#include <iterator>  // std::size
#include <type_traits>

#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>

/// The exponential of a softmax, in base 2. The scale of scores contains log2(e), so base 2 costs nothing,
/// and splitting an exponent into an integer and a remainder is exact.

namespace rope::inline ROPE_ABI::detail {

#if defined(_M_FP_FAST)
#pragma float_control(precise, on, push)  // what the barrier below does for other compilers
#endif

/// x in the precision of its type, as a barrier to the algebra of -ffast-math, which could make an exact
/// difference inexact. x87 registers, the default of 32-bit x86, have more digits than a float.
template <class P>
EIGEN_ALWAYS_INLINE P as_computed(P x) {
#if ROPE_DETAIL_FAST_MATH
  EIGEN_OPTIMIZATION_BARRIER(x)
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD > 0
  if constexpr (std::is_floating_point_v<P>) {
    volatile P stored = x;
    return stored;
  }
#endif
  return x;
}

/// A power of 2 for -126 <= x < 128.5 (double: -1022 and 1024.5): n is the integer nearest to x, ties to
/// even, and `power` is 2^(n - 1), or 0 if that is not a normal number. n is NaN if x is.
template <class P>
struct power_of_two {
  P n, power;
};
template <class P>
EIGEN_ALWAYS_INLINE power_of_two<P> nearest_power(const P& x) {
  using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == 4, float, double>;
  using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
  constexpr int mantissa = sizeof(A) == 4 ? 23 : 52;
  // In the binade of this number the last place is 1, so the sum is rounded to an integer. Its low bits are
  // the biased exponent of 2^(n - 1).
  const P shift = fill<P>(A(sizeof(A) == 4 ? 0x1.8p23 + 126 : 0x1.8p52 + 1022));
  const P shifted = as_computed(add(x, shift));
#if defined(__GNUC__)
  typedef bits words __attribute__((vector_size(sizeof(P))));
  words exponent;
  std::memcpy(&exponent, &shifted, sizeof exponent);
  exponent <<= mantissa;
#else
  bits exponent[lanes<P>];
  std::memcpy(exponent, &shifted, sizeof exponent);
  for (int i = 0; i < lanes<P>; ++i) exponent[i] <<= mantissa;
#endif
  power_of_two<P> result = {as_computed(subtract(shifted, shift)), P()};
  std::memcpy(&result.power, &exponent, sizeof exponent);
  return result;
}

inline constexpr double log2_e = 1.4426950408889634074;
inline constexpr double ln_2 = 0.69314718055994530942;

/// Coefficients of (2^r - 1) / r for |r| <= 1/2, highest degree first: the polynomial with the least error in
/// Chebyshev points. Its error, relative to 2^r, is below 6e-9 (float) and 1e-17 (double).
inline constexpr float exp2_coefficients_of_float[] = {
    float(0.00015453162945120690177), float(0.0013390863364671234381), float(0.0096180825572778514913),
    float(0.055503571142190778186),   float(0.24022650760568126945),   float(0.69314718802622878106)};
inline constexpr double exp2_coefficients_of_double[] = {
    4.4549605981865183938e-10,  7.0725859492692236999e-9,  1.0178062445845773521e-7, 1.3215442587921689653e-6,
    0.000015252733829836118394, 0.00015403530441736050155, 0.001333355814641693531,  0.0096181291076068885273,
    0.055504108664821594339,    0.2402265069591009822,     0.69314718055994530942};
template <class A>
constexpr const auto& exp2_coefficients() {
  if constexpr (std::is_same_v<A, float>)
    return exp2_coefficients_of_float;
  else
    return exp2_coefficients_of_double;
}

/// 2^x for x < 128 (float) or 1024 (double). 0 if x is below -125.5 (float) or -1021.5 (double), including
/// -infinity, so no weight is denormal: denormals are slow on some processors. Exactly 1 at 0. NaN if x is
/// any NaN, because the last operation is a product, not arithmetic on exponents.
///
/// Accuracy:  0.9 ulp in float and double, 1.2 without fused multiply-add (tests/base/laws/exp2.test.cpp)
template <class P>
EIGEN_ALWAYS_INLINE P exp2(const P& x) {
  using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == sizeof(float), float, double>;
  const P bounded = at_least(x, fill<P>(A(std::is_same_v<A, float> ? -126 : -1022)));
  const auto [n, power] = nearest_power(bounded);
  const P r = as_computed(subtract(bounded, n));
  // Twice the polynomial, times half of 2^n.
  constexpr const auto& coefficients = exp2_coefficients<A>();
  P p = fill<P>(2 * coefficients[0]);
  for (std::size_t i = 1; i < std::size(coefficients); ++i)
    p = multiply_add(p, r, fill<P>(2 * coefficients[i]));
  return multiply(multiply_add(p, r, fill<P>(A(2))), power);
}

#if defined(_M_FP_FAST)
#pragma float_control(pop)
#endif

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_SIMD_EXP2_HPP
