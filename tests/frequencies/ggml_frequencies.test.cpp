// SPDX-License-Identifier: MIT
#include <rope/frequencies/ggml_frequencies.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace {

using rope::frequencies;
using rope::ggml_frequencies;
using rope::ggml_rope_parameters;
using rope::ggml_rope_type;
using rope::Index;
using testing::angles;
using testing::at;
using testing::throws_saying;
using testing::wide;

Index pairs_of(const ggml_rope_parameters& p) {
  return p.mode == ggml_rope_type::vision ? p.n_dims : p.n_dims / 2;
}

wide magnitude_of(const ggml_rope_parameters& p) {
  const wide attn = p.attn_factor;
  return p.ext_factor == 0 ? attn : attn * (1 - 0.1L * testing::log(static_cast<wide>(p.freq_scale)));
}

/// The angles of one token in ggml, from the loop of its code, which carries an angle for each axis from pair
/// to pair. The library computes a power for each pair instead. In long double, where ggml has float.
std::vector<wide> angles_of_ggml(const ggml_rope_parameters& p, const std::array<wide, 4>& position) {
  const wide d = static_cast<wide>(p.n_dims), base = p.freq_base, scale = p.freq_scale;
  const wide step = testing::pow(base, -2 / d);
  const auto bound = [&](double rotations) {
    return d *
           testing::log(static_cast<wide>(p.n_ctx_orig) / (2 * testing::pi * static_cast<wide>(rotations))) /
           (2 * testing::log(base));
  };
  const Index t = p.sections[0], h = p.sections[1], w = p.sections[2], sum = t + h + w + p.sections[3];
  const bool one_axis = p.mode == ggml_rope_type::normal || p.mode == ggml_rope_type::neox;
  std::array<wide, 4> theta = position;
  std::vector<wide> result;
  for (Index i = 0; i < pairs_of(p); ++i) {
    std::size_t axis = 0;
    if (!one_axis) {
      const Index sector = i % sum;
      if (p.mode == ggml_rope_type::vision) {
        if (sector == 0)
          theta[0] = position[0];
        else if (sector == t)
          theta[1] = position[1];
        else if (sector == t + h)
          theta[2] = position[2];
        else if (sector == t + h + w)
          theta[3] = position[3];
      }
      if (p.mode == ggml_rope_type::imrope)
        axis = sector % 3 == 0 && sector < 3 * t   ? 0
               : sector % 3 == 1 && sector < 3 * h ? 1
               : sector % 3 == 2 && sector < 3 * w ? 2
                                                   : 3;
      else
        axis = sector < t ? 0 : sector < t + h ? 1 : sector < t + h + w ? 2 : 3;
    }
    const wide own = theta[axis] / (p.freq_factors.empty() ? 1 : p.freq_factors[static_cast<std::size_t>(i)]);
    wide rotated = scale * own;
    if (p.ext_factor != 0) {
      const wide low = (std::max)(wide(0), testing::floor(bound(p.beta_fast)));
      const wide high = (std::min)(d - 1, testing::ceil(bound(p.beta_slow)));
      const wide passed = (static_cast<wide>(i) - low) / (std::max)(wide(0.001), high - low);
      const wide share =
          (1 - (std::min)(wide(1), (std::max)(wide(0), passed))) * static_cast<wide>(p.ext_factor);
      rotated = rotated * (1 - share) + own * share;
    }
    result.push_back(rotated);
    for (wide& angle : theta) angle *= step;
  }
  return result;
}

/// Whether every frequency along every axis is ggml's angle at 1 on that axis and 0 on the others, and m too.
bool is_as_in_ggml(const ggml_rope_parameters& p) {
  const frequencies f = ggml_frequencies(p);
  bool same = f.pairs() == pairs_of(p) &&
              testing::abs(f.attention_factor() - magnitude_of(p)) <= 2 * 0x1p-53L * magnitude_of(p);
  for (Index axis = 0; axis < f.axes(); ++axis) {
    std::array<wide, 4> unit = {};
    unit[static_cast<std::size_t>(axis)] = 1;
    const auto expected = angles_of_ggml(p, unit);
    for (Index i = 0; same && i < f.pairs(); ++i) {
      const wide exact = expected[static_cast<std::size_t>(i)], got = f.inv_freq(i, axis);
      same = testing::abs(got - exact) <= 4 * 0x1p-53L * testing::abs(exact);
      if (!same) UNSCOPED_INFO("pair " << i << ", axis " << axis << ": " << got << " for " << exact);
    }
  }
  return same;
}

/// Compares the angles of a token that is at (1, 2, 3, -3), or at 1 on one axis, and m, with the printed
/// results of ggml.
bool agrees(const ggml_rope_parameters& p, const std::vector<double>& printed, double m) {
  const frequencies f = ggml_frequencies(p);
  const Eigen::ArrayXXd got = angles(f, f.axes() == 1 ? at({1}) : at({1, 2, 3, -3}));
  if (got.size() != static_cast<Index>(printed.size())) return false;
  for (Index i = 0; i < got.size(); ++i) {
    const double value = printed[static_cast<std::size_t>(i)];
    if (std::abs(got(i) - value) > 4e-6 * std::abs(value)) {
      UNSCOPED_INFO("pair " << i << " has " << got(i) << " for " << value);
      return false;
    }
  }
  return std::abs(f.attention_factor() - m) <= 1e-6 * m;
}

}  // namespace

// Golden: ggml_rope_cache_init and ggml_mrope_cache_init of ggml, src/ggml-cpu/ops.cpp of 2026-08-21
// (d99724f), run in float: seven digits of the angles of all pairs, and of the length of (cos, sin) of pair
// 0.
TEST_CASE("the arguments of ggml_rope_ext give its angles", "[frequencies][ggml]") {
  CHECK(agrees(
      {.n_dims = 16, .freq_scale = 0.5, .attn_factor = 1.5, .freq_factors = {1, 2, 4, 8, 1, 1, 0.5, 1}},
      {0.5, 0.07905694, 0.0125, 0.001976424, 0.005000001, 0.001581139, 0.001, 1.581139e-4}, 1.5));
  const ggml_rope_parameters yarn = {.n_dims = 16,
                                     .mode = ggml_rope_type::neox,
                                     .n_ctx_orig = 4096,
                                     .freq_scale = 0.5,
                                     .ext_factor = -0.5,
                                     .beta_fast = 32,
                                     .beta_slow = 1};
  CHECK(agrees(yarn, {0.25, 0.07905694, 0.025, 0.009882119, 0.00375, 0.001383497, 0.0005, 0.0001581139},
               1.069315));
  auto shrunk = yarn;
  shrunk.freq_scale = 2;
  shrunk.ext_factor = 1.5;
  CHECK(agrees(shrunk, {0.5, 0.1581139, 0.05, 0.02766993, 0.0125, 0.005138702, 0.002, 0.0006324556},
               0.9306853));
  auto below_one = yarn;
  below_one.ext_factor = 1;
  below_one.freq_base = 0.5;
  CHECK(agrees(below_one, {1, 0.5452539, 0.5946035, 0.6484199, 0.7071069, 0.7711056, 0.8408965, 0.9170042},
               1.069315));
  auto one = below_one;
  one.freq_base = 1;
  CHECK(agrees(one, {1, 1, 1, 1, 1, 1, 1, 1}, 1.069315));
  one.n_ctx_orig = 100;
  CHECK(agrees(one, {1, 0.9666667, 0.9333333, 0.9, 0.8666667, 0.8333333, 0.8, 0.7666667}, 1.069315));
  one.n_ctx_orig = 5;
  CHECK(agrees(one, {1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}, 1.069315));

  const ggml_rope_parameters partly = {.n_dims = 128,
                                       .n_ctx_orig = 8192,
                                       .freq_base = 5e5,
                                       .freq_scale = 0.25,
                                       .ext_factor = 0.5,
                                       .attn_factor = 0.8,
                                       .beta_fast = 32,
                                       .beta_slow = 1};
  const frequencies f = ggml_frequencies(partly);
  const std::vector<Index> pairs = {0, 1, 20, 30, 33, 40, 63};
  const std::vector<double> printed = {0.625,        0.5091358,    0.009619663, 0.0007678294,
                                       0.0003388359, 6.856198e-05, 6.137843e-07};
  for (std::size_t i = 0; i < pairs.size(); ++i)
    CHECK(testing::Approx(printed[i]).epsilon(4e-6) == f.inv_freq(pairs[i], 0));
  CHECK(testing::Approx(0.9109035).epsilon(1e-6) == f.attention_factor());
  auto swapped = partly;
  swapped.ext_factor = swapped.attn_factor = 1;
  std::swap(swapped.beta_fast, swapped.beta_slow);  // pairs up to 34 keep their frequency
  const frequencies step = ggml_frequencies(swapped);
  CHECK(testing::Approx(0.0009384732).epsilon(4e-6) == step.inv_freq(34, 0));
  CHECK(testing::Approx(0.0001911241).epsilon(4e-6) == step.inv_freq(35, 0));
}

TEST_CASE("the arguments of ggml_rope_multi give its angles, also for repeated and truncated sections",
          "[frequencies][ggml]") {
  const auto of = [](ggml_rope_type mode, Index n_dims, std::array<Index, 4> sections) {
    return ggml_rope_parameters{.n_dims = n_dims, .sections = sections, .mode = mode};
  };
  using type = ggml_rope_type;
  CHECK(agrees(of(type::mrope, 24, {2, 1, 2, 1}),
               {1, 0.4641589, 0.4308869, 0.3, 0.1392476, -0.06463303, 0.009999998, 0.004641588, 0.004308868,
                0.002999999, 0.001392476, -0.00064633},
               1));
  CHECK(agrees(of(type::mrope, 8, {2, 1, 2, 1}), {1, 0.1, 0.02, 0.003}, 1));
  CHECK(agrees(of(type::imrope, 24, {2, 1, 2, 1}),
               {1, 0.9283177, 0.6463304, 0.09999999, -0.1392476, 0.06463303, 0.009999998, 0.009283177,
                0.006463301, 0.0009999997, -0.001392476, 0.00064633},
               1));
  CHECK(agrees(of(type::vision, 8, {2, 2, 2, 2}), {1, 0.1, 2, 0.2, 3, 0.3, -3, -0.3}, 1));
  CHECK(agrees(of(type::vision, 8, {1, 0, 2, 0}), {1, 0.3, 0.03, 1, 3e-4, 3e-05, 1, 3e-07}, 1));
  CHECK(agrees(of(type::vision, 8, {0, 2, 1, 0}), {2, 0.2, 3, 0.002, 0.0002, 3, 2e-06, 2e-07}, 1));
  auto yarn = of(type::mrope, 24, {2, 2, 4, 4});
  yarn.n_ctx_orig = 4096;
  yarn.freq_scale = 0.25;
  yarn.ext_factor = 1;
  yarn.beta_fast = 32;
  yarn.beta_slow = 1;
  CHECK(agrees(yarn,
               {1, 0.4641589, 0.4308869, 0.2, 0.1218417, 0.04847477, 0.01874999, 0.00696238, -0.002423738,
                -0.0007499997, -0.000348119, -0.0001615825},
               1.138629));
}

TEST_CASE("every combination of ggml's arguments is its loop in long double", "[frequencies][ggml]") {
  std::vector<double> factors;
  for (int i = 0; i < 64; ++i) factors.push_back(i % 3 == 0 ? 1 : 0.3 + 0.17 * i);
  Index checked = 0;
  const auto check = [&](const ggml_rope_parameters& p) {
    INFO("n_dims " << p.n_dims << ", mode " << static_cast<int>(p.mode) << ", base " << p.freq_base
                   << ", scale " << p.freq_scale << ", ext " << p.ext_factor << ", betas " << p.beta_fast
                   << " and " << p.beta_slow << ", L0 " << p.n_ctx_orig);
    CHECK(is_as_in_ggml(p));
    ++checked;
  };
  using type = ggml_rope_type;
  for (const Index n_dims : {2, 16, 64})
    for (const double base : {0.3, 0.999, 1.5, 1e4, 5e6})
      for (const double scale : {0.125, 0.7, 1.0, 3.0})
        for (const double ext : {0.0, 1.0, 0.3, -0.6, 2.0})
          for (const bool swapped : {false, true})
            for (const bool with_factors : {false, true})
              check({.n_dims = n_dims,
                     .mode = type::normal,
                     .n_ctx_orig = 4096,
                     .freq_base = base,
                     .freq_scale = scale,
                     .ext_factor = ext,
                     .attn_factor = 0.75,
                     .beta_fast = swapped ? 1.5 : 32.0,
                     .beta_slow = swapped ? 32.0 : 1.5,
                     .freq_factors = with_factors ? factors : std::vector<double>{}});
  for (const type mode : {type::mrope, type::imrope, type::vision})
    for (const Index n_dims : {4, 24, 64})
      for (const auto& sections :
           {std::array<Index, 4>{2, 3, 3, 0}, {1, 0, 0, 0}, {0, 0, 5, 3}, {0, 2, 0, 1}, {40, 1, 1, 1}})
        for (const double ext : {0.0, 0.5})
          check({.n_dims = n_dims,
                 .sections = sections,
                 .mode = mode,
                 .n_ctx_orig = 300,
                 .freq_base = 1000,
                 .freq_scale = 0.5,
                 .ext_factor = ext,
                 .beta_fast = 16,
                 .beta_slow = 2,
                 .freq_factors = factors});
  CHECK(checked == 1290);
  // Without ext_factor the scale may be negative, and L0 and the betas are not read.
  check({.n_dims = 8, .freq_scale = -0.5});
  check({.n_dims = 8, .n_ctx_orig = -3, .beta_fast = -1, .beta_slow = -1, .freq_factors = {1, -2, 3, 4, 0}});
}

TEST_CASE("a divisor of 1e30 stops the rotation of its pair", "[frequencies][ggml]") {
  const frequencies f = ggml_frequencies({.n_dims = 8, .freq_factors = {1, 2, 1e30, 1}});
  CHECK(f.inv_freq(2, 0) == 0);
  CHECK(f.inv_freq(1, 0) == frequencies(8).inv_freq(1, 0) / 2);
  CHECK(f.inv_freq(3, 0) == frequencies(8).inv_freq(3, 0));
}

TEST_CASE("invalid arguments of ggml throw by name", "[frequencies][ggml]") {
  const ggml_rope_parameters yarn = {
      .n_dims = 8, .n_ctx_orig = 64, .freq_scale = 0.5, .ext_factor = 1, .beta_fast = 32, .beta_slow = 1};
  const auto reports = [&](auto change, const auto&... parts) {
    ggml_rope_parameters p = yarn;
    change(p);
    return throws_saying<std::invalid_argument>([&] { ggml_frequencies(p); }, "ggml_frequencies: ", parts...);
  };
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Index n_dims : {Index{0}, Index{-2}, Index{7}, Index{1} << 31})
    CHECK(reports([n_dims](auto& p) { p.n_dims = n_dims; },
                  "n_dims must be even, positive and below 2^31, got " + std::to_string(n_dims)));
  for (const double bad : {0.0, -1.0, inf, nan}) {
    CHECK(reports([bad](auto& p) { p.freq_base = bad; }, "freq_base must be finite and positive, got "));
    CHECK(reports([bad](auto& p) { p.attn_factor = bad; }, "attn_factor must be finite and positive, got "));
    CHECK(reports([bad](auto& p) { p.freq_scale = bad; }, "freq_scale must be "));
    CHECK(reports([bad](auto& p) { p.beta_fast = bad; },
                  "beta_fast and beta_slow must be finite and positive", "32 and 1 in llama.cpp"));
    CHECK(reports([bad](auto& p) { p.beta_slow = bad; },
                  "beta_fast and beta_slow must be finite and positive"));
  }
  CHECK(reports([](auto& p) { p.freq_scale = 0; }, "write 1 for no scaling, got 0"));
  CHECK(reports([](auto& p) { p.freq_scale = -2; }, "must be positive if ext_factor is not 0, got -2"));
  CHECK(
      reports([](auto& p) { p.freq_scale = 1e5; }, "1 + 0.1 ln(1 / freq_scale) must be positive", "100000"));
  for (const double bad : {inf, nan})
    CHECK(reports([bad](auto& p) { p.ext_factor = bad; }, "ext_factor must be finite, got "));
  for (const Index bad : {Index{0}, Index{-1}})
    CHECK(reports([bad](auto& p) { p.n_ctx_orig = bad; },
                  "n_ctx_orig must be positive if ext_factor is not 0"));
  CHECK(reports([](auto& p) { p.freq_factors = {1, 1, 1}; }, "a value for each of 4 pairs", "got 3"));
  for (const double bad : {0.0, inf, nan})
    CHECK(reports(
        [bad](auto& p) {
          p.freq_factors = {1, 1, bad, 1};
        },
        "a value of freq_factors must be finite and not 0; write 1e30 to stop a pair, got "));
  CHECK(reports(
      [](auto& p) {
        p.sections = {1, 1, 1, 1};
      },
      "normal and neox have one axis", "got sections of 4 pairs"));
  CHECK(reports([](auto& p) { p.mode = ggml_rope_type::mrope; }, "one of the first three sections",
                "got 0, 0, 0, 0"));
  CHECK(reports(
      [](auto& p) {
        p.mode = ggml_rope_type::vision;
        p.sections = {0, 0, 0, 4};
      },
      "one of the first three sections", "got 0, 0, 0, 4"));
  CHECK(reports(
      [](auto& p) {
        p.mode = ggml_rope_type::imrope;
        p.sections = {2, -1, 2, 1};
      },
      "a section must be in [0, 2^31), got -1"));
}
