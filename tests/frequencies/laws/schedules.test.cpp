// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <rope/frequencies/scaling_variants.hpp>
#include <string>
#include <utility>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/schedules.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

/// YaRN's many options, and several scalings in sequence.

namespace {

using namespace rope;
using namespace testing;

/// The bounds of a YaRN blend for an original schedule.
yarn_scaling::blend_bounds bounds_of(const yarn_scaling& rule, Index rotary_dim, double base) {
  schedule original = {.rotary_dim = rotary_dim, .base = base, .inv_freq = {}};
  original.restart(base);
  return rule.bounds(original);
}

bool bounds_are(const yarn_scaling& rule, Index rotary_dim, double base, double low, double high,
                int digits) {
  const auto got = bounds_of(rule, rotary_dim, base);
  return rounds_to(static_cast<double>(got.low), low, digits) &&
         rounds_to(static_cast<double>(got.high), high, digits);
}

double m_of(const yarn_scaling& rule) { return frequencies(64, 1e4, rule).attention_factor(); }

const yarn_scaling qwen25 = {.factor = 4, .original_max_position = 32768};
const yarn_scaling deepseek_v3 = {
    .factor = 40, .original_max_position = 4096, .mscale = 1.0, .mscale_all_dim = 1.0};

/// A user-defined rule: the first pair has twice its frequency, and there is a magnitude.
struct hurried {
  void apply(schedule& schedule) const {
    schedule.inv_freq(0) *= 2;
    schedule.attention_factor *= 1.5;
  }
};

/// Reads the base that the previous rules have set.
struct base_reader {
  double* base;
  void apply(schedule& schedule) const { *base = static_cast<double>(schedule.base); }
};

}  // namespace

TEST_CASE("the m of yarn_scaling is attention_factor, or the ratio of both mscales, or that of the factor",
          "[frequencies][scaling]") {
  const auto m = [](std::optional<double> factor, std::optional<double> mscale, std::optional<double> all) {
    return m_of({.factor = 40,
                 .original_max_position = 4096,
                 .attention_factor = factor,
                 .mscale = mscale,
                 .mscale_all_dim = all});
  };
  const double log_40 = testing::log(40.0), own = 0.1 * log_40 + 1;
  CHECK(rounds_to(m({}, {}, {}), own, 15));
  CHECK(rounds_to(m({}, 1.0, 0.5), own / (0.05 * log_40 + 1), 15));
  CHECK(rounds_to(m({}, 0.707, 1.414), (0.0707 * log_40 + 1) / (0.1414 * log_40 + 1), 15));
  for (const auto& [mscale, all] : {std::pair<std::optional<double>, std::optional<double>>(0.0, 0.5),
                                    {0.5, 0.0},
                                    {0.0, 0.0},
                                    {0.5, {}},
                                    {{}, 0.5}})
    CHECK(m({}, mscale, all) == m({}, {}, {}));
  for (const double given : {0.25, 1.0, 1.3465735902799727}) {
    CHECK(m(given, {}, {}) == given);
    CHECK(m(given, 1.0, 0.5) == given);
  }
  CHECK(rejected(yarn_scaling{.factor = 4, .original_max_position = 512, .attention_factor = 0.0},
                 "frequencies: attention_factor must be finite and positive", "got 0"));
}

TEST_CASE("the blend of yarn_scaling starts at beta_fast 32, ends at beta_slow 1 and stays in [0, d - 1]",
          "[frequencies][scaling]") {
  CHECK(same_schedule(frequencies(64, 1e4, qwen25),
                      frequencies(64, 1e4, yarn_scaling{4, 32768, 32, 1, true, {}, {}, {}})));
  // So few rotations that no pair of the 32 is slow enough: the upper end is d - 1, not d / 2 - 1.
  const yarn_scaling slow = {.factor = 4, .original_max_position = 2048, .beta_fast = 8, .beta_slow = 1e-9};
  CHECK(bounds_are(slow, 64, 1e4, 12, 63, 17));
  // All wavelengths are longer than the text: the lower end is pair 0.
  CHECK(bounds_are({.factor = 4, .original_max_position = 100}, 64, 1e4, 0, 10, 17));
}

TEST_CASE("equal bounds of yarn_scaling are a step after that pair", "[frequencies][scaling]") {
  const frequencies original(64, 1e4);
  // Both ends are clamped to pair 0, or both betas are equal and bounds are not truncated.
  const yarn_scaling clamped = {.factor = 4, .original_max_position = 6};
  const yarn_scaling equal = {
      .factor = 4, .original_max_position = 2048, .beta_fast = 8, .beta_slow = 8, .truncate = false};
  CHECK(bounds_are(clamped, 64, 1e4, 0, 0.001, 15));
  const auto [low, high] = bounds_of(equal, 64, 1e4);
  CHECK(rounds_to(static_cast<double>(low), 12.880480775630, 14));
  CHECK(rounds_to(static_cast<double>(high - low), 0.001, 12));
  for (const auto& [rule, kept] : {std::pair(clamped, Index{1}), std::pair(equal, Index{13})}) {
    const frequencies f(64, 1e4, rule);
    CHECK(same_pairs(f, original, 0, kept));
    CHECK(divided(f, original, kept, 32, 4));
  }
}

TEST_CASE("yarn_scaling throws for a field out of its range with the rule and the value",
          "[frequencies][scaling]") {
  const auto reports = [](auto change, const char* text, const char* value) {
    yarn_scaling rule = {.factor = 4, .original_max_position = 512};
    change(rule);
    return rejected(rule, std::string("yarn_scaling: ") + text, value);
  };
  for (const auto& [x, value] : not_positive)
    CHECK(reports([factor = x](auto& r) { r.factor = factor; }, "factor must be positive", value));
  for (const auto& [bad, value] : not_positive) {
    const double x = bad;
    CHECK(reports([x](auto& r) { r.original_max_position = x; }, "original_max_position must be positive",
                  value));
    CHECK(reports([x](auto& r) { r.beta_slow = x; }, "beta_slow must be positive", value));
    CHECK(
        reports([x](auto& r) { r.beta_fast = x; }, "beta_fast must be finite and at least beta_slow", value));
    const char* rule = "attention_factor, mscale and mscale_all_dim must be finite and not negative";
    if (x == 0) continue;
    CHECK(reports([x](auto& r) { r.attention_factor = x; }, rule, value));
    CHECK(reports([x](auto& r) { r.mscale = x; }, rule, value));
    CHECK(reports([x](auto& r) { r.mscale_all_dim = x; }, rule, value));
  }
  CHECK(reports([](auto& r) { r.beta_fast = 0.5; }, "beta_fast must be finite and at least beta_slow",
                "got 0.5"));
  CHECK(reports([](auto& r) { r.original_max_position = 1e30; },
                "no pair lies between beta_fast and beta_slow", "got low 27"));
  CHECK(reports([](auto& r) { r.original_max_position = 0.01; },
                "no pair lies between beta_fast and beta_slow", "got low 0"));
}

TEST_CASE("scalings given together apply in the order given", "[frequencies][scaling]") {
  const frequencies original(64, 1e4);
  SECTION("two linear ones multiply") {
    CHECK(same_schedule(frequencies(64, 1e4, linear_scaling{2}, linear_scaling{4}),
                        frequencies(64, 1e4, linear_scaling{8})));
  }
  SECTION("linear after ntk divides the result of ntk") {
    CHECK(divided(frequencies(64, 1e4, ntk_scaling{4}, linear_scaling{2}),
                  frequencies(64, 1e4, ntk_scaling{4}), 0, 32, 2));
    // A change of base keeps earlier divisors, so the order matters only by a rounding.
    for (const auto& [first, second] :
         {std::pair(frequencies(64, 1e4, linear_scaling{2}, ntk_scaling{4}),
                    frequencies(64, 1e4, ntk_scaling{4}, linear_scaling{2})),
          std::pair(frequencies(64, 1e4, clipped_scaling{}, alpha_scaling{8}),
                    frequencies(64, 1e4, alpha_scaling{8}, clipped_scaling{})),
          std::pair(frequencies(64, 1e4, linear_scaling{2}, mixed_ntk_scaling{.factor = 4}),
                    frequencies(64, 1e4, mixed_ntk_scaling{.factor = 4}, linear_scaling{2})),
          std::pair(frequencies(64, 1e4, linear_scaling{2}, dynamic_ntk_scaling{4, 512, 1024}),
                    frequencies(64, 1e4, dynamic_ntk_scaling{4, 512, 1024}, linear_scaling{2})),
          std::pair(frequencies(64, 1e4, ntk_scaling{2}, ntk_scaling{4}),
                    frequencies(64, 1e4, ntk_scaling{8}))}) {
      for (Index i = 0; i < 32; ++i)
        CHECK(tolerance::error_in_ulp(first.inv_freq()(i, 0),
                                      static_cast<testing::wide>(second.inv_freq()(i, 0))) <= 1);
      CHECK((first.inv_freq().bottomRows(31) < frequencies(64, 1e4).inv_freq().bottomRows(31)).all());
    }
  }
  SECTION("resonance after yarn rounds yarn's wavelengths and keeps its m") {
    const frequencies yarn(64, 1e4, deepseek_v3), both(64, 1e4, qwen25, resonance_scaling{});
    CHECK(both.attention_factor() == frequencies(64, 1e4, qwen25).attention_factor());
    const frequencies f(64, 1e4, deepseek_v3, resonance_scaling{});
    for (Index i = 0; i < 32; ++i) {
      const double full_turn = 2 * std::numbers::pi,
                   wavelength = testing::round(full_turn / yarn.inv_freq()(i, 0));
      CHECK(rounds_to(f.inv_freq()(i, 0), full_turn / wavelength, 15));
    }
  }
  SECTION("magnitudes multiply") {
    const yarn_scaling half = {.factor = 4, .original_max_position = 512, .attention_factor = 0.5};
    CHECK(frequencies(64, 1e4, half, hurried{}, half).attention_factor() == 0.375);
  }
  SECTION("a user-defined rule is a rule") {
    const frequencies f(64, 1e4, hurried{}), slower(64, 1e4, hurried{}, linear_scaling{4});
    CHECK(f.inv_freq()(0, 0) == 2.0);
    CHECK(same_pairs(f, original, 1, 31));
    CHECK(f.attention_factor() == 1.5);
    CHECK((slower.inv_freq() == f.inv_freq() / 4).all());
    STATIC_REQUIRE(frequency_scaling<hurried>);
    STATIC_REQUIRE(!frequency_scaling<double>);
  }
  SECTION("the next rule reads the base that a rule sets") {
    double base = 0;
    frequencies(128, 1e4, alpha_scaling{8}, base_reader{&base});
    CHECK(rounds_to(base, 82684.62264056, 13));
    frequencies(128, 1e4, linear_scaling{8}, base_reader{&base});
    CHECK(base == 1e4);
  }
}

// Golden: _compute_yarn_parameters of Hugging Face transformers for a factor of 0.7 and 4096 positions, whose
// get_mscale is 1 up to a factor of 1, by hand with ten digits.
TEST_CASE("a factor below 1 raises frequencies by the same formula", "[frequencies][scaling]") {
  const yarn_scaling yarn = {.factor = 0.7, .original_max_position = 4096};
  const frequencies golden(16, 1e4, yarn);
  CHECK(lists(golden, 0, "1 0.316227766 0.1 0.03501093124 0.01214285714 0.004178724051 0.001428571429", 10));
  CHECK(golden.attention_factor() == 1);

  const Index d = 64;
  const wide base = 1e4L;
  const auto original = [&](Index i) {
    return testing::pow(base, -2 * static_cast<wide>(i) / static_cast<wide>(d));
  };
  const auto check = [&](const auto& rule, const auto& exact) {
    const frequencies f(d, 1e4, rule);
    bool same = f.attention_factor() == 1;
    for (Index i = 0; i < d / 2; ++i)
      same = same && tolerance::error_in_ulp(f.inv_freq(i, 0), exact(i)) <= tolerance::inv_freq();
    return same;
  };
  const auto ramp = [](wide i, wide low, wide high) {
    return (std::min)(wide(1), (std::max)(wide(0), (i - low) / (high - low)));
  };
  for (const double factor : {0.5, 0.7}) {
    CAPTURE(factor);
    const wide s = factor, width = static_cast<wide>(d);
    const auto stretched = [&](wide by, Index i) {
      return testing::pow(base * testing::pow(by, width / (width - 2)), -2 * static_cast<wide>(i) / width);
    };
    CHECK(check(linear_scaling{factor}, [&](Index i) { return original(i) / s; }));
    CHECK(check(ntk_scaling{factor}, [&](Index i) { return stretched(s, i); }));
    CHECK(check(alpha_scaling{factor}, [&](Index i) { return stretched(s, i); }));
    CHECK(check(dynamic_ntk_scaling{.factor = factor, .max_position = 1000, .length = 3000},
                [&](Index i) { return stretched(3 * s - (s - 1), i); }));
    CHECK(check(proportional_scaling{.partial_rotary_factor = 0.5, .factor = factor},
                [&](Index i) { return i < d / 4 ? original(i) / s : 0; }));
    CHECK(check(llama3_scaling{.factor = factor}, [&](Index i) {
      const wide z = ramp(8192 * original(i) / (2 * testing::pi), 1, 4);
      return original(i) * ((1 - z) / s + z);
    }));
    CHECK(check(yarn_scaling{.factor = factor, .original_max_position = 4096}, [&](Index i) {
      const auto pair = [&](wide rotations) {
        return width * testing::log(4096 / (2 * testing::pi * rotations)) / (2 * testing::log(base));
      };
      const wide r = ramp(static_cast<wide>(i), testing::floor(pair(32)), testing::ceil(pair(1)));
      return original(i) * (1 - r + r / s);
    }));
    CHECK(check(mixed_ntk_scaling{.factor = factor}, [&](Index i) {
      return testing::pow(base * s, -2 * static_cast<wide>(i) / width) / testing::pow(s, 2 / width);
    }));
    CHECK(check(mixed_ntk_scaling{.factor = factor, .mixed_b = 0.625}, [&](Index i) {
      return original(i) *
             testing::pow(s, -testing::pow(static_cast<wide>(i + 1) / (width / 2), wide(0.625)));
    }));
    // Without NTK and the original frequencies it is linear.
    CHECK(check(ntk_by_parts_scaling{factor, 2048, 0, 0}, [&](Index i) { return original(i) / s; }));
    // In DeepSeek's softmax multiplier transformers uses the same get_mscale.
    CHECK(yarn_softmax_multiplier({.factor = factor, .original_max_position = 4096, .mscale_all_dim = 1}) ==
          1);
  }
  // 10000 s^(8 / 6) must stay above 1: s above 0.001.
  const std::string leaves = " must leave a base greater than 1";
  CHECK(rejected(ntk_scaling{0x1p-10}, "ntk_scaling: factor" + leaves, "got 0.0009765625"));
  CHECK(rejected(alpha_scaling{0x1p-10}, "alpha_scaling: alpha" + leaves, "got 0.0009765625"));
  CHECK(rejected(ntk_by_parts_scaling{0x1p-10, 2048}, "ntk_by_parts_scaling: factor" + leaves,
                 "got 0.0009765625"));
  CHECK(rejected(mixed_ntk_scaling{0x1p-14}, "mixed_ntk_scaling: factor" + leaves, "got 6.103515625e-05"));
  CHECK_NOTHROW(frequencies(8, 1e4, ntk_scaling{1.01e-3}));
}
