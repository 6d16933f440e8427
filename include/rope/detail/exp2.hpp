// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_EXP2_HPP
#define ROPE_DETAIL_EXP2_HPP

#include <cstddef>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>

/// The exponential of a softmax, in base 2: log2(e) is part of the factor that scores are scaled by anyway,
/// and splitting an exponent into its integer and the rest is then exact.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

inline constexpr double log2_e = 1.4426950408889634074;
inline constexpr double ln_2 = 0.69314718055994530942;

/// Coefficients of (2^r - 1) / r for |r| <= 1/2, highest degree first: the polynomial of least error in
/// Chebyshev points. Its error, relative to 2^r, is below 6e-9 (float) and 1e-17 (double).
template <class A>
inline constexpr A exp2_coefficients[] = {A(0.00015453162945120690177), A(0.0013390863364671234381),
                                          A(0.0096180825572778514913),  A(0.055503571142190778186),
                                          A(0.24022650760568126945),    A(0.69314718802622878106)};
template <>
inline constexpr double exp2_coefficients<double>[] = {
    4.4549605981865183938e-10,  7.0725859492692236999e-9,  1.0178062445845773521e-7, 1.3215442587921689653e-6,
    0.000015252733829836118394, 0.00015403530441736050155, 0.001333355814641693531,  0.0096181291076068885273,
    0.055504108664821594339,    0.2402265069591009822,     0.69314718055994530942};

/// 2^x for x <= 0, and for x up to 1000 where the result is representable. Below 2^-125 (float) or 2^-1021
/// (double) the result is that number: no weight is ever denormal, which costs some processors a hundred
/// cycles. 1 at 0. Not a number where x is not.
///
/// Accuracy:  0.9 ulp in float and double, 1.2 without fused multiply-add (tests/laws/exp2.test.cpp)
template <class P>
EIGEN_ALWAYS_INLINE P exp2(const P& x) {
  using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == sizeof(float), float, double>;
  const P bounded = larger(x, fill<P>(A(std::is_same_v<A, float> ? -125 : -1021)));
  const P n = nearest_integer(bounded), r = as_computed(subtract(bounded, n));
  P p = fill<P>(exp2_coefficients<A>[0]);
  for (std::size_t i = 1; i < sizeof(exp2_coefficients<A>) / sizeof(A); ++i)
    p = multiply_add(p, r, fill<P>(exp2_coefficients<A>[i]));
  return scale_by_power_of_two(multiply_add(p, r, fill<P>(A(1))), n);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_EXP2_HPP
