// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PACKET_HPP
#define ROPE_BASE_SIMD_PACKET_HPP

#include <bit>    // std::endian
#include <cmath>  // std::fma
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// SIMD registers ("packets" in Eigen), and scalar versions of their operations. Every operation gives the
/// same bits in a lane of a packet as on a scalar, so results do not depend on how a row of channels is split
/// into packets.
///
/// Rounds channels to 16 bits, and converts half in x86 registers.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// `value` as a channel of type T, to nearest, ties to even. A NaN of bfloat16 keeps the upper half of its
/// bits, which is a NaN because no NaN made from 16-bit channels has lower bits, and callers remove the lower
/// bits of others (usable_scale, norm_rule::gains). The conversion instruction
/// of x86 makes a bfloat16 below 2^-126 zero. Builds that use the instruction therefore do this in scalar
/// code too.
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

/// Selects an overload of load_widened by the number of lanes. It is in the namespace of these functions, so
/// that `load` also finds those declared later, in simd/channel_rows.hpp.
template <int n>
struct lane_count {};

#if defined(EIGEN_VECTORIZE_AVX)
/// Eight channels in two halves, for types that have no instruction for eight.
template <class T>
EIGEN_ALWAYS_INLINE auto load_widened(const T* from, lane_count<8>) {
  constexpr lane_count<4> four{};
  return _mm256_insertf128_ps(_mm256_castps128_ps256(load_widened(from, four)), load_widened(from + 4, four),
                              1);
}
#endif
#if ROPE_DETAIL_HALF_INSTRUCTIONS && defined(EIGEN_VECTORIZE_SSE2)
// Eigen 3.4.0 uses these instructions only with clang, and converts in software with GCC.
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, lane_count<4>) {
  return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m128 values) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, lane_count<8>) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m256 values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
inline constexpr bool has_half_packets = true;
#elif defined(EIGEN_VECTORIZE_SSE2)
// Used on processors without these instructions. The steps are those of Eigen's scalar conversions, in four
// lanes. Each lane selects one of the three cases of a conversion, so the bits are the same.
EIGEN_ALWAYS_INLINE __m128i select_lanes(__m128i where, __m128i yes, __m128i no) {
  return _mm_or_si128(_mm_and_si128(where, yes), _mm_andnot_si128(where, no));
}
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, lane_count<4>) {
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
EIGEN_ALWAYS_INLINE auto load_widened(const Eigen::half* from, lane_count<16>) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
EIGEN_ALWAYS_INLINE void store_rounded(Eigen::half* to, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
#endif

/// The widest packet of A, or A if there is none. A class, because GCC 14 warns about attributes at each use
/// of an alias.
template <class A>
struct packet_of : std::conditional<bool(Eigen::internal::packet_traits<A>::Vectorizable),
                                    typename Eigen::internal::packet_traits<A>::type, A> {};
template <class A>
using packet = typename packet_of<A>::type;

template <class P>
inline constexpr int lanes = std::is_arithmetic_v<P> ? 1 : int(Eigen::internal::unpacket_traits<P>::size);

template <class P>
struct half_packet_of : std::type_identity<typename Eigen::internal::unpacket_traits<P>::half> {};
/// The packet of half as many lanes if it exists, otherwise P.
template <class P>
using half_packet = typename half_packet_of<P>::type;

/// Number of vector registers, which limits the table entries that a kernel keeps.
inline constexpr int registers = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;

/// a * b + c, rounded once if packets round it once, otherwise twice.
template <class A>
requires std::is_arithmetic_v<A>
inline A multiply_add(A a, A b, A c) {
#if ROPE_DETAIL_FUSED
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// Whether channels of type T can be rotated in packets P of their arithmetic type.
template <class T, class P>
constexpr bool has_packets_of() {
  if constexpr (std::is_arithmetic_v<P>)
    return false;
  else if constexpr (std::is_same_v<T, Eigen::half>)
    return has_half_packets;
  else if constexpr (std::is_same_v<T, Eigen::bfloat16>)  // split as 32-bit integers
    return std::endian::native == std::endian::little &&
           int(Eigen::internal::unpacket_traits<
               typename Eigen::internal::unpacket_traits<P>::integer_packet>::size) == lanes<P>;
  else
    return true;
}
template <class T, class P>
inline constexpr bool has_packets = has_packets_of<T, P>();

/// The type from which rows of channels are loaded into packets: T if packets can be loaded from it,
/// otherwise its arithmetic type.
template <class T>
using loadable = std::conditional_t<std::is_same_v<T, arithmetic<T>> || has_packets<T, packet<arithmetic<T>>>,
                                    T, arithmetic<T>>;

/// Loads lanes<P> channels. Narrower channels are widened: bfloat16 and int8 by simd/channel_rows.hpp on x86.
template <class P, class T>
EIGEN_ALWAYS_INLINE P load(const T* from) {
  if constexpr (std::is_same_v<T, arithmetic<T>>)
    return Eigen::internal::ploadu<P>(from);
  else {
#if defined(EIGEN_VECTORIZE_SSE)
    return P(load_widened(from, lane_count<lanes<P>>{}));
#else
    float wide[lanes<P>];
    for (int i = 0; i < lanes<P>; ++i) wide[i] = static_cast<float>(from[i]);
    return Eigen::internal::ploadu<P>(wide);
#endif
  }
}

/// Stores lanes<P> channels, rounded if T is half. simd/packet_pairs.hpp stores bfloat16, in pairs.
template <class P, class T>
EIGEN_ALWAYS_INLINE void store(T* to, const P& values) {
  if constexpr (std::is_same_v<T, arithmetic<T>>)
    Eigen::internal::pstoreu(to, values);
  else
    store_rounded(to, values);
}

#if defined(EIGEN_VECTORIZE_SSE)
// Eight bytes: two floats, followed by zeros, or four bfloat16, widened. A bfloat16 is the upper half of a
// float.
EIGEN_ALWAYS_INLINE __m128 load_eight_bytes(const float* from) {
  double both;
  std::memcpy(&both, from, sizeof both);
  return _mm_castpd_ps(_mm_set_sd(both));
}
EIGEN_ALWAYS_INLINE __m128 load_eight_bytes(const Eigen::bfloat16* from) {
  return _mm_castsi128_ps(
      _mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
#endif

/// Lanes {from[0], from[0], from[1], from[1], ...}.
template <class P, class A>
EIGEN_ALWAYS_INLINE P load_each_twice(const A* from) {
#if defined(EIGEN_VECTORIZE_SSE)
  // Eigen would read two floats as one double here, but an odd entry of a row is not aligned to 8 bytes.
  if constexpr (std::is_same_v<A, float> && lanes<P> == 4) {
    const __m128 entries = load_eight_bytes(from);
    return P(_mm_unpacklo_ps(entries, entries));
  } else
#endif
    return Eigen::internal::ploaddup<P>(from);
}

/// Lanes {value, value, ...}.
template <class P, class A>
EIGEN_ALWAYS_INLINE P fill(A value) {
  return Eigen::internal::pset1<P>(value);
}

/// Lanes {-1, 1, -1, 1, ...}.
template <class P>
EIGEN_ALWAYS_INLINE P alternating_signs() {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  static constexpr A signs[16] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  static_assert(lanes<P> <= 16);
  return Eigen::internal::ploadu<P>(signs);
}

template <class P>
EIGEN_ALWAYS_INLINE P add(const P& a, const P& b) {
  return Eigen::internal::padd(a, b);
}
template <class P>
EIGEN_ALWAYS_INLINE P multiply(const P& a, const P& b) {
  return Eigen::internal::pmul(a, b);
}

template <class P>
requires(!std::is_arithmetic_v<P>) EIGEN_ALWAYS_INLINE P multiply_add(const P& a, const P& b, const P& c) {
  return Eigen::internal::pmadd(a, b, c);
}

/// a * b - c, rounded as multiply_add rounds. Eigen 3.4 has no such operation.
template <class P>
EIGEN_ALWAYS_INLINE P multiply_subtract(const P& a, const P& b, const P& c) {
#if defined(EIGEN_VECTORIZE_FMA) && defined(EIGEN_VECTORIZE_SSE)  // Eigen 5 defines the first on ARM too
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  constexpr std::size_t bytes = sizeof(P);
  constexpr bool is_float = std::is_same_v<A, float>;
  if constexpr (bytes == 16 && is_float)
    return P(_mm_fmsub_ps(__m128(a), __m128(b), __m128(c)));
  else if constexpr (bytes == 16)
    return P(_mm_fmsub_pd(__m128d(a), __m128d(b), __m128d(c)));
  else if constexpr (bytes == 32 && is_float)
    return P(_mm256_fmsub_ps(__m256(a), __m256(b), __m256(c)));
  else if constexpr (bytes == 32)
    return P(_mm256_fmsub_pd(__m256d(a), __m256d(b), __m256d(c)));
#if defined(EIGEN_VECTORIZE_AVX512)
  else if constexpr (bytes == 64 && is_float)
    return P(_mm512_fmsub_ps(__m512(a), __m512(b), __m512(c)));
  else if constexpr (bytes == 64)
    return P(_mm512_fmsub_pd(__m512d(a), __m512d(b), __m512d(c)));
#endif
#elif defined(EIGEN_VECTORIZE_VSX) || defined(EIGEN_VECTORIZE_ALTIVEC)
  // Eigen 3.4 negates by 0 - c there, so +0 would stay +0.
  return Eigen::internal::pmadd(a, b, Eigen::internal::pxor(c, Eigen::internal::pset1<P>(-0.0f)));
#else
  return Eigen::internal::pmadd(a, b, Eigen::internal::pnegate(c));
#endif
}

/// Lanes {a[1], a[0], a[3], a[2], ...}: complex numbers with real and imaginary parts swapped.
template <class P>
EIGEN_ALWAYS_INLINE P swap_neighbours(const P& a) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  using complex_packet = typename Eigen::internal::find_best_packet<std::complex<A>, lanes<P> / 2>::type;
  return Eigen::internal::pcplxflip(complex_packet(a)).v;
}

/// The lanes of P as 32-bit integers, for P of float.
template <class P>
using bits_packet = typename Eigen::internal::unpacket_traits<P>::integer_packet;

template <class P>
EIGEN_ALWAYS_INLINE bits_packet<P> to_bits(const P& values) {
  return Eigen::internal::preinterpret<bits_packet<P>>(values);
}
template <class P>
EIGEN_ALWAYS_INLINE P from_bits(const bits_packet<P>& bits) {
  return Eigen::internal::preinterpret<P>(bits);
}
// 16-bit channels begin at addresses that need not be multiples of 4. SSE loads from any address. On other
// processors Eigen's packets of integers need aligned integers. There the words are copied first, which
// compilers turn into one load.
template <class Bits>
EIGEN_ALWAYS_INLINE Bits load_bits(const void* from) {
#if defined(EIGEN_VECTORIZE_SSE)
  return Eigen::internal::ploadu<Bits>(static_cast<const std::int32_t*>(from));
#else
  std::int32_t words[lanes<Bits>];
  std::memcpy(words, from, sizeof words);
  return Eigen::internal::ploadu<Bits>(words);
#endif
}
template <class Bits>
EIGEN_ALWAYS_INLINE void store_bits(void* to, const Bits& bits) {
#if defined(EIGEN_VECTORIZE_SSE)
  Eigen::internal::pstoreu(static_cast<std::int32_t*>(to), bits);
#else
  std::int32_t words[lanes<Bits>];
  Eigen::internal::pstoreu(words, bits);
  std::memcpy(to, words, sizeof words);
#endif
}
template <class Bits>
EIGEN_ALWAYS_INLINE Bits bitwise_and(const Bits& a, const Bits& b) {
  return Eigen::internal::pand(a, b);
}
template <class Bits>
EIGEN_ALWAYS_INLINE Bits bitwise_or(const Bits& a, const Bits& b) {
  return Eigen::internal::por(a, b);
}
template <int places, class Bits>
EIGEN_ALWAYS_INLINE Bits shift_left(const Bits& a) {
  return Eigen::internal::plogical_shift_left<places>(a);
}
template <int places, class Bits>
EIGEN_ALWAYS_INLINE Bits shift_right(const Bits& a) {
  return Eigen::internal::plogical_shift_right<places>(a);
}

/// Calls body(i) for each i in [0, count), as an integral constant. Arrays of packets that are indexed by it
/// stay in registers. g++ -O2 does not unroll longer loops, and then keeps the arrays in memory.
template <class Body, std::size_t... i>
EIGEN_ALWAYS_INLINE void unrolled(const Body& body, std::index_sequence<i...>) {
  (body(std::integral_constant<std::size_t, i>{}), ...);
}
template <std::size_t count, class Body>
EIGEN_ALWAYS_INLINE void unrolled(const Body& body) {
  unrolled(body, std::make_index_sequence<count>{});
}

/// Keeps x in a register. Without this, GCC would load the operand again for every product. WebAssembly has
/// the intrinsics of SSE but not its registers.
template <class P>
EIGEN_ALWAYS_INLINE P in_register(P x) {
#if defined(__GNUC__) && defined(EIGEN_VECTORIZE_AVX512)
  if constexpr (sizeof(P) == 64) __asm__("" : "+v"(x));
#elif defined(__GNUC__) && defined(EIGEN_VECTORIZE_SSE) && !defined(__wasm__)
  if constexpr (!std::is_arithmetic_v<P> && !std::is_class_v<P>) __asm__("" : "+x"(x));
#endif
  return x;
}

/// Returns `pointer`. clang computes addresses from the result only after this call. From `pointer` itself
/// it would compute the addresses of many rows before a loop, even if the branch that uses them is never
/// taken.
template <class X>
EIGEN_ALWAYS_INLINE X* not_hoisted(X* pointer) {
#if defined(__clang__)
  __asm__("" : "+r"(pointer));
#endif
  return pointer;
}

/// Prefetches the cache line `bytes` after `address`, which need not be inside the allocation, to L1 or, if
/// `level` is 2, to L2.
template <int level = 1, class T>
EIGEN_ALWAYS_INLINE void prefetch_after(const T* address, std::uintptr_t bytes) {
  const T* target = reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(address) + bytes);
#if defined(__GNUC__)
  __builtin_prefetch(target, 0, 4 - level);  // GCC 12 removes calls of Eigen's function
#elif defined(EIGEN_VECTORIZE_SSE)           // Eigen's function does nothing for 8-bit and 16-bit types
  _mm_prefetch(reinterpret_cast<const char*>(target), level == 1 ? _MM_HINT_T0 : _MM_HINT_T1);
#else
  Eigen::internal::prefetch(target);
#endif
}

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_PACKET_HPP
