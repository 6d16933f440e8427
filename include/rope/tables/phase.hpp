// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_PHASE_HPP
#define ROPE_TABLES_PHASE_HPP

#include <bit>  // std::countl_zero
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>

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
/// small as inv_freq * position: below 2^-128 rad the angle is multiplied instead of counted
/// (detail/small_angles.hpp).

namespace rope {
inline namespace ROPE_ABI {

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
  friend constexpr phase operator*(phase step, std::int64_t position) {
    const bool negative = position < 0;
    const std::uint64_t count =
        negative ? 0 - static_cast<std::uint64_t>(position) : static_cast<std::uint64_t>(position);
    const detail::uint192 turned = detail::multiply(step.turn, count);
    return {negative ? -turned : turned};
  }
};

namespace detail {

/// |x| = significand * 2^exponent of a finite double, exactly.
struct binary {
  std::uint64_t significand;
  int exponent;
};

inline binary binary_of(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t fraction = bits & 0x000fffffffffffffu;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  return exponent == 0 ? binary{fraction, -1074} : binary{fraction | 0x0010000000000000u, exponent - 1075};
}

/// |inv_freq * coordinate| / (2 pi) turns as a binary number, at most 2^-384 |inv_freq * coordinate| too
/// small.
class binary_turns {
 public:
  binary_turns(double inv_freq, double coordinate) {
    // 1 / (2 pi) in 384 bits, the least significant word first.
    constexpr std::uint64_t inverse_two_pi[6] = {0x01924bba82746487u, 0x6dc91b8e909374b8u,
                                                 0x7f9458eaf7aef158u, 0x36d8a5664f10e410u,
                                                 0x7f09d5f47d4d3770u, 0x28be60db9391054au};
    // |inv_freq * coordinate| = significand * 2^exponent, exactly, with a significand of 106 bits.
    const binary f = binary_of(inv_freq), c = binary_of(coordinate);
    const uint128 significand = multiply(f.significand, c.significand);
    unit_ = f.exponent + c.exponent - 384;
    const std::uint64_t factors[2] = {significand.lo, significand.hi};
    for (int i = 0; i < 2; ++i) {
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

 private:
  std::uint64_t words_[9] = {};  // eight words, and zeros for what lies above them
  int unit_;                     // the lowest bit is 2^unit turns: at most -361
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
  const detail::binary_turns turns(inv_freq, coordinate);
  const phase cut = {{turns.word_from(-64), turns.word_from(-128), turns.word_from(-192)}};
  const phase rounded = cut + phase{{0, 0, turns.word_from(-256) >> 63}};
  return (inv_freq < 0) != (coordinate < 0) ? -rounded : rounded;
}

namespace detail {

/// Whether a position is beyond 2^31, up to which steps that are rounded to 2^-192 turn are exact enough.
constexpr bool beyond_steps(std::int64_t position) {
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  return position > reach || position < -reach;
}

/// Whether a step has too few bits above 2^-192 turn to be counted: fewer than 61.
inline bool slower_than_steps(double inv_freq) { return (std::abs)(inv_freq) < 0x1p-128; }

}  // namespace detail

/// The phase at an integer position, which a table of positions and one of coordinates count in the same way:
/// in steps, up to 2^31 in magnitude, and as an exact product beyond it and for an inv_freq below 2^-128.
///
/// Requires:  step == phase_of(inv_freq)
/// Accuracy:  2^-162 turn up to 2^31, 2^-191 turn beyond
inline phase phase_at(phase step, double inv_freq, std::int64_t position) {
  if (!detail::beyond_steps(position) && !detail::slower_than_steps(inv_freq)) return step * position;
  const bool negative = position < 0;
  const std::uint64_t distance =
      negative ? 0 - static_cast<std::uint64_t>(position) : static_cast<std::uint64_t>(position);
  // Both parts are doubles, and together they are the distance.
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

/// sum_k (-1)^k z^k / (2 k + offset)!  for k = first .. last: the tails of the Taylor series of sin (offset
/// 1) and cos (offset 0) in z = x^2. For |x| <= pi / 4 a term is at most 0.05 of the one before.
template <int offset, int first, int last>
constexpr double taylor(double z) {
  constexpr double factorial = [] {
    double product = 1;
    for (int n = 2; n <= 2 * first + offset; ++n) product *= n;
    return product;
  }();
  constexpr double coefficient = (first % 2 == 0 ? 1 : -1) / factorial;
  if constexpr (first == last)
    return coefficient;
  else
    return coefficient + z * taylor<offset, first + 1, last>(z);
}

/// The value itself, through memory: -ffast-math cannot regroup a sum across it, which would round large
/// terms first.
inline double grouped(double value) {
  volatile double stored = value;
  return stored;
}

/// An angle in [0, pi / 4] as head + tail [rad]. The head has at most 26 bits, so that its square is exact in
/// double without any error compensation, which -ffast-math would remove; the tail has the 53 bits after
/// them.
struct small_angle {
  double head;
  double tail;
};

/// 2^exponent, a normal number.
constexpr double scale_of_bits(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// Enough for a float result: head alone, relative error below 2^-51 as long as the angle is above 2^-64
/// turn, from its upper 128 bits.
EIGEN_ALWAYS_INLINE double angle_for_float(uint128 turn) {
  constexpr double radians = 2 * std::numbers::pi * 0x1p-64;
  return (static_cast<double>(static_cast<std::int64_t>(turn.hi)) +
          static_cast<double>(static_cast<std::int64_t>(turn.lo >> 1)) * 0x1p-63) *
         radians;
}

/// Enough for a double result: turn * 2 pi in integers, cut into head and tail.
inline small_angle angle_for_double(uint192 turn) {
  constexpr uint128 two_pi = {0xc90fdaa22168c234u, 0xc4c6628b80dc1cd1u};  // 2 pi * 2^125
  int shift = 0;
  for (; turn.hi == 0; shift += 64) {
    if (turn.mid == 0 && turn.lo == 0) return {0, 0};
    turn = {turn.mid, turn.lo, 0};
  }
  const int zeros = std::countl_zero(turn.hi);
  if (zeros > 0)
    turn = {(turn.hi << zeros) | (turn.mid >> (64 - zeros)), (turn.mid << zeros) | (turn.lo >> (64 - zeros)),
            0};
  const uint128 angle = multiply_upper({turn.hi, turn.mid}, two_pi);  // in 2^-(125 + shift + zeros) rad
  const std::uint64_t below = (angle.hi << 26) | (angle.lo >> 38);
  const int unit = -125 - shift - zeros;
  return {static_cast<double>(static_cast<std::int64_t>(angle.hi >> 38)) * scale_of_bits(unit + 102),
          static_cast<double>(static_cast<std::int64_t>(below >> 1)) * scale_of_bits(unit + 39)};
}

/// The number of the nearest quarter turn, modulo 2^64.
constexpr std::uint64_t nearest_quadrant(std::uint64_t turn_hi) {
  constexpr std::uint64_t eighth = std::uint64_t{1} << 61;
  return (turn_hi + eighth) >> 62;
}

/// cos and sin of an angle from those of its distance to the nearest quarter turn.
EIGEN_ALWAYS_INLINE cos_sin in_quadrant(std::uint64_t quadrant, bool negative, cos_sin distance) {
  const double c = distance.cos, s = negative ? -distance.sin : distance.sin;
  const bool swapped = (quadrant & 1) != 0;
  const double cos = swapped ? s : c, sin = swapped ? c : s;
  return {((quadrant + 1) & 2) != 0 ? -cos : cos, (quadrant & 2) != 0 ? -sin : sin};
}

/// cos and sin of an angle x [rad] in [0, pi / 4], to 2^-21 ulp of float. Inline, as what is done before and
/// after: where GCC called it for every pair, rows took 4.7 times as long (Zen 5, AVX-512).
EIGEN_ALWAYS_INLINE cos_sin float_cos_sin(double x) {
  const double z = x * x;
  return {1 + z * taylor<0, 1, 7>(z), x + x * z * taylor<1, 1, 6>(z)};
}

/// cos and sin of an angle in [0, pi / 4], to be rounded to double by the last addition.
inline cos_sin double_cos_sin(small_angle x) {
  // With x = h + t: cos x = cos h - t (sin h + t cos h / 2), sin x = sin h + t (cos h - t sin h / 2), up to
  // t^3.
  const auto [h, t] = x;
  const double z = h * h, cos_rest = z * z * taylor<0, 2, 9>(z), sin_rest = h * z * taylor<1, 1, 8>(z);
  const double cos_h = 1 - 0.5 * z + cos_rest, sin_h = h + sin_rest;
  return {1 - grouped(0.5 * z - grouped(cos_rest - t * (sin_h + 0.5 * t * cos_h))),
          h + grouped(sin_rest + t * (cos_h - 0.5 * t * sin_h))};
}

}  // namespace detail

/// cos and sin of a phase, to be rounded to S by storing them.
///
/// The nearest quarter turn is removed in integers, which leaves an angle x in [-pi/4, pi/4]; there the
/// Taylor series of sin x and cos x need no more than ten terms.
///
/// Accuracy:  S = float: 2^-21 ulp of float before the final rounding; S = double: 1.05 ulp with that
///            rounding, also under -ffast-math (tests/oracle/table.test.cpp)
template <class S>
inline cos_sin cos_sin_of(phase p) {
  const std::uint64_t quadrant = detail::nearest_quadrant(p.turn.hi);
  const detail::uint192 rest = {p.turn.hi - (quadrant << 62), p.turn.mid, p.turn.lo};
  const bool negative = static_cast<std::int64_t>(rest.hi) < 0;
  const detail::uint192 magnitude = negative ? -rest : rest;
  cos_sin value;
  if (!std::is_same_v<S, float>) {
    value = detail::double_cos_sin(detail::angle_for_double(magnitude));
  } else if (magnitude.hi != 0) {
    value = detail::float_cos_sin(detail::angle_for_float({magnitude.hi, magnitude.mid}));
  } else {
    const auto [head, tail] = detail::angle_for_double(magnitude);
    value = detail::float_cos_sin(head + tail);
  }
  return detail::in_quadrant(quadrant, negative, value);
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_PHASE_HPP
