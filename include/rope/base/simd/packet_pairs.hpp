// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PACKET_PAIRS_HPP
#define ROPE_BASE_SIMD_PACKET_PAIRS_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Splits a run of channels into a packet of the even and a packet of the odd channels.
///
/// What products of pairs of adjacent bfloat16 and of adjacent integers share.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// Entries from[0], from[2], ... in one packet and from[1], from[3], ... in another.
template <class P>
struct even_odd {
  P even;
  P odd;
};

/// Pairs of adjacent numbers that are multiplied one by one: the scalar version of types that multiply
/// packets of pairs, except for multiply_add. panels.hpp describes the members.
template <class Number, class Stored, class Sum>
struct single_pairs {
  struct pairs {
    Number even, odd;
  };
  using number = Number;
  using stored = Stored;
  using sum = Sum;
  using sums = Sum;
  using reals = float;
  static constexpr Index lanes = 1;

  static sums zero() { return 0; }
  template <class X>
  static pairs load(const X* from) {
    return {from[0], from[1]};
  }
  static pairs fill(const number* from) { return load(from); }
  static even_odd<pairs> of_tokens(const pairs& first, const pairs& second) {
    return {{first.even, second.even}, {first.odd, second.odd}};
  }
  static constexpr Index place_of_channel(Index c) { return c; }
  static reals as_reals(sums of) { return static_cast<float>(of); }
  static even_odd<sums> load_sums(const sum* from) { return {from[0], from[1]}; }
  static void store_sums(sum* to, sums first, sums second) {
    to[0] = first;
    to[1] = second;
  }
  static void store_sums_of_lanes(sum* to, const sums (&of)[1]) { to[0] = of[0]; }
};

/// One pair of 16-bit numbers in every lane.
template <class Bits>
EIGEN_ALWAYS_INLINE Bits fill_pair(const void* from) {
  std::int32_t both;
  std::memcpy(&both, from, sizeof both);
  return fill<Bits>(both);
}

/// The pairs of the first `count` channels, at most 2 * lanes, followed by zeros.
template <class Products, class X>
EIGEN_ALWAYS_INLINE typename Products::pairs load_first_pairs(const X* from, Index count) {
#if defined(EIGEN_VECTORIZE_AVX512) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(typename Products::pairs) == 64) {
    using pairs = typename Products::pairs;
    const auto first = static_cast<__mmask32>((std::uint64_t{1} << count) - 1);
    if constexpr (sizeof(X) == 1)
      return pairs(_mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first, from)));
    else
      return pairs(_mm512_maskz_loadu_epi16(first, from));
  }
#endif
  X padded[std::size_t(2 * Products::lanes)] = {};
  std::copy_n(from, count, padded);
  return Products::load(padded);
}

template <class P, class A>
EIGEN_ALWAYS_INLINE even_odd<P> load_even_odd(const A* from) {
#if defined(EIGEN_VECTORIZE_SSE)
  if constexpr (std::is_same_v<A, float> && lanes<P> == 4) {
    const __m128 low = _mm_loadu_ps(from), high = _mm_loadu_ps(from + 4);
    return {P(_mm_shuffle_ps(low, high, 0x88)), P(_mm_shuffle_ps(low, high, 0xdd))};
  } else
#endif
#if defined(EIGEN_VECTORIZE_AVX)
      if constexpr (std::is_same_v<A, float> && lanes<P> == 8) {
    const __m256 low = _mm256_loadu_ps(from), high = _mm256_loadu_ps(from + 8);
    const __m256 outer = _mm256_permute2f128_ps(low, high, 0x20),
                 inner = _mm256_permute2f128_ps(low, high, 0x31);
    return {P(_mm256_shuffle_ps(outer, inner, 0x88)), P(_mm256_shuffle_ps(outer, inner, 0xdd))};
  } else
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
      if constexpr (std::is_same_v<A, float> && lanes<P> == 16) {
    const __m512 low = _mm512_loadu_ps(from), high = _mm512_loadu_ps(from + 16);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return {P(_mm512_permutex2var_ps(low, even, high)), P(_mm512_permutex2var_ps(low, odd, high))};
  } else
#endif
  {
    A even[lanes<P>], odd[lanes<P>];
    for (int i = 0; i < lanes<P>; ++i) even[i] = from[2 * i], odd[i] = from[2 * i + 1];
    return {load<P>(even), load<P>(odd)};
  }
}

#if defined(EIGEN_VECTORIZE_SSE)
// The inverse of load_eight_bytes. Each value is rounded like `rounded`.
EIGEN_ALWAYS_INLINE void store_eight_bytes(float* to, __m128 values) {
  const double both = _mm_cvtsd_f64(_mm_castps_pd(values));
  std::memcpy(to, &both, sizeof both);
}
EIGEN_ALWAYS_INLINE void store_eight_bytes(Eigen::bfloat16* to, __m128 values) {
#if ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
  const auto four = __m128i(_mm_cvtneps_pbh(values));
#else
  const __m128i x = _mm_castps_si128(values), odd = _mm_and_si128(_mm_srli_epi32(x, 16), _mm_set1_epi32(1)),
                upper = _mm_srai_epi32(_mm_add_epi32(_mm_add_epi32(x, _mm_set1_epi32(0x7fff)), odd), 16),
                four = _mm_packs_epi32(upper, upper);
#endif
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), four);
}
#endif

/// Whether interleaved channels of type T can be split into even and odd channels for a rotation, which then
/// needs one table entry per lane. The alternative, swap_neighbours, needs every entry in two lanes, so a
/// register holds half as many entries. Splitting bfloat16 costs nothing.
template <class T, class P>
inline constexpr bool can_split_even_odd =
#if defined(EIGEN_VECTORIZE_SSE)
    (std::is_same_v<P, packet<float>> || std::is_same_v<P, packet<double>>) ||
#endif
    std::is_same_v<T, Eigen::bfloat16>;

#if defined(EIGEN_VECTORIZE_SSE)
// x86 shuffles within 128 bits: from [a0 a1 a2 a3 ..] and [b0 b1 b2 b3 ..] the even lanes are [a0 a2 b0 b2
// ..]. low_lanes and high_lanes of even and odd lanes restore the original order.
EIGEN_ALWAYS_INLINE __m128 even_lanes(__m128 a, __m128 b) { return _mm_shuffle_ps(a, b, 0x88); }
EIGEN_ALWAYS_INLINE __m128 odd_lanes(__m128 a, __m128 b) { return _mm_shuffle_ps(a, b, 0xdd); }
EIGEN_ALWAYS_INLINE __m128 low_lanes(__m128 a, __m128 b) { return _mm_unpacklo_ps(a, b); }
EIGEN_ALWAYS_INLINE __m128 high_lanes(__m128 a, __m128 b) { return _mm_unpackhi_ps(a, b); }
EIGEN_ALWAYS_INLINE __m128d low_lanes(__m128d a, __m128d b) { return _mm_unpacklo_pd(a, b); }
EIGEN_ALWAYS_INLINE __m128d high_lanes(__m128d a, __m128d b) { return _mm_unpackhi_pd(a, b); }
#endif
#if defined(EIGEN_VECTORIZE_AVX)
EIGEN_ALWAYS_INLINE __m256 even_lanes(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0x88); }
EIGEN_ALWAYS_INLINE __m256 odd_lanes(__m256 a, __m256 b) { return _mm256_shuffle_ps(a, b, 0xdd); }
EIGEN_ALWAYS_INLINE __m256 low_lanes(__m256 a, __m256 b) { return _mm256_unpacklo_ps(a, b); }
EIGEN_ALWAYS_INLINE __m256 high_lanes(__m256 a, __m256 b) { return _mm256_unpackhi_ps(a, b); }
EIGEN_ALWAYS_INLINE __m256d low_lanes(__m256d a, __m256d b) { return _mm256_unpacklo_pd(a, b); }
EIGEN_ALWAYS_INLINE __m256d high_lanes(__m256d a, __m256d b) { return _mm256_unpackhi_pd(a, b); }
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
EIGEN_ALWAYS_INLINE __m512 even_lanes(__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, 0x88); }
EIGEN_ALWAYS_INLINE __m512 odd_lanes(__m512 a, __m512 b) { return _mm512_shuffle_ps(a, b, 0xdd); }
EIGEN_ALWAYS_INLINE __m512 low_lanes(__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
EIGEN_ALWAYS_INLINE __m512 high_lanes(__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
EIGEN_ALWAYS_INLINE __m512d low_lanes(__m512d a, __m512d b) { return _mm512_unpacklo_pd(a, b); }
EIGEN_ALWAYS_INLINE __m512d high_lanes(__m512d a, __m512d b) { return _mm512_unpackhi_pd(a, b); }
#endif

/// The first and the second channels of lanes<P> pairs. The order of the pairs depends on the register type.
template <class P, class T>
EIGEN_ALWAYS_INLINE even_odd<P> load_pairs(const T* from) {
  const P a = load<P>(from), b = load<P>(from + lanes<P>);
  if constexpr (std::is_same_v<T, double>)  // 128 bits are two lanes
    return {P(low_lanes(a, b)), P(high_lanes(a, b))};
  else
    return {P(even_lanes(a, b)), P(odd_lanes(a, b))};
}
/// The inverse of load_pairs.
template <class P, class T>
EIGEN_ALWAYS_INLINE void store_pairs(T* to, const P& first, const P& second) {
  store(to, P(low_lanes(first, second)));
  store(to + lanes<P>, P(high_lanes(first, second)));
}
#if defined(EIGEN_VECTORIZE_AVX)
// Rearranges entries into the order of load_pairs: the first half of every 128 bits comes from the first half
// of the register.
EIGEN_ALWAYS_INLINE __m256d in_order_of_pairs(__m256d a) {
#if defined(EIGEN_VECTORIZE_AVX2)
  return _mm256_permute4x64_pd(a, 0xd8);
#else
  const __m128d low = _mm256_castpd256_pd128(a), high = _mm256_extractf128_pd(a, 1);
  return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_unpacklo_pd(low, high)), _mm_unpackhi_pd(low, high),
                              1);
#endif
}
EIGEN_ALWAYS_INLINE __m256 in_order_of_pairs(__m256 a) {
  return _mm256_castpd_ps(in_order_of_pairs(_mm256_castps_pd(a)));
}
#endif
#if defined(EIGEN_VECTORIZE_AVX512)
EIGEN_ALWAYS_INLINE __m512d in_order_of_pairs(__m512d a) {
  return _mm512_permutexvar_pd(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), a);
}
EIGEN_ALWAYS_INLINE __m512 in_order_of_pairs(__m512 a) {
  return _mm512_castpd_ps(in_order_of_pairs(_mm512_castps_pd(a)));
}
#endif

/// One table entry per pair, in the order of load_pairs.
template <class P, class T, class A>
EIGEN_ALWAYS_INLINE P load_pair_entries(const A* entries) {
  const P all = load<P>(entries);
  if constexpr (std::is_same_v<T, Eigen::bfloat16> || sizeof(P) == 16)  // the order of memory
    return all;
  else
    return P(in_order_of_pairs(all));
}

/// The 2 * lanes<P> bfloat16 at `from`, widened. A bfloat16 is the upper half of a float, so a register of
/// bfloat16 holds the odd ones in place and the even ones 16 bits too low. No shuffle of lanes is needed.
template <class P>
EIGEN_ALWAYS_INLINE even_odd<P> load_even_odd(const Eigen::bfloat16* from) {
  using bits = bits_packet<P>;
  const bits both = load_bits<bits>(from);
  return {from_bits<P>(shift_left<16>(both)),
          from_bits<P>(bitwise_and(both, fill<bits>(std::int32_t(0xffff0000u))))};
}

#if ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
// Stores lane i of `even` and `odd`, rounded, to to[2 i] and to[2 i + 1].
EIGEN_ALWAYS_INLINE void store_bfloat16(Eigen::bfloat16* to, __m512 even, __m512 odd) {
  const __m512i order = _mm512_add_epi32(
      _mm512_set1_epi32(0x100000),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x10001),
                         _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, __m512i(_mm512_cvtne2ps_pbh(odd, even))));
}
EIGEN_ALWAYS_INLINE void store_bfloat16(Eigen::bfloat16* to, __m256 even, __m256 odd) {
  const __m256i order =
      _mm256_set_epi32(0xf0007, 0xe0006, 0xd0005, 0xc0004, 0xb0003, 0xa0002, 0x90001, 0x80000);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutexvar_epi16(order, __m256i(_mm256_cvtne2ps_pbh(odd, even))));
}
EIGEN_ALWAYS_INLINE void store_bfloat16(Eigen::bfloat16* to, __m128 even, __m128 odd) {
  const __m128i both = __m128i(_mm_cvtne2ps_pbh(odd, even));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi16(both, _mm_srli_si128(both, 8)));
}
#endif

template <class P>
EIGEN_ALWAYS_INLINE even_odd<P> load_pairs(const Eigen::bfloat16* from) {
  return load_even_odd<P>(from);
}

/// The inverse of load_even_odd. Each value is rounded to nearest, ties to even.
///
/// Requires:  the values are finite
template <class P>
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::bfloat16* to, const P& even, const P& odd) {
  using bits = bits_packet<P>;
  const auto one = fill<bits>(1), below_half = fill<bits>(0x7fff);
  const auto rounded = [&](const P& value) {
    const bits x = to_bits(value);
    return add(add(x, below_half), bitwise_and(shift_right<16>(x), one));
  };
  const bits upper = bitwise_and(rounded(odd), fill<bits>(std::int32_t(0xffff0000u)));
  store_bits(to, bitwise_or(upper, shift_right<16>(rounded(even))));
}
/// store_rounded for values that may also be infinite, or NaN with zeros in the lower 16 bits. Rounds like
/// `rounded`.
template <class P>
EIGEN_ALWAYS_INLINE void store_even_odd(Eigen::bfloat16* to, const P& even, const P& odd) {
#if ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
  store_bfloat16(to, even, odd);
#else
  store_rounded(to, even, odd);
#endif
}

template <class P>
EIGEN_ALWAYS_INLINE void store_pairs(Eigen::bfloat16* to, const P& first, const P& second) {
  store_even_odd(to, first, second);
}

/// Converts channels, each like static_cast. Packets would give NaN other bits, so if a number is not finite,
/// all are converted again, one by one. A call of all_finite before would take as long as the conversion.
template <class X, class T>
void convert_channels(const X* from, Index count, T* to) {
  Index d = 0;
  if constexpr (std::is_same_v<X, float> && sizeof(T) == 2 && has_packets<T, packet<float>>) {
    using P = packet<X>;
    using bits = bits_packet<P>;
    bits exponents = fill<bits>(0);  // the sign of a lane is set if an exponent was that of infinity
    const auto add_exponent = [&](const P& x) {
      const bits exponent = bitwise_and(to_bits(x), fill<bits>(0x7f800000));
      exponents = bitwise_or(exponents, add(exponent, fill<bits>(0x00800000)));
    };
    constexpr Index step = (std::is_same_v<T, Eigen::half> ? 1 : 2) * lanes<P>;
    for (; d + step <= count; d += step)
      if constexpr (step == lanes<P>) {
        const P x = load<P>(from + d);
        add_exponent(x);
        store(to + d, x);
      } else {
        const even_odd<P> x = load_even_odd<P>(from + d);
        add_exponent(x.even), add_exponent(x.odd);
        store_rounded(to + d, x.even, x.odd);
      }
    std::int32_t lane[std::size_t(lanes<P>)];
    store_bits(lane, exponents);
    for (const std::int32_t x : lane) d = x < 0 ? 0 : d;
  }
  for (; d < count; ++d) to[d] = static_cast<T>(from[d]);
}

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_PACKET_PAIRS_HPP
