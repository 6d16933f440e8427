// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_TOLERANCE_HPP
#define ROPE_TESTS_TOLERANCE_HPP

/// Every bound that the tests allow, by name, with the reason for its value.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/wide.hpp"

namespace tolerance {

/// Bits of the significand, the leading one included, and the exponent of the smallest normal number.
template <class T>
struct format {
  static constexpr int digits = std::numeric_limits<T>::digits;
  static constexpr int min_exponent = std::numeric_limits<T>::min_exponent - 1;
};
template <>
struct format<Eigen::half> {
  static constexpr int digits = 11;
  static constexpr int min_exponent = -14;
};
template <>
struct format<Eigen::bfloat16> {
  static constexpr int digits = 8;
  static constexpr int min_exponent = -126;
};

/// Whether packets of floats take subnormal numbers as 0, as those of 32-bit NEON do.
#if defined(EIGEN_VECTORIZE_NEON) && !EIGEN_ARCH_ARM64
inline constexpr bool flushes_subnormals = true;
#else
inline constexpr bool flushes_subnormals = false;
#endif

template <class T>
inline constexpr bool is_16_bit = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Eigen::bfloat16>;

/// The largest relative error of rounding to nearest: 2^-24 float, 2^-53 double, 2^-11 half, 2^-8 bfloat16.
template <class T>
testing::wide unit_roundoff() {
  static const testing::wide u = testing::ldexp(1.0L, -format<T>::digits);
  return u;
}

/// The distance between neighbours of T in the binade of x.
template <class T>
testing::wide ulp(testing::wide x) {
  const int exponent =
      x == 0 ? format<T>::min_exponent : (std::max)(testing::ilogb(x), format<T>::min_exponent);
  return testing::ldexp(1.0L, exponent + 1 - format<T>::digits);
}

/// |got - exact| in ulp of the exact value.
template <class T>
testing::wide error_in_ulp(T got, testing::wide exact) {
  return testing::abs(static_cast<testing::wide>(got) - exact) / ulp<T>(exact);
}

/// A table entry against the exact cos or sin, in ulp. float: correctly rounded. double: 0.5 of the rounding,
/// and the error of about ten operations in 64 bits, whose lowest bit is 2^-11 ulp.
template <class S>
constexpr testing::wide table_entry() {
  return std::is_same_v<S, float> ? 0.5L : 0.51L;
}

/// cosf and sinf of a C library, in ulp: glibc documents 1, others have less.
constexpr testing::wide libm_float() { return 1; }

/// A frequency or a magnitude against its formula, in ulp of double: evaluated in 128 bits and rounded once.
/// The 115 correct bits (tests/oracle/wide_real.test.cpp) add 2^-62 ulp, and 0.01 is for terms that cancel.
constexpr testing::wide scheduled() { return 0.51; }

/// The same against a formula in long double, which rounds too: a power within 1 ulp, a rounded exponent.
constexpr testing::wide inv_freq() { return 2; }

namespace detail {
/// The arithmetic type of a channel of type T, and the table type for it.
template <class T>
using wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T, class S>
testing::wide u() {
  return (std::max)(unit_roundoff<wide<T>>(), unit_roundoff<S>());
}

/// `in_u` units of roundoff of the computation, and the final rounding of a 16-bit channel below `magnitude`.
template <class T, class S>
testing::wide bound(testing::wide in_u, testing::wide magnitude) {
  return in_u * u<T, S>() * magnitude + (is_16_bit<T> ? ulp<T>(magnitude) / 2 : ulp<T>(0));
}
}  // namespace detail

/// The error of a rotated channel u c - v s, |pair| = sqrt(u^2 + v^2), scaled by the attention_factor. With
/// an error of u / 2 in |c| and |s| (half an ulp of a number in [0.5, 1)):
///
///     the table    (|u| + |v|) u / 2  <=  0.71 u |pair|
///     products     (|u c| + |v s|) u  <=  u |pair|
///     the sum                             u |pair|                  together 2.71 u, and terms of u^2
///
/// The error of a double entry may be 0.51 ulp instead of 0.5. The published bound is 2.75 u for both. 16-bit
/// channels are computed in float and rounded once: 3 u of float and half an ulp of their type.
template <class T, class S = detail::wide<T>>
testing::wide rotation_bound(testing::wide pair) {
  return detail::bound<T, S>(is_16_bit<T> ? 3.0L : 2.75L, pair);
}

/// The norm of a rotated pair: the error above in the 2-norm of both channels, 0.71 u + sqrt(2) u + u = 3.13
/// u.
template <class T, class S = detail::wide<T>>
testing::wide norm_bound(testing::wide pair) {
  return detail::bound<T, S>(3.2L, pair) * (is_16_bit<T> ? testing::sqrt(2.0L) : 1.0L);
}

/// unrotate(rotate(x)) - x, per channel: two rotations of 3.13 u each in the 2-norm.
template <class T, class S = detail::wide<T>>
testing::wide inverse_bound(testing::wide pair) {
  return detail::bound<T, S>(6.3L, pair) * (is_16_bit<T> ? 1 + testing::sqrt(2.0L) : 1.0L);
}

/// rotate by a, then by b, against rotate by a + b, per channel: three rotations of 3.13 u each in the
/// 2-norm.
template <class T, class S = detail::wide<T>>
testing::wide group_bound(testing::wide pair) {
  return detail::bound<T, S>(9.4L, pair) * (is_16_bit<T> ? 2 + testing::sqrt(2.0L) : 1.0L);
}

/// <R(m) q, R(n) k> against <R(m - n) q, k>, with both sums exact: three rotations again, by Cauchy-Schwarz.
template <class T, class S = detail::wide<T>>
testing::wide score_bound(testing::wide q_norm, testing::wide k_norm) {
  static_assert(!is_16_bit<T>, "score_bound: stated for float and double");
  return 9.4L * detail::u<T, S>() * q_norm * k_norm;
}

}  // namespace tolerance

#endif  // ROPE_TESTS_TOLERANCE_HPP
