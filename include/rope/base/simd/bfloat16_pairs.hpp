// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_BFLOAT16_PAIRS_HPP
#define ROPE_BASE_SIMD_BFLOAT16_PAIRS_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/config.hpp>

/// Products of pairs of adjacent bfloat16, added to floats. A lane adds two products per step.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// The inverse of load_even_odd in the arithmetic type.
template <class P, class A>
EIGEN_ALWAYS_INLINE void store_alternating(A* to, const P& even, const P& odd) {
#if defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (std::is_same_v<A, float> && lanes<P> == 16) {
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(__m512(even), low, __m512(odd)));
    _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(__m512(even), high, __m512(odd)));
  } else
#endif
  {
    A numbers[2 * lanes<P>];
    store(numbers, even);
    store(numbers + lanes<P>, odd);
    for (int i = 0; i < lanes<P>; ++i) to[2 * i] = numbers[i], to[2 * i + 1] = numbers[lanes<P> + i];
  }
}

/// The register type of sums of products of pairs.
using pair_sums = std::conditional_t<has_packets<Eigen::bfloat16, packet<float>>, packet<float>, float>;

/// x, or 0 if the x86 instruction for these products treats it as 0. It does so for inputs and results below
/// 2^-126.
inline float flushed_as_products(float x) {
#if ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
  const auto bits = bit_cast<std::uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? bit_cast<float>(bits & 0x80000000u) : x;
#else
  return x;
#endif
}
/// a * b + sum. The product of two bfloat16 has no more digits than a float.
inline float multiply_add_bfloat16(Eigen::bfloat16 a, Eigen::bfloat16 b, float sum) {
  return flushed_as_products(multiply_add(flushed_as_products(static_cast<float>(a)),
                                          flushed_as_products(static_cast<float>(b)),
                                          flushed_as_products(sum)));
}

/// Products of queries and weights with keys and values, all bfloat16, for the kernels of attention.
///
/// \tparam P  a packet of floats, or float for one pair at a time
template <class P>
struct bfloat16_pairs {
  using number = Eigen::bfloat16;
  using stored = Eigen::bfloat16;
  using sum = float;
  using sums = P;
  using pairs = bits_packet<P>;  // the even number in the lower half of a lane
  using reals = P;
  static constexpr Index lanes = detail::lanes<P>;

  static EIGEN_ALWAYS_INLINE sums zero() { return detail::fill<P>(0.0f); }
  static EIGEN_ALWAYS_INLINE pairs load(const number* from) { return load_bits<pairs>(from); }
  static EIGEN_ALWAYS_INLINE pairs fill(const number* from) { return fill_pair<pairs>(from); }
  /// a.even * b.even + (a.odd * b.odd + c) in every lane.
  static EIGEN_ALWAYS_INLINE sums multiply_add(const pairs& a, const pairs& b, const sums& c) {
#if ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
    static_assert(sizeof(P) == 64);
    return P(_mm512_dpbf16_ps(__m512(c), bit_cast<__m512bh>(__m512i(a)), bit_cast<__m512bh>(__m512i(b))));
#else
    const auto upper = detail::fill<pairs>(std::int32_t(0xffff0000u));
    const P odd =
        detail::multiply_add(from_bits<P>(bitwise_and(a, upper)), from_bits<P>(bitwise_and(b, upper)), c);
    return detail::multiply_add(from_bits<P>(shift_left<16>(a)), from_bits<P>(shift_left<16>(b)), odd);
#endif
  }
  /// Pairs of the same channel of two adjacent tokens. `even` has the pairs of even channels, and `odd` those
  /// of odd channels.
  static EIGEN_ALWAYS_INLINE even_odd<pairs> of_tokens(const pairs& first, const pairs& second) {
    const auto upper = detail::fill<pairs>(std::int32_t(0xffff0000u)), lower = detail::fill<pairs>(0xffff);
    return {bitwise_or(bitwise_and(first, lower), shift_left<16>(second)),
            bitwise_or(shift_right<16>(first), bitwise_and(second, upper))};
  }
  static constexpr Index place_of_channel(Index c) { return c % 2 * lanes + c / 2; }
  static EIGEN_ALWAYS_INLINE reals as_reals(const sums& of) { return of; }
  static EIGEN_ALWAYS_INLINE even_odd<sums> load_sums(const float* from) { return load_even_odd<P>(from); }
  static EIGEN_ALWAYS_INLINE void store_sums(float* to, const sums& even, const sums& odd) {
    store_alternating(to, even, odd);
  }
  static EIGEN_ALWAYS_INLINE void store_sums_of_lanes(float* to, sums (&of)[std::size_t(lanes)]) {
    store(to, sums_of_lanes(of));
  }
};
template <>
struct bfloat16_pairs<float> : single_pairs<Eigen::bfloat16, Eigen::bfloat16, float> {
  static sums multiply_add(const pairs& a, const pairs& b, sums c) {
    return multiply_add_bfloat16(a.even, b.even, multiply_add_bfloat16(a.odd, b.odd, c));
  }
};
using bfloat16_products = bfloat16_pairs<pair_sums>;

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_BFLOAT16_PAIRS_HPP
