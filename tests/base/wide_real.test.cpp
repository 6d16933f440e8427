// SPDX-License-Identifier: MIT
#include <rope/base/wide_real.hpp>

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

// Laws, and the double operations that IEEE 754 defines: they round the exact result of doubles, and so must
// wide_real. tests/oracle/wide_real.test.cpp compares all of its bits with MPFR.

namespace {

using rope::wide_real;

double rounded(wide_real x) { return static_cast<double>(x); }

constexpr std::uint64_t seed = 41;

}  // namespace

TEST_CASE("wide_real rounds sums, products and quotients of doubles as IEEE 754 does", "[base][wide_real]") {
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 20000; ++sample) {
    const double a = random.scaled(-60, 60), b = random.scaled(-60, 60);
    CAPTURE(sample, a, b);
    REQUIRE(rounded(a) == a);
    REQUIRE(rounded(wide_real(a) + b) == a + b);
    REQUIRE(rounded(wide_real(a) - b) == a - b);
    REQUIRE(rounded(wide_real(a) * b) == a * b);
    REQUIRE(rounded(wide_real(a) / b) == a / b);
    REQUIRE(rounded(floor(wide_real(a))) == std::floor(a));
    REQUIRE(rounded(ceil(wide_real(a))) == std::ceil(a));
    REQUIRE((wide_real(a) < wide_real(b)) == (a < b));
    REQUIRE((wide_real(a) > wide_real(b)) == (a > b));
    REQUIRE(wide_real(a) == wide_real(a));
    REQUIRE(wide_real(a) - a == 0);
  }
}

TEST_CASE("wide_real rounds the midpoint of two doubles to even", "[base][wide_real]") {
  CHECK(rounded(1 + wide_real(0x1p-53)) == 1);
  CHECK(rounded(1 + wide_real(0x1p-53) + 0x1p-120) == 1 + 0x1p-52);
  CHECK(rounded(1 + wide_real(0x1p-52) + 0x1p-53) == 1 + 0x1p-51);
  CHECK(rounded(wide_real(2) - 0x1p-60) == 2);
}

TEST_CASE("integers of every type are exact", "[base][wide_real]") {
  CHECK(rounded(std::numeric_limits<std::int64_t>::min()) == -0x1p63);
  CHECK(wide_real(std::numeric_limits<std::uint64_t>::max()) + 1 == 0x1p64);
  CHECK(wide_real(std::numeric_limits<std::int64_t>::max()) - (0x1p63 - 1024) == 1023);
  CHECK(wide_real(short(-3)) * 3u == -9);
  CHECK(wide_real() == 0);
  CHECK(-wide_real(0) == 0);
}

TEST_CASE("the range of double is kept to its ends, and beyond them", "[base][wide_real]") {
  constexpr double least = std::numeric_limits<double>::denorm_min(),
                   tiny = std::numeric_limits<double>::min(), largest = std::numeric_limits<double>::max();
  for (const double x :
       {least, 3 * least, tiny - least, tiny, tiny + least, largest, -least, -largest, 0.0}) {
    CAPTURE(x);
    CHECK(rounded(x) == x);
  }
  CHECK(rounded(wide_real(least) / 2) == 0);  // a tie, to even
  CHECK(rounded(wide_real(least) * 3 / 4) == least);
  CHECK(rounded(wide_real(least) * 3 / 2) == 2 * least);
  CHECK(rounded(wide_real(tiny) * (1 - 0x1p-60)) == tiny);
  CHECK(rounded(wide_real(largest) * (1 + 0x1p-54)) == largest);
  CHECK(std::isinf(rounded(wide_real(largest) * (1 + 0x1p-52))));
  CHECK(rounded(wide_real(largest) * largest / largest) == largest);
}

TEST_CASE("a division by 0 gives infinity, also in what is computed from it", "[base][wide_real]") {
  const wide_real infinite = wide_real(1) / 0;
  for (const wide_real& x : {infinite, -infinite, infinite - infinite, infinite * 0, wide_real(0) / 0,
                             log(wide_real(0)), log(wide_real(-1)), exp(wide_real(1e7)), infinite + 1,
                             1 - infinite, wide_real(std::numeric_limits<double>::infinity())}) {
    CHECK(x.is_infinite());
    CHECK(std::isinf(rounded(x)));
  }
  CHECK(1 / infinite == 0);
  CHECK(exp(-infinite) == 0);
  CHECK(exp(wide_real(-1e7)) == 0);
  CHECK(rounded(-infinite) < 0);
  CHECK_FALSE(wide_real(std::numeric_limits<double>::max()).is_infinite());
}

TEST_CASE("exponentials, logarithms and powers have their known values", "[base][wide_real]") {
  CHECK(exp(wide_real(0)) == 1);
  CHECK(log(wide_real(1)) == 0);
  CHECK(pow(wide_real(7), 0) == 1);
  for (int n = -1074; n <= 1023; ++n) {
    CAPTURE(n);
    REQUIRE(rounded(pow(wide_real(2), n)) == std::ldexp(1.0, n));
  }
  for (int n = 1; n <= 300; ++n) {
    CAPTURE(n);
    REQUIRE(rounded(pow(wide_real(n) * n, 0.5)) == n);
    REQUIRE(rounded(exp(log(wide_real(n)))) == n);
  }
  CHECK(rounded(wide_real::pi()) == 0x1.921fb54442d18p1);
}

TEST_CASE("wide_real gives the same results at compile time and at run time", "[base][wide_real]") {
  constexpr double of_compiler = static_cast<double>(pow(wide_real(10000) / 3, wide_real(-2) / 7));
  volatile double base = 10000;
  CHECK(rounded(pow(wide_real(base) / 3, wide_real(-2) / 7)) == of_compiler);
  STATIC_REQUIRE(wide_real(3) / 4 + 0.25 == 1);
}
