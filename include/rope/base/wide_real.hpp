// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_WIDE_REAL_HPP
#define ROPE_BASE_WIDE_REAL_HPP

#include <array>
#include <bit>  // std::countl_zero
#include <compare>
#include <concepts>  // std::integral
#include <cstdint>
#include <utility>  // std::swap

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// The number type of schedules. long double has 64 bits on some processors and 53 or 113 on others, and each
/// C library has its own exp and log. Schedules must depend on neither.
///
/// Unsigned integers of 128 and 192 bits, with the operations that exact angles need.

namespace rope::inline ROPE_ABI::detail {

/// hi * 2^64 + lo. Every operation is modulo 2^128.
struct uint128 {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;

  friend constexpr bool operator==(const uint128&, const uint128&) = default;
  friend constexpr std::strong_ordering operator<=>(const uint128& a, const uint128& b) {
    return a.hi != b.hi ? a.hi <=> b.hi : a.lo <=> b.lo;
  }
  friend constexpr uint128 operator+(uint128 a, uint128 b) {
    const std::uint64_t sum = a.lo + b.lo;
    return {a.hi + b.hi + (sum < a.lo ? 1u : 0u), sum};
  }
  friend constexpr uint128 operator-(uint128 a) { return uint128{~a.hi, ~a.lo} + uint128{0, 1}; }
  friend constexpr uint128 operator-(uint128 a, uint128 b) {
    return {a.hi - b.hi - (a.lo < b.lo ? 1u : 0u), a.lo - b.lo};
  }
  /// Requires: places in [0, 127]
  friend constexpr uint128 operator<<(uint128 a, int places) {
    if (places >= 64) return {a.lo << (places - 64), 0};
    return {(a.hi << places) | (a.lo >> 1 >> (63 - places)), a.lo << places};
  }
  /// Requires: places in [0, 127]
  friend constexpr uint128 operator>>(uint128 a, int places) {
    if (places >= 64) return {0, a.hi >> (places - 64)};
    return {a.hi >> places, (a.lo >> places) | (a.hi << 1 << (63 - places))};
  }
};

/// hi * 2^128 + mid * 2^64 + lo. Every operation is modulo 2^192.
struct uint192 {
  std::uint64_t hi = 0;
  std::uint64_t mid = 0;
  std::uint64_t lo = 0;

  friend constexpr bool operator==(const uint192&, const uint192&) = default;
  friend constexpr uint192 operator+(uint192 a, uint192 b) {
    const std::uint64_t low = a.lo + b.lo, middle = a.mid + b.mid;
    const std::uint64_t carry = low < a.lo ? 1u : 0u, sum = middle + carry;
    // The two carries out of the middle exclude each other.
    return {a.hi + b.hi + (middle < a.mid ? 1u : 0u) + (sum < middle ? 1u : 0u), sum, low};
  }
  friend constexpr uint192 operator-(uint192 a) {
    const std::uint64_t carry = a.lo == 0 ? 1u : 0u;
    return {~a.hi + (a.lo == 0 && a.mid == 0 ? 1u : 0u), ~a.mid + carry, 0 - a.lo};
  }
};

/// -a if all bits of `sign` are set, a if none is. Has no branch.
constexpr uint192 negate_if(std::uint64_t sign, uint192 a) {
  return uint192{a.hi ^ sign, a.mid ^ sign, a.lo ^ sign} + uint192{0, 0, sign & 1};
}

/// The number of zero bits before the highest set bit.
constexpr int leading_zeros(uint128 a) {
  return a.hi != 0 ? std::countl_zero(a.hi) : 64 + std::countl_zero(a.lo);
}

/// a * b from four products of 32-bit halves: the portable version of `multiply`.
constexpr uint128 multiply_halves(std::uint64_t a, std::uint64_t b) {
  constexpr std::uint64_t low = 0xffffffffu;
  const std::uint64_t aa = a & low, ab = a >> 32, ba = b & low, bb = b >> 32;
  const std::uint64_t ll = aa * ba, lh = aa * bb, hl = ab * ba, hh = ab * bb;
  const std::uint64_t middle = (ll >> 32) + (lh & low) + (hl & low);
  return {hh + (lh >> 32) + (hl >> 32) + (middle >> 32), (middle << 32) | (ll & low)};
}

/// a * b, all 128 bits.
constexpr uint128 multiply(std::uint64_t a, std::uint64_t b) {
#if defined(__SIZEOF_INT128__)
  __extension__ using native = unsigned __int128;
  const native product = static_cast<native>(a) * b;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product)};
#else
  return multiply_halves(a, b);
#endif
}

/// a * b modulo 2^192.
constexpr uint192 multiply(uint192 a, std::uint64_t b) {
  const uint128 low = multiply(a.lo, b), middle = multiply(a.mid, b);
  const uint128 upper = middle + uint128{a.hi * b, low.hi};
  return {upper.hi, upper.lo, low.lo};
}

/// a / divisor, rounded down.
constexpr uint128 divide(uint128 a, std::uint32_t divisor) {
  constexpr std::uint64_t low = 0xffffffffu;
  const std::uint64_t first = a.hi % divisor << 32 | a.lo >> 32;
  const std::uint64_t second = first % divisor << 32 | (a.lo & low);
  return {a.hi / divisor, (first / divisor) << 32 | second / divisor};
}

/// The upper half of a product.
constexpr std::uint64_t multiply_upper(std::uint64_t a, std::uint64_t b) { return multiply(a, b).hi; }

/// The upper 128 bits of the 256-bit product, at most 2 below the exact floor, because carries out of the
/// lowest partial products are ignored. No caller needs the lost bits.
constexpr uint128 multiply_upper(uint128 a, uint128 b) {
  const uint128 top = multiply(a.hi, b.hi);
  return top + uint128{0, multiply(a.hi, b.lo).hi} + uint128{0, multiply(a.lo, b.hi).hi};
}

/// |x| = significand * 2^exponent, exactly, of a finite double x.
struct binary {
  std::uint64_t significand;
  int exponent;
};

constexpr binary binary_of(double x) {
  const auto bits = bit_cast<std::uint64_t>(x);
  const std::uint64_t fraction = bits & 0x000fffffffffffffu;
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  return exponent == 0 ? binary{fraction, -1074} : binary{fraction | 0x0010000000000000u, exponent - 1075};
}

/// |x| of an integer.
constexpr binary binary_of(std::int64_t x) {
  return {x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x), 0};
}

}  // namespace rope::inline ROPE_ABI::detail

namespace rope::inline ROPE_ABI {

/// A real number of 128 significant bits, computed in integers. A schedule computed with it has the same bits
/// on every processor, with every compiler, flag (-ffast-math, x87) and C library.
///
///     const wide_real third = wide_real(1) / 3;
///     const auto nearest = static_cast<double>(pow(third, 0.5));
///
/// Integers and doubles convert to it exactly, so `2 * x` and `x / 0.5` have no error of conversion.
///
/// Invariant: significand is 0, or its highest bit is set. A number of at least 2^1048703, a quotient by 0,
///            and sums and products with such numbers are infinite. A number below 2^-1048448 is 0
/// Accuracy:  relative errors below 2^-125 of + - * / (of the larger operand if digits cancel), 2^-119 of
///            log (absolute if |log x| < 1), and in the range of double 2^-117 of exp and 2^-115 of pow
///            (tests/oracle/wide_real.test.cpp)
class wide_real {
 public:
  /// 0.
  constexpr wide_real() = default;
  /// An integer, exactly.
  template <std::integral Integer>
  constexpr wide_real(Integer x)
      : wide_real(x < 0, {0, x < 0 ? 0 - static_cast<std::uint64_t>(x) : static_cast<std::uint64_t>(x)}, 0) {}
  /// A double, exactly. Infinity and NaN become infinite.
  constexpr wide_real(double x) {
    const bool negative = detail::bit_cast<std::uint64_t>(x) >> 63 != 0;
    const auto [significand, exponent] = detail::binary_of(x);
    *this = detail::is_finite(x) ? wide_real(negative, {0, significand}, exponent) : infinite(negative);
  }
  /// pi.
  static constexpr wide_real pi() { return {false, {0xc90fdaa22168c234u, 0xc4c6628b80dc1cd1u}, -126}; }

  /// The nearest double, ties to even, including subnormals. Infinity above the range of double.
  explicit constexpr operator double() const {
    constexpr std::uint64_t infinity = std::uint64_t{0x7ff} << 52;
    const int first = exponent_ + 127;  // exponent of the highest bit
    std::uint64_t bits = 0;
    if (first > 1023) {
      bits = infinity;
    } else if (first >= -1075) {
      const int unit = first < -1022 ? -1074 : first - 52, dropped = unit - exponent_;
      const detail::uint128 kept = shifted(significand_, dropped);
      const detail::uint128 rest = significand_ - (dropped > 127 ? detail::uint128{} : kept << dropped);
      const detail::uint128 half = detail::uint128{0, 1} << (dropped - 1);
      const bool up = half < rest || (rest == half && kept.lo % 2 == 1);
      // If rounding up overflows the significand, the carry correctly increments the exponent.
      bits = (first < -1022 ? 0 : static_cast<std::uint64_t>(first + 1022) << 52) + kept.lo + (up ? 1 : 0);
    }
    return detail::bit_cast<double>(bits | static_cast<std::uint64_t>(negative_) << 63);
  }

  /// Whether the number is at least 2^1048703 or comes from a division by 0.
  constexpr bool is_infinite() const { return exponent_ >= too_large; }

  friend constexpr wide_real operator-(wide_real x) {
    x.negative_ = !x.negative_ && x.significand_ != detail::uint128{};
    return x;
  }
  friend constexpr wide_real operator+(wide_real a, wide_real b) {
    if (a.exponent_ < b.exponent_) std::swap(a, b);
    if (a.is_infinite()) return a;
    const detail::uint128 addend = shifted(b.significand_, a.exponent_ - b.exponent_);
    if (a.negative_ != b.negative_)
      return a.significand_ < addend ? wide_real(b.negative_, addend - a.significand_, a.exponent_)
                                     : wide_real(a.negative_, a.significand_ - addend, a.exponent_);
    const detail::uint128 sum = a.significand_ + addend;
    if (!(sum < addend)) return {a.negative_, sum, a.exponent_};
    return {a.negative_, (sum >> 1) + (detail::uint128{0, 1} << 127), a.exponent_ + 1};
  }
  friend constexpr wide_real operator-(wide_real a, wide_real b) { return a + -b; }
  friend constexpr wide_real operator*(wide_real a, wide_real b) {
    const bool negative = a.negative_ != b.negative_;
    if (a.is_infinite() || b.is_infinite()) return infinite(negative);
    // All 256 bits, rounded to the nearest 128 bits, so that a factor of 1 changes nothing.
    const detail::uint128 x = a.significand_, y = b.significand_, low = detail::multiply(x.lo, y.lo),
                          first = detail::multiply(x.hi, y.lo), second = detail::multiply(x.lo, y.hi),
                          middle = detail::uint128{0, low.hi} + detail::uint128{0, first.lo} +
                                   detail::uint128{0, second.lo};
    const detail::uint128 upper = detail::multiply(x.hi, y.hi) + detail::uint128{0, first.hi} +
                                  detail::uint128{0, second.hi} + detail::uint128{0, middle.hi};
    const int zeros = upper.hi >> 63 != 0 ? 0 : 1;
    const detail::uint128 kept = zeros == 0 ? upper : (upper << 1) + detail::uint128{0, middle.lo >> 63};
    const detail::uint128 rounded = kept + detail::uint128{0, middle.lo << zeros >> 63};
    if (rounded < kept) return {negative, detail::uint128{0, 1} << 127, a.exponent_ + b.exponent_ + 128};
    return {negative, rounded, a.exponent_ + b.exponent_ + 128 - zeros};
  }
  friend constexpr wide_real operator/(wide_real a, wide_real b) {
    const bool negative = a.negative_ != b.negative_;
    if (a.is_infinite() || b.significand_ == detail::uint128{}) return infinite(negative);
    if (b.is_infinite()) return {};
    const bool shorter = a.significand_ < b.significand_;  // then the first of 129 bits is 0 and skipped
    detail::uint128 quotient, rest = a.significand_;
    bool carry = shorter && rest.hi >> 63 != 0;  // bit 128 of the rest
    if (shorter) rest = rest << 1;
    for (int bit = 0;; ++bit) {
      const bool fits = carry || !(rest < b.significand_);
      if (bit == 128) {  // rounded to the nearest
        quotient = quotient + detail::uint128{0, fits ? 1u : 0u};
        break;
      }
      if (fits) rest = rest - b.significand_;
      quotient = (quotient << 1) + detail::uint128{0, fits ? 1u : 0u};
      carry = rest.hi >> 63 != 0;
      rest = rest << 1;
    }
    return {negative, quotient, a.exponent_ - b.exponent_ - 127 - (shorter ? 1 : 0)};
  }
  /// Adds to the number.
  constexpr wide_real& operator+=(wide_real x) { return *this = *this + x; }
  /// Subtracts from the number.
  constexpr wide_real& operator-=(wide_real x) { return *this = *this - x; }
  /// Multiplies the number.
  constexpr wide_real& operator*=(wide_real x) { return *this = *this * x; }
  /// Divides the number.
  constexpr wide_real& operator/=(wide_real x) { return *this = *this / x; }

  friend constexpr bool operator==(const wide_real&, const wide_real&) = default;
  friend constexpr std::strong_ordering operator<=>(const wide_real& a, const wide_real& b) {
    if (a.negative_ != b.negative_) return b.negative_ <=> a.negative_;
    const wide_real &smaller = a.negative_ ? b : a, &larger = a.negative_ ? a : b;  // by magnitude
    return smaller.exponent_ != larger.exponent_ ? smaller.exponent_ <=> larger.exponent_
                                                 : smaller.significand_ <=> larger.significand_;
  }

  /// The largest integer that is at most x.
  friend constexpr wide_real floor(wide_real x) {
    if (x.exponent_ >= 0) return x;
    if (x.exponent_ < -127) return x.negative_ ? -1 : 0;
    const wide_real cut = {x.negative_, x.significand_ >> -x.exponent_ << -x.exponent_, x.exponent_};
    return x.negative_ && cut != x ? cut - 1 : cut;
  }
  /// The smallest integer that is at least x.
  friend constexpr wide_real ceil(wide_real x) { return -floor(-x); }

  /// e^x.
  friend constexpr wide_real exp(wide_real x) {
    if (x.is_infinite() || x.exponent_ > 20 - 128)
      return x.negative_ ? wide_real() : infinite(false);  // |x| >= 2^20
    wide_real powers = floor(x / ln2()), rest = x - powers * ln2();
    if (rest.negative_ || rest >= ln2()) {  // x / ln 2 was rounded to an integer, or the product up
      const int step = rest.negative_ ? -1 : 1;
      powers += step;
      rest -= step * ln2();
    }
    // Computes e^(rest / 16) - 1 by Taylor's series in units of 2^-128, then squares it four times: each
    // squaring maps u = e^y - 1 to e^(2 y) - 1 = 2 u + u^2.
    const detail::uint128 y = shifted(rest.significand_, -rest.exponent_ - 128 + 4);
    detail::uint128 sum = inverse_factorials.back();
    for (std::size_t n = inverse_factorials.size() - 1; n-- > 0;)
      sum = inverse_factorials[n] + detail::multiply_upper(y, sum);
    detail::uint128 u = y + detail::multiply_upper(y, detail::multiply_upper(y, sum));
    for (int n = 0; n < 4; ++n) u = (u << 1) + detail::multiply_upper(u, u);
    const auto exponent = static_cast<int>(static_cast<double>(powers));
    return {false, (detail::uint128{0, 1} << 127) + (u >> 1), exponent - 127};
  }

  /// The natural logarithm.  Requires: x is positive; otherwise the result is infinite
  friend constexpr wide_real log(wide_real x) {
    if (x.is_infinite() || x.negative_ || x.significand_ == detail::uint128{}) return infinite(x < 1);
    // x = m 2^powers with m in [3/4, 3/2). y = ln m by Halley's method, which cubes the error and divides it
    // by 12 in every step. The errors are 0.1, 2^-13, 2^-43, 2^-133.
    int powers = x.exponent_ + 127;
    wide_real m = x;
    m.exponent_ = -127;
    if (m >= 1.5) {
      m.exponent_ = -128;
      ++powers;
    }
    wide_real y = m - 1;
    for (int step = 0; step < 3; ++step) {
      const wide_real power = exp(y);
      y += 2 * (m - power) / (m + power);
    }
    return powers * ln2() + y;
  }

  /// x^y.  Requires: x is positive
  friend constexpr wide_real pow(wide_real x, wide_real y) { return exp(y * log(x)); }

 private:
  static constexpr int too_large = 1 << 20;

  /// The value significand * 2^exponent, normalized.
  constexpr wide_real(bool negative, detail::uint128 significand, int exponent) {
    if (significand == detail::uint128{}) return;
    const int zeros = detail::leading_zeros(significand);
    significand_ = significand << zeros;
    exponent_ = exponent - zeros;
    negative_ = negative;
    if (exponent_ <= -too_large) *this = wide_real();
    if (exponent_ >= too_large) {
      significand_ = detail::uint128{0, 1} << 127;
      exponent_ = too_large;
    }
  }
  static constexpr wide_real infinite(bool negative) { return {negative, {0, 1}, 2 * too_large}; }
  static constexpr wide_real ln2() { return {false, {0xb17217f7d1cf79abu, 0xc9e3b39803f2f6afu}, -128}; }

  /// x / 2^places, rounded down.  Requires: places >= 0
  static constexpr detail::uint128 shifted(detail::uint128 x, int places) {
    return places > 127 ? detail::uint128{} : x >> places;
  }

  /// 2^128 / n! for n = 2, 3, ..., 19.
  static constexpr std::array<detail::uint128, 18> inverse_factorials = [] {
    std::array<detail::uint128, 18> list = {};
    list[0] = detail::uint128{0, 1} << 127;
    for (std::uint32_t n = 3; n < list.size() + 2; ++n) list[n - 2] = divide(list[n - 3], n);
    return list;
  }();

  detail::uint128 significand_ = {};
  int exponent_ = -too_large;  // the value is significand * 2^exponent; the lowest exponent for 0
  bool negative_ = false;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_WIDE_REAL_HPP
