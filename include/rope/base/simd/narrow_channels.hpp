// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_NARROW_CHANNELS_HPP
#define ROPE_BASE_SIMD_NARROW_CHANNELS_HPP

#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// Rounds channels to 16 bits, and converts half in x86 registers.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// `value` as a channel of type T, to nearest, ties to even. A NaN of bfloat16 keeps the upper half of its
/// bits, which is a NaN because no NaN made from 16-bit channels has lower bits. The conversion instruction
/// of x86 makes a bfloat16 below 2^-126 zero, so builds with it do this in scalar code too.
template <class T, class A>
EIGEN_ALWAYS_INLINE T rounded(A value) {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
    auto bits = bit_cast<std::uint32_t>(static_cast<float>(value));
    if (ROPE_DETAIL_BFLOAT16_INSTRUCTIONS && (bits & 0x7f800000u) == 0) bits &= 0x80000000u;
    return Eigen::numext::bit_cast<T>(
        static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16));
  } else {
    return static_cast<T>(value);
  }
}

#if ROPE_DETAIL_HALF_INSTRUCTIONS && defined(EIGEN_VECTORIZE_SSE2)
// Eigen 3.4.0 uses these instructions only with clang, and converts in software with GCC.
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, std::integral_constant<int, 4>) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m128 values) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, std::integral_constant<int, 8>) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m256 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
inline constexpr bool has_half_packets = true;
#elif defined(EIGEN_VECTORIZE_SSE2)
// Processors without these instructions: the steps of Eigen's scalar conversions, in four lanes. Each lane
// selects one of their three cases, so the bits are the same.
EIGEN_ALWAYS_INLINE __m128i select_lanes(__m128i where, __m128i yes, __m128i no) {
  return _mm_or_si128(_mm_and_si128(where, yes), _mm_andnot_si128(where, no));
}
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, std::integral_constant<int, 4>) {
  const __m128i half = _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)),
                                          _mm_setzero_si128()),
                sign = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x8000)), 16),
                magnitude = _mm_slli_epi32(_mm_and_si128(half, _mm_set1_epi32(0x7fff)), 13),
                exponents = _mm_set1_epi32(0x7c00 << 13), exponent = _mm_and_si128(magnitude, exponents),
                bias = _mm_set1_epi32((127 - 15) << 23), one = _mm_set1_epi32((127 - 14) << 23);
  // Infinities and NaNs also have the largest exponent of a float. A subnormal half is 2^-14 (1 + x) - 2^-14.
  const __m128i normal = _mm_add_epi32(_mm_add_epi32(magnitude, bias),
                                       _mm_and_si128(_mm_cmpeq_epi32(exponent, exponents), bias)),
                subnormal = _mm_castps_si128(
                    _mm_sub_ps(_mm_castsi128_ps(_mm_add_epi32(magnitude, one)), _mm_castsi128_ps(one)));
  const __m128i is_subnormal = _mm_cmpeq_epi32(exponent, _mm_setzero_si128());
  return _mm_castsi128_ps(_mm_or_si128(select_lanes(is_subnormal, subnormal, normal), sign));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m128 values) {
  const __m128i bits = _mm_castps_si128(values), sign = _mm_and_si128(bits, _mm_set1_epi32(INT32_MIN)),
                magnitude = _mm_xor_si128(bits, sign), infinity = _mm_set1_epi32(255 << 23),
                smallest = _mm_set1_epi32((127 - 14) << 23), largest = _mm_set1_epi32((127 + 16) << 23),
                half_infinity = _mm_set1_epi32(0x7c00), half_nan = _mm_set1_epi32(0x7e00),
                magic =
                    _mm_set1_epi32((127 - 14 + 23 - 10) << 23);  // its last bit is that of a subnormal half
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(magnitude, 13), _mm_set1_epi32(1)),
                rounding = _mm_add_epi32(_mm_set1_epi32(0xfff - ((127 - 15) << 23)), odd),
                normal = _mm_srli_epi32(_mm_add_epi32(magnitude, rounding), 13),
                subnormal = _mm_sub_epi32(
                    _mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(magnitude), _mm_castsi128_ps(magic))),
                    magic),
                beyond = select_lanes(_mm_cmpgt_epi32(magnitude, infinity), half_nan, half_infinity);
  const __m128i finite = select_lanes(_mm_cmplt_epi32(magnitude, smallest), subnormal, normal),
                half = select_lanes(_mm_cmplt_epi32(magnitude, largest), finite, beyond),
                whole = _mm_or_si128(half, _mm_srli_epi32(sign, 16));
  // Packing saturates to signed 16-bit numbers, so the 16-bit sign is extended to 32 bits.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32(whole, 16), 16);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(extended, extended));
}
#if defined(EIGEN_VECTORIZE_AVX)
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, std::integral_constant<int, 8>) {
  constexpr std::integral_constant<int, 4> four;
  return _mm256_insertf128_ps(_mm256_castps128_ps256(load_widened(from, four)), load_widened(from + 4, four),
                              1);
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m256 values) {
  store_rounded(to, _mm256_castps256_ps128(values));
  store_rounded(to + 4, _mm256_extractf128_ps(values, 1));
}
#endif
inline constexpr bool has_half_packets = true;
#else
inline constexpr bool has_half_packets = false;
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, std::integral_constant<int, 16>) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
#endif

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_NARROW_CHANNELS_HPP
