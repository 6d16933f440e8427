// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PACKET_MATH_HPP
#define ROPE_BASE_SIMD_PACKET_MATH_HPP

#include <cfloat>  // FLT_EVAL_METHOD
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>   // std::memcpy
#include <iterator>  // std::size
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

// 32-bit NEON has no division. Eigen's packets multiply by an estimated reciprocal, which is 100 ulp off.
#if defined(EIGEN_VECTORIZE_NEON) && !EIGEN_ARCH_ARM64
#define ROPE_DETAIL_ESTIMATED_QUOTIENTS 1
#else
#define ROPE_DETAIL_ESTIMATED_QUOTIENTS 0
#endif

/// Packet operations that attention needs: sums, maxima and transposes of lanes, and tanh.
///
/// The exponential of a softmax, in base 2. The scale of scores contains log2(e), so base 2 costs nothing,
/// and splitting an exponent into an integer and a remainder is exact.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// Calls body(i) for each i in [first, last), in inner loops of 16, because g++ -O2 vectorises only loops of
/// constant length.
template <class Body>
EIGEN_ALWAYS_INLINE void for_each_index(Index first, Index last, const Body& body) {
  constexpr Index block = 16;
  for (; first + block <= last; first += block)
    for (Index i = 0; i < block; ++i) body(first + i);
  for (; first < last; ++first) body(first);
}

template <class P>
EIGEN_ALWAYS_INLINE P subtract(const P& a, const P& b) {
  return Eigen::internal::psub(a, b);
}
template <class P>
EIGEN_ALWAYS_INLINE P divide(const P& a, const P& b) {
  return Eigen::internal::pdiv(a, b);
}

/// The larger of a and b, or a if a is NaN.
template <class P>
EIGEN_ALWAYS_INLINE P larger(const P& a, const P& b) {
  return Eigen::internal::pmax(a, b);
}

template <class P>
EIGEN_ALWAYS_INLINE auto sum_of_lanes(const P& a) {
  return Eigen::internal::predux(a);
}
template <class P>
EIGEN_ALWAYS_INLINE auto largest_lane(const P& a) {
  return Eigen::internal::predux_max(a);
}

/// Transposes a square matrix of rows in place.
template <class P>
EIGEN_ALWAYS_INLINE void transpose(P (&rows)[std::size_t(lanes<P>)]) {
  if constexpr (1 < lanes<P>) {
    Eigen::internal::PacketBlock<P, lanes<P>> block;
    unrolled<std::size_t(lanes<P>)>([&](auto i) { block.packet[i] = rows[i]; });
    Eigen::internal::ptranspose(block);
    unrolled<std::size_t(lanes<P>)>([&](auto i) { rows[i] = block.packet[i]; });
  }
}

/// The integers in `bits` as floats, each rounded once.
template <class P>
EIGEN_ALWAYS_INLINE P as_floats(const bits_packet<P>& bits) {
  return Eigen::internal::pcast<bits_packet<P>, P>(bits);
}

#if defined(EIGEN_VECTORIZE_AVX512)
/// Sums of the lanes of 16 registers: lane i is the sum of register i. Adding while transposing takes a third
/// of the shuffles. The k-th register to be read is register 4 (k % 4) + k / 4.
template <class P, class Add>
EIGEN_ALWAYS_INLINE __m512 sums_of_16_lanes(const P* packets, const Add& add) {
  __m512 quarters[4], pairs[2];
  unrolled<4>([&](auto j) {
    const __m512 a = packets[j], b = packets[4 + j], c = packets[8 + j], d = packets[12 + j];
    const __m512 ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    quarters[j] = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  });
  unrolled<2>([&](auto j) {
    pairs[j] = add(_mm512_unpacklo_ps(quarters[2 * j], quarters[2 * j + 1]),
                   _mm512_unpackhi_ps(quarters[2 * j], quarters[2 * j + 1]));
  });
  const __m512d low = _mm512_castps_pd(pairs[0]), high = _mm512_castps_pd(pairs[1]);
  return add(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
             _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
}
#endif

#if defined(EIGEN_VECTORIZE_AVX)
/// Sums of the lanes of 8 registers: lane i is the sum of register i. Avoids Eigen's transpose, which GCC
/// would call as a function. Lane 0 is ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)) of the lanes of
/// register 0.
template <class P, class Add>
EIGEN_ALWAYS_INLINE __m256 sums_of_8_lanes(const P* packets, const Add& add) {
  __m256 halves[4], quarters[2];
  unrolled<4>([&](auto j) {
    const __m256 a = packets[j], b = packets[4 + j];
    halves[j] = add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  });
  unrolled<2>([&](auto j) {
    const __m256d a = _mm256_castps_pd(halves[2 * j]), b = _mm256_castps_pd(halves[2 * j + 1]);
    quarters[j] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  });
  return add(_mm256_shuffle_ps(quarters[0], quarters[1], 0x88),
             _mm256_shuffle_ps(quarters[0], quarters[1], 0xdd));
}
#endif

/// Sums of the lanes of lanes<P> packets: lane i is the sum of packet i.
///
/// \param plus  plus(a, b) adds two packets lane by lane
template <class P, class Plus>
EIGEN_ALWAYS_INLINE P sums_of_lanes(P (&packets)[std::size_t(lanes<P>)], const Plus& plus) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (lanes<P> == 16) return P(sums_of_16_lanes(packets, plus));
#endif
#if defined(EIGEN_VECTORIZE_AVX)
  if constexpr (lanes<P> == 8 && sizeof(P) == 32) return P(sums_of_8_lanes(packets, plus));
#endif
  transpose(packets);
  for (int width = lanes<P> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) packets[i] = plus(packets[i], packets[i + width]);
  return packets[0];
}
template <class P>
EIGEN_ALWAYS_INLINE P sums_of_lanes(P (&packets)[std::size_t(lanes<P>)]) {
  return sums_of_lanes(packets, [](const P& a, const P& b) { return add(a, b); });
}

/// The larger of x and bound, or x if x is NaN. Under -ffast-math compilers may swap the operands of a
/// maximum, so the instruction is written in assembly. With a NaN, this instruction returns its second
/// operand.
template <class P>
EIGEN_ALWAYS_INLINE P at_least(const P& x, const P& bound) {
#if defined(__FAST_MATH__) && defined(__GNUC__) && defined(EIGEN_VECTORIZE_SSE)
  if constexpr (!std::is_arithmetic_v<P>) {
    constexpr bool is_float = sizeof(P) / std::size_t(lanes<P>) == sizeof(float);
    P result = bound;
#if defined(EIGEN_VECTORIZE_AVX)
    if constexpr (is_float)
      __asm__("vmaxps %1, %0, %0" : "+v"(result) : "v"(x));
    else
      __asm__("vmaxpd %1, %0, %0" : "+v"(result) : "v"(x));
#else
    if constexpr (is_float)
      __asm__("maxps %1, %0" : "+x"(result) : "x"(x));
    else
      __asm__("maxpd %1, %0" : "+x"(result) : "x"(x));
#endif
    return result;
  } else
#endif
    return larger(x, bound);
}

/// tanh of `count` numbers, a multiple of the lanes of a packet. `to` may be `from`. Computes whole packets
/// from the first number on, aligned or not. An Eigen expression of dynamic length would compute the numbers
/// before the first aligned one as scalars, whose last bits may differ under -ffast-math. If a packet is one
/// number, tanh is computed in double and rounded to A, because the compiler may or may not fuse the sums of
/// Eigen's polynomial. The same is done if packets divide by estimates, because Eigen's tanh is a quotient.
template <class A>
void hyperbolic_tangents(const A* from, Index count, A* to) {
  constexpr int L = int{lanes<packet<A>>};
  using numbers = Eigen::Array<A, 1, L>;
  for (Index n = 0; n < count; n += L)
    if constexpr (L == 1 || ROPE_DETAIL_ESTIMATED_QUOTIENTS)
      for (Index i = n; i < n + L; ++i) to[i] = static_cast<A>(std::tanh(static_cast<double>(from[i])));
    else
      Eigen::Map<numbers>(to + n) = Eigen::Map<const numbers>(from + n).tanh();
}

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

namespace rope::inline ROPE_ABI::detail {

#if defined(_M_FP_FAST)
#pragma float_control(precise, on, push)  // the effect of the barrier below for other compilers
#endif

// Eigen's barrier is empty for some processors, and makes clang write x to memory.
#if defined(__GNUC__) && defined(__SSE2__) && EIGEN_ARCH_i386_OR_x86_64
#define ROPE_DETAIL_BARRIER(x) __asm__("" : "+v"(x))
#elif defined(__clang__) && EIGEN_ARCH_ARM64
#define ROPE_DETAIL_BARRIER(x) __asm__("" : "+w"(x))
#elif EIGEN_ARCH_ARM_OR_ARM64 || EIGEN_ARCH_PPC
#define ROPE_DETAIL_BARRIER(x) EIGEN_OPTIMIZATION_BARRIER(x)
#endif

/// x in the precision of its type. This is a barrier to the algebra of -ffast-math, which could make an exact
/// difference inexact. x87 registers, the default of 32-bit x86, have more digits than a float.
///
/// \tparam needed  whether a result would be wrong without the barrier, and not only have other bits. clang
///                 has no macro for a part of -ffast-math, such as -fassociative-math
template <bool needed = false, class P>
EIGEN_ALWAYS_INLINE P as_computed(P x) {
  constexpr bool extended = FLT_EVAL_METHOD > 0;
#if defined(ROPE_DETAIL_BARRIER)
#if defined(__clang__)
  constexpr bool algebra = needed || ROPE_DETAIL_FAST_MATH;
#else
  constexpr bool algebra = ROPE_DETAIL_FAST_MATH;
#endif
  if constexpr (algebra) ROPE_DETAIL_BARRIER(x);
  constexpr bool to_memory = extended;
#else
  constexpr bool to_memory = extended || ROPE_DETAIL_FAST_MATH;
#endif
  if constexpr (std::is_floating_point_v<P> && to_memory) {
    volatile P stored = x;
    return stored;
  }
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
  const P shifted = as_computed<true>(add(x, shift));
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
  power_of_two<P> result = {as_computed<true>(subtract(shifted, shift)), P()};
  std::memcpy(&result.power, &exponent, sizeof exponent);
  return result;
}

inline constexpr double log2_e = 1.4426950408889634074;
inline constexpr double ln_2 = 0.69314718055994530942;

/// Coefficients of (2^r - 1) / r for |r| <= 1/2, highest degree first: the polynomial with the least error at
/// Chebyshev points. Its error, relative to 2^r, is below 6e-9 (float) and 1e-17 (double).
template <class A>
inline constexpr A exp2_coefficients[] = {
    4.4549605981865183938e-10,  7.0725859492692236999e-9,  1.0178062445845773521e-7, 1.3215442587921689653e-6,
    0.000015252733829836118394, 0.00015403530441736050155, 0.001333355814641693531,  0.0096181291076068885273,
    0.055504108664821594339,    0.2402265069591009822,     0.69314718055994530942};
template <>
inline constexpr float exp2_coefficients<float>[] = {0.00015453162945120690177f, 0.0013390863364671234381f,
                                                     0.0096180825772578514913f,  0.055503571142190778186f,
                                                     0.24022650760568126945f,    0.69314718802622878106f};

/// 2^x for x < 128 (float) or 1024 (double). It is 0 if x is below -125.5 (float) or -1021.5 (double),
/// including -infinity, so no weight is denormal. (Denormals are slow on some processors.) It is exactly 1 at
/// 0. It is NaN if x is any NaN, because the last operation is a product, not arithmetic on exponents.
///
/// Accuracy:  0.9 ulp in float and double, 1.2 without fused multiply-add (tests/base/laws/exp2.test.cpp)
template <class P>
EIGEN_ALWAYS_INLINE P exp2(const P& x) {
  using A = std::conditional_t<sizeof(P) / std::size_t(lanes<P>) == sizeof(float), float, double>;
  const P bounded = at_least(x, fill<P>(A(std::is_same_v<A, float> ? -126 : -1022)));
  const auto [n, power] = nearest_power(bounded);
  const P r = as_computed<true>(subtract(bounded, n));
  // Twice the polynomial, times half of 2^n.
  constexpr const auto& coefficients = exp2_coefficients<A>;
  P p = fill<P>(2 * coefficients[0]);
  for (std::size_t i = 1; i < std::size(coefficients); ++i)
    p = multiply_add(p, r, fill<P>(2 * coefficients[i]));
  return multiply(multiply_add(p, r, fill<P>(A(2))), power);
}

#if defined(_M_FP_FAST)
#pragma float_control(pop)
#endif

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_SIMD_PACKET_MATH_HPP
