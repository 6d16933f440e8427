// SPDX-License-Identifier: MIT
#include <rope/base/wide_real.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "oracle/number.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

/// Every function of wide_real against MPFR, all of its 128 bits.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using oracle::number;
using oracle::of;
using rope::wide_real;

/// The number of bits in which x agrees with `exact`, at most 128.
double bits_of(wide_real x, const number& exact) {
  number all;
  for (int part = 0; part < 4; ++part) {  // four doubles represent 128 bits
    const auto high = static_cast<double>(x);
    all = all + high;
    x -= high;
  }
  if (all == exact) return 128;
  const number error = of(mpfr_abs, (all - exact) / exact);
  return (std::min)(-of(mpfr_log2, error).rounded(), 128.0);
}

constexpr std::uint64_t seed = 43;
constexpr int samples = 20000;

}  // namespace

TEST_CASE("sums, products and quotients of 128 bits are those of MPFR", "[oracle]") {
  CAPTURE(seed);
  testing::random random(seed);
  double worst = 128;
  for (int sample = 0; sample < samples; ++sample) {
    const double x = random.scaled(-60, 60), y = random.scaled(-60, 60);
    const wide_real a = wide_real(x) / 3, b = wide_real(y) / 7;
    const number of_a = number(x) / 3, of_b = number(y) / 7, sum = of_a + of_b;
    worst = (std::min)(worst, bits_of(a, of_a));
    worst = (std::min)(worst, bits_of(a * b, of_a * of_b));
    worst = (std::min)(worst, bits_of(a / b, of_a / of_b));
    // A sum loses the bits that cancel.
    const double lost = (std::max)(std::ilogb(x), std::ilogb(y)) - std::ilogb(sum.rounded());
    worst = (std::min)(worst, bits_of(a + b, sum) + (std::max)(lost, 0.0));
  }
  CHECK(worst >= 123);
}

TEST_CASE("exponentials, logarithms and powers are those of MPFR", "[oracle]") {
  CAPTURE(seed);
  testing::random random(seed + 1);
  double of_exp = 128, of_log = 128, of_pow = 128;
  for (int sample = 0; sample < samples; ++sample) {
    const double x = random.scaled(-40, 8);
    of_exp = (std::min)(of_exp, bits_of(exp(wide_real(x) / 3), of(mpfr_exp, number(x) / 3)));

    const double positive = std::abs(random.scaled(-1000, 1000));
    const number exact = of(mpfr_log, number(positive) / 7);
    const double size = std::abs(exact.rounded());
    of_log =
        (std::min)(of_log, bits_of(log(wide_real(positive) / 7), exact) - (std::min)(0.0, std::log2(size)));

    const double base = 1 + std::abs(random.scaled(-10, 40)), power = random.scaled(-20, 3);
    of_pow = (std::min)(of_pow, bits_of(pow(wide_real(base), power), oracle::pow(base, power)));
  }
  CAPTURE(of_exp, of_log, of_pow);
  CHECK(of_exp >= 117);
  CHECK(of_log >= 119);
  CHECK(of_pow >= 115);
}
