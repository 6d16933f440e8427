// SPDX-License-Identifier: MIT
#include "support/wide.hpp"

#include <mpfr.h>

#include <cmath>
#include <cstdint>

#include "support/catch.hpp"
#include "support/random.hpp"

// The oracle of platforms whose long double is double, against MPFR. This file is also compiled with -Ofast,
// which breaks sums of two doubles: it then tests nothing.

#ifndef __FAST_MATH__

namespace {

using testing::double_double;

/// The number of bits in which x agrees with `function` of the exact a and b.
template <class Function>
double bits_of(const double_double& x, const double_double& a, const double_double& b, Function function) {
  mpfr_t p, q, r;
  mpfr_inits2(400, p, q, r, static_cast<mpfr_ptr>(nullptr));
  mpfr_set_d(p, a.high, MPFR_RNDN);
  mpfr_add_d(p, p, a.low, MPFR_RNDN);
  mpfr_set_d(q, b.high, MPFR_RNDN);
  mpfr_add_d(q, q, b.low, MPFR_RNDN);
  function(r, p, q);
  mpfr_set(p, r, MPFR_RNDN);
  mpfr_sub_d(p, p, x.high, MPFR_RNDN);
  mpfr_sub_d(p, p, x.low, MPFR_RNDN);
  mpfr_div(p, p, r, MPFR_RNDN);
  const double error = std::abs(mpfr_get_d(p, MPFR_RNDN));
  mpfr_clears(p, q, r, static_cast<mpfr_ptr>(nullptr));
  return error == 0 ? 106 : -std::log2(error);
}

}  // namespace

TEST_CASE("a sum of two doubles has the accuracy that oracles need", "[oracle]") {
  const std::uint64_t seed = 31;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 3000; ++sample) {
    const double high = random.scaled(-20, 6);
    const double_double a = double_double(high) + std::ldexp(random.unit(), std::ilogb(high) - 54),
                        b = double_double(random.scaled(-3, 3)) + random.unit() * 0x1p-60, size = abs(a),
                        angle = a * 20000;
    CAPTURE(sample, a.high, a.low, b.high, b.low);
    const auto unary = [](auto f) { return [f](auto r, auto p, auto) { f(r, p, MPFR_RNDN); }; };
    const auto binary = [](auto f) { return [f](auto r, auto p, auto q) { f(r, p, q, MPFR_RNDN); }; };
    CHECK(bits_of(a * b, a, b, binary(mpfr_mul)) >= 100);
    CHECK(bits_of(a / b, a, b, binary(mpfr_div)) >= 100);
    CHECK(bits_of(size + abs(b), size, abs(b), binary(mpfr_add)) >= 103);
    CHECK(bits_of(sqrt(size), size, b, unary(mpfr_sqrt)) >= 100);
    CHECK(bits_of(hypot(a, b), a, b, binary(mpfr_hypot)) >= 100);
    CHECK(bits_of(exp(a), a, b, unary(mpfr_exp)) >= 90);
    CHECK(bits_of(exp2(a), a, b, unary(mpfr_exp2)) >= 90);
    CHECK(bits_of(pow(size, b), size, b, binary(mpfr_pow)) >= 90);
    CHECK(bits_of(tanh(a), a, b, unary(mpfr_tanh)) >= 75);
    CHECK(bits_of(log1p(size), size, b, unary(mpfr_log1p)) >= 80);
    // Next to a zero the error is one of the argument.
    CHECK(bits_of(log(size) + 100, size, b, [](auto r, auto p, auto) {
            mpfr_log(r, p, MPFR_RNDN);
            mpfr_add_ui(r, r, 100, MPFR_RNDN);
          }) >= 95);
    CHECK(bits_of(cos(angle) + 2, angle, b, [](auto r, auto p, auto) {
            mpfr_cos(r, p, MPFR_RNDN);
            mpfr_add_ui(r, r, 2, MPFR_RNDN);
          }) >= 80);
    CHECK(bits_of(sin(angle) + 2, angle, b, [](auto r, auto p, auto) {
            mpfr_sin(r, p, MPFR_RNDN);
            mpfr_add_ui(r, r, 2, MPFR_RNDN);
          }) >= 80);
  }
}

TEST_CASE("integers of 64 bits and long doubles are sums of two doubles", "[oracle]") {
  const std::uint64_t seed = 32;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 1000; ++sample) {
    const auto integer = static_cast<std::int64_t>(random.bits()) >> random.integer(1, 40);
    const double_double x = integer;
    CHECK(static_cast<std::int64_t>(x.high) + static_cast<std::int64_t>(x.low) == integer);
    const long double real = static_cast<long double>(random.scaled(-9, 9)) / 3;
    const double_double y = real;
    CHECK(static_cast<long double>(y) == real);
  }
  CHECK(floor(double_double(4, -0x1p-60)) == 3);
  CHECK(ilogb(double_double(4, -0x1p-60)) == 1);
  CHECK(ceil(double_double(4, 0x1p-60)) == 5);
}

#endif
