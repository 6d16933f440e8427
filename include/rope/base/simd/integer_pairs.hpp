// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_INTEGER_PAIRS_HPP
#define ROPE_BASE_SIMD_INTEGER_PAIRS_HPP

#include <cstddef>
#include <cstdint>

#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/config.hpp>

/// Products of pairs of adjacent numbers. 16-bit integers times 8-bit integers are added to 32-bit integers,
/// and a lane adds two products per step. Nothing is rounded, so a sum does not depend on its order or on the
/// register width.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// A packet with as many floats as a register has sums, or float if sums are computed one by one.
#if (defined(EIGEN_VECTORIZE_AVX512) && !defined(__AVX512BW__)) || \
    (defined(EIGEN_VECTORIZE_AVX) && !defined(EIGEN_VECTORIZE_AVX2))
using integer_floats = half_packet<packet<float>>;
#elif defined(EIGEN_VECTORIZE_SSE) || (defined(EIGEN_VECTORIZE_NEON) && EIGEN_ARCH_ARM64)
using integer_floats = packet<float>;
#else
using integer_floats = float;
#endif

/// Products of queries and weights with keys and values of 8 bits.
///
/// \tparam P  a packet of floats, or float for one pair at a time
template <class P>
struct integer_products;
template <>
struct integer_products<float> : single_pairs<std::int16_t, std::int8_t, std::int32_t> {
  static sums multiply_add(const pairs& a, const pairs& b, sums c) {
    return a.even * b.even + a.odd * b.odd + c;
  }
};

// Registers of 16-bit integers: widened ones of 8 bits, the sums of the products of two neighbours, and the
// alternating integers of two registers, of the first and of the second half of every 128 bits.
#if defined(EIGEN_VECTORIZE_SSE)
EIGEN_ALWAYS_INLINE __m128i widened_integers(const std::int8_t* from, lane_count<4>) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm_srai_epi16(_mm_unpacklo_epi8(packed, packed), 8);
}
EIGEN_ALWAYS_INLINE __m128i neighbour_products(__m128i a, __m128i b) { return _mm_madd_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m128i low_integers(__m128i a, __m128i b) { return _mm_unpacklo_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m128i high_integers(__m128i a, __m128i b) { return _mm_unpackhi_epi16(a, b); }
#elif defined(EIGEN_VECTORIZE_NEON) && EIGEN_ARCH_ARM64
EIGEN_ALWAYS_INLINE int32x4_t widened_integers(const std::int8_t* from, lane_count<4>) {
  return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(from)));
}
EIGEN_ALWAYS_INLINE int32x4_t neighbour_products(int32x4_t a, int32x4_t b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
EIGEN_ALWAYS_INLINE int32x4_t low_integers(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s16(vzip1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
EIGEN_ALWAYS_INLINE int32x4_t high_integers(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s16(vzip2q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
}
#endif
#if defined(EIGEN_VECTORIZE_AVX2)
EIGEN_ALWAYS_INLINE __m256i widened_integers(const std::int8_t* from, lane_count<8>) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
EIGEN_ALWAYS_INLINE __m256i neighbour_products(__m256i a, __m256i b) { return _mm256_madd_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m256i low_integers(__m256i a, __m256i b) { return _mm256_unpacklo_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m256i high_integers(__m256i a, __m256i b) { return _mm256_unpackhi_epi16(a, b); }
#endif
#if defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512BW__)
EIGEN_ALWAYS_INLINE __m512i widened_integers(const std::int8_t* from, lane_count<16>) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
EIGEN_ALWAYS_INLINE __m512i neighbour_products(__m512i a, __m512i b) { return _mm512_madd_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m512i low_integers(__m512i a, __m512i b) { return _mm512_unpacklo_epi16(a, b); }
EIGEN_ALWAYS_INLINE __m512i high_integers(__m512i a, __m512i b) { return _mm512_unpackhi_epi16(a, b); }
#endif

#if defined(EIGEN_VECTORIZE_SSE) || (defined(EIGEN_VECTORIZE_NEON) && EIGEN_ARCH_ARM64)
template <class P>
struct integer_products {
  using number = std::int16_t;
  using stored = std::int8_t;
  using sum = std::int32_t;
  using bits = bits_packet<P>;
  using sums = P;      // integers in the bits of floats, because GCC keeps arrays of floats in registers
  using pairs = bits;  // the even number in the lower half of a lane
  using reals = P;
  static constexpr Index lanes = detail::lanes<P>;

  static EIGEN_ALWAYS_INLINE sums zero() { return detail::fill<P>(0.0f); }
  static EIGEN_ALWAYS_INLINE pairs load(const std::int16_t* from) { return load_bits<pairs>(from); }
  static EIGEN_ALWAYS_INLINE pairs load(const std::int8_t* from) {
    return pairs(widened_integers(from, lane_count<int(lanes)>{}));
  }
  static EIGEN_ALWAYS_INLINE pairs fill(const number* from) { return fill_pair<pairs>(from); }
  /// a.even * b.even + a.odd * b.odd + c in every lane.
  static EIGEN_ALWAYS_INLINE sums multiply_add(const pairs& a, const pairs& b, const sums& c) {
#if ROPE_DETAIL_INTEGER_INSTRUCTIONS
    if constexpr (sizeof(P) == 64)
      return from_bits<P>(bits(_mm512_dpwssd_epi32(__m512i(to_bits(c)), __m512i(a), __m512i(b))));
#endif
    return in_register(
        plus(c, pairs(neighbour_products(a, b))));  // otherwise GCC forms many products before adding
  }
  /// Pairs of the same channel of two tokens, from pairs of adjacent channels. Each result has one half of
  /// the channels, in the order of load_sums and store_sums.
  static EIGEN_ALWAYS_INLINE even_odd<pairs> of_tokens(const pairs& first, const pairs& second) {
    return {pairs(low_integers(first, second)), pairs(high_integers(first, second))};
  }
  /// The index of channel c of 2 * lanes in the concatenated registers of of_tokens. Unpacking stays within
  /// 128 bits: of every eight channels, the first four are in the first register and the others in the
  /// second.
  static constexpr Index place_of_channel(Index c) { return c % 8 / 4 * lanes + c / 8 * 4 + c % 4; }
  static EIGEN_ALWAYS_INLINE reals as_reals(const sums& of) { return detail::as_floats<P>(to_bits(of)); }

  /// Sums of 2 * lanes channels. In memory they are in the order of channels.
  static EIGEN_ALWAYS_INLINE even_odd<sums> load_sums(const std::int32_t* from) {
    const bits a = load_bits<bits>(from), b = load_bits<bits>(from + lanes);
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (sizeof(P) == 64) {
      const __m512i low = _mm512_set_epi64(13, 12, 9, 8, 5, 4, 1, 0),
                    high = _mm512_set_epi64(15, 14, 11, 10, 7, 6, 3, 2);
      return {from_bits<P>(bits(_mm512_permutex2var_epi64(__m512i(a), low, __m512i(b)))),
              from_bits<P>(bits(_mm512_permutex2var_epi64(__m512i(a), high, __m512i(b))))};
    }
#endif
    return halves_exchanged(a, b);
  }
  static EIGEN_ALWAYS_INLINE void store_sums(std::int32_t* to, const sums& first, const sums& second) {
    const bits a = to_bits(first), b = to_bits(second);
#if defined(EIGEN_VECTORIZE_AVX512)
    if constexpr (sizeof(P) == 64) {
      const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                    high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
      store_bits(to, bits(_mm512_permutex2var_epi64(__m512i(a), low, __m512i(b))));
      return store_bits(to + lanes, bits(_mm512_permutex2var_epi64(__m512i(a), high, __m512i(b))));
    }
#endif
    const even_odd<sums> in_order = halves_exchanged(a, b);
    store_bits(to, to_bits(in_order.even));
    store_bits(to + lanes, to_bits(in_order.odd));
  }

  /// to[i] = the sum of the lanes of of[i].
  static EIGEN_ALWAYS_INLINE void store_sums_of_lanes(std::int32_t* to, sums (&of)[std::size_t(lanes)]) {
    const auto added = [](const sums& a, const sums& b) { return plus(a, to_bits(b)); };
    store_bits(to, to_bits(sums_of_lanes(of, added)));
  }

 private:
  static EIGEN_ALWAYS_INLINE sums plus(const sums& a, const bits& b) {
    return from_bits<P>(detail::add(to_bits(a), b));
  }

  /// Exchanges halves of 128 bits: [a0 b0] and [a1 b1] from [a0 a1] and [b0 b1]. Registers of 128 bits stay
  /// unchanged.
  static EIGEN_ALWAYS_INLINE even_odd<sums> halves_exchanged(const bits& a, const bits& b) {
#if defined(EIGEN_VECTORIZE_AVX2)
    if constexpr (sizeof(P) == 32)
      return {from_bits<P>(bits(_mm256_permute2x128_si256(__m256i(a), __m256i(b), 0x20))),
              from_bits<P>(bits(_mm256_permute2x128_si256(__m256i(a), __m256i(b), 0x31)))};
#endif
    return {from_bits<P>(a), from_bits<P>(b)};
  }
};
#endif

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_INTEGER_PAIRS_HPP
