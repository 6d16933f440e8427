// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_WIDE_HPP
#define ROPE_TESTS_WIDE_HPP

/// The number type of oracles, with 64 bits or more: long double if it has them. Otherwise, as with MSVC and
/// on macOS for arm64, the sum of two doubles. Also in WebAssembly, where long double has 113 bits and its C
/// library computes exp, log and pow of it in double, and with MinGW, whose cosl and sinl reduce an angle with
/// 66 bits of pi. ROPE_TEST_DOUBLE_DOUBLE selects the sum on any platform.
///
/// Calls are testing::cos(x) and so on, which accept either and every type that std::cos accepts.

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <numbers>
#include <ostream>
#include <type_traits>
#include <utility>

namespace testing {

/// high + low with |low| <= ulp(high) / 2: 106 bits in the range of double.
///
/// Sums and products are Dekker's and Knuth's. Compiled with -ffast-math the low part is lost.
struct double_double {
  double high = 0, low = 0;

  constexpr double_double() = default;
  constexpr double_double(double value) : high(value) {}
  constexpr double_double(double h, double l) : high(h), low(l) {}
  /// A long double, or an integer of up to 64 bits: both are the sum of their nearest double and another
  /// double.
  template <class T>
  requires(std::is_arithmetic_v<T>) constexpr double_double(T value) : high(static_cast<double>(value)) {
    if constexpr (std::is_floating_point_v<T>) {
      low = static_cast<double>(value - static_cast<T>(high));
    } else if constexpr (sizeof(T) > 4) {
      // Halves of 32 bits are doubles, and so is the rounding error of their sum.
      const double upper = static_cast<double>(value >> 32) * 0x1p32,
                   lower = static_cast<double>(static_cast<std::uint32_t>(value & 0xffffffff));
      high = upper + lower;
      low = lower - (high - upper);
    }
  }
  /// Types that are not arithmetic but convert to float, as the 16-bit types.
  template <class T>
  requires(!std::is_arithmetic_v<T> && !std::is_same_v<T, double_double> &&
           requires(const T& x) { static_cast<float>(x); }) explicit constexpr double_double(const T& value)
      : high(static_cast<double>(static_cast<float>(value))) {}

  template <class T>
  requires(std::is_arithmetic_v<T>) explicit constexpr operator T() const {
    return static_cast<T>(high) + static_cast<T>(low);
  }

  friend constexpr double_double operator-(const double_double& a) { return {-a.high, -a.low}; }
  friend constexpr double_double operator+(const double_double& a) { return a; }
  friend double_double operator+(const double_double& a, const double_double& b) {
    const auto [s, e] = sum(a.high, b.high);
    if (!std::isfinite(s)) return s;
    const auto [t, f] = sum(a.low, b.low);
    const auto [u, g] = ordered_sum(s, e + t);
    return ordered_sum(u, g + f);
  }
  friend double_double operator-(const double_double& a, const double_double& b) { return a + -b; }
  friend double_double operator*(const double_double& a, const double_double& b) {
    const double p = a.high * b.high;
    if (!std::isfinite(p) || p == 0) return p;
    return ordered_sum(p, std::fma(a.high, b.high, -p) + (a.high * b.low + a.low * b.high));
  }
  friend double_double operator/(const double_double& a, const double_double& b) {
    const double q = a.high / b.high;
    if (!std::isfinite(q) || !std::isfinite(b.high)) return q;
    const double_double rest = a - b * q;
    const double r = rest.high / b.high;
    return ordered_sum(q, r) + (rest - b * r).high / b.high;
  }
  double_double& operator+=(const double_double& b) { return *this = *this + b; }
  double_double& operator-=(const double_double& b) { return *this = *this - b; }
  double_double& operator*=(const double_double& b) { return *this = *this * b; }
  double_double& operator/=(const double_double& b) { return *this = *this / b; }

  friend constexpr bool operator==(const double_double& a, const double_double& b) {
    return a.high == b.high && a.low == b.low;
  }
  friend constexpr bool operator!=(const double_double& a, const double_double& b) { return !(a == b); }
  friend constexpr bool operator<(const double_double& a, const double_double& b) {
    return a.high < b.high || (a.high == b.high && a.low < b.low);
  }
  friend constexpr bool operator>(const double_double& a, const double_double& b) { return b < a; }
  friend constexpr bool operator<=(const double_double& a, const double_double& b) { return a < b || a == b; }
  friend constexpr bool operator>=(const double_double& a, const double_double& b) { return b <= a; }
  friend std::ostream& operator<<(std::ostream& out, const double_double& x) { return out << x.high; }

 private:
  static double_double ordered_sum(double a, double b) {  // |a| >= |b|
    const double s = a + b;
    return {s, b - (s - a)};
  }
  static double_double sum(double a, double b) {
    const double s = a + b, part = s - a;
    return {s, (a - (s - part)) + (b - part)};
  }
};

#if !defined(ROPE_TEST_DOUBLE_DOUBLE) && !defined(__wasm__) && !defined(__MINGW32__)
using wide = std::conditional_t<(std::numeric_limits<long double>::digits >= 64), long double, double_double>;
#else
using wide = double_double;
#endif

namespace constants {
inline constexpr double_double pi = {0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53};
inline constexpr double_double ln2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
}  // namespace constants

inline constexpr wide pi = [] {
  if constexpr (std::is_same_v<wide, long double>)
    return 3.14159265358979323846264338327950288L;  // that of libc++ has the digits of double
  else
    return constants::pi;
}();

using std::abs, std::acos, std::ceil, std::cos, std::exp, std::exp2, std::floor, std::hypot, std::ilogb,
    std::ldexp, std::log, std::log10, std::log1p, std::log2, std::pow, std::round, std::sin, std::sqrt,
    std::tanh;

inline double_double abs(const double_double& x) { return x.high < 0 ? -x : x; }
inline double_double ldexp(const double_double& x, int n) {
  return {std::ldexp(x.high, n), std::ldexp(x.low, n)};
}
/// A power of two with a negative low part has an exponent that is one less.
inline int ilogb(const double_double& x) {
  const int exponent = std::ilogb(x.high);
  return abs(x) < double_double(std::ldexp(1.0, exponent)) ? exponent - 1 : exponent;
}
inline double_double floor(const double_double& x) {
  const double high = std::floor(x.high);
  return high == x.high ? double_double(high) + std::floor(x.low) : double_double(high);
}
inline double_double ceil(const double_double& x) { return -floor(-x); }
inline double_double round(const double_double& x) { return floor(x + 0.5); }

/// One Newton step, which doubles the digits of the double root.
inline double_double sqrt(const double_double& x) {
  if (!(x.high > 0) || !std::isfinite(x.high)) return std::sqrt(x.high);
  const double root = std::sqrt(x.high);
  return root + (x - double_double(root) * root) / (2 * root);
}
inline double_double hypot(const double_double& a, const double_double& b) {
  const double_double larger = std::max(abs(a), abs(b));
  if (larger == 0 || !std::isfinite(larger.high)) return larger;
  const int exponent = ilogb(larger);
  const double_double x = ldexp(a, -exponent), y = ldexp(b, -exponent);
  return ldexp(sqrt(x * x + y * y), exponent);
}

/// exp(x) = 2^k (1 + p)^512 with e^r = 1 + p for |r| < ln 2 / 1024: a series of eight terms, squared nine
/// times.
inline double_double exp(const double_double& x) {
  if (!(std::abs(x.high) < 700)) return std::exp(x.high);
  const double k = std::floor(x.high / std::numbers::ln2 + 0.5);
  const double_double r = ldexp(x - constants::ln2 * k, -9);
  double_double p = 0;
  for (int n = 9; n >= 1; --n) p = (p + 1) * r / n;
  for (int i = 0; i < 9; ++i) p = ldexp(p, 1) + p * p;
  return ldexp(p + 1, static_cast<int>(k));
}
inline double_double exp2(const double_double& x) {
  const double_double whole = floor(x);
  if (!(std::abs(whole.high) < 1e6)) return std::exp2(x.high);
  return ldexp(exp((x - whole) * constants::ln2), static_cast<int>(whole.high));
}
/// One Newton step on exp(y) = x.
inline double_double log(const double_double& x) {
  if (!(x.high > 0) || !std::isfinite(x.high)) return std::log(x.high);
  const int exponent = std::ilogb(x.high);
  const double_double mantissa = ldexp(x, -exponent), y = std::log(mantissa.high);
  return constants::ln2 * exponent + (y + (mantissa * exp(-y) - 1));
}
/// log(1 + x), corrected by the part of x that 1 + x drops.
inline double_double log1p(const double_double& x) {
  const double_double y = 1 + x;
  return y == 1 ? x : log(y) * (x / (y - 1));
}
inline double_double log2(const double_double& x) { return log(x) / constants::ln2; }
inline double_double log10(const double_double& x) { return log(x) / log(double_double(10)); }
inline double_double pow(const double_double& x, const double_double& y) {
  if (y == 0) return 1;
  return x.high > 0 ? exp(y * log(x)) : double_double(std::pow(x.high, y.high));
}
/// (e^2x - 1) / (e^2x + 1), or its series if that would cancel.
inline double_double tanh(const double_double& x) {
  if (std::abs(x.high) > 40) return x.high > 0 ? 1 : -1;
  if (std::abs(x.high) < 1e-9) return x - x * x * x / 3;
  const double_double e = exp(ldexp(x, 1));
  return (e - 1) / (e + 1);
}

/// cos and sin accept angles below two to this power: a C library reduces a long double exactly, while two
/// doubles of pi leave an error of 2^-107 of a multiple of it.
inline constexpr int angle_exponent = std::is_same_v<wide, long double> ? 62 : 30;

/// cos and sin of x minus the nearest multiple of pi / 2, by their series.
inline std::array<double_double, 2> cos_sin(const double_double& x) {
  const double quarters = std::floor(x.high / (std::numbers::pi / 2) + 0.5);
  if (!(std::abs(quarters) < 0x1p53)) return {std::cos(x.high), std::sin(x.high)};
  const double_double r = x - ldexp(constants::pi, -1) * quarters, z = -(r * r);
  double_double c = 0, s = 0;
  for (int n = 28; n >= 2; n -= 2) {
    c = (c + 1) * z / (n * (n - 1));
    s = (s + 1) * z / (n * (n + 1));
  }
  c = c + 1, s = (s + 1) * r;
  switch (static_cast<std::int64_t>(quarters) & 3) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}
inline double_double cos(const double_double& x) { return cos_sin(x)[0]; }
inline double_double sin(const double_double& x) { return cos_sin(x)[1]; }

/// Raises `worst` to `off`. A NaN counts as infinite; std::max would ignore it.
template <class T>
void raise_to(T& worst, const std::type_identity_t<T>& off) {
  if (!(off <= worst)) worst = off >= T(0) ? off : T(std::numeric_limits<double>::infinity());
}

}  // namespace testing

template <>
class std::numeric_limits<testing::double_double> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false,
                        has_infinity = true;
  static constexpr int digits = 106, digits10 = 31, max_digits10 = 33, radix = 2;
  static constexpr testing::double_double infinity() { return std::numeric_limits<double>::infinity(); }
  static constexpr testing::double_double max() { return (std::numeric_limits<double>::max)(); }
  static constexpr testing::double_double lowest() { return std::numeric_limits<double>::lowest(); }
  static constexpr testing::double_double epsilon() { return 0x1p-105; }
};

#endif  // ROPE_TESTS_WIDE_HPP
