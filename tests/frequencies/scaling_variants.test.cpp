// SPDX-License-Identifier: MIT
#include <rope/frequencies/scaling_variants.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <rope/frequencies/scaling.hpp>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/schedules.hpp"
#include "support/wide.hpp"

namespace {

using namespace rope;
using namespace testing;

constexpr double full_turn = 2 * std::numbers::pi;

/// The ratio of each pair of a schedule to the same pair of the original one.
double kept(const frequencies& scaled, const frequencies& original, Index i) {
  return scaled.inv_freq()(i, 0) / original.inv_freq()(i, 0);
}

/// Gives the lowest-frequency pair a wavelength of `tokens`.
struct last_wavelength {
  double tokens;
  void apply(schedule& schedule) const {
    schedule.inv_freq(schedule.inv_freq.size() - 1) = 2 * wide_real::pi() / tokens;
  }
};

}  // namespace

// Golden: the goldens of this file are recomputed in double precision from the formulas of the named sources.
TEST_CASE("mixed_ntk_scaling is the ntk rule of vLLM", "[frequencies][scaling]") {
  CHECK(
      lists(frequencies(8, 1e4, mixed_ntk_scaling{.factor = 4}), 0, "0.7071068 0.05 0.003535534 0.00025", 7));
  CHECK(lists(frequencies(8, 1e4, mixed_ntk_scaling{.factor = 4, .mixed_b = 0.625}), 0,
              "0.5582966 0.04070169 0.003140634 0.00025", 7));
}

TEST_CASE("mixed_ntk_scaling divides the last pair by exactly its factor and every other one by less",
          "[frequencies][scaling]") {
  const frequencies original(128, 5e5);
  for (const mixed_ntk_scaling& rule :
       {mixed_ntk_scaling{8}, mixed_ntk_scaling{8, 0.625}, mixed_ntk_scaling{8, 2.0}}) {
    const frequencies f(128, 5e5, rule);
    CHECK(divided(f, original, 63, 64, 8));
    for (Index i = 0; i < 64; ++i)
      CHECK((kept(f, original, i) < 1 && (i == 0 || kept(f, original, i) < kept(f, original, i - 1))));
    CHECK(f.attention_factor() == 1.0);
  }
  CHECK(divided(frequencies(2, 1e4, mixed_ntk_scaling{8}), frequencies(2, 1e4), 0, 1, 8));
}

TEST_CASE("alpha_scaling is the schedule of Hunyuan", "[frequencies][scaling]") {
  CHECK(lists(frequencies(128, 1e4, alpha_scaling{.alpha = 1000}), 0, "1 0.7760344 0.6022293 0.4673507", 7));
  CHECK(same_schedule(frequencies(128, 1e4, alpha_scaling{1000}), frequencies(128, 11158839.92507748)) ==
        false);
  const frequencies f(128, 1e4, alpha_scaling{1000}), from_base(128, 11158839.92507748);
  // The published base has 16 digits, and a relative error e of it changes pair i by at most e.
  for (Index i = 0; i < 64; ++i) CHECK(rounds_to(f.inv_freq()(i, 0), from_base.inv_freq()(i, 0), 14));
  CHECK(same_schedule(frequencies(96, 5e5, alpha_scaling{8}), frequencies(96, 5e5, ntk_scaling{8})));
}

TEST_CASE("ntk_by_parts_scaling agrees with published values", "[frequencies][scaling]") {
  const ntk_by_parts_scaling rule = {.factor = 4, .original_max_position = 2048};
  const frequencies f(64, 1e4, rule), original(64, 1e4);
  CHECK(lists(f, 10,
              "0.0562341325 0.0401215592 0.0283396634 0.0197933533 0.0136455368 0.00926218745 0.00616708201 "
              "0.00400530254 0.00251429817 0.00180299901 0.00112547486 0.000704281019 0.000444569853",
              9));
  CHECK(same_pairs(f, original, 0, 11));
  CHECK(divided(f, original, 22, 32, 4));
  CHECK(f.attention_factor() == 1.0);
}

TEST_CASE("the weights of ntk_by_parts_scaling fade NTK and the original schedule out",
          "[frequencies][scaling]") {
  const frequencies original(64, 1e4);
  const auto with = [](double ntk, double extrapolation) {
    return frequencies(64, 1e4, ntk_by_parts_scaling{4, 2048, ntk, extrapolation});
  };
  CHECK(divided(with(0, 0), original, 0, 32, 4));
  CHECK(same_pairs(with(0, 1), original, 0, 11));
  CHECK(divided(with(0, 1), original, 18, 32, 4));
  const frequencies ntk(64, 1e4, ntk_scaling{4}), only_ntk = with(1, 0);
  CHECK(same_pairs(only_ntk, ntk, 0, 20));
  CHECK(divided(only_ntk, original, 22, 32, 4));
  // Half of a weight gives the midpoint.
  for (Index i = 0; i < 10; ++i) {
    CHECK(
        rounds_to(with(1, 0.5).inv_freq()(i, 0), (ntk.inv_freq()(i, 0) + original.inv_freq()(i, 0)) / 2, 14));
    CHECK(rounds_to(with(0.5, 0).inv_freq()(i, 0), (ntk.inv_freq()(i, 0) + original.inv_freq()(i, 0) / 4) / 2,
                    14));
  }
}

TEST_CASE("the bounds of ntk_by_parts_scaling stay in [0, d - 1] and equal ones are a step",
          "[frequencies][scaling]") {
  const frequencies original(64, 1e4);
  // Both outer bounds are pair 0, which is kept. The inner blend runs from pair 1 to pair 3.
  const frequencies f(64, 1e4, ntk_by_parts_scaling{4, 11});
  CHECK(f.inv_freq()(0, 0) == 1.0);
  CHECK(kept(f, original, 2) > 0.25);
  CHECK(divided(f, original, 3, 32, 4));
  // Upper bounds above d - 1, so that a pair just below it has a share of both blends.
  const frequencies far(64, 10, ntk_by_parts_scaling{4, 600}), base_ten(64, 10);
  CHECK(kept(far, base_ten, 31) > 0.25);
}

TEST_CASE("resonance_scaling rounds wavelengths to whole tokens", "[frequencies][scaling]") {
  const frequencies f(8, 1e4, resonance_scaling{});
  CHECK(lists(f, 0, "1.047198 0.0997331 0.01000507 0.001000029", 7));
  const double tokens[] = {6, 63, 628, 6283};
  for (Index i = 0; i < 4; ++i) CHECK(rounds_to(f.inv_freq()(i, 0), full_turn / tokens[i], 15));
  const frequencies wide(128, 5e5, resonance_scaling{});
  for (Index i = 0; i < 64; ++i) {
    const double wavelength = full_turn / wide.inv_freq()(i, 0);
    CHECK(rounds_to(wavelength, std::round(wavelength), 15));
  }
}

TEST_CASE("resonance_scaling rounds a wavelength between two tokens to the even one",
          "[frequencies][scaling]") {
  for (const auto& [wavelength, rounded] : {std::pair(2.5, 2.0), std::pair(3.5, 4.0), std::pair(8.5, 8.0),
                                            std::pair(2.75, 3.0), std::pair(0.75, 1.0)}) {
    const frequencies f(8, 1e4, last_wavelength{wavelength}, resonance_scaling{});
    CHECK(rounds_to(f.inv_freq()(3, 0), full_turn / rounded, 15));
  }
}

TEST_CASE("clipped_scaling fades the twenty slowest pairs out", "[frequencies][scaling]") {
  const frequencies f(128, 1e4, clipped_scaling{}), original(128, 1e4);
  const list mask = {1,         0.9931807, 0.9729086,  0.9397369,  0.8945703,   0.8386408, 0.7734741,
                     0.7008477, 0.6227427, 0.5412897,  0.4587103,  0.3772573,   0.2991523, 0.2265259,
                     0.1613592, 0.1054297, 0.06026312, 0.02709138, 0.006819348, 0};
  CHECK(same_pairs(f, original, 0, 45));
  for (std::size_t j = 0; j < 20; ++j)
    CHECK(rounds_to(kept(f, original, 44 + static_cast<Index>(j)), mask[j], 7));
  CHECK(f.inv_freq()(63, 0) == 0.0);
}

TEST_CASE("clipped_scaling takes any number of pairs", "[frequencies][scaling]") {
  const frequencies original(8, 1e4);
  CHECK(is_identity(8, 1e4, clipped_scaling{.low_count = 0}));
  CHECK(is_identity(8, 1e4, clipped_scaling{.low_count = 0, .form = clipping::hard}));
  const frequencies one(8, 1e4, clipped_scaling{.low_count = 1});
  CHECK(same_pairs(one, original, 0, 3));
  CHECK(one.inv_freq()(3, 0) == 0.0);
  const frequencies two(8, 1e4, clipped_scaling{.low_count = 2});
  CHECK(same_pairs(two, original, 0, 3));
  CHECK(two.inv_freq()(3, 0) == 0.0);
  const frequencies three(8, 1e4, clipped_scaling{.low_count = 3});
  CHECK(same_pairs(three, original, 0, 2));
  CHECK(rounds_to(kept(three, original, 2), 0.5, 15));
  // More pairs than there are: all four.
  CHECK(same_schedule(frequencies(8, 1e4, clipped_scaling{}),
                      frequencies(8, 1e4, clipped_scaling{.low_count = 4})));
}

TEST_CASE("clipped_scaling with a hard end stops every one of the slowest pairs", "[frequencies][scaling]") {
  const frequencies f(128, 1e4, clipped_scaling{.form = clipping::hard}), original(128, 1e4);
  CHECK(same_pairs(f, original, 0, 44));
  CHECK((f.inv_freq().bottomRows(20) == 0.0).all());
}

TEST_CASE("a variant with a factor of 1 changes nothing", "[frequencies][scaling]") {
  for (const Index dim : {4, 64, 96, 128})
    for (const double base : {1e4, 5e5, 1e6}) {
      CAPTURE(dim, base);
      CHECK(is_identity(dim, base, alpha_scaling{1}));
      CHECK(is_identity(dim, base, mixed_ntk_scaling{1}));
      CHECK(is_identity(dim, base, mixed_ntk_scaling{1, 0.625}));
      CHECK(is_identity(dim, base, ntk_by_parts_scaling{1, 2048}));
    }
}

TEST_CASE("every variant throws for a field out of its range with the rule and the value",
          "[frequencies][scaling]") {
  for (const auto& [bad, value] : not_positive) {
    CHECK(rejected(alpha_scaling{bad}, "alpha_scaling: alpha must be positive", value));
    CHECK(rejected(mixed_ntk_scaling{bad}, "mixed_ntk_scaling: factor must be positive", value));
    CHECK(rejected(mixed_ntk_scaling{bad, 1.0}, "mixed_ntk_scaling: factor must be positive", value));
    CHECK(rejected(ntk_by_parts_scaling{bad, 2048}, "ntk_by_parts_scaling: factor must be positive", value));
    CHECK(rejected(mixed_ntk_scaling{2, bad}, "mixed_ntk_scaling: mixed_b must be positive", value));
    CHECK(rejected(ntk_by_parts_scaling{2, bad},
                   "ntk_by_parts_scaling: original_max_position must be positive", value));
    const char* weights = "ntk_by_parts_scaling: ntk_factor and extrapolation_factor must be in [0, 1]";
    if (bad == 0) continue;
    CHECK(rejected(ntk_by_parts_scaling{2, 2048, bad}, weights, value));
    CHECK(rejected(ntk_by_parts_scaling{2, 2048, 1, bad}, weights, value));
  }
  CHECK(rejected(ntk_by_parts_scaling{2, 2048, 1.5},
                 "ntk_by_parts_scaling: ntk_factor and extrapolation_factor must be in [0, 1]", "got 1.5"));
  CHECK(rejected(clipped_scaling{.low_count = -1}, "clipped_scaling: low_count must not be negative",
                 "got -1"));
  // With a single pair there is no lowest frequency to scale.
  const char* text = "rotary_dim must be at least 4, got 2";
  CHECK(throws_saying<std::invalid_argument>([] { frequencies f(2, 1e4, alpha_scaling{2}); }, "alpha", text));
  const ntk_by_parts_scaling by_parts = {.factor = 2, .original_max_position = 2048};
  CHECK(throws_saying<std::invalid_argument>([&] { frequencies f(2, 1e4, by_parts); }, "ntk_by_parts", text));
}

TEST_CASE("resonance_scaling needs wavelengths above half a token", "[frequencies][scaling]") {
  const char* text =
      "rope::resonance_scaling: every inv_freq must be positive and below 4 pi, a wavelength above half a "
      "token";
  for (const double tokens : {0.5, 0.25, -3.0})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { frequencies f(8, 1e4, last_wavelength{tokens}, resonance_scaling{}); }, text, "got "));
  CHECK(throws_saying<std::invalid_argument>(
      [] { frequencies f(8, 1e4, clipped_scaling{}, resonance_scaling{}); }, text, "got 0"));
}
