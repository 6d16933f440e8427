// SPDX-License-Identifier: MIT
#include <rope/tables/table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// Tables as float32 pipelines make them, and the fingerprint that distinguishes tables.

namespace {

using namespace rope;
using testing::throws_saying;

/// The float angle of a float32 pipeline. A product of two floats is exact in double, so it is rounded once
/// here, even if the compiler contracts operations.
float float_angle(std::int64_t position, double inv_freq) {
  const auto p = static_cast<double>(static_cast<float>(position)),
             f = static_cast<double>(static_cast<float>(inv_freq));
  return static_cast<float>(p * f);
}

/// std::cos and std::sin of a float have at most this error: below 1 ulp in every libm of the supported
/// platforms, and half an ulp for the product with m.
constexpr testing::wide float_recipe = 1.5;

/// The largest error of an entry against cos and sin of the float angle, times m, in ulp of float.
template <class S>
testing::wide worst_recipe_error(const frequency_table<S>& table, const frequencies& schedule) {
  testing::wide worst = 0;
  const auto m = static_cast<testing::wide>(static_cast<float>(schedule.attention_factor()));
  for (std::int64_t p = table.first(); p < table.last(); ++p)
    for (Index i = 0; i < table.pairs(); ++i) {
      const auto angle = static_cast<testing::wide>(float_angle(p, schedule.inv_freq()(i, 0)));
      for (const auto& [entry, exact] : {std::pair(table.cos(p)[i], m * testing::cos(angle)),
                                         std::pair(table.sin(p)[i], m * testing::sin(angle))})
        testing::raise_to(worst, tolerance::error_in_ulp(static_cast<float>(entry), exact));
    }
  return worst;
}

/// The largest |float table - exact table| of a row.
double error_of_row(const frequencies& schedule, std::int64_t position) {
  const auto floats = frequency_table<float>::with_float_angles(schedule, position, position + 1);
  const frequency_table<double> exact(schedule, position, position + 1);
  const auto off = [](const auto& a, const auto& b) {
    return (a.template cast<double>() - b).abs().maxCoeff();
  };
  return (std::max)(off(floats.cos(position), exact.cos(position)),
                    off(floats.sin(position), exact.sin(position)));
}

const yarn_scaling yarn = {.factor = 4, .original_max_position = 2048};

template <class S = float>
std::uint64_t fingerprint(const frequencies& schedule) {
  return frequency_table<S>(schedule, 16).fingerprint();
}
std::uint64_t fingerprint_of_floats(const frequencies& schedule) {
  return frequency_table<>::with_float_angles(schedule, 0, 16).fingerprint();
}

}  // namespace

TEMPLATE_TEST_CASE("with_float_angles takes cos and sin of the angle rounded to float", "[tables]", float,
                   double) {
  for (const frequencies& schedule :
       {frequencies(128, 1e4), frequencies(96, 5e5), frequencies(128, 1e4, yarn)})
    for (const std::int64_t first : {-300, 0, 4000, 131000, 1048500, 16777200}) {
      CAPTURE(first);
      const auto table = frequency_table<TestType>::with_float_angles(schedule, first, first + 100);
      CHECK(worst_recipe_error(table, schedule) <= float_recipe);
    }
}

TEST_CASE("with_float_angles is the bits of cosf and sinf, in a table of either type", "[tables][table]") {
  const frequencies schedule(128, 1e4);
  const auto floats = frequency_table<float>::with_float_angles(schedule, 8000, 8200);
  const auto doubles = frequency_table<double>::with_float_angles(schedule, 8000, 8200);
  for (std::int64_t p = 8000; p < 8200; ++p)
    for (Index i = 0; i < 64; ++i) {
      const float angle = float_angle(p, schedule.inv_freq()(i, 0));
      REQUIRE(floats.cos(p)[i] == testing::cos(angle));
      REQUIRE(floats.sin(p)[i] == testing::sin(angle));
      REQUIRE(doubles.cos(p)[i] == static_cast<double>(floats.cos(p)[i]));
      REQUIRE(doubles.sin(p)[i] == static_cast<double>(floats.sin(p)[i]));
    }
}

TEST_CASE("with_float_angles also rounds positions to float", "[tables][table]") {
  const frequencies schedule(128, 1e4);
  const auto table = frequency_table<>::with_float_angles(schedule, 16777216, 16777219);
  CHECK((table.cos(16777217) == table.cos(16777216)).all());
  CHECK((table.sin(16777217) == table.sin(16777216)).all());
  CHECK((table.cos(16777218) != table.cos(16777216)).any());
}

TEST_CASE("with_float_angles multiplies m into its entries once", "[tables][table]") {
  const frequencies schedule(128, 1e4, yarn);
  const auto m = static_cast<float>(schedule.attention_factor());
  const auto table = frequency_table<>::with_float_angles(schedule, 0, 2);
  CHECK((table.cos(0) == m).all());
  CHECK((table.sin(0) == 0.0f).all());
  CHECK(table.attention_factor() == schedule.attention_factor());
}

TEST_CASE("describe gives the usual line for with_float_angles", "[tables][table]") {
  const auto table = frequency_table<>::with_float_angles(frequencies(64, 1e4), -3, 5);
  CHECK(table.rows() == 8);
  CHECK(table.first() == -3);
  CHECK(table.last() == 5);
  CHECK(table.pairs() == 32);
  CHECK(table.is_identity(0));
  CHECK(!table.is_identity(1));
  CHECK_THROWS_AS(table.cos(5), std::out_of_range);
  CHECK((table.inv_freq() == frequencies(64, 1e4).inv_freq()).all());
  for (Index i = 0; i < 32; ++i) {
    CHECK(table.cos(-3)[i] == table.cos(3)[i]);
    CHECK(table.sin(-3)[i] == -table.sin(3)[i]);
  }
}

TEST_CASE("the error of with_float_angles is the documented one, and grows with the position",
          "[tables][table]") {
  const frequencies schedule(128, 1e4);
  // Measured. The error of a float libm is a thousandth of the first and cannot change it by 30 %.
  for (const auto& [position, published] :
       {std::pair(255, 4.1e-6), std::pair(4096, 1.2e-4), std::pair(32768, 8.5e-4), std::pair(131071, 2.6e-3),
        std::pair(1048575, 2.5e-2)}) {
    const double error = error_of_row(schedule, position);
    CAPTURE(position, error);
    CHECK(error <= 1.3 * published);
    CHECK(error >= published / 1.3);
  }
  // inv_freq <= 1 and the product are each rounded to float, which changes no angle by more than 2 u
  // position. One ulp below 1 is for cos and sin.
  double worst = 0;
  for (std::int64_t position = 1; position < 1 << 20; position += 997)
    worst = (std::max)(
        worst, error_of_row(schedule, position) / (2 * 0x1p-24 * static_cast<double>(position) + 0x1p-24));
  CHECK(worst <= 1);
}

TEST_CASE("with_float_angles differs from the exact table by its error", "[tables][table]") {
  const frequencies schedule(128, 1e4);
  const frequency_table<> exact(schedule, 5000);
  const auto floats = frequency_table<>::with_float_angles(schedule, 0, 5000);
  CHECK((exact.cos(0) == floats.cos(0)).all());
  CHECK((exact.cos(4999) != floats.cos(4999)).any());
  CHECK((exact.sin(4999) != floats.sin(4999)).any());
}

TEST_CASE("with_float_angles throws for the ranges for which a table throws", "[tables][table]") {
  const frequencies schedule(8), plane = frequencies::custom(Eigen::ArrayXXd::Ones(4, 2));
  CHECK(throws_saying<std::invalid_argument>([&] { frequency_table<>::with_float_angles(schedule, 5, 4); },
                                             "frequency_table: last must not be below first, got [5, 4)"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { frequency_table<>::with_float_angles(plane, 0, 4); },
      "frequency_table: a range of positions needs frequencies of one axis, got 2 axes"));
  CHECK(frequency_table<>::with_float_angles(schedule, 4, 4).rows() == 0);
}

TEST_CASE("tables with equal rotations have one fingerprint, for any range and type", "[tables][table]") {
  for (const frequencies& schedule : {frequencies(128, 1e4), frequencies(96, 5e5, yarn)}) {
    const std::uint64_t expected = frequency_table<float>(schedule, 100).fingerprint();
    CHECK(frequency_table<float>(schedule, 1).fingerprint() == expected);
    CHECK(frequency_table<float>(schedule, 0).fingerprint() == expected);
    CHECK(frequency_table<float>(schedule, -50, 3).fingerprint() == expected);
    CHECK(frequency_table<float>(schedule, 1000, 2000).fingerprint() == expected);
    CHECK(frequency_table<double>(schedule, 100).fingerprint() == expected);
    const frequency_table<float> original(schedule, 100), copy = original;
    CHECK(copy.fingerprint() == expected);
    const frequencies same = frequencies::custom(schedule.inv_freq(), schedule.attention_factor());
    CHECK(frequency_table<float>(same, 7).fingerprint() == expected);
    CHECK(fingerprint_of_floats(schedule) ==
          frequency_table<double>::with_float_angles(schedule, -5, 9).fingerprint());
  }
  const frequencies f(8);
  CHECK(fingerprint(frequencies(8, 1e4, linear_scaling{1})) == fingerprint(f));
  CHECK(fingerprint(frequencies(8, 1e4, dynamic_ntk_scaling{4, 2048, 100})) ==
        fingerprint(frequencies(8, 1e4, dynamic_ntk_scaling{4, 2048, 200})));
}

TEST_CASE("tables that rotate differently have different fingerprints", "[tables][table]") {
  const frequencies plain(128, 1e4);
  const frequencies nudged = [&] {
    Eigen::ArrayXXd inv_freq = plain.inv_freq();
    inv_freq(63, 0) = std::nextafter(inv_freq(63, 0), 1.0);
    return frequencies::custom(inv_freq);
  }();
  Eigen::ArrayXXd swapped = plain.inv_freq();
  std::swap(swapped(3, 0), swapped(4, 0));
  const frequencies different[] = {
      plain,
      frequencies(128, 10001.0),
      frequencies(128, 1e6),
      frequencies(64, 1e4),
      frequencies(2, 1e4),
      frequencies(128, 1e4, linear_scaling{4}),
      frequencies(128, 1e4, linear_scaling{8}),
      frequencies(128, 1e4, yarn),
      frequencies::custom(plain.inv_freq(), 0.5),
      frequencies::custom(plain.inv_freq(), std::nextafter(1.0, 2.0)),
      frequencies::custom(plain.inv_freq().topRows(63)),
      nudged,
      frequencies::custom(swapped),
      frequencies::constant(2),
      frequencies::constant(3),
      frequencies(128, 1e4, dynamic_ntk_scaling{4, 2048, 4096}),
      frequencies(128, 1e4, dynamic_ntk_scaling{4, 2048, 4097}),
  };
  std::set<std::uint64_t> fingerprints;
  for (const frequencies& schedule : different) {
    CHECK(fingerprints.insert(fingerprint(schedule)).second);
    CHECK(fingerprints.insert(fingerprint_of_floats(schedule)).second);
  }
}

TEST_CASE("changes of sign and exchanges of values change the fingerprint", "[tables][table]") {
  const auto of = [](const Eigen::Array4d& inv_freq, double m) {
    return frequency_table<>(frequencies::custom(inv_freq, m), 3).fingerprint();
  };
  const Eigen::Array4d f(1, 0.5, 0.25, 2), two_signs(-1, -0.5, 0.25, 2), last_signs(1, 0.5, -0.25, -2);
  std::set<std::uint64_t> fingerprints = {of(f, 1), of(f, 2), of(-f, 1), of(two_signs, 1), of(last_signs, 1)};
  CHECK(fingerprints.size() == 5);
  const Eigen::Array<double, 1, 1> half(0.5), one(1.0);
  const auto single = [](const auto& inv_freq, double m) {
    return frequency_table<>(frequencies::custom(inv_freq, m), 3).fingerprint();
  };
  CHECK(single(half, 1.0) != single(one, 0.5));
}

TEST_CASE("the coordinates of a table change its fingerprint", "[tables][table]") {
  const frequencies schedule(16), plane = frequencies::custom(Eigen::ArrayXXd::Ones(4, 2));
  const Eigen::ArrayXd line = Eigen::ArrayXd::LinSpaced(6, 0, 5);
  const std::uint64_t expected = frequency_table<>(schedule, line).fingerprint();
  CHECK(frequency_table<double>(schedule, line).fingerprint() == expected);
  CHECK(frequency_table<>(schedule, line.cast<int>()).fingerprint() == expected);
  CHECK(frequency_table<>(schedule, 6).fingerprint() != expected);
  CHECK(frequency_table<>(schedule, line.head(5)).fingerprint() != expected);
  CHECK(frequency_table<>(schedule, line.reverse()).fingerprint() != expected);
  CHECK(frequency_table<>(schedule, line + 1e-9).fingerprint() != expected);
  Eigen::ArrayXXd grid(3, 2), transposed(3, 2);
  grid << 0, 1, 0, 2, 1, 1;
  transposed << 1, 0, 2, 0, 1, 1;
  CHECK(frequency_table<>(plane, grid).fingerprint() != frequency_table<>(plane, transposed).fingerprint());
}
