// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_DETAIL_INVERSE_POWER_HPP
#define ROPE_FREQUENCIES_DETAIL_INVERSE_POWER_HPP

#include <cmath>

#include <rope/config.hpp>

/// The power that every schedule is made of.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// base^(-numerator / denominator) for small non-negative integers.
///
/// The quotient x is rounded, and the rounding would be magnified by ln(base): with residual r of the
/// division, base^-(x + r) = base^-x * (1 - r ln(base)), up to terms far below an ulp. That matters where
/// long double is double.
inline long double inverse_power(long double base, Index numerator, Index denominator) {
  const auto n = static_cast<long double>(numerator), d = static_cast<long double>(denominator);
  const long double x = n / d;
  const long double residual = std::fma(-x, d, n) / d;
  const long double power = std::pow(base, -x);
  return power - power * (residual * std::log(base));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_FREQUENCIES_DETAIL_INVERSE_POWER_HPP
