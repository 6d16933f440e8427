// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "oracle/number.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// The library against 512-bit arithmetic. Only inv_freq and the finished entries come from the library.
/// This file is also compiled with -Ofast, so it uses no NaN and no infinity.

namespace {

using oracle::error_in_ulp;
using oracle::number;
using rope::frequencies;
using rope::frequency_table;
using rope::Index;
using rope::phase;

constexpr std::int64_t reach = std::int64_t{1} << 31;

number two_pi() { return oracle::pi() * 2.0; }

number fraction_of_full_turn(phase p) {
  number turn(0.0);
  for (const std::uint64_t word : {p.turn.hi, p.turn.mid, p.turn.lo}) {
    mpfr_mul_2ui(turn.get(), turn.get(), 64, MPFR_RNDN);
    mpfr_add_ui(turn.get(), turn.get(), word, MPFR_RNDN);
  }
  mpfr_div_2ui(turn.get(), turn.get(), 192, MPFR_RNDN);
  return turn;
}
static_assert(sizeof(unsigned long) >= sizeof(std::uint64_t), "mpfr_set_ui must take 64 bits");

/// cos and sin of an angle.
struct exact_pair {
  number cos, sin;
  explicit exact_pair(const number& angle) { mpfr_sin_cos(sin.get(), cos.get(), angle.get(), MPFR_RNDN); }
};

/// The largest errors, in ulp of the type in their name.
struct worst_errors {
  double of_float = 0, of_double = 0;

  template <class S>
  void include(const frequency_table<S>& table, std::int64_t position, Index i, const exact_pair& exact) {
    const auto error = std::max(error_in_ulp<S>(static_cast<double>(table.cos(position)[i]), exact.cos),
                                error_in_ulp<S>(static_cast<double>(table.sin(position)[i]), exact.sin));
    double& worst = std::is_same_v<S, float> ? of_float : of_double;
    testing::raise_to(worst, error);
  }
  void check() const {
    REQUIRE(of_float <= static_cast<double>(tolerance::table_entry<float>()));
    REQUIRE(of_double <= static_cast<double>(tolerance::table_entry<double>()));
  }
};

/// Every pair of both tables at `position`.
worst_errors errors_at(const frequencies& schedule, std::int64_t position) {
  const frequency_table<float> floats(schedule, position, position + 1);
  const frequency_table<double> doubles(schedule, position, position + 1);
  worst_errors worst;
  for (Index i = 0; i < schedule.pairs(); ++i) {
    const exact_pair exact(number(position) * number(schedule.inv_freq()(i, 0)));
    worst.include(floats, position, i, exact);
    worst.include(doubles, position, i, exact);
  }
  return worst;
}

void check_positions(const frequencies& schedule, const std::vector<std::int64_t>& positions) {
  for (const std::int64_t magnitude : positions)
    for (const std::int64_t position : {magnitude, -magnitude}) {
      CAPTURE(position);
      errors_at(schedule, position).check();
    }
}

/// Positions up to 2^31 at which position * inv_freq is closest to a multiple of pi / 4: the denominators of
/// the continued fraction of inv_freq / (pi / 4), which are its best rational approximations. At an even
/// multiple the cosine or the sine almost vanishes. At an odd one two octants meet.
std::vector<std::int64_t> positions_near_eighths(double inv_freq) {
  std::vector<std::int64_t> denominators;
  const number x = number(inv_freq) * number(8.0) / two_pi();
  number rest = x, next, whole;
  for (std::int64_t before = 1, now = 0;;) {
    mpfr_modf(whole.get(), next.get(), rest.get(), MPFR_RNDN);
    // The denominator after the first quotient is 1, for any quotient.
    const bool first = denominators.empty();
    if (!first && mpfr_cmp_si(whole.get(), reach) > 0) break;
    const std::int64_t denominator = first ? 1 : mpfr_get_si(whole.get(), MPFR_RNDN) * now + before;
    if (denominator > reach) break;
    denominators.push_back(denominator);
    before = first ? 0 : now;
    now = denominator;
    if (mpfr_zero_p(next.get()) != 0) break;
    mpfr_ui_div(rest.get(), 1, next.get(), MPFR_RNDN);
  }
  return denominators;
}

}  // namespace

TEST_CASE("table entries keep their bound at the positions where other implementations fail", "[oracle]") {
  std::vector<std::int64_t> positions = {0,      255,     1857,     2047,     2049,     4095,
                                         8191,   15962,   32767,    65504,    65535,    131071,
                                         262143, 1048575, 16777214, 16777218, reach - 1};
  for (int k = 0; k <= 31; ++k)
    for (std::int64_t offset = -1; offset <= 1; ++offset)
      positions.push_back(std::min((std::int64_t{1} << k) + offset, reach));
  for (const Index rotary_dim : {2, 6, 80, 128})
    for (const double base : {1e2, 1e4, 5e5, 1e6, 1e9}) {
      CAPTURE(rotary_dim, base);
      check_positions(frequencies(rotary_dim, base), positions);
    }
}

TEST_CASE("table entries keep their bound at every magnitude of position", "[oracle]") {
  const std::uint64_t seed = 11;
  CAPTURE(seed);
  testing::random random(seed);
  for (const Index rotary_dim : {96, 128, 192})
    for (const double base : {1e2, 1e4, 1.5e5, 1e6, 1e9}) {
      CAPTURE(rotary_dim, base);
      std::vector<std::int64_t> positions;
      for (int k = 1; k <= 30; ++k)
        for (int sample = 0; sample < 4; ++sample)
          positions.push_back(random.integer(std::int64_t{1} << k, std::int64_t{2} << k));
      check_positions(frequencies(rotary_dim, base), positions);
    }
}

TEST_CASE("double entries are rarely not the nearest double", "[oracle]") {
  const std::uint64_t seed = 17;
  CAPTURE(seed);
  testing::random random(seed);
  int entries = 0, off = 0;
  for (const double base : {1e2, 1e4, 1e6}) {
    const frequencies schedule(128, base);
    for (int sample = 0; sample < 100; ++sample) {
      const std::int64_t position = random.integer(1, reach) >> random.integer(0, 20);
      const frequency_table<double> table(schedule, position, position + 1);
      for (Index i = 0; i < schedule.pairs(); ++i) {
        const exact_pair exact(number(position) * number(schedule.inv_freq()(i, 0)));
        entries += 2;
        off += table.cos(position)[i] != mpfr_get_d(exact.cos.get(), MPFR_RNDN) ? 1 : 0;
        off += table.sin(position)[i] != mpfr_get_d(exact.sin.get(), MPFR_RNDN) ? 1 : 0;
      }
    }
  }
  CAPTURE(entries, off);
  // Documented: not correctly rounded if the value is within about 0.002 ulp of a tie.
  CHECK(off > 0);
  CHECK(off < entries / 200);
}

TEST_CASE("table entries keep their bound if a cosine or sine almost vanishes", "[oracle]") {
  double smallest_entry = 1;
  for (const double base : {1e2, 1e4, 5e5, 1e6, 1e9}) {
    const frequencies schedule(128, base);
    for (Index i = 0; i < schedule.pairs(); ++i) {
      const double inv_freq = schedule.inv_freq()(i, 0);
      const frequencies single = frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq));
      for (const std::int64_t position : positions_near_eighths(inv_freq)) {
        CAPTURE(base, i, position);
        for (const std::int64_t multiple : {position, -2 * position, 3 * position})
          if (std::abs(multiple) <= reach) errors_at(single, multiple).check();
        const frequency_table<double> row(single, position, position + 1);
        for (const double entry : {row.cos(position)[0], row.sin(position)[0]})
          smallest_entry = std::min(smallest_entry, std::abs(entry));
      }
    }
  }
  // The last denominator q below 2^31 leaves |q x - p| < 2^-31 of an eighth turn.
  CHECK(smallest_entry < 0x1p-31);
}

TEST_CASE("table entries keep their bound in long ranges too", "[oracle]") {
  const frequencies schedule(128, 1e4);
  for (const std::int64_t first : {std::int64_t{-1500}, reach - 1499}) {
    const std::int64_t last = first + 3000 > reach ? reach + 1 : first + 3000;
    const frequency_table<float> floats(schedule, first, last);
    const frequency_table<double> doubles(schedule, first, last);
    worst_errors worst;
    for (std::int64_t position = first; position < last; ++position)
      for (Index i = 0; i < schedule.pairs(); ++i) {
        const exact_pair exact(number(position) * number(schedule.inv_freq()(i, 0)));
        worst.include(floats, position, i, exact);
        worst.include(doubles, position, i, exact);
      }
    CAPTURE(first);
    worst.check();
  }
}

TEST_CASE("entries of real coordinates on two axes keep their bound", "[oracle]") {
  const std::uint64_t seed = 12;
  CAPTURE(seed);
  testing::random random(seed);
  Eigen::ArrayXXd inv_freq(24, 2);
  for (Index i = 0; i < inv_freq.size(); ++i) inv_freq(i) = random.scaled(-30, 6);
  inv_freq(5, 1) = 0;
  const frequencies schedule = frequencies::custom(inv_freq);
  Eigen::ArrayXXd coordinates(500, 2);
  for (Index i = 0; i < coordinates.size(); ++i) coordinates(i) = random.scaled(-10, 30);
  coordinates.row(0) << 0x1p53, -0x1p53;
  coordinates.row(1) << 0.5, 0;
  coordinates.row(2) << 0x1.fffffffffffffp52, 0x1p-20;
  const frequency_table<float> floats(schedule, coordinates);
  const frequency_table<double> doubles(schedule, coordinates);
  worst_errors worst;
  for (Index r = 0; r < coordinates.rows(); ++r)
    for (Index i = 0; i < schedule.pairs(); ++i) {
      const exact_pair exact(number(coordinates(r, 0)) * number(schedule.inv_freq()(i, 0)) +
                             number(coordinates(r, 1)) * number(schedule.inv_freq()(i, 1)));
      worst.include(floats, r, i, exact);
      worst.include(doubles, r, i, exact);
    }
  worst.check();
}

TEST_CASE("table entries of pairs with tiny frequencies keep their bound", "[oracle]") {
  const std::uint64_t seed = 16;
  CAPTURE(seed);
  testing::random random(seed);
  // Down to 2^-120 for float and 2^-1000 for double, because -Ofast flushes subnormal numbers.
  Eigen::ArrayXXd slow(60, 1), slowest(60, 1);
  for (Index i = 0; i < 60; ++i) {
    slow(i) = random.scaled(-120, -55);
    slowest(i) = random.scaled(-1000, -55);
  }
  std::vector<std::int64_t> positions = {1, 2, 3, 131071, reach};
  for (int k = 1; k <= 30; ++k)
    positions.push_back(random.integer(std::int64_t{1} << k, std::int64_t{2} << k));
  check_positions(frequencies::custom(slow), positions);
  const frequencies doubles = frequencies::custom(slowest);
  worst_errors worst;
  for (const std::int64_t position : positions) {
    const frequency_table<double> table(doubles, -position, 1 - position);
    for (Index i = 0; i < doubles.pairs(); ++i)
      worst.include(table, -position, i, exact_pair(number(-position) * number(slowest(i))));
  }
  worst.check();
}

TEST_CASE("an attention_factor adds one rounding to doubles and none to floats", "[oracle]") {
  const frequencies plain(128, 1e4);
  for (const double factor : {0.1, 1.0693147180559945, 1.2302585092994046, 1.9999999999999998}) {
    const frequencies schedule = frequencies::custom(plain.inv_freq(), factor);
    const frequency_table<float> floats(schedule, 16777000, 16777300);
    const frequency_table<double> doubles(schedule, 16777000, 16777300);
    worst_errors worst;
    for (std::int64_t position = floats.first(); position < floats.last(); ++position)
      for (Index i = 0; i < schedule.pairs(); ++i) {
        exact_pair exact(number(position) * number(schedule.inv_freq()(i, 0)));
        mpfr_mul_d(exact.cos.get(), exact.cos.get(), factor, MPFR_RNDN);
        mpfr_mul_d(exact.sin.get(), exact.sin.get(), factor, MPFR_RNDN);
        worst.include(floats, position, i, exact);
        worst.include(doubles, position, i, exact);
      }
    CAPTURE(factor);
    CHECK(worst.of_float <= static_cast<double>(tolerance::table_entry<float>()));
    // 0.51 ulp before the product can be 1.02 after it, and the product is rounded.
    CHECK(worst.of_double <= 2 * static_cast<double>(tolerance::table_entry<double>()) + 0.5);
  }
}

TEST_CASE("the default schedule is the published power to 2 ulp", "[oracle]") {
  const std::uint64_t seed = 13;
  CAPTURE(seed);
  testing::random random(seed);
  const auto worst_of = [](Index rotary_dim, double base) {
    const frequencies schedule(rotary_dim, base);
    double worst = 0;
    for (Index i = 0; i < schedule.pairs(); ++i) {
      const number power = pow(base, number(-2 * i) / number(rotary_dim));
      testing::raise_to(worst, error_in_ulp<double>(schedule.inv_freq()(i, 0), power));
    }
    return worst;
  };
  for (const Index rotary_dim : {2, 6, 80, 96, 128, 192, 1024})
    for (const double base : {1e2, 1e4, 1.5e5, 5e5, 1e6, 1e7, 1e9}) {
      CAPTURE(rotary_dim, base);
      CHECK(worst_of(rotary_dim, base) <= static_cast<double>(tolerance::inv_freq()));
    }
  for (int sample = 0; sample < 100; ++sample) {
    const Index rotary_dim = 2 * random.integer(1, 300);
    const double base = std::pow(10, 2 + 7 * random.unit());
    CAPTURE(rotary_dim, base);
    REQUIRE(worst_of(rotary_dim, base) <= static_cast<double>(tolerance::inv_freq()));
  }
}

TEST_CASE("phase_of is the exact product over two pi, rounded to 2^-192 full turns", "[oracle]") {
  const number turn = two_pi();
  // Half a unit of 2^-192 full turns, and the 2^-384 to which 1 / (2 pi) is truncated, times a product below
  // 2^128.
  const double bound = 0.5 + 0x1p-50;
  const std::uint64_t seed = 14;
  CAPTURE(seed);
  testing::random random(seed);
  const auto check = [&](double inv_freq, double coordinate) {
    CAPTURE(inv_freq, coordinate);
    const number difference = number(inv_freq) * number(coordinate) / turn -
                              fraction_of_full_turn(rope::phase_of(inv_freq, coordinate));
    number whole;
    mpfr_round(whole.get(), difference.get());
    REQUIRE(std::abs(((difference - whole) * 0x1p192).rounded()) <= bound);
  };
  for (int sample = 0; sample < 20000; ++sample) check(random.scaled(-200, 63), random.scaled(-60, 63));
  for (const double inv_freq :
       {0x1.fffffffffffffp63, 1.0, 0.1, 1e-9, 1e-30, 0x1p-190, 0x1p-191, 0x1p-210, 1e-300})
    for (const double coordinate :
         {1.0, -1.0, 0.5, 0x1p31, 0x1p53, 0x1.fffffffffffffp52, 0x1p64, 0x1p-40, 0x1p-1000}) {
      check(inv_freq, coordinate);
      check(-inv_freq, coordinate);
    }
}

TEST_CASE("cos and sin of a phase are as accurate as documented", "[oracle]") {
  const number unit = two_pi();
  const std::uint64_t seed = 15;
  CAPTURE(seed);
  testing::random random(seed);
  double of_float = 0, of_double = 0;
  const auto include = [&](phase p) {
    const exact_pair exact(fraction_of_full_turn(p) * unit);
    const rope::cos_sin wide = rope::cos_sin_of<double>(p), narrow = rope::cos_sin_of<float>(p);
    of_double = std::max(
        {of_double, error_in_ulp<double>(wide.cos, exact.cos), error_in_ulp<double>(wide.sin, exact.sin)});
    // Below 2^-126 a float has fewer digits than an ulp of 24 bits.
    if (std::abs(narrow.cos) > 0x1p-125)
      of_float = std::max(of_float, error_in_ulp<float>(narrow.cos, exact.cos));
    if (std::abs(narrow.sin) > 0x1p-125)
      of_float = std::max(of_float, error_in_ulp<float>(narrow.sin, exact.sin));
  };
  constexpr std::uint64_t eighth = std::uint64_t{1} << 61;
  for (int sample = 0; sample < 30000; ++sample) {
    include({{random.bits(), random.bits(), random.bits()}});
    // Close to a multiple of an eighth, at distances of any magnitude down to 2^-192 full turns.
    const phase center = {{random.bits() / eighth * eighth, 0, 0}};
    const std::uint64_t word = random.bits() >> random.integer(3, 63);
    for (const phase near : {phase{{word, random.bits(), random.bits()}}, phase{{0, word, random.bits()}},
                             phase{{0, 0, word | 1}}}) {
      include(center + near);
      include(center + -near);
    }
  }
  CHECK(of_float <= static_cast<double>(tolerance::table_entry<float>()));
  CHECK(of_double <= static_cast<double>(tolerance::table_entry<double>()));
}
