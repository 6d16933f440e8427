// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <mpfr.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "support/catch.hpp"
#include "support/random.hpp"

/// Every entry of a float table is the float nearest to the exact number, which MPFR rounds to 24 bits. This
/// is a sample. The gate `nearest_floats` of .ci/nightly, which sets ROPE_TEST_ENTRIES, compares 10^8
/// entries.
/// This file is also compiled with -Ofast, so it uses no NaN, no infinity and no subnormal float.

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::Index;

/// Numbers for one comparison. Those of 24 bits are rounded as floats are.
struct oracle {
  mpfr_t angle, product, cos, sin, float_cos, float_sin;
  oracle() {
    mpfr_inits2(320, angle, product, static_cast<mpfr_ptr>(nullptr));
    mpfr_inits2(200, cos, sin, static_cast<mpfr_ptr>(nullptr));
    mpfr_inits2(24, float_cos, float_sin, static_cast<mpfr_ptr>(nullptr));
  }
  oracle(const oracle&) = delete;
  oracle& operator=(const oracle&) = delete;
  ~oracle() { mpfr_clears(angle, product, cos, sin, float_cos, float_sin, static_cast<mpfr_ptr>(nullptr)); }

  void begin() { mpfr_set_zero(angle, 1); }
  void add(double inv_freq, double coordinate) {
    mpfr_set_d(product, inv_freq, MPFR_RNDN);
    mpfr_mul_d(product, product, coordinate, MPFR_RNDN);
    mpfr_add(angle, angle, product, MPFR_RNDN);
  }
  /// m cos and m sin, rounded once to 24 bits: from 24 bits if m is 1, otherwise from 200, in which no
  /// product of these tests is a tie.
  void finish(double m) {
    if (m == 1) {
      mpfr_sin_cos(float_sin, float_cos, angle, MPFR_RNDN);
      return;
    }
    mpfr_sin_cos(sin, cos, angle, MPFR_RNDN);
    mpfr_mul_d(float_cos, cos, m, MPFR_RNDN);
    mpfr_mul_d(float_sin, sin, m, MPFR_RNDN);
  }
};

std::int64_t differing(const frequencies& f, const Eigen::ArrayXXd& coordinates, oracle& exact) {
  const frequency_table<float> table(f, coordinates);
  std::int64_t count = 0;
  for (Index r = 0; r < coordinates.rows(); ++r)
    for (Index i = 0; i < f.pairs(); ++i) {
      exact.begin();
      for (Index a = 0; a < f.axes(); ++a) exact.add(f.inv_freq(i, a), coordinates(r, a));
      exact.finish(f.attention_factor());
      if (table.cos(r)[i] != mpfr_get_flt(exact.float_cos, MPFR_RNDN)) ++count;
      if (table.sin(r)[i] != mpfr_get_flt(exact.float_sin, MPFR_RNDN)) ++count;
    }
  return count;
}

std::int64_t entries_to_check() {
  const char* const asked = std::getenv("ROPE_TEST_ENTRIES");
  return asked == nullptr ? 300000 : std::stoll(asked);
}

}  // namespace

TEST_CASE("entries of random frequencies and positions are the nearest floats", "[oracle]") {
  const std::uint64_t seed = 48;
  CAPTURE(seed);
  testing::random random(seed);
  oracle exact;
  constexpr Index pairs = 50, rows = 100;
  std::int64_t checked = 0, off = 0;
  for (int round = 0; checked < entries_to_check(); ++round, checked += 2 * pairs * rows) {
    const Index axes = round % 3 == 2 ? 2 : 1;
    Eigen::ArrayXXd inv_freq(pairs, axes), coordinates(rows, axes);
    for (Index i = 0; i < inv_freq.size(); ++i)
      inv_freq(i) = (random.bits() % 2 == 0 ? 1 : -1) * random.scaled(-40, 4);
    for (Index i = 0; i < coordinates.size(); ++i) {
      const double x = random.scaled(-10, 31);
      coordinates(i) = round % 2 == 0 ? std::trunc(x) : x;
    }
    const double m = round % 5 == 4 ? 1 + random.unit() : 1;
    off += differing(frequencies::custom(inv_freq, m), coordinates, exact);
  }
  CHECK(off == 0);
}

TEST_CASE("a sine and a factor at the midpoint of two floats are rounded down", "[oracle]") {
  oracle exact;
  // x is the midpoint of two floats, and sin x = x - x^3 / 6 + ... is below it, by at least 2^-245 of itself.
  Eigen::ArrayXXd inv_freq(95, 1);
  for (Index i = 0; i < inv_freq.size(); ++i)
    inv_freq(i) = std::ldexp(i % 2 == 0 ? 0x1.000001p0 : -0x1.abcdefp0, -24 - static_cast<int>(i));
  Eigen::ArrayXXd one(1, 1);
  one << 1;
  CHECK(differing(frequencies::custom(inv_freq), one, exact) == 0);
  // So is m, and m cos x is below it.
  for (Index i = 0; i < inv_freq.size(); ++i) {
    const frequency_table<float> table(frequencies::custom(inv_freq.row(i).eval(), 0x1.000003p0), one);
    CAPTURE(i);
    CHECK(table.cos(0)[0] <= 0x1.000002p0f);
  }
}
