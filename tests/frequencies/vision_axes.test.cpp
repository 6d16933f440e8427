// SPDX-License-Identifier: MIT
#include <rope/frequencies/vision_axes.hpp>

#include <cmath>
#include <limits>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::agrees_with;
using testing::angles;
using testing::at;
using testing::counted_channels;
using testing::throws_saying;

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

// Golden, here and below unless a comment names another source: the formulas of the named implementation, in
// fp64, for channels 1 .. 8 at height 1 and width 2, printed with nine digits.
TEST_CASE("Pixtral", "[frequencies][vision_axes]") {
  const frequencies f = rope::pixtral_frequencies(8);
  CHECK(agrees_with(angles(f, at({1, 2})), {1, 0.01, 0.2, 0.002}, 9));
  CHECK(agrees_with(
      counted_channels<half_split>(f, at({1, 2}), 8),
      {-3.66705262, 1.939901, 1.54951442, 3.98399201, 3.54298251, 6.01969967, 7.45647404, 8.00798399}, 9));
  // The model's own ids, height * max_patches_per_side + width, are rows of a square grid.
  CHECK(rope::grid_ids({2, 3}, {64, 64}) == std::vector<std::int64_t>{0, 1, 2, 64, 65, 66});
}

TEST_CASE("the vision tower of Qwen-VL", "[frequencies][vision_axes]") {
  const frequencies f = rope::qwen_vl_vision_frequencies(8);
  CHECK(agrees_with(angles(f, at({1, 2})), {1, 0.01, 2, 0.02}, 9));
  CHECK(agrees_with(
      counted_channels<half_split>(f, at({1, 2}), 8),
      {-3.66705262, 1.939901, -7.6135225, 3.83921069, 3.54298251, 6.01969967, -0.185135575, 8.07839472}, 9));
}

// Golden: `build_rope_2d` of llama.cpp (tools/mtmd/clip.cpp) for NORMAL and NEOX pairs.
TEST_CASE("the two-dimensional rotation of llama.cpp", "[frequencies][vision_axes]") {
  CHECK(agrees_with(
      counted_channels<interleaved>(rope::qwen_vl_vision_frequencies(8), at({1, 2}), 8),
      {-1.14263966, 1.9220756, 2.95985067, 4.0297995, -7.53651874, 2.04960611, 6.83861071, 8.13839072}, 9));
  CHECK(agrees_with(
      counted_channels<interleaved>(rope::pixtral_frequencies(8), at({1, 2}), 8),
      {-1.14263966, 1.9220756, 2.95985067, 4.0297995, 3.7083169, 6.87374612, 6.98398601, 8.01398399}, 9));
  // NEOX pairs are within each half of the head: two ranges of channels, with a table of one axis for each.
  Eigen::ArrayXd x = Eigen::ArrayXd::LinSpaced(8, 1, 8);
  const auto head = rope::thd(x.data(), 1, 1, 8);
  const frequency_table<double> table(frequencies(4), 3);
  rope::rotate<half_split>(head.channels(0, 4), table, 1);
  rope::rotate<half_split>(head.channels(4, 4), table, 2);
  CHECK(agrees_with(
      x, {-1.98411065, 1.95990067, 2.4623779, 4.01979967, -8.44581617, 5.83881071, 1.63345928, 8.11839205},
      9));
}

TEST_CASE("the vision tower of Llama 4", "[frequencies][vision_axes]") {
  const frequencies f = rope::llama4_vision_frequencies(8);
  const auto grid = rope::with_unrotated_tokens(rope::grid_positions({2, 2}, {1, 1}), 0, 1);
  const Eigen::ArrayXXd angle = angles(f, grid);
  REQUIRE(angle.rows() == 5);
  CHECK(agrees_with(angle.row(0), {1, 0.01, 1, 0.01}, 9));
  CHECK(agrees_with(angle.row(1), {2, 0.02, 1, 0.01}, 9));
  CHECK(agrees_with(angle.row(2), {1, 0.01, 2, 0.02}, 9));
  CHECK(agrees_with(angle.row(3), {2, 0.02, 2, 0.02}, 9));
  CHECK(frequency_table<float>(f, grid).is_identity(4));
}

TEST_CASE("DINOv3", "[frequencies][vision_axes]") {
  const auto periods = [](const frequencies& f) {
    return (2 * std::acos(-1.0) / f.inv_freq().col(0).head(4)).eval();
  };
  const frequencies by_base = rope::dino_v3_frequencies(16),
                    by_period = rope::dino_v3_frequencies(16, 0.5, 90);
  CHECK(agrees_with(periods(by_base), {1, 3.162278, 10, 31.62278}, 7));
  CHECK(agrees_with(periods(by_period), {0.5, 2.823108, 15.93988, 90}, 7));
  for (const frequencies& f : {by_base, by_period}) {
    REQUIRE(f.pairs() == 8);
    CHECK((f.inv_freq().col(1).tail(4) == f.inv_freq().col(0).head(4)).all());
    CHECK((f.inv_freq() != 0).count() == 8);
  }
  const auto patches = rope::patch_centers(2, 3, rope::patch_normalisation::separate);
  CHECK(agrees_with(
      angles(by_base, patches).row(0),
      {-3.141593, -0.9934588, -0.3141593, -0.09934588, -4.18879, -1.324612, -0.418879, -0.1324612}, 7));
  // A single period is the smallest, as linspace(0, 1, 1) is 0.
  CHECK(agrees_with(2 * std::acos(-1.0) / rope::dino_v3_frequencies(4, 0.5, 90).inv_freq().col(0).head(1),
                    {0.5}, 15));
  CHECK(agrees_with(2 * std::acos(-1.0) / rope::dino_v3_frequencies(8, 3, 3).inv_freq().col(0).head(2),
                    {3, 3}, 15));
}

// Golden: naver-ai/rope-vit for head_dim 8, head angle 0.3, base 10 (mixed) and 100 (axial), at x = 1, y = 2;
// with seven digits.
TEST_CASE("rope-vit", "[frequencies][vision_axes]") {
  const frequencies mixed = rope::rope_vit_mixed_frequencies(8, 0.3),
                    axial = rope::rope_vit_axial_frequencies(8);
  CHECK(agrees_with(mixed.inv_freq().col(1), {0.9553365, 0.3021039, -0.2955202, -0.09345169}, 7));
  CHECK(agrees_with(mixed.inv_freq().col(0), {0.2955202, 0.09345169, 0.9553365, 0.3021039}, 7));
  CHECK(agrees_with(angles(mixed, at({2, 1})), {1.546377, 0.4890073, 1.615153, 0.5107562}, 7));
  CHECK(agrees_with(angles(axial, at({2, 1})), {1, 0.1, 2, 0.2}, 9));
}

TEST_CASE("mixed frequencies are a schedule along crossed directions", "[frequencies][vision_axes]") {
  const Index quarter = 6;
  const frequencies half(2 * quarter, 10.0), mixed = rope::rope_vit_mixed_frequencies(4 * quarter, 1.1);
  Eigen::ArrayXXd schedule(2 * quarter, 1), directions(2 * quarter, 2);
  schedule << half.inv_freq(), half.inv_freq();
  for (Index i = 0; i < 2 * quarter; ++i) {
    const double angle = 1.1 + (i < quarter ? 0 : std::acos(0.0));
    directions.row(i) << testing::sin(angle), testing::cos(angle);
  }
  const frequencies along = rope::along_directions(frequencies::custom(schedule), directions);
  CHECK((along.inv_freq() - mixed.inv_freq()).abs().maxCoeff() <= 4 * std::numeric_limits<double>::epsilon());
}

// Golden: timm, `pixel_freq_bands` for head_dim 16 and max_res 224, with seven digits.
TEST_CASE("timm", "[frequencies][vision_axes]") {
  const frequencies octaves = rope::timm_pixel_frequencies(16),
                    linear = rope::timm_pixel_frequencies(16, 224, rope::pixel_bands::evenly_spaced);
  CHECK(agrees_with(octaves.inv_freq().col(0).head(4), {3.141593, 15.14337, 72.99535, 351.8584}, 7));
  CHECK(agrees_with(linear.inv_freq().col(0).head(4), {3.141593, 119.3805, 235.6194, 351.8584}, 7));
  for (const frequencies& f : {octaves, linear}) {
    REQUIRE(f.pairs() == 8);
    CHECK((f.inv_freq().col(1).tail(4) == f.inv_freq().col(0).head(4)).all());
    CHECK((f.inv_freq() != 0).count() == 8);
  }
  // in_pixels = False: temperature^(-k / bands), on the integer grid.
  CHECK(
      agrees_with(rope::qwen_vl_vision_frequencies(16).inv_freq().col(0).head(4), {1, 0.1, 0.01, 0.001}, 15));
  // A single band has frequency pi, and 2 is the smallest max_freq.
  CHECK(rope::timm_pixel_frequencies(4).inv_freq()(0, 0) ==
        rope::timm_pixel_frequencies(8, 2).inv_freq()(1, 0));
}

TEST_CASE("bases and powers are within 2 ulp of their formulas", "[frequencies][vision_axes]") {
  const testing::wide two_pi = 2 * testing::pi;
  const auto off = [](double got, testing::wide exact) {
    return testing::abs(got - exact) / tolerance::ulp<double>(exact);
  };
  for (const Index head_dim : {16, 64, 72, 88, 128}) {
    const Index quarter = head_dim / 4;
    const frequencies dino = rope::dino_v3_frequencies(head_dim, 90.0),
                      series = rope::dino_v3_frequencies(head_dim, 0.7, 71),
                      timm = rope::timm_pixel_frequencies(head_dim, 300);
    for (Index k = 0; k < quarter; ++k) {
      const auto share = static_cast<testing::wide>(k) / static_cast<testing::wide>(quarter - 1);
      CAPTURE(head_dim, k);
      CHECK(off(dino.inv_freq()(k, 0),
                two_pi * testing::pow(
                             90.0L, -static_cast<testing::wide>(k) / static_cast<testing::wide>(quarter))) <=
            tolerance::inv_freq());
      CHECK(off(series.inv_freq()(k, 0), two_pi / (0.7 * testing::pow(71.0L / 0.7, share))) <=
            tolerance::inv_freq());
      CHECK(
          off(timm.inv_freq()(k, 0), two_pi / 2 * testing::pow(2.0L, share * (testing::log2(300.0L) - 1))) <=
          tolerance::inv_freq());
    }
  }
}

// Each half of the head is rotated as a head: apply_multidimensional_rope of transformers.
TEST_CASE("Gemma 4 rotates two ranges of channels", "[frequencies][vision_axes]") {
  const frequency_table<double> table(frequencies(4, 100.0), 3);
  std::vector<double> channels = {1, 2, 3, 4, 5, 6, 7, 8};
  const rope::head_view<double> head = rope::bshd(channels.data(), 1, 1, 1, 8);
  const Index row = 1, column = 2;
  rope::rotate<half_split>(head.channels(0, 4), table, column);
  rope::rotate<half_split>(head.channels(4, 4), table, row);
  CHECK(agrees_with(
      Eigen::Map<const Eigen::ArrayXd>(channels.data(), 8),
      {-3.14403912, 1.16545583, -0.339143083, 4.31760497, -3.18878536, 5.17135766, 7.98947107, 8.55903382},
      9));
}

TEST_CASE("a head of a vision model must be divisible by four", "[frequencies][vision_axes]") {
  for (const Index head_dim : {Index{0}, Index{2}, Index{6}, Index{63}, Index{-4}}) {
    CAPTURE(head_dim);
    const std::string value = "got " + std::to_string(head_dim);
    const auto rejects = [&](auto call, const char* name) {
      return throws_saying<std::invalid_argument>(call, name, "head_dim must be positive and a multiple of 4",
                                                  value);
    };
    CHECK(rejects([&] { rope::pixtral_frequencies(head_dim); }, "rope::pixtral_frequencies"));
    CHECK(rejects([&] { rope::qwen_vl_vision_frequencies(head_dim); }, "rope::qwen_vl_vision_frequencies"));
    CHECK(rejects([&] { rope::llama4_vision_frequencies(head_dim); }, "rope::llama4_vision_frequencies"));
    CHECK(rejects([&] { rope::rope_vit_axial_frequencies(head_dim); }, "rope::rope_vit_axial_frequencies"));
    CHECK(
        rejects([&] { rope::rope_vit_mixed_frequencies(head_dim, 0); }, "rope::rope_vit_mixed_frequencies"));
    CHECK(rejects([&] { rope::dino_v3_frequencies(head_dim); }, "rope::dino_v3_frequencies"));
    CHECK(rejects([&] { rope::dino_v3_frequencies(head_dim, 0.5, 90); }, "rope::dino_v3_frequencies"));
    CHECK(rejects([&] { rope::timm_pixel_frequencies(head_dim); }, "rope::timm_pixel_frequencies"));
  }
}

TEST_CASE("invalid numbers of a vision model throw", "[frequencies][vision_axes]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  for (const double base : {1.0, 0.0, -5.0, infinity}) {
    CHECK(rejects([&] { rope::dino_v3_frequencies(16, base); }, "base must be finite and greater than 1"));
    CHECK(rejects([&] { rope::pixtral_frequencies(16, base); }, "base must be finite and greater than 1"));
  }
  CHECK(rejects([] { rope::dino_v3_frequencies(16, 0.0, 90); }, "0 < min_period <= max_period",
                "got 0 and 90"));
  CHECK(rejects([] { rope::dino_v3_frequencies(16, 3, 2); }, "got 3 and 2"));
  CHECK(rejects([] { rope::dino_v3_frequencies(16, 3, infinity); }, "got 3 and inf"));
  CHECK(rejects([] { rope::timm_pixel_frequencies(16, 1.5); },
                "max_freq must be finite and at least 2, got 1.5"));
  CHECK(rejects([] { rope::timm_pixel_frequencies(16, infinity); }, "got inf"));
  CHECK(rejects([] { rope::rope_vit_mixed_frequencies(16, infinity); },
                "rope::rope_vit_mixed_frequencies: angle must be finite, got inf"));
}
