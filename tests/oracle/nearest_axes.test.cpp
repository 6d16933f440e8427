// SPDX-License-Identifier: MIT
#include <rope/tables/given_table.hpp>
#include <rope/tables/table.hpp>
#include <rope/tables/xpos.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "oracle/number.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

/// Products of a frequency and a position that are nearest to a multiple of pi / 2, at which a cosine or sine
/// almost vanishes and an angle needs most bits. They are found by continued fractions and compared with
/// 512-bit arithmetic.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using oracle::error_in_ulp;
using oracle::number;
using rope::frequencies;
using rope::frequency_table;
using rope::Index;

/// floor(log2 |x|), far below any bound for 0
long exponent(const number& x) { return x.is_zero() ? -100000 : mpfr_get_exp(x.get()) - 1; }

/// 2 / pi: a product with it counts quarter turns.
number quarters_per_radian() { return number(2) / oracle::pi(); }

/// The convergents of x: every numerator / denominator with a denominator below 2^bits.
struct convergent {
  number numerator, denominator;
};
std::vector<convergent> convergents(const number& x, long bits) {
  std::vector<convergent> found;
  number rest = x, whole, p0(1), p1, q0(0), q1(1);
  mpfr_floor(whole.get(), rest.get());
  p1 = whole;
  while (exponent(q1) < bits) {
    found.push_back({p1, q1});
    rest = rest - whole;
    if (rest.is_zero()) break;
    rest = number(1) / rest;
    mpfr_floor(whole.get(), rest.get());
    const number p2 = whole * p1 + p0, q2 = whole * q1 + q0;
    p0 = p1;
    p1 = p2;
    q0 = q1;
    q1 = q2;
  }
  return found;
}

/// The distance of inv_freq * coordinate from the nearest quarter turn: floor(log2(turns)).
long distance_exponent(double inv_freq, double coordinate) {
  const number quarters = number(inv_freq) * number(coordinate) * quarters_per_radian();
  number nearest;
  mpfr_round(nearest.get(), quarters.get());
  return exponent(quarters - nearest) - 2;
}

/// The error of both entries of a row, as a multiple of the bound of their type.
template <class S, class Row>
double excess(const Row& cos, const Row& sin, const number& angle) {
  number exact_cos, exact_sin;
  mpfr_sin_cos(exact_sin.get(), exact_cos.get(), angle.get(), MPFR_RNDN);
  return std::max(error_in_ulp<S>(static_cast<double>(cos[0]), exact_cos),
                  error_in_ulp<S>(static_cast<double>(sin[0]), exact_sin)) /
         static_cast<double>(tolerance::table_entry<S>());
}

frequencies single(double inv_freq) { return frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq)); }

/// A range of one position and tables of one coordinate, of either sign.
double worst_at(double inv_freq, double coordinate) {
  const frequencies f = single(inv_freq);
  double worst = 0;
  for (const double c : {coordinate, -coordinate}) {
    const number angle = number(inv_freq) * number(c);
    const Eigen::ArrayXd row = Eigen::ArrayXd::Constant(1, c);
    const frequency_table<float> floats(f, row);
    const frequency_table<double> doubles(f, row);
    worst = std::max({worst, excess<float>(floats.cos(0), floats.sin(0), angle),
                      excess<double>(doubles.cos(0), doubles.sin(0), angle)});
    if (c != std::trunc(c)) continue;
    const auto position = static_cast<std::int64_t>(c);
    const frequency_table<float> float_range(f, position, position + 1);
    const frequency_table<double> double_range(f, position, position + 1);
    worst = std::max({worst, excess<float>(float_range.cos(position), float_range.sin(position), angle),
                      excess<double>(double_range.cos(position), double_range.sin(position), angle)});
  }
  return worst;
}

struct product {
  double inv_freq, coordinate;
};

// Found by factoring the denominators of convergents of 2^e 2 / pi, and sums of a few of them, into a
// significand and a position.
const std::vector<product> nearest_positions = {
    {0x1.9e6b4dd7be86ep-1, 2146836885},  {0x1.8bb446a6645c8p-4, 2147222622},
    {0x1.13764535ce714p+61, 1965016409}, {0x1.667971176a7c7p+24, 1965005979},
    {0x1.251b7be790e20p+2, 2137161337},  {0x1.bc0747b09bfd2p+55, 1932378612},
    {0x1.13fd1e5157872p+52, 1765429797}, {0x1.f7881788c4db1p-22, 1477173806},
    {0x1.5aed70656730dp+59, 1337751717}, {0x1.97f773185f662p+38, 1081792818},
    {0x1.ad95c65dd6f4cp-21, 1613661367}, {0x1.0ae70523fa8cdp+60, 1648719901},
    {0x1.42eaf9c1b12c0p-17, 1323564119}, {0x1.9b6bd7816d07ep-23, 286966407},
};

// Found by a search over significands of 53 bits.
const std::vector<product> nearest_coordinates = {
    {0x1.17cc44d594a00p+6, 4504044164907563},  {0x1.957fb5ecdec00p-48, 7815702458505358},
    {0x1.c9d44bb7a4000p-17, 585262285524815},  {0x1.a70d963b00e00p-16, 5991246651357479},
    {0x1.3d051bf4f8000p-39, 1481842354416808}, {0x1.20cd959bb14b0p+3, 419011289206339},
    {0x1.3e387d843d4a0p-41, 897560656631356},  {0x1.5661e45451200p+37, 5230804585791127},
};

}  // namespace

TEST_CASE("no product is nearer to a quarter turn than the bits of a phase resolve", "[oracle]") {
  const number radian = quarters_per_radian();
  // Bits of the product of two significands, and the documented distance: log2 of turns.
  struct claim {
    long bits, exponent;
    int highest;
  };
  // Frequencies are below 2^64, so a significand of 53 bits has the unit 2^11 at most. Two of them have 2^22.
  for (const claim& c :
       {claim{84, -90, 11}, claim{106, -115, 11}, claim{116, -125, 11}, claim{106, -115, 22}}) {
    long nearest = 0;
    for (int e = static_cast<int>(-c.bits) - 1; e <= c.highest; ++e) {
      number x = radian;
      mpfr_mul_2si(x.get(), x.get(), e, MPFR_RNDN);
      for (const convergent& of_x : convergents(x, c.bits))
        if (mpfr_sgn(of_x.numerator.get()) > 0)
          nearest = std::min(nearest, exponent(of_x.denominator * x - of_x.numerator) - 2);
    }
    CAPTURE(c.bits, c.highest);
    CHECK(nearest >= c.exponent);
    CHECK(nearest <= c.exponent + 1);  // and the documented value is close to it
  }
}

TEST_CASE("entries keep their accuracy at the products nearest to a quarter turn", "[oracle]") {
  for (const auto& [inv_freq, coordinate] : nearest_positions) {
    CAPTURE(inv_freq, coordinate, distance_exponent(inv_freq, coordinate));
    CHECK(distance_exponent(inv_freq, coordinate) <= -49);
    CHECK(worst_at(inv_freq, coordinate) <= 1);
  }
  for (const auto& [inv_freq, coordinate] : nearest_coordinates) {
    CAPTURE(inv_freq, coordinate, distance_exponent(inv_freq, coordinate));
    CHECK(distance_exponent(inv_freq, coordinate) <= -96);
    CHECK(worst_at(inv_freq, coordinate) <= 1);
    // This product of a coordinate that is not an integer, and of two angles.
    CHECK(worst_at(inv_freq * 0x1p20, coordinate * 0x1p-20) <= 1);
    const auto angles = rope::table_of_angles<double>(Eigen::ArrayXd::Constant(1, coordinate),
                                                      Eigen::ArrayXd::Constant(1, inv_freq));
    CHECK(excess<double>(angles.cos(0), angles.sin(0), number(inv_freq) * number(coordinate)) <= 1);
  }
}

TEST_CASE("entries keep their accuracy at the positions nearest to a quarter turn of any frequency",
          "[oracle]") {
  const std::uint64_t seed = 41;
  CAPTURE(seed);
  testing::random random(seed);
  const number radian = quarters_per_radian();
  long nearest = 0;
  for (int sample = 0; sample < 400; ++sample) {
    const double inv_freq = random.scaled(-30, 63);
    const bool whole = sample % 2 == 0;  // a position up to 2^31, or any integer up to 2^53
    const auto positions = convergents(number(std::abs(inv_freq)) * radian, whole ? 31 : 53);
    for (std::size_t k = positions.size() - std::min(positions.size(), std::size_t{3}); k < positions.size();
         ++k) {
      const double position = positions[k].denominator.rounded();
      CAPTURE(inv_freq, position);
      CHECK(worst_at(inv_freq, position) <= 1);
      nearest = std::min(nearest, distance_exponent(inv_freq, position));
    }
  }
  CHECK(nearest < -55);
}

TEST_CASE("entries keep their accuracy at the frequencies nearest to a quarter turn of any position",
          "[oracle]") {
  const std::uint64_t seed = 42;
  CAPTURE(seed);
  testing::random random(seed);
  const number radian = quarters_per_radian();
  struct found {
    long distance;
    product where;
  };
  std::vector<found> all;
  for (int sample = 0; sample < 6000; ++sample) {
    // Positions of 31 bits, integers of 53 and coordinates that are not integers.
    const int kind = sample % 3;
    double coordinate = static_cast<double>(random.integer(std::int64_t{1} << 30, std::int64_t{1} << 31));
    if (kind == 1)
      coordinate = static_cast<double>(random.integer(std::int64_t{1} << 52, std::int64_t{1} << 53));
    if (kind == 2) coordinate = std::abs(random.scaled(-20, 40));
    const int e = static_cast<int>(random.integer(-80, 11));
    number x = number(coordinate) * radian;
    mpfr_mul_2si(x.get(), x.get(), e, MPFR_RNDN);
    const auto significands = convergents(x, 53);
    const convergent& last = significands.back();
    if (mpfr_sgn(last.numerator.get()) == 0) continue;
    all.push_back({exponent(last.denominator * x - last.numerator) - 2,
                   {std::ldexp(last.denominator.rounded(), e), coordinate}});
  }
  std::sort(all.begin(), all.end(), [](const found& a, const found& b) { return a.distance < b.distance; });
  REQUIRE(all.size() > 300);
  CHECK(all.front().distance < -64);
  for (std::size_t k = 0; k < 300; ++k) {
    const auto& [inv_freq, coordinate] = all[k].where;
    CAPTURE(inv_freq, coordinate, all[k].distance);
    CHECK(worst_at(inv_freq, coordinate) <= 1);
  }
}

TEST_CASE("given angles have accurate entries, however small or near to a quarter turn", "[oracle]") {
  const std::uint64_t seed = 43;
  CAPTURE(seed);
  testing::random random(seed);
  std::vector<double> angles = {1e-33, -1e-33, 1e-36, 2.5e-29, 1e-60, 0x1p-128, 0x1.fffffffffffffp-129};
  for (int sample = 0; sample < 500; ++sample) angles.push_back(random.scaled(-200, -20));
  // The doubles nearest to a multiple of pi / 2.
  for (int e = -52; e <= 11; ++e) {
    number x = quarters_per_radian();
    mpfr_mul_2si(x.get(), x.get(), e, MPFR_RNDN);
    angles.push_back(std::ldexp(convergents(x, 53).back().denominator.rounded(), e));
  }
  for (const double angle : angles) {
    CAPTURE(angle);
    // Float entries are accurate unless they are subnormal.
    const Eigen::ArrayXd one = Eigen::ArrayXd::Constant(1, angle);
    const auto doubles = rope::table_of_angles<double>(one, rope::table_form::half_width);
    CHECK(excess<double>(doubles.cos(0), doubles.sin(0), number(angle)) <= 1);
    if (std::abs(angle) < 0x1p-126) continue;
    const auto floats = rope::table_of_angles<float>(one, rope::table_form::half_width);
    CHECK(excess<float>(floats.cos(0), floats.sin(0), number(angle)) <= 1);
  }
  for (const auto& [inv_freq, coordinate] : nearest_positions) {
    CAPTURE(inv_freq, coordinate);
    const auto doubles = rope::table_of_angles<double>(Eigen::Array<double, 1, 1>(coordinate),
                                                       Eigen::Array<double, 1, 1>(inv_freq));
    CHECK(excess<double>(doubles.cos(0), doubles.sin(0), number(inv_freq) * number(coordinate)) <= 1);
  }
}

TEST_CASE("tables of xPos that do not grow are those of their frequencies", "[oracle]") {
  const rope::xpos_growth none = {.center = 0, .scale_base = 512, .rates = Eigen::ArrayXd::Zero(1)};
  std::vector<product> places = nearest_positions;
  places.push_back({1e-35, 131071});  // no phase has all bits of these
  places.push_back({1e-100, -7});
  places.push_back({0.3, 123456789012345});  // beyond steps
  places.push_back({0.3, -2147483650});
  for (const auto& [inv_freq, coordinate] : places) {
    CAPTURE(inv_freq, coordinate);
    const auto first = static_cast<std::int64_t>(coordinate);
    const rope::xpos<double> tables(single(inv_freq), first, first + 2, none);
    const frequency_table<double> plain(single(inv_freq), first, first + 2);
    for (const std::int64_t p : {first, first + 1}) {
      CHECK(tables.queries().cos(p)[0] == plain.cos(p)[0]);
      CHECK(tables.queries().sin(p)[0] == plain.sin(p)[0]);
      CHECK(tables.keys().sin(p)[0] == plain.sin(p)[0]);
      const number angle = number(static_cast<double>(p)) * number(inv_freq);
      CHECK(excess<double>(tables.queries().cos(p), tables.queries().sin(p), angle) <= 1);
    }
  }
}
