// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_FIXED_SINE_COSINE_HPP
#define ROPE_TABLES_DETAIL_FIXED_SINE_COSINE_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>

/// Sine and cosine in integers: no compiler flag, fused operation or C library changes a bit of the results.
/// Words of 64 bits give the entries of double tables. Words of 128 bits decide the rounding of a float entry
/// that is close to the middle between two floats.

namespace rope::inline ROPE_ABI::detail {

/// 2^exponent, a normal number.
constexpr double scale_of_bits(int exponent) {
  return bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The coefficients of sin x = x (1 - h^2 (s_0 - h^2 (s_1 - ...))), h = x / 2, in units of the last bit of a
/// Word. For 128 bits 4^k / (2 k + 1)! of Taylor, for 64 bits fewer: tests/oracle/sine_cosine.py.
template <class Word>
inline constexpr std::array sine_series = [] {
  std::array<uint128, 15> series = {};
  series[0] = divide({~std::uint64_t{0}, ~std::uint64_t{0}}, 3) << 1;
  for (std::uint32_t k = 2; k <= series.size(); ++k)
    series[k - 1] = divide(series[k - 2], k * (2 * k + 1)) << 1;
  return series;
}();
template <>
inline constexpr std::array sine_series<std::uint64_t> = {
    std::uint64_t{0xaaaaaaaaaaaaaa97u}, std::uint64_t{0x22222222222215a6u},
    std::uint64_t{0x0340340340314d94u}, std::uint64_t{0x002e3bc74a661170u},
    std::uint64_t{0x0001ae64528d7e53u}, std::uint64_t{0x00000b0904623e14u},
    std::uint64_t{0x000000355448e1d4u}};

/// The coefficients of cos x = 1 - 2 (h^2 - h^4 (c_0 - h^2 (c_1 - ...))); those of Taylor are
/// 4^k / (2 (2 k)!) from k = 2 on.
template <class Word>
inline constexpr std::array cosine_series = [] {
  std::array<uint128, 15> series = {};
  series[0] = divide({~std::uint64_t{0}, ~std::uint64_t{0}}, 3);
  for (std::uint32_t k = 3; k <= series.size() + 1; ++k)
    series[k - 2] = divide(series[k - 3], k * (2 * k - 1)) << 1;
  return series;
}();
template <>
inline constexpr std::array cosine_series<std::uint64_t> = {
    std::uint64_t{0x555555555555554du}, std::uint64_t{0x0b60b60b60b607b6u},
    std::uint64_t{0x00d00d00d00c6654u}, std::uint64_t{0x00093f27dbaf5c67u},
    std::uint64_t{0x000047bb632432e7u}, std::uint64_t{0x0000019393241f1du},
    std::uint64_t{0x00000006aaf46294u}};

/// The upper bits of a number of 192.
template <class Word>
constexpr Word upper_bits(uint192 a) {
  if constexpr (std::is_same_v<Word, uint128>)
    return {a.hi, a.mid};
  else
    return a.hi;
}

/// z (s_0 - z (s_1 - z (s_2 - ...))) of an odd number of coefficients. Two terms per step, which halves the
/// chain of dependent products.
template <class Word, std::size_t terms>
EIGEN_ALWAYS_INLINE constexpr Word alternating_sum(Word z, Word square,
                                                   const std::array<Word, terms>& series) {
  static_assert(terms % 2 == 1);
  Word sum = series[terms - 1];
  for (std::size_t k = terms - 1; k > 0; k -= 2)
    sum = series[k - 2] - multiply_upper(z, series[k - 1]) + multiply_upper(square, sum);
  return multiply_upper(z, sum);
}

/// sin x = sine 2^exponent and cos x = 1 - 2 half_versine 2^-bits, where a Word has `bits`.
template <class Word>
struct fixed_pair {
  Word sine;
  int exponent;
  Word half_versine;
};

/// Sine and cosine of x = 2 pi 2^-192 turn.
///
/// Both are polynomials in h^2, where h = x / 2 and h^2 is at most 0.1543:
///
///     sin x = x (1 - h^2 (2/3 - h^2 (2/15 - ...)))
///     cos x = 1 - 2 (h^2 - h^2 (h^2 (1/3 - h^2 (2/45 - ...))))
///
/// Requires:  0 < turn <= 2^189, an eighth of a turn
/// Accuracy:  sin: relative 2^-60 (64 bits), 2^-122 (128 bits); cos: 2^-61 and 2^-123
template <class Word>
EIGEN_ALWAYS_INLINE constexpr fixed_pair<Word> fixed_sine_cosine(uint192 turn) {
  constexpr int bits = 8 * static_cast<int>(sizeof(Word));
  constexpr Word quarter_pi = upper_bits<Word>({0xc90fdaa22168c234u, 0xc4c6628b80dc1cd1u, 0});
  int zeros = 0;
  for (; turn.hi == 0; zeros += 64) turn = {turn.mid, turn.lo, 0};
  if (const int shift = std::countl_zero(turn.hi); shift != 0) {
    turn = {turn.hi << shift | turn.mid >> (64 - shift), turn.mid << shift | turn.lo >> (64 - shift),
            turn.lo << shift};
    zeros += shift;
  }
  const Word half = multiply_upper(upper_bits<Word>(turn), quarter_pi);  // h = half 2^(2 - zeros - bits)
  const int places = 2 * (zeros - 2);
  const Word z = places < bits ? multiply_upper(half, half) >> places : Word{};
  const Word square = multiply_upper(z, z);
  return {half - multiply_upper(half, alternating_sum(z, square, sine_series<Word>)), 3 - zeros - bits,
          z - multiply_upper(z, alternating_sum(z, square, cosine_series<Word>))};
}

/// The float nearest to m * mantissa * 2^exponent, also if it is subnormal. The product must not be exactly
/// in the middle between two floats.
///
/// Requires:  mantissa > 0; m > 0 and the product below 2^128 - 2^103
constexpr double nearest_float(uint128 mantissa, int exponent, double m) {
  const auto bits = bit_cast<std::uint64_t>(m);
  const std::uint64_t factor = (bits & 0x000fffffffffffffu) << 11 | std::uint64_t{1} << 63;  // m, normalized
  const int zeros = leading_zeros(mantissa);
  mantissa = mantissa << zeros;
  const uint128 product = multiply(mantissa.hi, factor) + uint128{0, multiply_upper(mantissa.lo, factor)};
  const int lowest = exponent - zeros + static_cast<int>(bits >> 52) - 1086 + 64;  // exponent of its last bit
  // A float has 24 bits from its first one on, and none below 2^-149.
  const int last = lowest + 127 - leading_zeros(product) - 23, unit = last < -149 ? -149 : last;
  const int dropped = unit - lowest;
  if (dropped > 128) return 0;
  const std::uint64_t twice = (product >> (dropped - 1)).lo;
  return static_cast<double>(static_cast<std::int64_t>((twice + 1) >> 1)) * scale_of_bits(unit);
}

/// Whether all numbers that differ from x by at most `places` ulp of double round to the same float. Computed
/// from the bits of x, which -ffast-math does not affect.
///
/// Requires:  places is a power of two
constexpr bool rounds_to_one_float(double x, std::uint64_t places) {
  const std::uint64_t bits = bit_cast<std::uint64_t>(x), middle = std::uint64_t{1} << 28;
  const bool near_middle = ((bits - middle + places) & (2 * middle - 1) & ~(2 * places - 1)) == 0;
  const bool subnormal = (bits >> 52 & 0x7ff) < 1023 - 126;
  return !near_middle && !subnormal;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_FIXED_SINE_COSINE_HPP
