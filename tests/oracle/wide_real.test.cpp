// SPDX-License-Identifier: MIT
#include <rope/base/wide_real.hpp>

#include <mpfr.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "support/catch.hpp"
#include "support/random.hpp"

/// Every function of wide_real against MPFR, all of its 128 bits.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using rope::wide_real;

class number {
 public:
  number() { mpfr_init2(value_, 400); }
  number(double numerator, unsigned denominator) : number() {
    mpfr_set_d(value_, numerator, MPFR_RNDN);
    mpfr_div_ui(value_, value_, denominator, MPFR_RNDN);
  }
  number(const number&) = delete;
  number& operator=(const number&) = delete;
  ~number() { mpfr_clear(value_); }
  operator mpfr_ptr() { return value_; }

 private:
  mpfr_t value_;
};

/// The number of bits in which x agrees with `exact`, at most 128.
double bits_of(wide_real x, mpfr_ptr exact) {
  number all, error;
  mpfr_set_zero(all, 1);
  for (int part = 0; part < 4; ++part) {  // four doubles represent 128 bits
    const auto high = static_cast<double>(x);
    mpfr_add_d(all, all, high, MPFR_RNDN);
    x -= high;
  }
  mpfr_sub(error, all, exact, MPFR_RNDN);
  if (mpfr_zero_p(error) != 0) return 128;
  mpfr_div(error, error, exact, MPFR_RNDN);
  mpfr_abs(error, error, MPFR_RNDN);
  mpfr_log2(error, error, MPFR_RNDN);
  return (std::min)(-mpfr_get_d(error, MPFR_RNDN), 128.0);
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
    number of_a(x, 3), of_b(y, 7), exact;
    worst = (std::min)(worst, bits_of(a, of_a));
    mpfr_mul(exact, of_a, of_b, MPFR_RNDN);
    worst = (std::min)(worst, bits_of(a * b, exact));
    mpfr_div(exact, of_a, of_b, MPFR_RNDN);
    worst = (std::min)(worst, bits_of(a / b, exact));
    mpfr_add(exact, of_a, of_b, MPFR_RNDN);
    // A sum loses the bits that cancel.
    const double lost = (std::max)(std::ilogb(x), std::ilogb(y)) - std::ilogb(mpfr_get_d(exact, MPFR_RNDN));
    worst = (std::min)(worst, bits_of(a + b, exact) + (std::max)(lost, 0.0));
  }
  CHECK(worst >= 123);
}

TEST_CASE("exponentials, logarithms and powers are those of MPFR", "[oracle]") {
  CAPTURE(seed);
  testing::random random(seed + 1);
  double of_exp = 128, of_log = 128, of_pow = 128;
  for (int sample = 0; sample < samples; ++sample) {
    number exact;
    const double x = random.scaled(-40, 8);
    number third(x, 3);
    mpfr_exp(exact, third, MPFR_RNDN);
    of_exp = (std::min)(of_exp, bits_of(exp(wide_real(x) / 3), exact));

    const double positive = std::abs(random.scaled(-1000, 1000));
    number seventh(positive, 7);
    mpfr_log(exact, seventh, MPFR_RNDN);
    const double size = std::abs(mpfr_get_d(exact, MPFR_RNDN));
    of_log =
        (std::min)(of_log, bits_of(log(wide_real(positive) / 7), exact) - (std::min)(0.0, std::log2(size)));

    const double base = 1 + std::abs(random.scaled(-10, 40)), power = random.scaled(-20, 3);
    number of_base(base, 1), of_power(power, 1);
    mpfr_pow(exact, of_base, of_power, MPFR_RNDN);
    of_pow = (std::min)(of_pow, bits_of(pow(wide_real(base), power), exact));
  }
  CAPTURE(of_exp, of_log, of_pow);
  CHECK(of_exp >= 117);
  CHECK(of_log >= 119);
  CHECK(of_pow >= 115);
}
