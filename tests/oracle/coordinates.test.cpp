// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "oracle/number.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// Tables of real coordinates, fractional, negative and up to 2^53, against 512-bit arithmetic.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using oracle::error_in_ulp;
using oracle::number;
using rope::frequencies;
using rope::frequency_table;
using rope::Index;

/// cos and sin of sum_a coordinates(a) * inv_freq(a), which is exact before the functions are applied.
struct exact_entries {
  number cos, sin;

  template <class Coordinates, class InvFreq>
  exact_entries(const Coordinates& coordinates, const InvFreq& inv_freq) {
    number angle;
    for (Index a = 0; a < coordinates.size(); ++a)
      angle = angle + number(coordinates(a)) * number(inv_freq(a));
    mpfr_sin_cos(sin.get(), cos.get(), angle.get(), MPFR_RNDN);
  }
};

/// The angle [rad] from the exact (cos, sin) to those of a table: the sine of the difference, which is tiny.
double angle_error(double cos, double sin, const exact_entries& exact) {
  return std::abs((number(sin) * exact.cos - number(cos) * exact.sin).rounded());
}

struct worst_errors {
  double of_float = 0, of_double = 0;  // ulp
  double of_angle = 0;                 // rad
};

worst_errors errors_of(const frequencies& f, const Eigen::ArrayXXd& coordinates) {
  const frequency_table<float> floats(f, coordinates);
  const frequency_table<double> doubles(f, coordinates);
  worst_errors worst;
  for (Index r = 0; r < coordinates.rows(); ++r)
    for (Index i = 0; i < f.pairs(); ++i) {
      const exact_entries exact(coordinates.row(r), f.inv_freq().row(i));
      const double cos = doubles.cos(r)[i], sin = doubles.sin(r)[i];
      worst.of_double = std::max(
          {worst.of_double, error_in_ulp<double>(cos, exact.cos), error_in_ulp<double>(sin, exact.sin)});
      worst.of_float =
          std::max({worst.of_float, error_in_ulp<float>(static_cast<double>(floats.cos(r)[i]), exact.cos),
                    error_in_ulp<float>(static_cast<double>(floats.sin(r)[i]), exact.sin)});
      testing::raise_to(worst.of_angle, angle_error(cos, sin, exact));
    }
  return worst;
}

/// The documented bound for real positions: as accurate as integers.
void check(const frequencies& f, const Eigen::ArrayXXd& coordinates) {
  const worst_errors worst = errors_of(f, coordinates);
  CHECK(worst.of_float <= static_cast<double>(tolerance::table_entry<float>()));
  CHECK(worst.of_double <= static_cast<double>(tolerance::table_entry<double>()));
  CHECK(worst.of_angle <= 1e-15);
}

/// The double nearest to count * (pi / 4) / inv_freq, at which an entry almost vanishes or octants meet.
double near_eighths(double count, double inv_freq) {
  return (oracle::pi() * (count / 4) / inv_freq).rounded();
}

/// Integers up to 2^53 whose product with inv_freq is closest to a multiple of pi / 4: the denominators of
/// the continued fraction of inv_freq / (pi / 4).
std::vector<double> integers_near_eighths(double inv_freq) {
  number rest = number(inv_freq) / oracle::pi() * 4, whole;
  std::vector<double> denominators;
  double before = 1, now = 0;
  for (int term = 0; !rest.is_zero(); ++term) {
    mpfr_floor(whole.get(), rest.get());
    const double next = term == 0 ? 1 : whole.rounded() * now + before;
    if (next > 0x1p53) break;
    denominators.push_back(next);
    before = term == 0 ? 0 : now;
    now = next;
    rest = rest - whole;
    if (!rest.is_zero()) rest = number(1) / rest;
  }
  return denominators;
}

}  // namespace

TEST_CASE("real coordinates of every magnitude have entries within their bound", "[oracle]") {
  const std::uint64_t seed = 31;
  CAPTURE(seed);
  testing::random random(seed);
  for (const frequencies& f : {frequencies(64, 1e4), frequencies(64, 1e9), frequencies::pixel(64, 256)}) {
    Eigen::ArrayXXd coordinates(400, 1);
    for (Index r = 0; r < coordinates.rows(); ++r) coordinates(r) = random.scaled(-30, 52);
    coordinates.topRows(6).col(0) << 0.5, -0.5, 0x1p53, -0x1p53, 0x1.fffffffffffffp52, 1.0 / 3;
    check(f, coordinates);
  }
}

TEST_CASE("integer coordinates above 2^31 have entries within their bound", "[oracle]") {
  const std::uint64_t seed = 32;
  CAPTURE(seed);
  testing::random random(seed);
  Eigen::ArrayXXd coordinates(400, 1);
  for (Index r = 0; r < coordinates.rows(); ++r) coordinates(r) = std::round(random.scaled(30, 52));
  check(frequencies(64, 1e4), coordinates);
}

TEST_CASE("entries of coordinates near zero are accurate to all bits, for any small angle", "[oracle]") {
  const std::uint64_t seed = 35;
  CAPTURE(seed);
  testing::random random(seed);
  // -Ofast flushes subnormal numbers, so 2^-1000 is small enough.
  for (const int lowest : {-140, -950}) {
    Eigen::ArrayXXd coordinates(200, 1);
    for (Index r = 0; r < coordinates.rows(); ++r) coordinates(r) = random.scaled(lowest, -40);
    const frequencies f(64, 1e9);
    const frequency_table<double> table(f, coordinates);
    double worst = 0;
    for (Index r = 0; r < coordinates.rows(); ++r)
      for (Index i = 0; i < f.pairs(); ++i) {
        const exact_entries exact(coordinates.row(r), f.inv_freq().row(i));
        CHECK(table.cos(r)[i] == 1);
        testing::raise_to(worst, error_in_ulp<double>(table.sin(r)[i], exact.sin));
      }
    CHECK(worst <= static_cast<double>(tolerance::table_entry<double>()));
  }
  // With several axes the error is that of their phases, or of the rounding of a sum in which they cancel.
  Eigen::ArrayXXd inv_freq(1, 2), coordinates(200, 2);
  inv_freq << 0.7, -1.1;
  for (Index r = 0; r < 200; ++r) {
    coordinates(r, 0) = random.scaled(-180, -100);
    coordinates(r, 1) = coordinates(r, 0) * (0.7 / 1.1);
  }
  const frequency_table<double> table(frequencies::custom(inv_freq), coordinates);
  for (Index r = 0; r < 200; ++r) {
    const exact_entries exact(coordinates.row(r), inv_freq.row(0));
    CHECK(std::abs((number(table.sin(r)[0]) - exact.sin).rounded()) <= 2 * 0x1p-181);
  }
}

TEST_CASE("coordinates in [-1, 1] of pixel frequencies have entries within their bound", "[oracle]") {
  for (const Index count : {2, 8, 49, 256}) {
    const Eigen::ArrayXd axis = Eigen::ArrayXd::LinSpaced(count, -1, 1);
    check(frequencies::pixel(48, 256), axis);
    check(frequencies::pixel(16, 10), axis * 0.37 + 0.01);
  }
}

TEST_CASE("entries that almost vanish keep their bound at real coordinates", "[oracle]") {
  const std::uint64_t seed = 33;
  CAPTURE(seed);
  testing::random random(seed);
  double smallest = 1;
  for (int sample = 0; sample < 300; ++sample) {
    const double inv_freq = random.scaled(-12, 2);
    const double center = near_eighths(std::round(std::abs(random.scaled(0, 38))), inv_freq);
    Eigen::ArrayXXd coordinates(3, 1);
    coordinates << std::nextafter(center, -1e300), center, std::nextafter(center, 1e300);
    const frequencies f = frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq));
    CAPTURE(sample, inv_freq, center);
    check(f, coordinates);
    const frequency_table<double> row(f, coordinates);
    smallest = std::min({smallest, std::abs(row.cos(1)[0]), std::abs(row.sin(1)[0])});
  }
  CHECK(smallest < 0x1p-53);
}

TEST_CASE("entries that almost vanish keep their bound at integers up to 2^53", "[oracle]") {
  double smallest = 1;
  for (const double base : {1e2, 1e4, 1e6}) {
    const frequencies schedule(24, base);
    for (Index i = 0; i < schedule.pairs(); ++i) {
      const double inv_freq = schedule.inv_freq()(i, 0);
      const std::vector<double> integers = integers_near_eighths(inv_freq);
      REQUIRE(integers.back() > 0x1p31);
      Eigen::ArrayXXd coordinates(static_cast<Index>(integers.size()), 1);
      for (std::size_t r = 0; r < integers.size(); ++r)
        coordinates(static_cast<Index>(r)) = r % 2 == 0 ? integers[r] : -integers[r];
      const frequencies f = frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq));
      CAPTURE(base, i);
      check(f, coordinates);
      const frequency_table<double> rows(f, coordinates);
      for (Index r = 0; r < rows.rows(); ++r)
        smallest = std::min({smallest, std::abs(rows.cos(r)[0]), std::abs(rows.sin(r)[0])});
    }
  }
  CHECK(smallest < 0x1p-50);
}

TEST_CASE("ranges of positions beyond 2^31 have the entries of their coordinates", "[oracle]") {
  constexpr std::int64_t reach = std::int64_t{1} << 31, far = std::int64_t{1} << 53;
  const frequencies f(32, 1e4);
  for (const std::int64_t first :
       {-reach - 6, -reach + 1, reach - 5, reach + 1, far - 12, -far, std::int64_t{123456789012345}}) {
    CAPTURE(first);
    const frequency_table<double> range(f, first, first + 12);
    Eigen::ArrayXd positions(12);
    for (Index r = 0; r < 12; ++r) positions(r) = static_cast<double>(first + r);
    const frequency_table<double> listed(f, positions);
    for (Index r = 0; r < 12; ++r) {
      CHECK((range.cos(first + r) == listed.cos(r)).all());
      CHECK((range.sin(first + r) == listed.sin(r)).all());
    }
    check(f, positions);
  }
}

TEST_CASE("ranges and coordinates have the same bits where both change from steps to products", "[oracle]") {
  // About 60 bits are left of the step of the first, so products show in every entry. The others are never
  // counted in steps, and are multiplied below positions of 2^12 and everywhere.
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  for (const double inv_freq : {0x1.921fb5p-127, 0x1.921fb5p-140, 0x1.921fb5p-180}) {
    const frequencies slow = frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq));
    for (const std::int64_t first : {-reach - 3, reach - 2, std::int64_t{4090}, std::int64_t{-2}}) {
      const frequency_table<double> range(slow, first, first + 6);
      for (std::int64_t p = first; p < first + 6; ++p) {
        CAPTURE(inv_freq, p);
        const frequency_table<double> listed(slow, Eigen::Array<std::int64_t, 1, 1>(p));
        CHECK(range.sin(p)[0] == listed.sin(0)[0]);
      }
    }
  }
}

TEST_CASE("positions beyond 2^53 are still integers", "[oracle]") {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                         most = std::numeric_limits<std::int64_t>::max();
  const frequencies f(32, 1e4);
  for (const std::int64_t first :
       {least, std::int64_t{-9007199254740995}, std::int64_t{9007199254740993}, most - 3}) {
    const frequency_table<double> table(f, first, first + 3);
    for (std::int64_t p = first; p < first + 3; ++p)
      for (Index i = 0; i < f.pairs(); ++i) {
        const number angle = number(p) * number(f.inv_freq()(i, 0));
        number cos, sin;
        mpfr_sin_cos(sin.get(), cos.get(), angle.get(), MPFR_RNDN);
        CAPTURE(p, i);
        CHECK(error_in_ulp<double>(table.cos(p)[i], cos) <=
              static_cast<double>(tolerance::table_entry<double>()));
        CHECK(error_in_ulp<double>(table.sin(p)[i], sin) <=
              static_cast<double>(tolerance::table_entry<double>()));
      }
  }
}

TEST_CASE("phases of whole coordinates, counted in steps, are the exact products", "[oracle]") {
  const std::uint64_t seed = 36;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const double inv_freq = random.scaled(-100, 63);
    const double coordinate = std::round(random.scaled(-2, 52));
    // Half a unit of 2^-192 full turns for the product, and half a unit for every step.
    const std::uint64_t most = 1 + static_cast<std::uint64_t>(std::abs(coordinate)) / 2;
    const rope::phase got = rope::detail::pair_frequency{inv_freq, rope::phase_of(inv_freq)}.at(coordinate);
    const rope::detail::uint192 off = (got + -rope::phase_of(inv_freq, coordinate)).turn,
                                shifted = off + rope::detail::uint192{0, 0, most};
    CAPTURE(inv_freq, coordinate);
    REQUIRE(shifted.hi == 0);
    REQUIRE(shifted.mid == 0);
    REQUIRE(shifted.lo <= 2 * most);
  }
}

TEST_CASE("if the product is a double, the entry is that of the double", "[oracle]") {
  Eigen::ArrayXXd coordinates(64, 1);
  const Eigen::Array<double, 6, 1> inv_freq =
      (Eigen::Array<double, 6, 1>() << 1, 0.5, -0.125, 0x1p-20, 3, 0x1.8p-7).finished();
  for (Index r = 0; r < 64; ++r) coordinates(r) = static_cast<double>(r * r - 700) * 0x1p-6;
  const frequencies f = frequencies::custom(inv_freq);
  check(f, coordinates);
  const frequency_table<float> table(f, coordinates);
  for (Index r = 0; r < 64; ++r)
    for (Index i = 0; i < 6; ++i) {
      const number sin = oracle::of(mpfr_sin, coordinates(r) * inv_freq(i));
      CHECK(table.sin(r)[i] == mpfr_get_flt(sin.get(), MPFR_RNDN));
    }
}

TEST_CASE("angles of several real axes are within 1e-15 rad up to 2^53", "[oracle]") {
  const std::uint64_t seed = 34;
  CAPTURE(seed);
  testing::random random(seed);
  Eigen::ArrayXXd inv_freq(16, 3), coordinates(300, 3);
  for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i) = random.scaled(-40, 8);
  for (Index i = 0; i < coordinates.size(); ++i) {
    coordinates(i) = random.scaled(-20, 52);
    if (random.bits() % 3 == 0) coordinates(i) = std::round(coordinates(i));
  }
  inv_freq(3, 1) = inv_freq(7, 0) = 0;
  const worst_errors worst = errors_of(frequencies::custom(inv_freq), coordinates);
  CHECK(worst.of_angle <= 1e-15);
  CHECK(worst.of_float <= static_cast<double>(tolerance::table_entry<float>()));
  CHECK(worst.of_double <= static_cast<double>(tolerance::table_entry<double>()));
}

TEST_CASE("axes that cancel leave an angle of zero", "[oracle]") {
  Eigen::Array22d inv_freq;
  Eigen::Array<double, 4, 2> coordinates;
  inv_freq << 0.1, 0.1, 1.0 / 3, 1.0 / 3;
  coordinates << 0.3, -0.3, 5, -5, -1e10, 1e10, 1.0 / 7, -1.0 / 7;
  const frequency_table<double> table(frequencies::custom(inv_freq), coordinates);
  for (Index r = 0; r < 4; ++r)
    for (Index i = 0; i < 2; ++i) {
      CHECK(table.cos(r)[i] == 1);
      CHECK(table.sin(r)[i] == 0);
    }
}
