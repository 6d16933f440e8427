// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_EXP2_HPP
#define ROPE_DETAIL_EXP2_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>
#include <rope/detail/packet_math.hpp>

/// The exponential of a softmax, in base 2: log2(e) is part of the factor that scores are scaled by anyway,
/// and splitting an exponent into its integer and the rest is then exact.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// x, and no algebra of -ffast-math across it: a difference that is exact must stay one.
template <class P>
EIGEN_ALWAYS_INLINE P as_computed(P x) {
#if defined(__FAST_MATH__)
  EIGEN_OPTIMIZATION_BARRIER(x)
#endif
  return x;
}

#if defined(EIGEN_VECTORIZE_AVX512)
template <class P>
inline constexpr bool has_scaling = sizeof(P) == 64;
#else
template <class P>
inline constexpr bool has_scaling = false;
#endif

/// The integer next to each lane, half to even; |x| < 2^21.
template <class P>
EIGEN_ALWAYS_INLINE P nearest_integer(const P& x) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (has_scaling<P>) {
    // The forms with a mask of all lanes: GCC 12 warns of an undefined register in the others.
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (lanes<P> == 16)
      return P(_mm512_maskz_roundscale_ps(0xffff, __m512(x), nearest));
    else
      return P(_mm512_maskz_roundscale_pd(0xff, __m512d(x), nearest));
  } else
#endif
  {
    // In the binade of this number the last place is one.
    using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == 4, float, double>;
    const P shift = fill<P>(A(sizeof(A) == 4 ? 0x1.8p23 : 0x1.8p52));
    return as_computed(subtract(as_computed(add(x, shift)), shift));
  }
}

/// x 2^n for integers n, where x and the result are normal numbers.
template <class P>
EIGEN_ALWAYS_INLINE P scale_by_power_of_two(const P& x, const P& n) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (has_scaling<P>) {
    if constexpr (lanes<P> == 16)
      return P(_mm512_maskz_scalef_ps(0xffff, __m512(x), __m512(n)));
    else
      return P(_mm512_maskz_scalef_pd(0xff, __m512d(x), __m512d(n)));
  } else
#endif
  {
    using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == 4, float, double>;
    using bits = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;
    constexpr int mantissa = sizeof(A) == 4 ? 23 : 52;
    // The low bits of n + shift are n; moved to the place of the exponent they add to that of x.
    const P shifted = add(n, fill<P>(A(sizeof(A) == 4 ? 0x1.8p23 : 0x1.8p52)));
#if defined(__GNUC__)
    typedef bits words __attribute__((vector_size(sizeof(P))));
    words a, b;
    std::memcpy(&a, &x, sizeof a);
    std::memcpy(&b, &shifted, sizeof b);
    a += b << mantissa;
#else
    bits a[lanes<P>], b[lanes<P>];
    std::memcpy(a, &x, sizeof a);
    std::memcpy(b, &shifted, sizeof b);
    for (int i = 0; i < lanes<P>; ++i) a[i] += b[i] << mantissa;
#endif
    P result;
    std::memcpy(&result, &a, sizeof a);
    return result;
  }
}

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
  const P bounded = at_least(x, fill<P>(A(std::is_same_v<A, float> ? -125 : -1021)));
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
