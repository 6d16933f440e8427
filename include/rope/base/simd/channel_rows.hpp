// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_CHANNEL_ROWS_HPP
#define ROPE_BASE_SIMD_CHANNEL_ROWS_HPP

#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Widens and rounds rows of channels, and sums their products in double.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

#if defined(EIGEN_VECTORIZE_SSE)
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::bfloat16* from, lane_count<4>) {
  return load_eight_bytes(from);
}
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, lane_count<4>) {
  std::int32_t four;
  std::memcpy(&four, from, sizeof four);
  const __m128i packed = _mm_cvtsi32_si128(four);
#if defined(EIGEN_VECTORIZE_SSE4_1)
  return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(packed));
#else
  const __m128i zero = _mm_setzero_si128(), upper = _mm_unpacklo_epi16(zero, _mm_unpacklo_epi8(zero, packed));
  return _mm_cvtepi32_ps(_mm_srai_epi32(upper, 24));
#endif
}
#endif
#if defined(EIGEN_VECTORIZE_AVX2)
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::bfloat16* from, lane_count<8>) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(packed), 16));
}
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, lane_count<8>) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::bfloat16* from, lane_count<16>) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))), 16));
}
EIGEN_ALWAYS_INLINE auto load_widened(const std::int8_t* from, lane_count<16>) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
#endif

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

namespace rope::inline ROPE_ABI::detail {

/// Converts channels to the arithmetic type, exactly.
template <class T>
void widen(const T* from, Index count, arithmetic<T>* to) {
  using P = packet<arithmetic<T>>;
  Index d = 0;
  if constexpr (has_packets<T, P>)
    for (; d + lanes<P> <= count; d += lanes<P>) store(to + d, load<P>(from + d));
  for (; d < count; ++d) to[d] = static_cast<arithmetic<T>>(from[d]);
}

/// Rounds channels from the arithmetic type to T, each once.
template <class T>
void round_channels(const arithmetic<T>* from, Index count, T* to) {
  Index d = 0;
  if constexpr (std::is_same_v<T, Eigen::half> && has_packets<T, packet<float>>) {
    using P = packet<float>;
    for (; d + lanes<P> <= count; d += lanes<P>) store(to + d, load<P>(from + d));
  }
  for (; d < count; ++d) to[d] = rounded<T>(from[d]);
}

/// The number of channels that a loop processes per step.
inline constexpr int channels_per_step = 16;

/// The sum of first(d) second(d) over [0, count). Products with the same d modulo channels_per_step are
/// summed, then these sums are added in pairs. This order depends on neither packets nor addresses.
/// multiply_add decides about fusing a product with the sum, because a compiler may decide differently in
/// each copy of the loop.
///
/// \tparam exact  whether double holds every product exactly. Fusing then does not change the sum, and the
///                compiler may choose the faster way
template <bool exact = false, class First, class Second>
EIGEN_ALWAYS_INLINE double sum_of_products(Index count, const First& first, const Second& second) {
  double sums[channels_per_step] = {};
  Index d = 0;
  for (; d + channels_per_step <= count; d += channels_per_step) {
    double a[channels_per_step], b[channels_per_step];  // three loops, because GCC does not vectorise one
    for (int l = 0; l < channels_per_step; ++l) a[l] = first(d + l);
    for (int l = 0; l < channels_per_step; ++l) b[l] = second(d + l);
    for (int l = 0; l < channels_per_step; ++l)
      sums[l] = exact ? sums[l] + a[l] * b[l] : multiply_add(a[l], b[l], sums[l]);
  }
  for (int l = 0; d + l < count; ++l) sums[l] = multiply_add(first(d + l), second(d + l), sums[l]);
  for (int width = channels_per_step / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) sums[l] += sums[l + width];
  return sums[0];
}

/// Whether products of such channels are exact in double.
template <class X, class Y>
inline constexpr bool exact_products = sizeof(X) < sizeof(double) && sizeof(Y) < sizeof(double);

/// The sum of x[d] y[d] over [0, count), in the order of sum_of_products.
template <class X, class Y>
double sum_of_products(const X* x, const Y* y, Index count) {
  return sum_of_products<exact_products<X, Y>>(
      count, [x](Index d) { return static_cast<double>(x[d]); },
      [y](Index d) { return static_cast<double>(y[d]); });
}

/// The sum of x[d]^2 over [0, count), in the order of sum_of_products.
template <class X>
double sum_of_squares(const X* x, Index count) {
  const auto channel_of = [x](Index d) { return static_cast<double>(x[d]); };
  return sum_of_products<exact_products<X, X>>(count, channel_of, channel_of);
}

/// The channels of a head in their arithmetic type: `channels`, or a copy in scratch of the calling thread.
template <class T>
const arithmetic<T>* widened(const T* channels, Index count) {
  if constexpr (std::is_same_v<T, arithmetic<T>>) {
    return channels;
  } else {
    struct widened_head {};
    arithmetic<T>* const wide = workspace<widened_head, arithmetic<T>>(count);
    widen(channels, count, wide);
    return wide;
  }
}

/// Writes the channels of a head by write(to), which writes them in their arithmetic type. Each is rounded
/// once.
template <class T, class Write>
void write_rounded(T* channels, Index count, const Write& write) {
  if constexpr (std::is_same_v<T, arithmetic<T>>) {
    write(channels);
  } else {
    struct rounded_head {};
    arithmetic<T>* const wide = workspace<rounded_head, arithmetic<T>>(count);
    write(wide);
    round_channels<T>(wide, count, channels);
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_SIMD_CHANNEL_ROWS_HPP
