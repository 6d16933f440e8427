// SPDX-License-Identifier: MIT
#include <rope/frequencies/frequencies.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>
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
using rope::Index;
using testing::throws_saying;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// The largest error of a default schedule against base^(-2 i / rotary_dim), in ulp.
testing::wide worst_error_in_ulp(Index rotary_dim, double base) {
  const frequencies schedule(rotary_dim, base);
  testing::wide worst = 0;
  for (Index i = 0; i < schedule.pairs(); ++i)
    worst = std::max(
        worst, tolerance::error_in_ulp(schedule.inv_freq()(i, 0), reference::inv_freq(base, i, rotary_dim)));
  return worst;
}

}  // namespace

TEST_CASE("the default schedule is base^(-2i/d) to 2 ulp", "[frequencies]") {
  for (const Index rotary_dim : {2, 4, 6, 8, 10, 24, 64, 80, 96, 128, 192, 256, 576, 1024})
    for (const double base : {1e2, 256.0, 1e3, 1e4, 1e5, 1.5e5, 5e5, 1e6, 1.5e6, 5e6, 1e7, 1e8, 1e9}) {
      CAPTURE(rotary_dim, base);
      CHECK(worst_error_in_ulp(rotary_dim, base) <= tolerance::inv_freq());
    }
}

TEST_CASE("the default schedule is base^(-2i/d) to 2 ulp for any base and any dimension", "[frequencies]") {
  const std::uint64_t seed = 1;
  CAPTURE(seed);
  testing::random random(seed);
  for (int sample = 0; sample < 1000; ++sample) {
    const Index rotary_dim = 2 * random.integer(1, 300);
    const double base = testing::pow(10, 2 + 7 * random.unit());
    CAPTURE(rotary_dim, base);
    REQUIRE(worst_error_in_ulp(rotary_dim, base) <= tolerance::inv_freq());
  }
}

// Golden: Hugging Face transformers, tests/utils/test_modeling_rope_utils.py (e42e4a4), the list of the
// default schedule for head_dim 128 and rope_theta 1e4, printed there with five digits.
TEST_CASE("the default schedule is the list of Hugging Face transformers", "[frequencies]") {
  const frequencies schedule(128, 10000.0);
  const std::vector<std::pair<Index, double>> list = {
      {0, 1.0},        {1, 8.6596e-01}, {2, 7.4989e-01}, {3, 6.4938e-01}, {4, 5.6234e-01},
      {5, 4.8697e-01}, {6, 4.2170e-01}, {7, 3.6517e-01}, {8, 3.1623e-01}, {16, 1.0e-01},
      {32, 1.0e-02},   {48, 1.0e-03},   {63, 1.1548e-04}};
  for (const auto& [i, value] : list) {
    CAPTURE(i);
    const double half_a_digit = 0.5e-4 * testing::pow(10, testing::floor(testing::log10(value)));
    CHECK(testing::abs(schedule.inv_freq()(i, 0) - value) <= half_a_digit);
  }
  CHECK(schedule.attention_factor() == 1.0);
}

TEST_CASE("the first pair rotates by one radian per position and each next pair more slowly",
          "[frequencies]") {
  for (const double base : {1.0000001, 1.5, 1e4, 1e9, std::numeric_limits<double>::max()}) {
    const frequencies schedule(96, base);
    CAPTURE(base);
    CHECK(schedule.inv_freq()(0, 0) == 1.0);
    for (Index i = 1; i < schedule.pairs(); ++i)
      REQUIRE(schedule.inv_freq()(i, 0) < schedule.inv_freq()(i - 1, 0));
    CHECK(schedule.inv_freq()(schedule.pairs() - 1, 0) > 0);
  }
}

TEST_CASE("a schedule reports its sizes, and its base is 10000 by default", "[frequencies]") {
  const frequencies schedule(96);
  CHECK(schedule.pairs() == 48);
  CHECK(schedule.rotary_dim() == 96);
  CHECK(schedule.axes() == 1);
  CHECK(schedule.inv_freq().rows() == 48);
  CHECK(schedule.inv_freq().cols() == 1);
  CHECK((schedule.inv_freq() == frequencies(96, 10000.0).inv_freq()).all());
}

TEST_CASE("rotary_dim must be even and positive", "[frequencies]") {
  for (const Index rotary_dim : {Index{0}, Index{1}, Index{7}, Index{127}, Index{-1}, Index{-2}, Index{-128},
                                 std::numeric_limits<Index>::max(), std::numeric_limits<Index>::min()}) {
    CAPTURE(rotary_dim);
    const std::string value = "got " + std::to_string(rotary_dim);
    CHECK(throws_saying<std::invalid_argument>([&] { frequencies f(rotary_dim); },
                                               "rope::frequencies: rotary_dim must be even and positive",
                                               value));
    CHECK(throws_saying<std::invalid_argument>([&] { frequencies::pixel(rotary_dim); },
                                               "rotary_dim must be even and positive", value));
  }
}

TEST_CASE("a base must be finite and greater than 1", "[frequencies]") {
  const std::vector<std::pair<double, const char*>> bases = {
      {1.0, "got 1"},        {0.5, "got 0.5"},       {0.0, "got 0"},        {-10000.0, "got -10000"},
      {not_a_number, "nan"}, {-not_a_number, "nan"}, {infinity, "got inf"}, {-infinity, "got -inf"}};
  for (const auto& [base, value] : bases) {
    CAPTURE(base);
    CHECK(throws_saying<std::invalid_argument>([b = base] { frequencies f(128, b); },
                                               "rope::frequencies: base must be finite and greater than 1",
                                               value));
  }
  CHECK_NOTHROW(frequencies(128, std::nextafter(1.0, 2.0)));
}

// Golden: lucidrains/rotary-embedding-torch, `freqs_for = 'pixel'`: linspace(1, max_freq / 2, dim // 2) * pi,
// in fp64, printed with seven digits.
TEST_CASE("pixel frequencies are those of lucidrains", "[frequencies]") {
  const std::vector<double> d8 = {3.141593, 7.330383, 11.51917, 15.70796};
  const std::vector<double> d16 = {3.141593, 60.13906, 117.1365, 174.134,
                                   231.1315, 288.1289, 345.1264, 402.1239};
  for (const auto& [list, max_freq] : {std::pair(d8, 10.0), std::pair(d16, 256.0)}) {
    const auto pairs = static_cast<Index>(list.size());
    const frequencies schedule = frequencies::pixel(2 * pairs, max_freq);
    REQUIRE(schedule.pairs() == pairs);
    CHECK(schedule.axes() == 1);
    CHECK(schedule.attention_factor() == 1.0);
    for (Index i = 0; i < pairs; ++i) {
      CAPTURE(i, max_freq);
      const double value = list[static_cast<std::size_t>(i)];
      const double half_a_digit = 0.5e-6 * testing::pow(10, testing::floor(testing::log10(value)));
      CHECK(testing::abs(schedule.inv_freq()(i, 0) - value) <= half_a_digit);
    }
  }
  CHECK((frequencies::pixel(8).inv_freq() == frequencies::pixel(8, 10.0).inv_freq()).all());
}

// Roundings of 2^-53 each: two of the step, one of its multiple, one of the sum, 0.36 of pi, one of the
// product.
TEST_CASE("pixel frequencies are accurate to double precision", "[frequencies]") {
  const double bound = 5.36 * 0x1p-53;
  for (const Index rotary_dim : {4, 8, 64, 130, 2000})
    for (const double max_freq : {2.0, 3.7, 10.0, 256.0, 1e9}) {
      const frequencies schedule = frequencies::pixel(rotary_dim, max_freq);
      for (Index i = 0; i < schedule.pairs(); ++i) {
        CAPTURE(rotary_dim, max_freq, i);
        const auto exact = static_cast<long double>(testing::pi) *
                           (1 + static_cast<long double>(i) * (static_cast<long double>(max_freq) / 2 - 1) /
                                    static_cast<long double>(schedule.pairs() - 1));
        CHECK((std::abs)(static_cast<long double>(schedule.inv_freq()(i, 0)) - exact) <= bound * exact);
      }
    }
}

TEST_CASE("a single pair of pixel frequencies has frequency pi", "[frequencies]") {
  CHECK(frequencies::pixel(2, 1000.0).inv_freq()(0, 0) == std::numbers::pi);
}

TEST_CASE("max_freq must be finite and at least 2", "[frequencies]") {
  for (const auto& [max_freq, value] : {std::pair(1.5, "got 1.5"), std::pair(-4.0, "got -4"),
                                        std::pair(not_a_number, "nan"), std::pair(infinity, "got inf")})
    CHECK(throws_saying<std::invalid_argument>(
        [m = max_freq] { frequencies::pixel(8, m); },
        "rope::frequencies::pixel: max_freq must be finite and at least 2", value));
  CHECK((frequencies::pixel(8, 2.0).inv_freq() == std::numbers::pi).all());
  CHECK(throws_saying<std::invalid_argument>([] { frequencies::pixel(8, 1e300); }, "below 2^64"));
}

TEST_CASE("constant frequencies are one radian per position", "[frequencies]") {
  CHECK(frequencies::constant().pairs() == 1);
  const frequencies schedule = frequencies::constant(5);
  CHECK(schedule.pairs() == 5);
  CHECK(schedule.axes() == 1);
  CHECK(schedule.attention_factor() == 1.0);
  CHECK((schedule.inv_freq() == 1.0).all());
}

TEST_CASE("the number of constant frequencies must be positive", "[frequencies]") {
  for (const Index pairs : {Index{0}, Index{-1}, Index{-3}, std::numeric_limits<Index>::min()}) {
    CAPTURE(pairs);
    CHECK(throws_saying<std::invalid_argument>([&] { frequencies::constant(pairs); },
                                               "rope::frequencies::constant: pairs must be positive",
                                               "got " + std::to_string(pairs)));
  }
}

TEST_CASE("a base in place of rotary_dim throws", "[frequencies]") {
  struct halved {
    void apply(rope::schedule& axis) const { axis.inv_freq /= 2; }
  };
  const char* text =
      "rope::frequencies: rotary_dim must be at most 65536 and comes first, then the base: frequencies(128, "
      "500000.0), got rotary_dim 500000 and base 128";
  CHECK(throws_saying<std::invalid_argument>([] { frequencies(500000, 128); }, text));
  CHECK(throws_saying<std::invalid_argument>([] { frequencies(500000, 128, halved{}); }, text));
  CHECK(throws_saying<std::invalid_argument>([] { frequencies(std::uint64_t(-4)); }, "at most 65536",
                                             "got rotary_dim 18446744073709551612 and base 10000"));
  CHECK(frequencies(65536).pairs() == 32768);
}

TEST_CASE("more pairs than fit into the address space are a length error", "[frequencies]") {
  constexpr Index largest = std::numeric_limits<Index>::max();
  for (const Index pairs : {largest / 2 + 1, largest, largest / 2}) {
    const std::string text = std::to_string(pairs) + " pairs exceed the address space";
    CAPTURE(pairs);
    CHECK(throws_saying<std::length_error>([&] { frequencies::constant(pairs); }, text));
    if (pairs > largest / 2) continue;
    CHECK(throws_saying<std::invalid_argument>([&] { frequencies f(2 * pairs); }, "at most 65536"));
    CHECK(throws_saying<std::length_error>([&] { frequencies::pixel(2 * pairs); }, text));
  }
}

TEST_CASE("custom frequencies are stored unchanged", "[frequencies]") {
  Eigen::MatrixXd given(3, 2);
  given << 1.0, -0.1, 0.0, 1e-300, -0x1.fffffffffffffp63, 1.0 / 3;

  SECTION("a matrix or array is [pairs, axes]") {
    for (const frequencies& f : {frequencies::custom(given), frequencies::custom(given.array())}) {
      CHECK(f.pairs() == 3);
      CHECK(f.axes() == 2);
      CHECK(f.rotary_dim() == 6);
      CHECK((f.inv_freq() == given.array()).all());
      CHECK(f.attention_factor() == 1.0);
    }
  }
  SECTION("a column, a row or an expression of either is [pairs]") {
    const Eigen::VectorXd column = given.col(1);
    const Eigen::RowVectorXd row = column.transpose();
    const Eigen::Vector3d fixed = column;
    const Eigen::Map<const Eigen::ArrayXd> map(column.data(), 3);
    for (const frequencies& f :
         {frequencies::custom(column), frequencies::custom(row), frequencies::custom(row.array()),
          frequencies::custom(fixed), frequencies::custom(fixed.transpose()), frequencies::custom(map),
          frequencies::custom(given.col(1)), frequencies::custom(2.0 * (column / 2.0))}) {
      CHECK(f.pairs() == 3);
      CHECK(f.axes() == 1);
      CHECK((f.inv_freq().col(0) == column.array()).all());
    }
  }
  SECTION("floats are converted without a change") {
    const Eigen::ArrayXf floats = (Eigen::ArrayXf(3) << 0.1f, -1e-30f, 3.0f).finished();
    const frequencies f = frequencies::custom(floats);
    for (Index i = 0; i < 3; ++i) CHECK(f.inv_freq()(i, 0) == static_cast<double>(floats[i]));
  }
  SECTION("later changes of the input do not change the frequencies") {
    const frequencies f = frequencies::custom(given);
    given.setZero();
    CHECK(f.inv_freq()(0, 0) == 1.0);
  }
}

TEST_CASE("a pair alone names a frequency where there is one axis", "[frequencies]") {
  const frequencies text(8);
  for (Index i = 0; i < text.pairs(); ++i) CHECK(text.inv_freq(i) == text.inv_freq()(i, 0));
  const frequencies plane = frequencies::custom(Eigen::MatrixXd(Eigen::MatrixXd::Ones(4, 2)));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { plane.inv_freq(1); },
      "rope::inv_freq: name the axis, inv_freq(pair, axis), one of 2, got pair 1 alone"));
}

TEST_CASE("custom frequencies must not be empty", "[frequencies]") {
  CHECK(throws_saying<std::invalid_argument>([] { frequencies::custom(Eigen::ArrayXd(0)); },
                                             "inv_freq must be [pairs, axes] and not empty", "got [0, 1]"));
  CHECK(throws_saying<std::invalid_argument>([] { frequencies::custom(Eigen::ArrayXXd(4, 0)); }, "not empty",
                                             "got [4, 0]"));
  CHECK(throws_saying<std::invalid_argument>([] { frequencies::custom(Eigen::ArrayXXd(0, 2)); }, "not empty",
                                             "got [0, 2]"));
}

TEST_CASE("a custom frequency must be finite and below 2^64", "[frequencies]") {
  for (const auto& [bad, value] :
       {std::pair(not_a_number, "nan"), std::pair(infinity, "got inf"), std::pair(-infinity, "got -inf"),
        std::pair(0x1p64, "got 1.8446744073709552e+19"), std::pair(-1e300, "got -1.0000000000000001e+300")}) {
    Eigen::ArrayXXd inv_freq = Eigen::ArrayXXd::Ones(4, 3);
    inv_freq(2, 1) = bad;
    CAPTURE(bad);
    CHECK(throws_saying<std::invalid_argument>([&] { frequencies::custom(inv_freq); },
                                               "inv_freq must be finite and below 2^64", value,
                                               "at pair 2, axis 1"));
  }
  const Eigen::ArrayXf bad = Eigen::ArrayXf::Constant(1, std::numeric_limits<float>::infinity());
  CHECK(throws_saying<std::invalid_argument>([&] { frequencies::custom(bad); }, "finite", "got inf"));
}

TEST_CASE("an attention_factor must be finite and positive", "[frequencies]") {
  const Eigen::ArrayXd inv_freq = Eigen::ArrayXd::Ones(2);
  for (const auto& [bad, value] :
       {std::pair(0.0, "got 0"), std::pair(-1.5, "got -1.5"), std::pair(not_a_number, "nan"),
        std::pair(infinity, "got inf"), std::pair(-infinity, "got -inf")}) {
    CAPTURE(bad);
    CHECK(throws_saying<std::invalid_argument>([&, m = bad] { frequencies::custom(inv_freq, m); },
                                               "attention_factor must be finite and positive", value));
  }
  for (const double good : {1e-300, 0.5, 1.0, 1.2302585092994046, std::numeric_limits<double>::max()})
    CHECK(frequencies::custom(inv_freq, good).attention_factor() == good);
}
