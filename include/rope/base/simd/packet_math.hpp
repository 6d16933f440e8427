// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PACKET_MATH_HPP
#define ROPE_BASE_SIMD_PACKET_MATH_HPP

#include <cmath>
#include <cstddef>
#include <type_traits>

#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Packet operations that attention needs: sums, maxima and transposes of lanes, and tanh.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

template <class P>
EIGEN_ALWAYS_INLINE P subtract(const P& a, const P& b) {
  return Eigen::internal::psub(a, b);
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
/// of the shuffles. Register 4 (k % 4) + k / 4 is the k-th one read.
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
template <class P>
EIGEN_ALWAYS_INLINE P sums_of_lanes(P (&packets)[std::size_t(lanes<P>)]) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (lanes<P> == 16)
    return P(sums_of_16_lanes(packets, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); }));
#endif
#if defined(EIGEN_VECTORIZE_AVX)
  if constexpr (lanes<P> == 8 && sizeof(P) == 32)
    return P(sums_of_8_lanes(packets, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); }));
#endif
  transpose(packets);
  for (int width = lanes<P> / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) packets[i] = add(packets[i], packets[i + width]);
  return packets[0];
}

/// The larger of x and bound, or x if x is NaN. Under -ffast-math compilers may swap the operands of a
/// maximum, so the instruction is written in assembly: with a NaN it returns its second operand.
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
/// from the first number on, aligned or not: an Eigen expression of dynamic length computes the numbers
/// before the first aligned one as scalars, whose last bits may differ under -ffast-math. If a packet is one
/// number, computes tanh in double and rounds to A, because the compiler may or may not fuse the sums of
/// Eigen's polynomial. Also where packets divide by estimates, because Eigen's tanh is a quotient.
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

#endif  // ROPE_BASE_SIMD_PACKET_MATH_HPP
