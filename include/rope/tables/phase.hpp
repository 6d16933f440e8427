// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_PHASE_HPP
#define ROPE_TABLES_PHASE_HPP

#include <bit>  // std::countr_zero
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>
#include <rope/tables/detail/fixed_sine_cosine.hpp>

/// Exact angles. position * inv_freq grows without bound while only its remainder modulo 2 pi matters, so a
/// floating-point angle loses one bit each time the position doubles. Here an angle is an integer count of
/// 2^-192 turns: multiplying by a position and dropping whole turns are then exact, at every position and
/// under every compiler flag, and one rounding to double happens after the reduction.
///
/// Why 192 bits. The relative error of an entry is that of the angle's distance to the nearest quarter turn,
/// where a cosine or sine vanishes. With inv_freq = n 2^e and position = p, both integers, that distance is
///
///     d = |n p 2^e / (2 pi) - k / 4|  turns,   n < 2^53,  e <= 11,  |p| < 2^b,  and k the nearest integer
///
/// The smallest |N x - K| of all N below a limit is that of a convergent of the continued fraction of x.
/// Taken of x = 2^e 2 / pi for every e with N = n p < 2^(53 + b), this leaves, where k is not 0,
///
///     b    d >      what a phase may be off by    and is
///     31   2^-90    2^-58 d = 2^-148              2^31 2^-193 = 2^-162, counted in steps
///     53   2^-115   2^-58 d = 2^-173              2^-192, as a product
///     63   2^-125   2^-58 d = 2^-183              2^-191, as a sum of two products
///
/// where 2^-58 d is 2^-5 ulp of double (tests/oracle/nearest_axes.test.cpp). Steps of 128 bits would be off
/// by 2^-98, and a double entry by the most part of its digits. Where k is 0 nothing cancels, and d is as
/// small as inv_freq * position: below 2^-60 rad the angle is multiplied instead of counted
/// (detail/table_rows.hpp).

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

/// |x| = significand * 2^exponent, exactly, of a finite double x.
struct binary {
  std::uint64_t significand;
  int exponent;
};

inline binary binary_of(double x) {
  const auto bits = detail::bit_cast<std::uint64_t>(x);
  const std::uint64_t fraction = bits & 0x000fffffffffffffu;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  return exponent == 0 ? binary{fraction, -1074} : binary{fraction | 0x0010000000000000u, exponent - 1075};
}

/// |x| of an integer.
inline binary binary_of(std::int64_t x) {
  return {x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x), 0};
}

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
  std::uint64_t words_[9] = {};  // eight words, and zeros for what lies above them
  int unit_;                     // the lowest bit is 2^unit turns: at most -309
};

}  // namespace detail

/// The phase of the angle `inv_freq * coordinate` radians: the exact product over 2 pi, modulo 1.
///
///     phase = round(2^192 * frac(inv_freq * coordinate / (2 pi)))
///
/// With the default coordinate, the step of one position: `phase_of(f) * p` is the phase of pair f at
/// position p.
///
/// Requires:  both finite, |inv_freq| < 2^64, |coordinate| <= 2^64
/// Accuracy:  (1/2 + 2^-64) 2^-192 turn
inline phase phase_of(double inv_freq, double coordinate = 1.0) {
  if (detail::equal(inv_freq, 0) || detail::equal(coordinate, 0)) return {};
  const phase rounded = detail::binary_turns(inv_freq, coordinate).rounded();
  return (inv_freq < 0) != (coordinate < 0) ? -rounded : rounded;
}

namespace detail {

/// Whether a position is beyond 2^31, the last one for which position * step is exact enough when the step is
/// rounded to 2^-192 turn.
constexpr bool beyond_steps(std::int64_t position) {
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  return position > reach || position < -reach;
}

/// Whether a step has too few significant bits above 2^-192 turn, fewer than 61, to be multiplied by
/// positions.
inline bool slower_than_steps(double inv_freq) { return (std::abs)(inv_freq) < 0x1p-128; }

}  // namespace detail

/// The phase at an integer position, for tables of positions and of coordinates: position * step up to 2^31
/// in magnitude; the exact product position * inv_freq beyond that and for an inv_freq below 2^-128.
///
/// Requires:  step == phase_of(inv_freq)
/// Accuracy:  2^-162 turn up to 2^31, 2^-191 turn beyond
EIGEN_ALWAYS_INLINE phase phase_at(phase step, double inv_freq, std::int64_t position) {
  if (!detail::beyond_steps(position) && !detail::slower_than_steps(inv_freq)) return step * position;
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

/// An angle as a number of quarter turns and the distance to the nearest one, at most an eighth of a turn.
struct quadrant_distance {
  std::uint64_t quadrant;  // modulo 4
  std::uint64_t sign;      // of the distance: all bits where it is negative, else 0
  uint192 magnitude;
};

EIGEN_ALWAYS_INLINE constexpr quadrant_distance nearest_quadrant(phase p) {
  constexpr std::uint64_t eighth = std::uint64_t{1} << 61;
  const std::uint64_t quadrant = (p.turn.hi + eighth) >> 62, hi = p.turn.hi - (quadrant << 62);
  const std::uint64_t sign = 0 - (hi >> 63);
  return {quadrant, sign, negate_if(sign, {hi, p.turn.mid, p.turn.lo})};
}

/// cos and sin of an angle from those of its distance to the nearest quarter turn. Without a branch, because
/// the quadrants of a row are in no order that a processor could predict.
EIGEN_ALWAYS_INLINE constexpr cos_sin in_quadrant(const quadrant_distance& angle, cos_sin distance) {
  constexpr std::uint64_t sign_bit = std::uint64_t{1} << 63;
  const auto c = detail::bit_cast<std::uint64_t>(distance.cos),
             s = detail::bit_cast<std::uint64_t>(distance.sin) ^ (angle.sign & sign_bit);
  const std::uint64_t exchanged = (c ^ s) & (0 - (angle.quadrant & 1));
  return {detail::bit_cast<double>(c ^ exchanged ^ ((angle.quadrant + 1) << 62 & sign_bit)),
          detail::bit_cast<double>(s ^ exchanged ^ (angle.quadrant << 62 & sign_bit))};
}

/// cos and sin of an angle of at most an eighth of a turn, computed in words of 64 bits.
EIGEN_ALWAYS_INLINE constexpr cos_sin double_cos_sin(uint192 turn) {
  if (turn == uint192{}) return {1, 0};
  const auto [sine, exponent, half_versine] = fixed_sine_cosine<std::uint64_t>(turn);
  const auto rounded = [](std::uint64_t x) { return static_cast<double>(static_cast<std::int64_t>(x >> 1)); };
  return {rounded((std::uint64_t{1} << 63) - half_versine) * 0x1p-62,
          rounded(sine) * scale_of_bits(exponent + 1)};
}

/// m cos and m sin of an angle in (0, pi / 4] as the nearest floats, computed in words of 128 bits.
constexpr cos_sin nearest_float_cos_sin(uint192 turn, double m) {
  const auto [sine, exponent, half_versine] = fixed_sine_cosine<uint128>(turn);
  // One unit less than computed: cos x is less than 1, however small x is.
  constexpr uint128 below_one = {~std::uint64_t{0} >> 1, ~std::uint64_t{0}};
  return {nearest_float(below_one - half_versine, -127, m), nearest_float(sine, exponent, m)};
}

/// m cos and m sin of an angle of at most an eighth of a turn, not yet rounded to S. A double has a relative
/// error of 2^-52. Where that does not decide which of two floats is nearer, words of 128 bits do.
template <class S>
EIGEN_ALWAYS_INLINE constexpr cos_sin scaled_cos_sin(uint192 turn, double m) {
  const cos_sin value = double_cos_sin(turn);
  const double cos = m * value.cos, sin = m * value.sin;
  if (std::is_same_v<S, double> || turn == uint192{} ||
      (rounds_to_one_float(cos, 4) && rounds_to_one_float(sin, 4)))
    return {cos, sin};
  return nearest_float_cos_sin(turn, m);
}

}  // namespace detail

/// cos and sin of a phase: the nearest floats (S = float), or doubles.
///
/// Integer arithmetic removes the nearest quarter turn, which leaves an angle x in [-pi/4, pi/4], and
/// computes sin x and cos x (detail/fixed_sine_cosine.hpp).
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
