// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_PHASE_HPP
#define ROPE_TABLES_PHASE_HPP

#include <array>
#include <bit>  // std::countr_zero
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>

/// Exact angles. position * inv_freq grows without bound while only its remainder modulo 2 pi matters, so a
/// floating-point angle loses one bit each time the position doubles. Here an angle is an integer count of
/// 2^-192 turn. Multiplying it by a position and dropping whole turns are then exact, at every position and
/// under every compiler flag. The only rounding to double comes after this reduction.
///
/// Why 192 bits? At every quarter turn, cosine or sine is 0. Close to it, the relative error of the entry is
/// that of the angle's distance to the quarter turn. With inv_freq = n 2^e and position p, n and p integers,
/// that distance is
///
///     d = |n p 2^e / (2 pi) - k / 4|  turns,   n < 2^53,  e <= 11,  |p| < 2^b,  and k the nearest integer
///
/// For all N below a limit, the smallest |N x - K| belongs to a convergent of the continued fraction of x. If
/// k is not 0, x = 2^e 2 / pi for every e, and N = n p < 2^(53 + b), this gives
///
///     b    d >      allowed error of a phase      its error
///     31   2^-90    2^-58 d = 2^-148              2^31 2^-193 = 2^-162, counted in steps
///     53   2^-115   2^-58 d = 2^-173              2^-192, as a product
///     63   2^-125   2^-58 d = 2^-183              2^-191, as a sum of two products
///
/// where 2^-58 d is 2^-5 ulp of double (tests/oracle/nearest_axes.test.cpp). With steps of 128 bits the error
/// would be 2^-98, and a double entry would lose most of its digits. If k is 0, nothing cancels, and d is as
/// small as inv_freq * position. Below 2^-60 rad, the angle is therefore computed as a product of two
/// numbers, not as a count (detail/table_rows.hpp).
///
/// Sine and cosine are computed in integers, so no compiler flag, fused operation or C library changes a bit
/// of the results. Words of 64 bits give the entries of double tables, and words of 128 bits give the nearest
/// floats.

namespace rope::inline ROPE_ABI::detail {

/// 2^exponent, a normal number.
constexpr double scale_of_bits(int exponent) {
  return bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The coefficients of Taylor's series that sine_series and cosine_series describe.
constexpr std::array<uint128, 15> taylor_series(bool cosine) {
  std::array<uint128, 15> series = {divide({~std::uint64_t{0}, ~std::uint64_t{0}}, 3) << (cosine ? 0 : 1)};
  for (std::uint32_t k = 2; k <= series.size(); ++k)
    series[k - 1] = divide(series[k - 2], (cosine ? k + 1 : k) * (2 * k + 1)) << 1;
  return series;
}

/// The coefficients of sin x = x (1 - h^2 (s_0 - h^2 (s_1 - ...))), h = x / 2, in units of the last bit of a
/// Word. For 128 bits they are 4^k / (2 k + 1)! of Taylor's series. For 64 bits there are fewer, found by
/// tests/oracle/sine_cosine.py.
template <class Word>
inline constexpr std::array sine_series = taylor_series(false);
template <>
inline constexpr std::array sine_series<std::uint64_t> = {
    std::uint64_t{0xaaaaaaaaaaaaaa97u}, std::uint64_t{0x22222222222215a6u},
    std::uint64_t{0x0340340340314d94u}, std::uint64_t{0x002e3bc74a661170u},
    std::uint64_t{0x0001ae64528d7e53u}, std::uint64_t{0x00000b0904623e14u},
    std::uint64_t{0x000000355448e1d4u}};

/// The coefficients of cos x = 1 - 2 (h^2 - h^4 (c_0 - h^2 (c_1 - ...))); those of Taylor's series are 4^k /
/// (2 (2 k)!) from k = 2 on.
template <class Word>
inline constexpr std::array cosine_series = taylor_series(true);
template <>
inline constexpr std::array cosine_series<std::uint64_t> = {
    std::uint64_t{0x555555555555554du}, std::uint64_t{0x0b60b60b60b607b6u},
    std::uint64_t{0x00d00d00d00c6654u}, std::uint64_t{0x00093f27dbaf5c67u},
    std::uint64_t{0x000047bb632432e7u}, std::uint64_t{0x0000019393241f1du},
    std::uint64_t{0x00000006aaf46294u}};

/// The upper bits of a number of 192 bits.
template <class Word>
constexpr Word upper_bits(uint192 a) {
  if constexpr (std::is_same_v<Word, uint128>)
    return {a.hi, a.mid};
  else
    return a.hi;
}

/// z (s_0 - z (s_1 - z (s_2 - ...))) of an odd number of coefficients. Each step adds two terms, which halves
/// the chain of dependent products.
template <class Word, std::size_t terms>
EIGEN_ALWAYS_INLINE constexpr Word alternating_sum(Word z, Word square,
                                                   const std::array<Word, terms>& series) {
  static_assert(terms % 2 == 1);
  Word sum = series[terms - 1];
  for (std::size_t k = terms - 1; k > 0; k -= 2)
    sum = series[k - 2] - multiply_upper(z, series[k - 1]) + multiply_upper(square, sum);
  return multiply_upper(z, sum);
}

/// sin x = sine 2^exponent and cos x = 1 - 2 half_versine 2^-bits, where a Word has `bits` bits.
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

/// The float nearest to m * mantissa * 2^exponent, even if it is subnormal. The product must not be exactly
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
  // A float has 24 bits from its highest one on, and none below 2^-149.
  const int last = lowest + 127 - leading_zeros(product) - 23, unit = last < -149 ? -149 : last;
  const int dropped = unit - lowest;
  if (dropped > 128) return 0;
  const std::uint64_t twice = (product >> (dropped - 1)).lo;
  return static_cast<double>(static_cast<std::int64_t>((twice + 1) >> 1)) * scale_of_bits(unit);
}

}  // namespace rope::inline ROPE_ABI::detail

namespace rope::inline ROPE_ABI {

/// An angle as a fraction of one turn, in units of 2^-192 turn, modulo 1.
///
///     const cos_sin turned = cos_sin_of<double>(phase_of(inv_freq) * position);
struct phase {
  detail::uint192 turn;  // in units of 2^-192 turn

  friend constexpr bool operator==(const phase&, const phase&) = default;
  /// The sum, exact modulo one turn.
  friend constexpr phase operator+(phase a, phase b) { return {a.turn + b.turn}; }
  /// The opposite angle, exact.
  friend constexpr phase operator-(phase a) { return {-a.turn}; }
  /// The phase after `position` equal steps; exact modulo one turn.
  friend EIGEN_ALWAYS_INLINE constexpr phase operator*(phase step, std::int64_t position) {
    const std::uint64_t sign = position < 0 ? ~std::uint64_t{0} : 0;
    const detail::uint192 turned =
        detail::multiply(step.turn, (static_cast<std::uint64_t>(position) ^ sign) - sign);
    return {detail::negate_if(sign, turned)};
  }
};

namespace detail {

/// |inv_freq * coordinate| / (2 pi) turns as a binary number, too small by at most 2^-384 |inv_freq *
/// coordinate|.
class binary_turns {
 public:
  binary_turns(double inv_freq, double coordinate) {
    // 1 / (2 pi) in 384 bits, the least significant word first.
    constexpr std::uint64_t inverse_two_pi[6] = {0x01924bba82746487u, 0x6dc91b8e909374b8u,
                                                 0x7f9458eaf7aef158u, 0x36d8a5664f10e410u,
                                                 0x7f09d5f47d4d3770u, 0x28be60db9391054au};
    // |inv_freq * coordinate| = significand * 2^exponent, exactly, with a significand of 106 bits. If the
    // coordinate is a power of two the significand has 53 bits, which halves the work.
    const binary f = binary_of(inv_freq);
    binary c = binary_of(coordinate);
    const int zeros = std::countr_zero(c.significand | std::uint64_t{1} << 63);
    c = {c.significand >> zeros, c.exponent + zeros};
    const uint128 significand = multiply(f.significand, c.significand);
    unit_ = f.exponent + c.exponent - 384;
    const std::uint64_t factors[2] = {significand.lo, significand.hi};
    for (int i = 0; i < 2; ++i) {
      if (factors[i] == 0) continue;
      std::uint64_t carry = 0;
      for (int j = 0; j < 6; ++j) {
        const uint128 sum =
            multiply(factors[i], inverse_two_pi[j]) + uint128{0, words_[i + j]} + uint128{0, carry};
        words_[i + j] = sum.lo;
        carry = sum.hi;
      }
      words_[i + 6] = carry;
    }
  }

  /// The 64 bits from 2^weight turn upwards.  Requires: weight >= -256
  std::uint64_t word_from(int weight) const {
    const int shift = weight - unit_, word = shift / 64, bit = shift % 64;
    if (word >= 8) return 0;
    return (words_[word] >> bit) | (words_[word + 1] << 1 << (63 - bit));
  }

  /// The phase: the part below one turn, rounded to 2^-192 turn.
  phase rounded() const {
    const phase cut = {{word_from(-64), word_from(-128), word_from(-192)}};
    return cut + phase{{0, 0, word_from(-256) >> 63}};
  }

 private:
  std::uint64_t words_[9] = {};  // eight words, then zeros
  int unit_;                     // the lowest bit is 2^unit turns: at most -309
};

}  // namespace detail

/// The phase of the angle `inv_freq * coordinate` radians: the exact product over 2 pi, modulo 1.
///
///     phase = round(2^192 * frac(inv_freq * coordinate / (2 pi)))
///
/// With the default coordinate, it is the step of one position: `phase_of(f) * p` is the phase of pair f at
/// position p.
///
/// Requires:  both finite, |inv_freq| < 2^64, |coordinate| <= 2^64
/// Accuracy:  (1/2 + 2^-64) 2^-192 turn
inline phase phase_of(double inv_freq, double coordinate = 1.0) {
  if (detail::equal(inv_freq, 0) || detail::equal(coordinate, 0)) return {};
  const phase rounded = detail::binary_turns(inv_freq, coordinate).rounded();
  return (inv_freq < 0) != (coordinate < 0) ? -rounded : rounded;
}

/// The phase at an integer position, for tables of positions and of coordinates. It is position * step up to
/// 2^31 in magnitude. Beyond that, and for an inv_freq below 2^-128, it is the exact product position *
/// inv_freq.
///
/// Requires:  step == phase_of(inv_freq)
/// Accuracy:  2^-162 turn up to 2^31, 2^-191 turn beyond
EIGEN_ALWAYS_INLINE phase phase_at(phase step, double inv_freq, std::int64_t position) {
  // A step is rounded to 2^-192 turn, which is exact enough up to `reach`. At a frequency below 2^-128 it has
  // too few significant bits, at most 62.
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  if (position <= reach && position >= -reach && (std::abs)(inv_freq) >= 0x1p-128) return step * position;
  const bool negative = position < 0;
  const std::uint64_t distance =
      negative ? 0 - static_cast<std::uint64_t>(position) : static_cast<std::uint64_t>(position);
  // Both parts are exact doubles, and their sum is the distance.
  const std::uint64_t low = distance & 0xffffffffu;
  const phase turned =
      phase_of(inv_freq, static_cast<double>(distance - low)) + phase_of(inv_freq, static_cast<double>(low));
  return negative ? -turned : turned;
}

/// cos and sin of one angle.
///
///     const cos_sin eighth = cos_sin_of<double>(phase_of(std::numbers::pi / 4));
struct cos_sin {
  double cos;  // of the angle
  double sin;  // of the angle
};

namespace detail {

/// An angle as the nearest number of quarter turns, and the distance to it, which is at most an eighth of a
/// turn.
struct quadrant_distance {
  std::uint64_t quadrant;  // modulo 4
  std::uint64_t sign;      // of the distance: all bits if it is negative, otherwise 0
  uint192 magnitude;
};

EIGEN_ALWAYS_INLINE constexpr quadrant_distance nearest_quadrant(phase p) {
  constexpr std::uint64_t eighth = std::uint64_t{1} << 61;
  const std::uint64_t quadrant = (p.turn.hi + eighth) >> 62, hi = p.turn.hi - (quadrant << 62);
  const std::uint64_t sign = 0 - (hi >> 63);
  return {quadrant, sign, negate_if(sign, {hi, p.turn.mid, p.turn.lo})};
}

/// cos and sin of an angle from those of its distance to the nearest quarter turn. There is no branch,
/// because a processor could not predict the quadrants of a row.
EIGEN_ALWAYS_INLINE constexpr cos_sin in_quadrant(const quadrant_distance& angle, cos_sin distance) {
  constexpr std::uint64_t sign_bit = std::uint64_t{1} << 63;
  const auto c = detail::bit_cast<std::uint64_t>(distance.cos),
             s = detail::bit_cast<std::uint64_t>(distance.sin) ^ (angle.sign & sign_bit);
  const std::uint64_t exchanged = (c ^ s) & (0 - (angle.quadrant & 1));
  return {detail::bit_cast<double>(c ^ exchanged ^ ((angle.quadrant + 1) << 62 & sign_bit)),
          detail::bit_cast<double>(s ^ exchanged ^ (angle.quadrant << 62 & sign_bit))};
}

/// m cos and m sin of an angle of at most an eighth of a turn: the nearest floats, or doubles with a relative
/// error of 2^-52.
template <class S>
EIGEN_ALWAYS_INLINE constexpr cos_sin scaled_cos_sin(uint192 turn, double m) {
  if (turn == uint192{}) return {m, 0};
  if constexpr (std::is_same_v<S, float>) {
    const auto [sine, exponent, half_versine] = fixed_sine_cosine<uint128>(turn);
    // One unit less than computed: cos x is less than 1, however small x is.
    constexpr uint128 below_one = {~std::uint64_t{0} >> 1, ~std::uint64_t{0}};
    return {nearest_float(below_one - half_versine, -127, m), nearest_float(sine, exponent, m)};
  } else {
    const auto [sine, exponent, half_versine] = fixed_sine_cosine<std::uint64_t>(turn);
    const auto half = [](std::uint64_t x) { return static_cast<double>(static_cast<std::int64_t>(x >> 1)); };
    return {m * (half((std::uint64_t{1} << 63) - half_versine) * 0x1p-62),
            m * (half(sine) * scale_of_bits(exponent + 1))};
  }
}

}  // namespace detail

/// cos and sin of a phase: the nearest floats (S = float), or doubles.
///
/// Integer arithmetic removes the nearest quarter turn, which leaves an angle x in [-pi/4, pi/4], and
/// computes sin x and cos x.
///
/// Accuracy:  S = float: correctly rounded, except for values within 2^-96 ulp of the middle between two
///            floats. S = double: 0.51 ulp. Equal bits on all processors (tests/oracle/table.test.cpp)
template <class S>
EIGEN_ALWAYS_INLINE constexpr cos_sin cos_sin_of(phase p) {
  const detail::quadrant_distance angle = detail::nearest_quadrant(p);
  const auto [cos, sin] = detail::in_quadrant(angle, detail::scaled_cos_sin<S>(angle.magnitude, 1));
  return {static_cast<double>(static_cast<S>(cos)), static_cast<double>(static_cast<S>(sin))};
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_PHASE_HPP
