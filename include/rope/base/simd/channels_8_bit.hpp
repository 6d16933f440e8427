// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_CHANNELS_8_BIT_HPP
#define ROPE_BASE_SIMD_CHANNELS_8_BIT_HPP

#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/base/simd/quiet.hpp>
#include <rope/config.hpp>

/// Channels that are integers of 8 bits as floats, which is exact, in the registers of x86.

ROPE_DETAIL_QUIET_BEGIN

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

#if defined(EIGEN_VECTORIZE_SSE)
/// Four integers in the lanes of a register.
EIGEN_ALWAYS_INLINE __m128i load_four(const std::int8_t* from) {
  std::int32_t four;
  std::memcpy(&four, from, sizeof four);
  const __m128i packed = _mm_cvtsi32_si128(four);
#if defined(EIGEN_VECTORIZE_SSE4_1)
  return _mm_cvtepi8_epi32(packed);
#else
  const __m128i zero = _mm_setzero_si128();
  return _mm_srai_epi32(_mm_unpacklo_epi16(zero, _mm_unpacklo_epi8(zero, packed)), 24);
#endif
}
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, std::integral_constant<int, 4>) {
  return _mm_cvtepi32_ps(load_four(from));
}
#endif
#if defined(EIGEN_VECTORIZE_AVX)
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, std::integral_constant<int, 8>) {
#if defined(EIGEN_VECTORIZE_AVX2)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  return _mm256_cvtepi32_ps(
      _mm256_insertf128_si256(_mm256_castsi128_si256(load_four(from)), load_four(from + 4), 1));
#endif
}
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, std::integral_constant<int, 16>) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#endif

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_CHANNELS_8_BIT_HPP
