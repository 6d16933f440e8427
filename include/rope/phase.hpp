// SPDX-License-Identifier: MIT
#ifndef ROPE_PHASE_HPP
#define ROPE_PHASE_HPP

#include <bit>  // std::countl_zero
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/exact.hpp>
#include <rope/detail/wide_integer.hpp>

/// Exact angles. position * inv_freq grows without bound while only its remainder modulo 2 pi matters, so a
/// floating-point angle loses one bit each time the position doubles. Here an angle is an integer count of
/// 2^-128 turns: multiplying by a position and dropping whole turns are then exact, at every position and
/// under every compiler flag, and one rounding to double happens after the reduction.

namespace rope {
inline namespace ROPE_ABI {

/// An angle as a fraction of one turn, in units of 2^-128 turn, modulo 1.
struct phase {
  detail::uint128 turn;

  friend constexpr bool operator==(const phase&, const phase&) = default;
  friend constexpr phase operator+(phase a, phase b) { return {a.turn + b.turn}; }
  friend constexpr phase operator-(phase a) { return {-a.turn}; }

  /// The phase after `position` equal steps; exact modulo one turn.
  friend constexpr phase operator*(phase step, std::int64_t position) {
    const bool negative = position < 0;
    const std::uint64_t count =
        negative ? 0 - static_cast<std::uint64_t>(position) : static_cast<std::uint64_t>(position);
    detail::uint128 turned = detail::multiply(step.turn.lo, count);
    turned.hi += step.turn.hi * count;
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

}  // namespace detail

/// The phase of the angle `inv_freq * coordinate` radians: the exact product over 2 pi, modulo 1.
///
///     phase = round(2^128 * frac(inv_freq * coordinate / (2 pi)))
///
/// With the default coordinate, the step of one position: `phase_of(f) * p` is the phase of pair f at
/// position p.
///
/// Requires:  both finite, |inv_freq| < 2^64, |coordinate| <= 2^64
/// Accuracy:  2^-128 turn while |inv_freq * coordinate| < 2^20
inline phase phase_of(double inv_freq, double coordinate = 1.0) {
  // 1 / (2 pi) in 256 bits, the least significant word first.
  constexpr std::uint64_t inverse_two_pi[4] = {0x7f9458eaf7aef158u, 0x36d8a5664f10e410u, 0x7f09d5f47d4d3770u,
                                               0x28be60db9391054au};
  if (detail::equal(inv_freq, 0) || detail::equal(coordinate, 0)) return {};
  // |inv_freq * coordinate| = significand * 2^exponent, exactly, with a significand of 106 bits.
  const detail::binary f = detail::binary_of(inv_freq), c = detail::binary_of(coordinate);
  const detail::uint128 significand = detail::multiply(f.significand, c.significand);
  const int exponent = f.exponent + c.exponent;

  // product = significand * inverse_two_pi, in units of 2^-256 turn * 2^exponent.
  std::uint64_t product[10] = {};  // eight words, and zeros for what lies above them
  const std::uint64_t factors[2] = {significand.lo, significand.hi};
  for (int i = 0; i < 2; ++i) {
    std::uint64_t carry = 0;
    for (int j = 0; j < 4; ++j) {
      const detail::uint128 sum = detail::multiply(factors[i], inverse_two_pi[j]) +
                                  detail::uint128{0, product[i + j]} + detail::uint128{0, carry};
      product[i + j] = sum.lo;
      carry = sum.hi;
    }
    product[i + 4] = carry;
  }

  const int shift = 256 - 128 - exponent;  // bits of the product below 2^-128 turn; at least 1 as required
  if (shift > 384) return {};
  const int word = (shift - 1) / 64, bit = (shift - 1) % 64;
  const auto from = [&product, word, bit](int w) {
    return (product[word + w] >> bit) | (product[word + w + 1] << 1 << (63 - bit));
  };
  const std::uint64_t low = from(0), middle = from(1), high = from(2);  // one bit to round by, then the 128
  const phase rounded =
      phase{{(high << 63) | (middle >> 1), (middle << 63) | (low >> 1)}} + phase{{0, low & 1u}};
  return (inv_freq < 0) != (coordinate < 0) ? -rounded : rounded;
}

namespace detail {

/// Whether a step rounded to 2^-128 turn, times the position, is off by more than an entry close to 0 bears.
constexpr bool outgrows_step(std::int64_t position) {
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  return position > reach || position < -reach;
}

}  // namespace detail

/// The phase at an integer position, which a table of positions and one of coordinates count in the same way:
/// in steps, up to 2^31 in magnitude, and as an exact product beyond.
///
/// Requires:  step == phase_of(inv_freq)
/// Accuracy:  2^-98 turn up to 2^31, 2^-127 turn beyond
inline phase phase_at(phase step, double inv_freq, std::int64_t position) {
  if (!detail::outgrows_step(position)) return step * position;
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
struct cos_sin {
  double cos;
  double sin;
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

/// Enough for a float result: head alone, relative error below 2^-51 as long as the angle is above 2^-60
/// turn.
inline double angle_for_float(uint128 turn) {
  constexpr double radians = 2 * std::numbers::pi * 0x1p-64;
  return (static_cast<double>(static_cast<std::int64_t>(turn.hi)) +
          static_cast<double>(static_cast<std::int64_t>(turn.lo >> 1)) * 0x1p-63) *
         radians;
}

/// Enough for a double result: turn * 2 pi in integers, cut into head and tail.
inline small_angle angle_for_double(uint128 turn) {
  if (turn == uint128{}) return {0, 0};
  constexpr uint128 two_pi = {0xc90fdaa22168c234u, 0xc4c6628b80dc1cd1u};  // 2 pi * 2^125
  int shift = 0;
  if (turn.hi == 0) {
    turn = {turn.lo, 0};
    shift = 64;
  }
  const int zeros = std::countl_zero(turn.hi);
  if (zeros > 0) turn = {(turn.hi << zeros) | (turn.lo >> (64 - zeros)), turn.lo << zeros};
  const uint128 angle = multiply_upper(turn, two_pi);  // in units of 2^-(125 + shift + zeros) rad
  const std::uint64_t below = (angle.hi << 26) | (angle.lo >> 38);
  const int unit = -125 - shift - zeros;
  return {std::ldexp(static_cast<double>(angle.hi >> 38), unit + 102),
          std::ldexp(static_cast<double>(below >> 1), unit + 39)};
}

}  // namespace detail

/// cos and sin of a phase, to be rounded to S by storing them.
///
/// The nearest quarter turn is removed in integers, which leaves an angle x in [-pi/4, pi/4]; there the
/// Taylor series of sin x and cos x need no more than ten terms.
///
/// Accuracy:  S = float: 2^-21 ulp of float before the final rounding; S = double: 1.05 ulp with that
/// rounding, also
///            under -ffast-math (tests/oracle/table.test.cpp)
template <class S>
inline cos_sin cos_sin_of(phase p) {
  constexpr std::uint64_t eighth = std::uint64_t{1} << 61;
  const std::uint64_t quadrant = (p.turn.hi + eighth) >> 62;
  const detail::uint128 rest = {p.turn.hi - (quadrant << 62), p.turn.lo};
  const bool negative = static_cast<std::int64_t>(rest.hi) < 0;
  const detail::uint128 magnitude = negative ? -rest : rest;

  double c, s;
  if constexpr (std::is_same_v<S, float>) {
    const double x = detail::angle_for_float(magnitude), z = x * x;
    c = 1 + z * detail::taylor<0, 1, 7>(z);
    s = x + x * z * detail::taylor<1, 1, 6>(z);
  } else {
    // With x = h + t: cos x = cos h - t (sin h + t cos h / 2), sin x = sin h + t (cos h - t sin h / 2), up to
    // t^3.
    const auto [h, t] = detail::angle_for_double(magnitude);
    const double z = h * h, cos_rest = z * z * detail::taylor<0, 2, 9>(z),
                 sin_rest = h * z * detail::taylor<1, 1, 8>(z);
    const double cos_h = 1 - 0.5 * z + cos_rest, sin_h = h + sin_rest;
    c = 1 - detail::grouped(0.5 * z - detail::grouped(cos_rest - t * (sin_h + 0.5 * t * cos_h)));
    s = h + detail::grouped(sin_rest + t * (cos_h - 0.5 * t * sin_h));
  }
  s = negative ? -s : s;
  const bool swapped = (quadrant & 1) != 0;
  const double cos = swapped ? s : c, sin = swapped ? c : s;
  return {((quadrant + 1) & 2) != 0 ? -cos : cos, (quadrant & 2) != 0 ? -sin : sin};
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_PHASE_HPP
