// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/random.hpp"
#include "support/reference.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::Index;
using testing::throws_saying;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t smallest = std::numeric_limits<std::int64_t>::min();

/// Whether row `p` of one table has the bits of row `q` of another.
template <class S>
bool same_row(const frequency_table<S>& a, std::int64_t p, const frequency_table<S>& b, std::int64_t q) {
  return (a.cos(p) == b.cos(q)).all() && (a.sin(p) == b.sin(q)).all();
}
template <class S>
bool same_row(const frequency_table<S>& a, const frequency_table<S>& b, std::int64_t p) {
  return same_row(a, p, b, p);
}

/// Whether an entry agrees with long double, within `ulps` and the error of the angle of the reference.
template <class S>
bool agrees(S got, testing::wide exact, testing::wide ulps = tolerance::table_entry<S>()) {
  constexpr testing::wide angle_error = 0x1p-45L;  // reference::angle, |angle| <= 2^20
  return testing::abs(static_cast<testing::wide>(got) - exact) <=
         ulps * tolerance::ulp<S>(exact) + angle_error;
}

frequencies two_axes() {
  Eigen::ArrayXXd inv_freq(3, 2);
  inv_freq << 1.0, 0.25, 0.1, -0.3, 0.0, 1e-3;
  return frequencies::custom(inv_freq);
}

// Double -> float -> double of two neighbouring values, in its own function so that both stay in registers.
#if defined(__GNUC__)
__attribute__((noinline))
#endif
void through_float(const double* x, double* rounded) {
  const float a = static_cast<float>(x[0]), b = static_cast<float>(x[1]);
  rounded[0] = static_cast<double>(a);
  rounded[1] = static_cast<double>(b);
}

}  // namespace

// GCC 12 at -O2 replaces the two conversions by a copy (its SLP vectoriser). A test that rounds in registers
// would then compare an unrounded value with itself, so all tests read entries back from the memory of a
// table.
TEST_CASE("a note is printed if the compiler drops the rounding of neighbouring floats", "[tables][table]") {
  const volatile double source[2] = {0.1, 0.7};  // not known to the optimiser
  const double x[2] = {source[0], source[1]};
  double rounded[2] = {};
  through_float(x, rounded);
  if (rounded[0] == x[0] && rounded[1] == x[1])
    WARN("this compiler drops double -> float -> double on neighbouring values: never round in registers");
  frequency_table<float> table(frequencies(2, 1e4), 2);
  CHECK(static_cast<double>(table.cos(1)[0]) != testing::cos(1.0));
}

TEST_CASE("a table entry is the cosine or sine of position times inv_freq", "[tables][table]") {
  const std::vector<std::int64_t> positions = {0,     1,     2,     255,    256,    257,    1857,
                                               2047,  2048,  2049,  4095,   8191,   15962,  32767,
                                               32768, 65504, 65535, 131071, 262143, 1048575};
  for (const Index rotary_dim : {2, 6, 80, 96, 128, 192})
    for (const double base : {1e2, 1e4, 5e5, 1e6, 1e9}) {
      const frequencies schedule(rotary_dim, base);
      for (const std::int64_t magnitude : positions)
        for (const std::int64_t p : {magnitude, -magnitude}) {
          const frequency_table<float> table(schedule, p, p + 1);
          CAPTURE(rotary_dim, base, p);
          for (Index i = 0; i < schedule.pairs(); ++i) {
            CAPTURE(i);
            const double inv_freq = schedule.inv_freq()(i, 0);
            REQUIRE(agrees(table.cos(p)[i], reference::cos(static_cast<testing::wide>(p), inv_freq)));
            REQUIRE(agrees(table.sin(p)[i], reference::sin(static_cast<testing::wide>(p), inv_freq)));
          }
        }
    }
}

// Golden: cos and sin of position * inv_freq for these doubles, in mpmath 1.3.0 with 600 bits, rounded to
// double.
TEST_CASE("distant positions are as accurate as near ones", "[tables][table]") {
  const Eigen::Array4d inv_freq(1.0, 0.1, 0.01, 1e-4);
  struct golden {
    std::int64_t position;
    std::array<double, 4> cos, sin;
  };
  const std::vector<golden> list = {
      {1,
       {0x1.14a280fb5068cp-1, 0x1.fd712f9a817c1p-1, 0x1.fff9724ad97aap-1, 0x1.ffffffd50ce24p-1},
       {0x1.aed548f090ceep-1, 0x1.98eaecb8bcb2cp-4, 0x1.47acae915e807p-7, 0x1.a36e2ea609cc8p-14}},
      {1857,
       {-0x1.e635f7416cd6ep-1, -0x1.e1a6c3f79cc59p-1, 0x1.ec1f8817f4a29p-1, 0x1.f73282f267308p-1},
       {-0x1.40e4914a64f8bp-2, -0x1.5b4f20f711cc8p-2, -0x1.1a8d16d10d886p-2, 0x1.7a21acf9fd443p-3}},
      {131071,
       {-0x1.a2cebbb513e7cp-1, 0x1.dc55ea96e3022p-1, -0x1.92a0e20f867afp-1, 0x1.b6f468f19e98cp-1},
       {-0x1.268613f60babcp-1, 0x1.777db6c0e28f8p-2, -0x1.3c483412db4f2p-1, 0x1.078ed03eeeb64p-1}},
      {16777215,
       {-0x1.4532c3721ed43p-2, -0x1.ee1fd5de2bdf5p-2, 0x1.b44fecc39b219p-4, 0x1.fcd906a444ab0p-1},
       {-0x1.e57ec09221973p-1, -0x1.c0724f08cb607p-1, -0x1.fd16408d9bfe6p-1, 0x1.c5d106037fcf5p-4}},
      {16777217,
       {0x1.fd1fe5195a1a2p-1, -0x1.3216f1e0b6eb2p-2, 0x1.02d632c54d8b7p-3, 0x1.fcd61e7117debp-1},
       {0x1.b17d7d79c02c7p-4, -0x1.e89753cbd5c51p-1, -0x1.fbe4f771f5eb1p-1, 0x1.c6a171f91df8bp-4}},
      {67108864,
       {-0x1.d078da7f267e0p-1, -0x1.63a7149fd32a5p-5, 0x1.c93353b2200b2p-1, 0x1.ce3fa2b3101ebp-1},
       {0x1.aedbaec15d29dp-2, -0x1.ff846ae1c7bb0p-1, 0x1.cceb6742ab20bp-2, 0x1.b851b856e3517p-2}},
      {2147483647,
       {-0x1.60af33efcd1b2p-1, 0x1.4bc944ff1dcebp-4, -0x1.6cf66a138875dp-1, -0x1.61c2867a2ad45p-4},
       {-0x1.7328434159860p-1, -0x1.fe5148be4de56p-1, 0x1.67174a882dbccp-1, 0x1.fe163bb5742b0p-1}},
      {-2147483648,
       {0x1.e70c2d5131e55p-3, 0x1.70d9ee75f84b1p-3, -0x1.7089001ebcf9ap-1, -0x1.622afd9a45342p-4},
       {0x1.f14f913e9af98p-1, 0x1.f7a0acb6badd2p-1, -0x1.636c67ff7d77fp-1, -0x1.fe1519bdd80fdp-1}},
      {1099511627777,
       {-0x1.38377325300fcp-3, 0x1.2165574915cdcp-3, -0x1.fac7f7e085f0bp-1, 0x1.e1fa71f6e064fp-1},
       {-0x1.fa03eef64f6d7p-1, -0x1.fadccef2febd2p-1, 0x1.23ab048a830fbp-3, 0x1.597d8fb5ec5dcp-2}}};
  // The golden value itself has an error of half an ulp.
  const testing::wide of_double = tolerance::table_entry<double>() + 0.5L,
                      of_float = tolerance::table_entry<float>();
  for (const auto& [position, cos, sin] : list) {
    const frequency_table<float> floats(frequencies::custom(inv_freq), position, position + 1);
    const frequency_table<double> doubles(frequencies::custom(inv_freq), position, position + 1);
    CAPTURE(position);
    for (std::size_t n = 0; n < 4; ++n) {
      const auto i = static_cast<Index>(n);
      CAPTURE(i);
      CHECK(tolerance::error_in_ulp<float>(floats.cos(position)[i], cos[n]) <= of_float);
      CHECK(tolerance::error_in_ulp<float>(floats.sin(position)[i], sin[n]) <= of_float);
      CHECK(tolerance::error_in_ulp<double>(doubles.cos(position)[i], cos[n]) <= of_double);
      CHECK(tolerance::error_in_ulp<double>(doubles.sin(position)[i], sin[n]) <= of_double);
    }
  }
}

TEMPLATE_TEST_CASE("a table of a count contains the positions from 0 on", "[tables][table]", float, double) {
  const frequency_table<TestType> table(frequencies(6, 1e4), 5);
  STATIC_REQUIRE(std::is_same_v<typename frequency_table<TestType>::scalar, TestType>);
  CHECK(table.rows() == 5);
  CHECK(table.pairs() == 3);
  CHECK(table.rotary_dim() == 6);
  CHECK(table.first() == 0);
  CHECK(table.last() == 5);
  CHECK(table.attention_factor() == 1.0);
  CHECK((table.inv_freq() == frequencies(6, 1e4).inv_freq()).all());
  CHECK(table.inv_freq(2) == frequencies(6, 1e4).inv_freq()(2, 0));
  CHECK(table.cos(4).size() == 3);
  CHECK(table.sin(4).size() == 3);
  CHECK((table.cos(0) == TestType(1)).all());
  CHECK((table.sin(0) == TestType(0)).all());
}

TEST_CASE("a table is of float by default", "[tables][table]") {
  const rope::frequency_table table(frequencies(8), 2);
  STATIC_REQUIRE(std::is_same_v<decltype(table), const frequency_table<float>>);
  CHECK(table.rows() == 2);
}

TEST_CASE("counts and bounds may have any integer type", "[tables][table]") {
  const frequencies schedule(8);
  const frequency_table<float> table(schedule, 3);
  CHECK(frequency_table<float>(schedule, 3u).last() == 3);
  CHECK(frequency_table<float>(schedule, std::uint8_t{3}).last() == 3);
  CHECK(frequency_table<float>(schedule, std::size_t{3}).last() == 3);
  CHECK(frequency_table<float>(schedule, std::int64_t{3}).last() == 3);
  const frequency_table<float> range(schedule, -1, std::uint16_t{3});
  CHECK(range.first() == -1);
  CHECK(range.rows() == 4);
  CHECK(same_row(range, table, 2));
}

TEMPLATE_TEST_CASE("a range of positions may begin anywhere and has the bits of any other range",
                   "[tables][table]", float, double) {
  const frequencies schedule(96, 5e5);
  const frequency_table<TestType> from_zero(schedule, 300);
  const frequency_table<TestType> from_below(schedule, -200, 300);
  CHECK(from_below.first() == -200);
  CHECK(from_below.last() == 300);
  CHECK(from_below.rows() == 500);
  for (std::int64_t p = 0; p < 300; ++p) {
    CAPTURE(p);
    REQUIRE(same_row(from_below, from_zero, p));
  }
  for (const std::int64_t first : {std::int64_t{-70000}, std::int64_t{131000}, (std::int64_t{1} << 31) - 100,
                                   largest - 200, smallest, std::int64_t{-50}}) {
    const frequency_table<TestType> range(schedule, first, first + 100);
    for (std::int64_t p = first; p < first + 100; ++p) {
      CAPTURE(p);
      REQUIRE(range.contains(p));
      REQUIRE(same_row(range, frequency_table<TestType>(schedule, p, p + 1), p));
    }
  }
}

TEMPLATE_TEST_CASE("a table of positions around a million contains only their rows", "[tables][table]", float,
                   double) {
  const frequencies schedule(8, 1e4);
  const std::int64_t first = 999'990, last = 1'000'010;
  const frequency_table<TestType> far(schedule, first, last);
  CHECK(far.rows() == last - first);
  CHECK(far.first() == first);
  CHECK_FALSE(far.contains(first - 1));
  CHECK_FALSE(far.contains(0));
  CHECK(far.cos(last - 1).data() - far.cos(first).data() == (last - first - 1) * far.rotary_dim());
}

TEMPLATE_TEST_CASE("the opposite position has the same cosine and the opposite sine", "[tables][table]",
                   float, double) {
  const frequency_table<TestType> table(frequencies(128, 1e4), -500, 501);
  for (std::int64_t p = 1; p <= 500; ++p) {
    CAPTURE(p);
    REQUIRE((table.cos(-p) == table.cos(p)).all());
    REQUIRE((table.sin(-p) == -table.sin(p)).all());
  }
}

TEMPLATE_TEST_CASE("a row is cos then sin, and the unchecked view reads the same memory", "[tables][table]",
                   float, double) {
  const frequency_table<TestType> table(frequencies(12, 1e4), -2, 3);
  const auto view = table.view();
  for (std::int64_t p = -2; p < 3; ++p) {
    CHECK(table.cos(p).data() == view.cos(p));
    CHECK(table.sin(p).data() == view.cos(p) + table.pairs());
    CHECK(view.cos(p) == view.cos(-2) + (p + 2) * table.rotary_dim());
    CHECK(view.is_identity(p) == table.is_identity(p));
  }
}

TEMPLATE_TEST_CASE("cos and sin of all positions are the rows, by their numbers", "[tables][table]", float,
                   double) {
  const Eigen::ArrayXd at = Eigen::ArrayXd::LinSpaced(4, -0.5, 2.25);
  for (const auto& table : {frequency_table<TestType>(frequencies(12, 1e4), -2, 3),
                            frequency_table<TestType>(frequencies(2, 1e4), 7),
                            frequency_table<TestType>(frequencies(12, 1e4), at),
                            frequency_table<TestType>(frequencies(12, 1e4), 0)}) {
    CHECK(table.cos().rows() == table.rows());
    CHECK(table.sin().cols() == table.pairs());
    for (Index r = 0; r < table.rows(); ++r)
      for (Index i = 0; i < table.pairs(); ++i) {
        CHECK(table.cos()(r, i) == table.cos(table.first() + r)(i));
        CHECK(table.sin()(r, i) == table.sin(table.first() + r)(i));
      }
  }
}

TEST_CASE("a copy of a table is independent of the table", "[tables][table]") {
  const frequencies schedule(16);
  std::vector<frequency_table<float>> tables{frequency_table<float>(schedule, 4)};
  const frequency_table<float> copy = tables.front();
  tables.clear();
  CHECK(same_row(copy, frequency_table<float>(schedule, 4), 3));
}

TEMPLATE_TEST_CASE("integer coordinates give the bits of the same positions in a range", "[tables][table]",
                   float, double) {
  const frequencies schedule(96, 5e5);
  const auto check = [&](const auto& coordinates) {
    const frequency_table<TestType> table(schedule, coordinates);
    REQUIRE(table.rows() == coordinates.size());
    CHECK(table.first() == 0);
    CHECK(table.last() == coordinates.size());
    for (Index r = 0; r < coordinates.size(); ++r) {
      const auto p = static_cast<std::int64_t>(coordinates(r, 0));
      CAPTURE(r, p);
      CHECK(same_row(table, r, frequency_table<TestType>(schedule, p, p + 1), p));
    }
  };
  const std::int64_t far = (std::int64_t{1} << 40) + 1;
  const std::vector<std::int64_t> ids = {5, 0, 7, 7, -3, 131071, -1048576, far, -far};
  const Eigen::Map<const Eigen::Array<std::int64_t, Eigen::Dynamic, 1>> map(ids.data(),
                                                                            static_cast<Index>(ids.size()));
  check(map);
  check(map.matrix());
  check(map.cast<double>());
  check(map.head(7).cast<int>());
  check(-map);
}

TEST_CASE("integer coordinates give the bits of a range even if the step has only a few bits",
          "[tables][table]") {
  // The step is 2^-112 full turns, so 16 of its bits remain, and a step that was not rounded would change
  // every entry.
  const frequencies slow = frequencies::custom(Eigen::Array<double, 1, 1>(0x1.921fb5p-110));
  const std::int64_t p = (std::int64_t{1} << 40) + 1;
  const frequency_table<double> table(slow, Eigen::Array<std::int64_t, 1, 1>(p));
  CHECK(same_row(table, 0, frequency_table<double>(slow, p, p + 1), p));
}

TEMPLATE_TEST_CASE("real coordinates rotate by their exact value", "[tables][table]", float, double) {
  const frequencies schedule(64, 1e4);
  const Eigen::Array<TestType, 5, 1> coordinates(TestType(0.5), TestType(-0.25), TestType(3.7),
                                                 TestType(-1e-3), TestType(1000.125));
  const frequency_table<float> table(schedule, coordinates);
  for (Index r = 0; r < 5; ++r)
    for (Index i = 0; i < schedule.pairs(); ++i) {
      CAPTURE(r, i);
      const double inv_freq = schedule.inv_freq()(i, 0);
      CHECK(agrees(table.cos(r)[i], reference::cos(coordinates[r], inv_freq)));
      CHECK(agrees(table.sin(r)[i], reference::sin(coordinates[r], inv_freq)));
    }
}

TEST_CASE("a fraction of any size rotates by its product with inv_freq", "[tables][table]") {
  const Eigen::Array2d inv_freq(1.0, 0.37);
  const Index rows = 120;
  Eigen::ArrayXd coordinates(rows);
  for (Index r = 0; r < rows; ++r) coordinates(r) = testing::ldexp(r % 2 == 0 ? 1.3 : -1.7, -int(r) - 1);
  const frequency_table<double> table(frequencies::custom(inv_freq), coordinates);
  for (Index r = 0; r < rows; ++r)
    for (Index i = 0; i < 2; ++i) {
      CAPTURE(r, i);
      const testing::wide exact = reference::sin(coordinates(r), inv_freq(i));
      CHECK(tolerance::error_in_ulp(table.sin(r)[i], exact) <= tolerance::table_entry<double>());
    }
}

TEST_CASE("the angles of several axes add up", "[tables][table]") {
  const frequencies schedule = two_axes();
  const std::uint64_t seed = 9;
  CAPTURE(seed);
  testing::random random(seed);
  Eigen::ArrayXXd coordinates(40, 2);
  for (Index r = 0; r < 40; ++r) {
    coordinates(r, 0) = random.scaled(-8, 12);
    coordinates(r, 1) = random.scaled(-8, 12);
    if (r % 4 == 0) coordinates.row(r) = coordinates.row(r).round();
  }
  const frequency_table<float> table(schedule, coordinates);
  CHECK(table.rows() == 40);
  CHECK(table.pairs() == 3);
  for (Index r = 0; r < 40; ++r)
    for (Index i = 0; i < 3; ++i) {
      CAPTURE(r, i);
      const testing::wide angle = reference::angle(coordinates(r, 0), schedule.inv_freq()(i, 0)) +
                                  reference::angle(coordinates(r, 1), schedule.inv_freq()(i, 1));
      CHECK(agrees(table.cos(r)[i], testing::cos(angle)));
      CHECK(agrees(table.sin(r)[i], testing::sin(angle)));
    }
}

TEMPLATE_TEST_CASE("an attention_factor multiplies every cosine and sine", "[tables][table]", float, double) {
  const Eigen::Array3d inv_freq(1.0, 0.1, 0.0);
  const double factor = 1.2302585092994046;
  const frequency_table<TestType> table(frequencies::custom(inv_freq, factor), -20, 20);
  CHECK(table.attention_factor() == factor);
  // A float is rounded once, after the product. A double is also rounded before it: 0.51 ulp, which the
  // product can make 1.02, plus half an ulp.
  const testing::wide ulps = std::is_same_v<TestType, float> ? tolerance::table_entry<float>()
                                                             : 2 * tolerance::table_entry<double>() + 0.5L;
  const testing::wide angle_error = 0x1p-58L;  // 20 rad in 64 bits
  for (std::int64_t p = -20; p < 20; ++p)
    for (Index i = 0; i < 3; ++i) {
      CAPTURE(p, i);
      const auto position = static_cast<testing::wide>(p);
      const testing::wide cos = factor * reference::cos(position, inv_freq[i]);
      const testing::wide sin = factor * reference::sin(position, inv_freq[i]);
      CHECK(testing::abs(table.cos(p)[i] - cos) <= ulps * tolerance::ulp<TestType>(cos) + angle_error);
      CHECK(testing::abs(table.sin(p)[i] - sin) <= ulps * tolerance::ulp<TestType>(sin) + angle_error);
    }
}

TEST_CASE("only position 0 without an attention_factor is the identity", "[tables][table]") {
  const frequency_table<float> range(frequencies(8), -2, 3);
  for (std::int64_t p = -2; p < 3; ++p) CHECK(range.is_identity(p) == (p == 0));

  const Eigen::ArrayXd ones = Eigen::ArrayXd::Ones(4);
  const frequency_table<float> scaled(frequencies::custom(ones, 1.25), 2);
  CHECK_FALSE(scaled.is_identity(0));
  CHECK((scaled.cos(0) == 1.25f).all());
  const frequency_table<float> scaled_rows(frequencies::custom(ones, 1.25), Eigen::ArrayXd::Zero(2));
  CHECK_FALSE(scaled_rows.is_identity(0));
}

TEST_CASE("a row of coordinates is the identity if all of them are zero", "[tables][table]") {
  Eigen::ArrayXXd coordinates(5, 2);
  coordinates << 1, 2, 0, 0, 0, 1, 1, 0, -0.0, 0;
  const frequency_table<float> table(two_axes(), coordinates);
  const std::array<bool, 5> identity = {false, true, false, false, true};
  for (std::int64_t r = 0; r < 5; ++r) {
    CAPTURE(r);
    CHECK(table.is_identity(r) == identity[static_cast<std::size_t>(r)]);
  }
}

TEST_CASE("a position outside the table is out of range", "[tables][table]") {
  const frequency_table<float> table(frequencies(8), -2, 3);
  for (const std::int64_t p : {std::int64_t{-3}, std::int64_t{3}, largest, smallest}) {
    CAPTURE(p);
    CHECK_FALSE(table.contains(p));
    const std::string position = "position " + std::to_string(p);
    CHECK(throws_saying<std::out_of_range>([&] { table.cos(p); }, "rope::frequency_table: ", position,
                                           "[-2, 3)"));
    CHECK(throws_saying<std::out_of_range>([&] { table.sin(p); }, "rope::frequency_table: ", position,
                                           "[-2, 3)"));
    CHECK(throws_saying<std::out_of_range>([&] { table.is_identity(p); }, position, "[-2, 3)"));
  }
  for (std::int64_t p = -2; p < 3; ++p) CHECK(table.contains(p));
}

TEST_CASE("a table without rows is valid and contains nothing", "[tables][table]") {
  const frequencies schedule(8);
  for (const auto& table : {frequency_table<float>(schedule, 0), frequency_table<float>(schedule, 5, 5),
                            frequency_table<float>(two_axes(), Eigen::ArrayXXd(0, 2))}) {
    CHECK(table.rows() == 0);
    CHECK(table.last() == table.first());
    CHECK_FALSE(table.contains(table.first()));
    CHECK_THROWS_AS(table.cos(0), std::out_of_range);
    CHECK_THROWS_AS(table.sin(table.first()), std::out_of_range);
  }
}

TEST_CASE("a count must not be negative and a range must not be reversed", "[tables][table]") {
  const frequencies schedule(8);
  CHECK(throws_saying<std::invalid_argument>([&] { frequency_table<float> table(schedule, -1); },
                                             "rope::frequency_table: count must not be negative", "got -1"));
  CHECK(throws_saying<std::invalid_argument>([&] { frequency_table<float> table(schedule, 4, 3); },
                                             "last must not be below first", "got [4, 3)"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { frequency_table<float> table(schedule, largest, smallest); }, "last must not be below first"));
}

TEST_CASE("frequencies that were moved from cannot make a table", "[tables][table]") {
  frequencies f(8);
  const frequencies taken = std::move(f);
  for (const Index count : {Index{0}, Index{4}})
    CHECK(throws_saying<std::invalid_argument>([&] { frequency_table<float>(f, count); },
                                               "frequencies must have a pair, got 0: they were moved from",
                                               "give those that they were moved to"));
  CHECK(frequency_table<float>(taken, 4).pairs() == 4);
}

TEST_CASE("a table larger than the address space is a length error", "[tables][table]") {
  const frequencies schedule(8);
  CHECK(throws_saying<std::length_error>([&] { frequency_table<float> table(schedule, smallest, largest); },
                                         "too many positions", std::to_string(largest)));
  CHECK(throws_saying<std::length_error>(
      [&] { frequency_table<float> table(schedule, largest); },
      sizeof(Index) > 4 ? std::to_string(largest) + " rows of 4 pairs exceed the address space"
                        : "too many positions in [0, " + std::to_string(largest) + ")"));
  // The smallest count that throws: rows * 2 pairs * sizeof(S) = 2^63.
  CHECK_THROWS_AS(frequency_table<double>(schedule, std::int64_t{1} << 57), std::length_error);
}

TEST_CASE("a range of positions needs frequencies of one axis", "[tables][table]") {
  CHECK(throws_saying<std::invalid_argument>([] { frequency_table<float> table(two_axes(), 4); }, "one axis",
                                             "got 2 axes"));
  CHECK(throws_saying<std::invalid_argument>([] { frequency_table<float> table(two_axes(), -1, 4); },
                                             "one axis", "got 2 axes"));
}

TEST_CASE("coordinates must have one column per axis", "[tables][table]") {
  CHECK(throws_saying<std::invalid_argument>(
      [] { frequency_table<float> table(two_axes(), Eigen::ArrayXXd(5, 3)); },
      "rope::frequency_table: coordinates must be [rows, 2]", "got [5, 3]"));
  CHECK(throws_saying<std::invalid_argument>(
      [] { frequency_table<float> table(frequencies(8), Eigen::ArrayXXi(1, 5)); },
      "coordinates must be [rows, 1]", "got [1, 5]"));
}

TEST_CASE("a coordinate must be finite and at most 2^53 in magnitude", "[tables][table]") {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto table_at = [](double bad) {
    Eigen::ArrayXXd coordinates = Eigen::ArrayXXd::Zero(4, 2);
    coordinates(2, 1) = bad;
    return frequency_table<float>(two_axes(), coordinates);
  };
  for (const auto& [bad, value] :
       {std::pair(std::numeric_limits<double>::quiet_NaN(), "nan"), std::pair(infinity, "got inf"),
        std::pair(-infinity, "got -inf"), std::pair(0x1p53 + 2, "got 9007199254740994"),
        std::pair(-0x1p53 - 2, "got -9007199254740994")}) {
    CAPTURE(bad);
    CHECK(throws_saying<std::invalid_argument>([&, b = bad] { table_at(b); },
                                               "a coordinate must be finite and at most 2^53 in magnitude",
                                               value, "at row 2, axis 1"));
  }
  CHECK_NOTHROW(table_at(0x1p53));
  CHECK_NOTHROW(table_at(-0x1p53));
}

// The recipe of LlamaRotaryEmbedding in Hugging Face transformers, with the cosine of the same float angle in
// long double.
TEMPLATE_TEST_CASE("float angles are those of float32 pipelines", "[tables][table]", float, double) {
  const frequencies schedule(128, 1e4);
  const double factor = 1.25;
  const frequencies scaled = frequencies::custom(schedule.inv_freq(), factor);
  for (const std::int64_t p : {-4096, -1, 0, 1, 255, 4096, 131071, 1048575, 16777217}) {
    const auto table = frequency_table<TestType>::with_float_angles(schedule, p, p + 1);
    const auto scaled_table = frequency_table<TestType>::with_float_angles(scaled, p, p + 1);
    CAPTURE(p);
    REQUIRE(table.first() == p);
    REQUIRE(table.rows() == 1);
    for (Index i = 0; i < table.pairs(); ++i) {
      const volatile float position = static_cast<float>(p),
                           inv_freq = static_cast<float>(schedule.inv_freq()(i, 0));
      const volatile float angle = position * inv_freq;
      const testing::wide cos = testing::cos(static_cast<testing::wide>(angle)),
                          sin = testing::sin(static_cast<testing::wide>(angle));
      CAPTURE(i);
      const auto cos_entry = static_cast<float>(table.cos(p)[i]),
                 sin_entry = static_cast<float>(table.sin(p)[i]);
      CHECK(tolerance::error_in_ulp(cos_entry, cos) <= tolerance::libm_float());
      CHECK(tolerance::error_in_ulp(sin_entry, sin) <= tolerance::libm_float());
      CHECK(static_cast<float>(scaled_table.cos(p)[i]) == 1.25f * cos_entry);
      CHECK(static_cast<float>(scaled_table.sin(p)[i]) == 1.25f * sin_entry);
    }
  }
}

TEST_CASE("float angles lose accuracy that the exact table keeps", "[tables][table]") {
  const frequencies schedule(128, 1e4);
  const auto floats = frequency_table<float>::with_float_angles(schedule, 131071, 131072);
  const frequency_table<float> exact(schedule, 131071, 131072);
  float error = 0;
  for (Index i = 0; i < exact.pairs(); ++i)
    error = std::max(error, testing::abs(floats.cos(131071)[i] - exact.cos(131071)[i]));
  // A float angle of 2^17 is a multiple of 2^-7, so its error is half of that, and as much through the
  // rounding of inv_freq.
  CHECK(error > 0x1p-10f);
  CHECK(error < 0x1p-7f);
  // Float positions are even from 2^24 on.
  const std::int64_t even = std::int64_t{1} << 24;
  const auto far = frequency_table<float>::with_float_angles(schedule, even, even + 2);
  CHECK(same_row(far, even, far, even + 1));
  CHECK(throws_saying<std::invalid_argument>(
      [] { frequency_table<float>::with_float_angles(two_axes(), 0, 4); }, "one axis", "got 2 axes"));
  CHECK(
      throws_saying<std::invalid_argument>([&] { frequency_table<float>::with_float_angles(schedule, 4, 3); },
                                           "last must not be below first", "got [4, 3)"));
}

TEST_CASE("a fingerprint shows whether two tables rotate equally, for any range", "[tables][table]") {
  const frequencies schedule(64, 1e4);
  const auto of = [](const frequencies& f) { return frequency_table<float>(f, 3).fingerprint(); };
  const std::uint64_t fingerprint = of(schedule);
  CHECK(frequency_table<float>(schedule, -7, 100).fingerprint() == fingerprint);
  CHECK(frequency_table<double>(schedule, 3).fingerprint() == fingerprint);
  CHECK(of(frequencies::custom(schedule.inv_freq())) == fingerprint);

  CHECK(of(frequencies(64, 1.0000001e4)) != fingerprint);
  CHECK(of(frequencies(62, 1e4)) != fingerprint);
  CHECK(of(frequencies::custom(schedule.inv_freq(), 1.25)) != fingerprint);
  CHECK(frequency_table<float>::with_float_angles(schedule, 0, 3).fingerprint() != fingerprint);
  Eigen::ArrayXXd nudged = schedule.inv_freq();
  nudged(17) = std::nextafter(nudged(17), 0.0);
  CHECK(of(frequencies::custom(nudged)) != fingerprint);
}

TEST_CASE("the coordinates of a table are part of its fingerprint", "[tables][table]") {
  const auto of = [](const Eigen::ArrayXXd& coordinates) {
    return frequency_table<float>(two_axes(), coordinates).fingerprint();
  };
  Eigen::ArrayXXd coordinates(2, 2), swapped(2, 2);
  coordinates << 1, 2, 3, 4;
  swapped << 2, 1, 3, 4;
  CHECK(of(coordinates) == of(coordinates));
  CHECK(of(coordinates) != of(swapped));
  CHECK(of(coordinates) != of(coordinates.topRows(1)));
}

TEST_CASE("a table reports the source of its entries", "[tables][table]") {
  const frequencies schedule(8);
  using rope::table_source;
  CHECK(frequency_table<float>(schedule, 4).source() == table_source::positions);
  CHECK(frequency_table<float>(schedule, -4, 4).source() == table_source::positions);
  CHECK(frequency_table<float>::with_float_angles(schedule, 0, 4).source() == table_source::float_angles);
  CHECK(frequency_table<float>(schedule, Eigen::ArrayXd::LinSpaced(4, 0, 3)).source() ==
        table_source::coordinates);
}

// Every inv_freq times a power of two: only the exponents differ, as with linear scaling by 2, 4, 8.
TEST_CASE("fingerprints differ if only signs or exponents do", "[tables][table]") {
  const frequencies schedule(128);
  std::set<std::uint64_t> fingerprints;
  for (int k = -60; k <= 60; ++k)
    for (const double sign : {1.0, -1.0}) {
      const frequencies scaled = frequencies::custom(sign * testing::ldexp(1.0, k) * schedule.inv_freq());
      fingerprints.insert(frequency_table<float>(scaled, 1).fingerprint());
    }
  CHECK(fingerprints.size() == 2 * 121);
}

// 2^53 + 1 is the first integer that a double cannot represent.
TEST_CASE("an integer coordinate above 2^53 throws before it is rounded", "[tables][table]") {
  const std::int64_t limit = std::int64_t{1} << 53;
  const auto table_at = [](auto coordinate) {
    return frequency_table<float>(frequencies(8), Eigen::Array<decltype(coordinate), 1, 1>(coordinate));
  };
  CHECK(same_row(table_at(limit), 0, frequency_table<float>(frequencies(8), limit, limit + 1), limit));
  CHECK(same_row(table_at(-limit), 0, frequency_table<float>(frequencies(8), -limit, 1 - limit), -limit));
  for (const std::int64_t coordinate : {limit + 1, -limit - 1, largest, smallest})
    CHECK(throws_saying<std::invalid_argument>([&] { table_at(coordinate); }, "at most 2^53 in magnitude",
                                               "got " + std::to_string(coordinate) + " at row 0, axis 0"));
  const auto beyond = std::numeric_limits<std::uint64_t>::max();
  CHECK(same_row(table_at(std::uint64_t{5}), 0, table_at(5), 0));
  CHECK(throws_saying<std::invalid_argument>([&] { table_at(beyond); }, "at most 2^53 in magnitude",
                                             "got 18446744073709551615 at row 0, axis 0"));
}

TEST_CASE("an unsigned position above the range of int64 throws and does not wrap", "[tables][table]") {
  const frequencies schedule(8);
  const std::uint64_t beyond = std::numeric_limits<std::uint64_t>::max() - 9;
  const auto rejected = [](const auto& make) {
    return throws_saying<std::length_error>(make, "frequency_table: a position must be below 2^63",
                                            "got 1844674407370955160");
  };
  CHECK(rejected([&] { frequency_table<float>(schedule, beyond, beyond + 5); }));
  CHECK(rejected([&] { frequency_table<float> table(schedule, beyond); }));
  CHECK(rejected([&] { frequency_table<float>(schedule, 0, beyond); }));
  CHECK(rejected([&] { frequency_table<float>::with_float_angles(schedule, 0, beyond); }));
  const auto last = static_cast<std::uint64_t>(largest);
  CHECK(frequency_table<float>(schedule, last - 1, last).first() == largest - 1);
}

TEMPLATE_TEST_CASE("an attention_factor beyond the range of the entries throws", "[tables][table]", float,
                   double) {
  const auto of = [](double factor) { return frequencies::custom(Eigen::Array2d(1.0, 0.1), factor); };
  const double least = std::numeric_limits<TestType>::min(), most = std::numeric_limits<TestType>::max();
  for (const double factor : {least, most}) {
    const frequency_table<TestType> table(of(factor), 2);
    CHECK(static_cast<double>(table.cos(0)[0]) == factor);
    CHECK((table.cos(1).abs() <= table.cos(0)).all());
  }
  std::vector<double> bad = {std::nextafter(least, 0.0)};
  if (std::is_same_v<TestType, float>) bad = {std::nextafter(least, 0.0), std::nextafter(most, 1e300), 1e300};
  for (const double factor : bad) {
    CAPTURE(factor);
    const char* rule = std::is_same_v<TestType, float>
                           ? "frequency_table: attention_factor must be in [2^-126, 2^128 - 2^104], "
                           : "frequency_table: attention_factor must be in [2^-1022, 2^1024 - 2^971], ";
    CHECK(
        throws_saying<std::invalid_argument>([&] { frequency_table<TestType> table(of(factor), 2); }, rule));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { frequency_table<TestType>(of(factor), Eigen::Array2d(0, 1)); }, rule));
  }
  // Float angles are multiplied in float, for every type of entries.
  CHECK(throws_saying<std::invalid_argument>(
      [&] { frequency_table<TestType>::with_float_angles(of(0x1p128), 0, 2); },
      "the normal numbers of float, got 3.4028236692093846e+38"));
}

TEST_CASE("a small angle times a large attention_factor is neither infinite nor 0", "[tables][table]") {
  for (const int exponent : {-61, -100, -119, -120, -121, -140, -500, -900}) {
    CAPTURE(exponent);
    const double inv_freq = testing::ldexp(1.9, exponent);
    const frequency_table<double> table(frequencies::custom(Eigen::Array<double, 1, 1>(inv_freq), 0x1p1023),
                                        2);
    CHECK(table.cos(1)[0] == 0x1p1023);
    CHECK(table.sin(1)[0] == testing::ldexp(1.9, exponent + 1023));
  }
}

// The sine of so low a frequency is its angle, and the cosine is 1, to full double precision.
TEMPLATE_TEST_CASE("a pair with a tiny frequency keeps the accuracy of its sine", "[tables][table]", float,
                   double) {
  Eigen::ArrayXd inv_freq(2 * 40);
  for (Index k = 0; k < 40; ++k) {
    inv_freq[2 * k] = 1.234567890123456789 * testing::ldexp(1.0, static_cast<int>(-60 - k));
    inv_freq[2 * k + 1] = -testing::ldexp(1.9, static_cast<int>(-60 - 12 * k));
  }
  const double factor = 1.25;
  const frequencies schedule = frequencies::custom(inv_freq, factor);
  for (const std::int64_t p :
       {std::int64_t{1}, std::int64_t{-3}, std::int64_t{131071}, std::int64_t{1} << 31}) {
    const frequency_table<TestType> range(schedule, p, p + 1);
    const frequency_table<TestType> rows(schedule, Eigen::Array<std::int64_t, 1, 1>(p));
    CHECK(same_row(range, p, rows, 0));
    for (Index i = 0; i < inv_freq.size(); ++i) {
      CAPTURE(p, i);
      const testing::wide angle = static_cast<testing::wide>(p) * inv_freq[i];
      CHECK(range.cos(p)[i] == TestType(factor));
      CHECK(tolerance::error_in_ulp(range.sin(p)[i], factor * angle) <=
            2 * tolerance::table_entry<TestType>() + 0.5L);
    }
  }
  CHECK((frequency_table<TestType>(schedule, 1).sin(0) == TestType(0)).all());
}

TEST_CASE("the coordinates of a pair with a tiny frequency may cancel", "[tables][table]") {
  const double f = testing::ldexp(1.1, -80);
  Eigen::ArrayXXd inv_freq(1, 2), coordinates(3, 2);
  inv_freq << f, -f;
  coordinates << 1048576.5, 1048576.25, 7, 5, 1 << 30, (1 << 30) - 1;
  const frequency_table<double> table(frequencies::custom(inv_freq), coordinates);
  const double difference[] = {0.25, 2, 1};
  for (std::int64_t r = 0; r < 3; ++r)
    CHECK(tolerance::error_in_ulp(table.sin(r)[0], static_cast<testing::wide>(difference[r]) * f) <= 1);
}

TEST_CASE("a magnitude raises a subnormal angle with full accuracy", "[tables][table]") {
  const double m = 8192, f = testing::ldexp(3.0, -1074), g = testing::ldexp(5.0, -1074);
  Eigen::ArrayXXd inv_freq(1, 2), coordinates(3, 2);
  inv_freq << f, g;
  coordinates << 0.5, 0, 0.25, 0.125, -0.5, 0.375;
  const frequency_table<double> table(frequencies::custom(inv_freq, m), coordinates);
  for (Index r = 0; r < 3; ++r) {
    // m first: if `wide` is two doubles, the angle alone loses its digits.
    const testing::wide exact = static_cast<testing::wide>(m * coordinates(r, 0)) * f +
                                static_cast<testing::wide>(m * coordinates(r, 1)) * g;
    CAPTURE(r);
    CHECK(tolerance::error_in_ulp(table.sin(r)[0], exact) <= 1);
  }
}
