// SPDX-License-Identifier: MIT
#include <rope/tables/phase.hpp>

#include <rope/tables/detail/table_rows.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using rope::phase;
using rope::phase_of;
using rope::detail::uint128;
using rope::detail::uint192;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t smallest = std::numeric_limits<std::int64_t>::min();
constexpr std::uint64_t all_ones = ~std::uint64_t{0};

constexpr phase quarter{{std::uint64_t{1} << 62, 0, 0}};
constexpr phase half{{std::uint64_t{1} << 63, 0, 0}};

/// Words at which carries appear and disappear.
const std::vector<std::uint64_t> edge_words = {0,
                                               1,
                                               2,
                                               0xffffffffu,
                                               0x100000000u,
                                               0x100000001u,
                                               0x7fffffffffffffffu,
                                               0x8000000000000000u,
                                               0xffffffff00000000u,
                                               all_ones - 1,
                                               all_ones};

uint128 random_word(testing::random& random) {
  const std::uint64_t hi = random.bits();
  return {hi, random.bits()};
}

phase random_phase(testing::random& random) {
  const uint128 upper = random_word(random);
  return {{upper.hi, upper.lo, random.bits()}};
}

/// a * b by schoolbook multiplication in base 2^32, the least significant digit first.
std::array<std::uint64_t, 8> product_digits(uint128 a, uint128 b) {
  constexpr std::uint64_t digit = 0xffffffffu;
  const std::array<std::uint64_t, 4> x = {a.lo & digit, a.lo >> 32, a.hi & digit, a.hi >> 32};
  const std::array<std::uint64_t, 4> y = {b.lo & digit, b.lo >> 32, b.hi & digit, b.hi >> 32};
  std::array<std::uint64_t, 8> product{};
  for (std::size_t i = 0; i < 4; ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      const std::uint64_t sum = x[i] * y[j] + product[i + j] + carry;
      product[i + j] = sum & digit;
      carry = sum >> 32;
    }
    product[i + 4] = carry;
  }
  return product;
}

uint128 from_digits(const std::array<std::uint64_t, 8>& digits, std::size_t first) {
  return {digits[first + 3] << 32 | digits[first + 2], digits[first + 1] << 32 | digits[first]};
}

/// The distance of two phases on the circle, in units of 2^-192 full turns, if it is less than 2^63.
std::int64_t distance(phase a, phase b) {
  for (const uint192 between : {(a + -b).turn, (b + -a).turn})
    if (between.hi == 0 && between.mid == 0 && between.lo <= all_ones >> 1)
      return static_cast<std::int64_t>(between.lo);
  return largest;
}

bool same(rope::cos_sin a, rope::cos_sin b) { return a.cos == b.cos && a.sin == b.sin; }

}  // namespace

TEST_CASE("adding and negating 128-bit integers carries between the words", "[tables][phase]") {
  for (const std::uint64_t hi : edge_words)
    for (const std::uint64_t lo : edge_words) {
      const uint128 x = {hi, lo};
      CAPTURE(hi, lo);
      CHECK(x + uint128{} == x);
      CHECK(x + -x == uint128{});
      CHECK(-(-x) == x);
      CHECK(x + uint128{0, 1} == (lo == all_ones ? uint128{hi + 1, 0} : uint128{hi, lo + 1}));
      CHECK(x + uint128{all_ones, all_ones} == (lo == 0 ? uint128{hi - 1, all_ones} : uint128{hi, lo - 1}));
      CHECK(x + uint128{1, 0} == uint128{hi + 1, lo});
    }
}

TEST_CASE("multiplying in halves gives the bits of the native product and of schoolbook multiplication",
          "[tables][phase]") {
  const auto check = [](std::uint64_t a, std::uint64_t b) {
    CAPTURE(a, b);
    const uint128 expected = from_digits(product_digits({0, a}, {0, b}), 0);
    REQUIRE(rope::detail::multiply_halves(a, b) == expected);
    REQUIRE(rope::detail::multiply(a, b) == expected);
  };
  for (const std::uint64_t a : edge_words)
    for (const std::uint64_t b : edge_words) check(a, b);
  const std::uint64_t seed = 2;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const uint128 words = random_word(random);
    check(words.hi, words.lo);
  }
}

TEST_CASE("the upper product is at most 2 below the exact one and never above", "[tables][phase]") {
  const auto check = [](uint128 a, uint128 b) {
    CAPTURE(a.hi, a.lo, b.hi, b.lo);
    const uint128 shortfall = from_digits(product_digits(a, b), 4) + -rope::detail::multiply_upper(a, b);
    REQUIRE(shortfall.hi == 0);
    REQUIRE(shortfall.lo <= 2);
  };
  for (const std::uint64_t a : edge_words)
    for (const std::uint64_t b : edge_words)
      for (const std::uint64_t c : edge_words)
        for (const std::uint64_t d : edge_words) check({a, b}, {c, d});
  const std::uint64_t seed = 3;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const uint128 a = random_word(random);
    check(a, random_word(random));
  }
}

TEST_CASE("adding and negating 192-bit integers carries between the words", "[tables][phase]") {
  for (const std::uint64_t hi : edge_words)
    for (const std::uint64_t mid : edge_words)
      for (const std::uint64_t lo : edge_words) {
        const uint192 x = {hi, mid, lo};
        const uint128 upper = {hi, mid}, up = upper + uint128{0, 1},
                      down = upper + uint128{all_ones, all_ones};
        CAPTURE(hi, mid, lo);
        CHECK(x + uint192{} == x);
        CHECK(x + -x == uint192{});
        CHECK(-(-x) == x);
        CHECK(x + uint192{0, 0, 1} == (lo == all_ones ? uint192{up.hi, up.lo, 0} : uint192{hi, mid, lo + 1}));
        CHECK(x + uint192{all_ones, all_ones, all_ones} ==
              (lo == 0 ? uint192{down.hi, down.lo, all_ones} : uint192{hi, mid, lo - 1}));
        CHECK(x + uint192{0, 1, 0} == uint192{up.hi, up.lo, lo});
        for (const std::uint64_t times : edge_words) {
          const auto low = product_digits({0, lo}, {0, times}), high = product_digits({hi, mid}, {0, times});
          const uint128 of_low = from_digits(low, 0), of_high = from_digits(high, 0);
          const uint128 expected = of_high + uint128{0, of_low.hi};
          CHECK(rope::detail::multiply(x, times) == uint192{expected.hi, expected.lo, of_low.lo});
        }
      }
}

TEST_CASE("differences, shifts and quotients of wide integers follow from their digits", "[tables][phase]") {
  using rope::detail::divide;
  const std::uint64_t seed = 12;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const uint128 a = random_word(random), b = {random.bits() >> random.integer(0, 63), random.bits()};
    CAPTURE(a.hi, a.lo, b.hi, b.lo);
    REQUIRE(a - b == a + -b);
    const auto places = static_cast<int>(random.integer(0, 127));
    uint128 left = a, right = a;
    for (int k = 0; k < places; ++k) {
      left = left + left;
      right = {right.hi >> 1, right.lo >> 1 | right.hi << 63};
    }
    CAPTURE(places);
    REQUIRE((a << places) == left);
    REQUIRE((a >> places) == right);
    REQUIRE(rope::detail::leading_zeros(right) ==
            (right.hi != 0 ? std::countl_zero(right.hi) : 64 + std::countl_zero(right.lo)));
    const auto divisor = static_cast<std::uint32_t>(random.integer(1, 0xffffffff));
    const uint128 quotient = divide(a, divisor);
    const uint192 product = rope::detail::multiply(uint192{0, quotient.hi, quotient.lo}, divisor);
    const uint128 remainder = a - uint128{product.mid, product.lo};
    REQUIRE(product.hi == 0);
    REQUIRE(remainder.hi == 0);
    REQUIRE(remainder.lo < divisor);
    const uint192 wide = {a.hi, a.lo, b.lo};
    REQUIRE(rope::detail::negate_if(0, wide) == wide);
    REQUIRE(rope::detail::negate_if(all_ones, wide) == -wide);
  }
}

TEST_CASE("the upper 64 bits of the phases of a row have an error of four units per axis",
          "[tables][phase]") {
  const std::uint64_t seed = 13;
  CAPTURE(seed);
  testing::random random(seed);
  constexpr rope::Index pairs = 37;
  rope::number_array<double> inv_freq(pairs, 2);
  for (double& f : inv_freq) f = random.scaled(-70, 63);
  inv_freq(3, 0) = 0;
  const rope::frequencies schedule = rope::frequencies::custom(std::move(inv_freq));
  const rope::detail::row_angles angles(schedule);
  const auto check = [&](const auto& coordinates) {
    for (rope::Index first = 0; first < pairs; first += 16) {
      std::uint64_t turns[16];
      angles.find_upper(coordinates, first, turns);
      for (rope::Index i = first; i < std::min<rope::Index>(pairs, first + 16); ++i) {
        const phase exact =
            angles.frequency(i, 0).at(coordinates(0)) + angles.frequency(i, 1).at(coordinates(1));
        CAPTURE(i, coordinates(0), coordinates(1));
        REQUIRE(turns[i - first] - exact.turn.hi + 8 <= 16);
      }
    }
  };
  for (int sample = 0; sample < 3000; ++sample) {
    const auto any = [&]() -> double {
      const double x = random.scaled(-120, 53);
      return sample % 3 == 0 ? std::trunc(x) : sample % 3 == 1 ? std::ldexp(std::round(x), -20) : x;
    };
    const double x = any(), y = any();
    check([&](rope::Index a) { return a == 0 ? x : y; });
    const std::int64_t p = random.integer(smallest, largest) >> random.integer(0, 62);
    check([&](rope::Index) { return p; });
  }
}

TEST_CASE("steps add exactly, modulo one full turn", "[tables][phase]") {
  const std::uint64_t seed = 4;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 5000; ++sample) {
    const phase p = random_phase(random), q = random_phase(random);
    const std::int64_t bits = random.integer(0, 61);
    const std::int64_t limit = std::int64_t{1} << bits;
    const std::int64_t a = random.integer(-limit, limit), b = random.integer(-limit, limit);
    CAPTURE(p.turn.hi, p.turn.mid, p.turn.lo, a, b);
    REQUIRE(p * a + p * b == p * (a + b));
    REQUIRE((p + q) * a == p * a + q * a);
    REQUIRE(p * -a == -(p * a));
    REQUIRE((-p) * a == -(p * a));
    REQUIRE(p + q == q + p);
    REQUIRE(p + -p == phase{});
  }
}

TEST_CASE("a few steps are repeated addition", "[tables][phase]") {
  const phase p = phase_of(0.7);
  phase sum{};
  for (std::int64_t count = 0; count < 100; ++count) {
    REQUIRE(p * count == sum);
    sum = sum + p;
  }
}

TEST_CASE("every 64-bit position is a valid number of steps", "[tables][phase]") {
  for (const phase p : {phase{{1, 1, 1}}, phase{{all_ones, all_ones, all_ones}}, phase{{0, 1, 0}},
                        phase{{0, 0, 1}}, quarter, phase_of(1.0)}) {
    CAPTURE(p.turn.hi, p.turn.mid, p.turn.lo);
    CHECK(p * smallest == -(p * largest) + -p);
    CHECK(p * largest == p * (largest - 1) + p);
    CHECK(p * smallest + p == p * (smallest + 1));
    CHECK(p * 0 == phase{});
    CHECK(p * 1 == p);
    CHECK(p * -1 == -p);
  }
  // 2^63 steps shift the 192 bits left by 63.
  CHECK(phase{{0, 2, 0}} * smallest == phase{{all_ones, 0, 0}});
  CHECK(phase{{0, 0, 2}} * smallest == phase{{all_ones, all_ones, 0}});
  CHECK(phase{{0, 0, 3}} * smallest == phase{{all_ones, 0xfffffffffffffffeu, 0x8000000000000000u}});
}

TEST_CASE("whole turns vanish", "[tables][phase]") {
  CHECK(half + half == phase{});
  CHECK(quarter * 4 == phase{});
  CHECK(quarter * -3 == quarter);
  CHECK(half * largest == half);
  CHECK(half * smallest == phase{});
}

// Golden: round(2^192 frac(x c / (2 pi))) in mpmath 1.3.0 with 4000 bits. 1 / (2 pi) =
// 0x0.28be60db9391054a7f09d5f47d4d3770...
TEST_CASE("phase_of is the exact fraction of a full turn, rounded once", "[tables][phase]") {
  struct golden {
    double inv_freq, coordinate;
    uint192 turn;
  };
  for (const golden& g : std::vector<golden>{
           {1.0, 1.0, {0x28be60db9391054au, 0x7f09d5f47d4d3770u, 0x36d8a5664f10e410u}},
           {0.1, 1.0, {0x041309af8ec1b3cau, 0xf27486d379bd09beu, 0x096b3f22c064aa18u}},
           {-0.1, 1.0, {0xfbecf650713e4c35u, 0x0d8b792c8642f641u, 0xf694c0dd3f9b55e8u}},
           {1e4, -0.5, {0x39ac3f65d790a8feu, 0xc7e530d0b3dd3850u, 0xc8a189c7be199dc4u}},
           {1e-5, 0x1p31, {0xd38d803a01e09872u, 0x48aa2c1d9fae6c3du, 0x8ab502f092f82636u}},
           {0x1p63, 1.0, {0x3f84eafa3ea69bb8u, 0x1b6c52b327887208u, 0x3fca2c757bd778acu}},
           {1.5, -0x1p64, {0x41713f11440c2cd7u, 0xadbb07e68966a9e7u, 0x40a17a9f8c7995fbu}},
           {0x1p-100, 1.0, {0, 0x00000000028be60du, 0xb9391054a7f09d5fu}},
           {0x1p-184, 3.0, {0, 0, 0x000000000000007au}},
           {0x1p-189, 1.0, {0, 0, 1}},
           {0x1p-190, 1.0, {0, 0, 1}},
           {0x1p-191, 1.0, {0, 0, 0}},
           {5e-324, 1.0, {0, 0, 0}},
           {0.0, 7.0, {0, 0, 0}},
           {-0.0, 7.0, {0, 0, 0}},
           {7.0, 0.0, {0, 0, 0}},
           {0x1.fffffffffffffp63, 0x1p64, {0xe829017be5556259u, 0xba692672708e6d5bu, 0xcb01c3d11908b14au}}}) {
    CAPTURE(g.inv_freq, g.coordinate);
    const phase p = phase_of(g.inv_freq, g.coordinate);
    CHECK(p.turn.hi == g.turn.hi);
    CHECK(p.turn.mid == g.turn.mid);
    CHECK(p.turn.lo == g.turn.lo);
  }
  CHECK(phase_of(0.1) == phase_of(0.1, 1.0));
}

TEST_CASE("phase_of is odd in either argument and symmetric in both", "[tables][phase]") {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 5000; ++sample) {
    const double f = random.scaled(-90, 63), c = random.scaled(-60, 63);
    CAPTURE(f, c);
    REQUIRE(phase_of(-f, c) == -phase_of(f, c));
    REQUIRE(phase_of(f, -c) == -phase_of(f, c));
    REQUIRE(phase_of(-f, -c) == phase_of(f, c));
    REQUIRE(phase_of(c, f) == phase_of(f, c));
  }
}

TEST_CASE("phases at integers are steps up to 2^31 and exact products beyond", "[tables][phase]") {
  using rope::phase_at;
  const double inv_freq = 0.1;
  const phase step = phase_of(inv_freq);
  constexpr std::int64_t reach = std::int64_t{1} << 31;
  for (const std::int64_t p : {std::int64_t{0}, std::int64_t{1}, std::int64_t{131071}, reach - 1, reach}) {
    CAPTURE(p);
    CHECK(phase_at(step, inv_freq, p) == step * p);
    CHECK(phase_at(step, inv_freq, -p) == step * -p);
  }
  for (const std::int64_t p : {reach + 1, std::int64_t{1} << 40, (std::int64_t{1} << 53) - 1}) {
    CAPTURE(p);
    // Two roundings to 2^-192 full turns instead of one.
    CHECK(distance(phase_at(step, inv_freq, p), phase_of(inv_freq, static_cast<double>(p))) <= 1);
    CHECK(phase_at(step, inv_freq, -p) == -phase_at(step, inv_freq, p));
    CHECK_FALSE(phase_at(step, inv_freq, p) == step * p);
  }
  // The most negative integer has no opposite, so its successor must differ from it by one step.
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  CHECK(distance(phase_at(step, inv_freq, least) + step, phase_at(step, inv_freq, least + 1)) <= 3);
  // A pair whose step has few bits is never counted in steps.
  const double slow = 0x1.23456789abcdep-140;
  CHECK(phase_at(phase_of(slow), slow, 1000003) == phase_of(slow, 1000003));
  CHECK_FALSE(phase_of(slow) * 1000003 == phase_of(slow, 1000003));
}

TEST_CASE("steps and coordinates give the same phase, up to the rounding of the step", "[tables][phase]") {
  const std::uint64_t seed = 6;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 5000; ++sample) {
    const double f = random.scaled(-40, 10);
    const std::int64_t a = random.integer(-(std::int64_t{1} << 31), std::int64_t{1} << 31),
                       b = random.integer(-4096, 4096);
    const auto real_a = static_cast<double>(a), real_b = static_cast<double>(b);
    CAPTURE(f, a, b);
    // Half a unit for the product and half a unit for every step.
    REQUIRE(distance(phase_of(f) * a, phase_of(f, real_a)) <= (testing::abs(a) + 1) / 2);
    // Three roundings of half a unit, and the difference is a whole number.
    REQUIRE(distance(phase_of(f, real_a) + phase_of(f, real_b), phase_of(f, real_a + real_b)) <= 1);
  }
}

TEST_CASE("the float nearest to a product is that of its digits, down to subnormal floats",
          "[tables][phase]") {
  using rope::detail::nearest_float;
  const std::uint64_t seed = 14;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    // 40 bits times 53, more than the 64 bits of testing::wide, so it is rounded from the digits of the
    // product.
    const std::uint64_t a = random.bits() >> 24 | 1, b = random.bits() >> 11 | std::uint64_t{1} << 52;
    const auto exponent = static_cast<int>(random.integer(-250, 20));
    const uint128 product = from_digits(product_digits({0, a}, {0, b}), 0);
    const int bits = 128 - rope::detail::leading_zeros(product);
    const int dropped = std::max(bits - 24, -149 - (exponent - 52));  // b is b 2^-52
    double expected = 0;
    if (dropped <= 127) {
      const uint128 unit = uint128{0, 1} << dropped, kept = product >> dropped,
                    rest = product - (kept << dropped);
      const bool up = (unit - (rest + rest)).hi >> 63 != 0;
      expected = std::ldexp(static_cast<double>(kept.lo + (up ? 1 : 0)), dropped + exponent - 52);
      if (rest + rest == unit) continue;  // the midpoint, which is no entry
    }
    CAPTURE(a, b, exponent);
    REQUIRE(nearest_float({0, a}, exponent, static_cast<double>(b) * 0x1p-52) == expected);
  }
  CHECK(nearest_float({0, 1}, -150, 1.5) == 0x1p-149);
  CHECK(nearest_float({0, 1}, -151, 1.5) == 0);
  CHECK(nearest_float({all_ones, all_ones}, -128, 1) == 1);
}

TEMPLATE_TEST_CASE("cos and sin of quarter turns are exact", "[tables][phase]", float, double) {
  CHECK(same(rope::cos_sin_of<TestType>(phase{}), {1, 0}));
  CHECK(same(rope::cos_sin_of<TestType>(quarter), {0, 1}));
  CHECK(same(rope::cos_sin_of<TestType>(half), {-1, 0}));
  CHECK(same(rope::cos_sin_of<TestType>(-quarter), {0, -1}));
}

TEMPLATE_TEST_CASE("cos and sin keep the symmetries of the circle in every bit", "[tables][phase]", float,
                   double) {
  const std::uint64_t seed = 7;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    // Small angles too. None of them is an odd number of eighths, at which two octants meet.
    const std::int64_t zeros = random.integer(0, 63);
    const phase p = {{random.bits() >> zeros, random.bits(), random.bits() | 1}};
    CAPTURE(p.turn.hi, p.turn.mid, p.turn.lo);
    const auto [c, s] = rope::cos_sin_of<TestType>(p);
    REQUIRE(same(rope::cos_sin_of<TestType>(-p), {c, -s}));
    REQUIRE(same(rope::cos_sin_of<TestType>(p + quarter), {-s, c}));
    REQUIRE(same(rope::cos_sin_of<TestType>(p + half), {-c, -s}));
    REQUIRE(same(rope::cos_sin_of<TestType>(p + -quarter), {s, -c}));
    REQUIRE(same(rope::cos_sin_of<TestType>(quarter + -p), {s, c}));
  }
}

TEMPLATE_TEST_CASE("cos and sin of a phase agree with testing::wide", "[tables][phase]", float, double) {
  // The angle below has 64 bits: an error of pi * 2^-64 for its representation, and as much for pi and for
  // the product.
  const testing::wide angle_error = 0x1p-60L;
  const std::uint64_t seed = 8;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const phase p = random_phase(random);
    const testing::wide turn = static_cast<testing::wide>(static_cast<std::int64_t>(p.turn.hi)) * 0x1p-64L +
                               static_cast<testing::wide>(p.turn.mid) * 0x1p-128L;
    const testing::wide angle = 2 * testing::pi * turn;
    const testing::wide cos = testing::cos(angle), sin = testing::sin(angle);
    const rope::cos_sin value = rope::cos_sin_of<TestType>(p);
    // Through memory: GCC 12 drops the rounding of two neighbouring floats that stay in registers.
    const volatile TestType c = static_cast<TestType>(value.cos), s = static_cast<TestType>(value.sin);
    CAPTURE(p.turn.hi, p.turn.mid, p.turn.lo);
    const testing::wide entry = tolerance::table_entry<TestType>();
    REQUIRE(testing::abs(c - cos) <= entry * tolerance::ulp<TestType>(cos) + angle_error);
    REQUIRE(testing::abs(s - sin) <= entry * tolerance::ulp<TestType>(sin) + angle_error);
  }
}

TEST_CASE("the sine of a tiny phase is the angle itself", "[tables][phase]") {
  for (int bit = 0; bit < 160; ++bit) {  // beyond this, x^3 / 6 is significant
    const std::uint64_t word = std::uint64_t{1} << (bit % 64);
    const uint192 turn = bit < 64    ? uint192{0, 0, word}
                         : bit < 128 ? uint192{0, word, 0}
                                     : uint192{word, 0, 0};
    const testing::wide angle = 2 * testing::pi * testing::ldexp(1.0L, bit - 192);
    CAPTURE(bit);
    const volatile double s = rope::cos_sin_of<double>({turn}).sin;
    CHECK(tolerance::error_in_ulp<double>(s, angle) <= tolerance::table_entry<double>());
    if (bit < 66) continue;  // a subnormal float
    const volatile float f = static_cast<float>(rope::cos_sin_of<float>({turn}).sin);
    CHECK(tolerance::error_in_ulp<float>(f, angle) <= tolerance::table_entry<float>());
  }
}
