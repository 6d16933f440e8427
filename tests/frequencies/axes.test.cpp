// SPDX-License-Identifier: MIT
#include <rope/frequencies/axes.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"
#include "support/wide.hpp"

namespace {

using rope::axis_assignment;
using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::interleaved;
using testing::agrees_with;
using testing::at;
using testing::counted_channels;
using testing::letters;
using testing::repeated;
using testing::throws_saying;

/// x8 of the golden vectors at time 5, height 6, width 9.
template <class Layout>
Eigen::ArrayXd golden(const axis_assignment& assignment) {
  return counted_channels<Layout>(rope::on_axes(frequencies(8), assignment), at({5, 6, 9}), 8);
}

}  // namespace

// Golden: the sections of Qwen2-VL ([16, 24, 24]), Qwen3-VL ([24, 20, 20]), Qwen3.5 ([11, 11, 10]) and Ernie
// 4.5 VL ([22, 22, 20]), expanded by the code of Hugging Face transformers and of ggml.
TEST_CASE("pairs are assigned to axes as in released models", "[frequencies][axes]") {
  CHECK(letters(rope::contiguous_sections({16, 24, 24})) ==
        repeated("T", 16) + repeated("H", 24) + repeated("W", 24));
  CHECK(letters(rope::contiguous_sections({24, 20, 20})) ==
        repeated("T", 24) + repeated("H", 20) + repeated("W", 20));
  CHECK(letters(rope::interleaved_sections({24, 20, 20})) == repeated("THW", 20) + "TTTT");
  CHECK(letters(rope::interleaved_sections({11, 11, 10})) == repeated("THW", 10) + "TH");
  CHECK(letters(rope::height_width_then_time(22, 20)) == repeated("HW", 22) + repeated("T", 20));
  CHECK(rope::contiguous_sections({16, 24, 24}).axes == 3);
  CHECK(rope::interleaved_sections({24, 20, 20}).axes == 3);
  CHECK(rope::height_width_then_time(22, 20).axes == 3);
  // XD-RoPE of Hunyuan: four contiguous sections. An axis without a pair is still an axis.
  CHECK(letters(rope::contiguous_sections({2, 1, 3, 1})) == "TTHWWWE");
  CHECK(rope::contiguous_sections({2, 0, 3, 0}).axes == 4);
  CHECK(letters(rope::contiguous_sections({2, 0, 3, 0})) == "TTWWW");
}

// Golden: computed in fp64 from the formulas of Hugging Face transformers for channels 1 .. 8, base 1e4,
// position (5, 6, 9), printed with nine digits.
TEST_CASE("sections rotate as published", "[frequencies][axes]") {
  CHECK(agrees_with(
      golden<half_split>(rope::contiguous_sections({2, 1, 1})),
      {5.07828356, -1.12138811, 2.57485357, 3.92783897, 0.459386653, 6.22434645, 7.1672958, 8.03567552}, 9));
  CHECK(agrees_with(
      golden<half_split>(rope::interleaved_sections({2, 1, 1})),
      {5.07828356, -1.73718361, 2.35870835, 3.95995017, 0.459386653, 6.08129864, 7.24130478, 8.01989992}, 9));
  CHECK(agrees_with(
      golden<interleaved>(rope::height_width_then_time(1, 2)),
      {1.51900128, 1.64092508, -1.26847773, 4.8364206, 4.69387629, 6.24239741, 6.95991267, 8.03489985}, 9));
}

TEST_CASE("a pair assigned to an axis keeps its frequency and rotates by that axis only",
          "[frequencies][axes]") {
  const frequencies schedule(128, 5e5, rope::yarn_scaling{.factor = 4, .original_max_position = 32768});
  const axis_assignment assignment = rope::interleaved_sections({24, 20, 20});
  const frequencies dealt = rope::on_axes(schedule, assignment);
  REQUIRE(dealt.pairs() == 64);
  REQUIRE(dealt.axes() == 3);
  CHECK(dealt.attention_factor() == schedule.attention_factor());
  CHECK(schedule.attention_factor() != 1);
  for (Index i = 0; i < 64; ++i)
    for (Index a = 0; a < 3; ++a) {
      CAPTURE(i, a);
      const bool own = assignment.axis_of_pair[static_cast<std::size_t>(i)] == a;
      CHECK(dealt.inv_freq()(i, a) == (own ? schedule.inv_freq()(i, 0) : 0));
    }
}

TEMPLATE_TEST_CASE("text rotates through M-RoPE with the bits of one axis", "[frequencies][axes]", float,
                   double) {
  const frequencies schedule(128, 1e6);
  const Index tokens = 40, heads = 3;
  const std::vector<TestType> before = testing::random_channels<TestType>(tokens * heads * 128, 21);
  for (const std::int64_t first :
       {std::int64_t{0}, std::int64_t{-17}, std::int64_t{131000}, (std::int64_t{1} << 31) - 40}) {
    const frequency_table<float> text(schedule, first, first + tokens);
    for (const axis_assignment& assignment :
         {rope::contiguous_sections({16, 24, 24}), rope::interleaved_sections({24, 20, 20}),
          rope::height_width_then_time(22, 20), rope::contiguous_sections({20, 14, 14, 16})}) {
      Eigen::Array<std::int64_t, Eigen::Dynamic, Eigen::Dynamic> ids(tokens, assignment.axes);
      for (Index t = 0; t < tokens; ++t) ids.row(t).setConstant(first + t);
      const frequency_table<float> mixed(rope::on_axes(schedule, assignment), ids);
      CAPTURE(first, letters(assignment));
      testing::for_each_layout([&](auto layout) {
        using Layout = decltype(layout);
        std::vector<TestType> x = before, y = before;
        rope::rotate<Layout>(rope::thd(x.data(), tokens, heads, 128), text, first);
        rope::rotate<Layout>(rope::thd(y.data(), tokens, heads, 128), mixed);
        CHECK(testing::same_bits(x, y));
        CHECK_FALSE(testing::same_bits(x, before));
      });
    }
  }
}

// Golden: HoPE of vision-language models (hrlics/HoPE): VideoRoPE whose low-frequency pairs, those of time,
// do not rotate. And XD-RoPE of Hunyuan: four contiguous sections of a base stretched by alpha.
TEST_CASE("a scaled schedule is assigned to axes like any other", "[frequencies][axes]") {
  const frequencies hope =
      rope::on_axes(frequencies(128, 1e6, rope::proportional_scaling{.partial_rotary_factor = 0.75}),
                    rope::height_width_then_time(24, 16));
  const frequencies video = rope::on_axes(frequencies(128, 1e6), rope::height_width_then_time(24, 16));
  CHECK((hope.inv_freq().topRows(48) == video.inv_freq().topRows(48)).all());
  CHECK((hope.inv_freq().bottomRows(16) == 0).all());
  CHECK((video.inv_freq().bottomRows(16).col(0) > 0).all());

  const frequencies xd = rope::on_axes(frequencies(128, 1e4, rope::ntk_scaling{1000}),
                                       rope::contiguous_sections({16, 16, 16, 16}));
  for (Index i = 0; i < 64; ++i)
    CHECK(testing::Approx(xd.inv_freq()(i, i / 16)).epsilon(1e-13) ==
          testing::pow(1e4 * testing::pow(1000, 128.0 / 126), -static_cast<double>(i) / 64));
}

TEST_CASE("axial blocks are on the diagonal", "[frequencies][axes]") {
  const frequencies time(4, 100.0), space = frequencies::pixel(6, 10.0);
  const frequencies video = rope::axial({time, space, space});
  REQUIRE(video.pairs() == 8);
  REQUIRE(video.axes() == 3);
  CHECK((video.inv_freq().block(0, 0, 2, 1) == time.inv_freq()).all());
  CHECK((video.inv_freq().block(2, 1, 3, 1) == space.inv_freq()).all());
  CHECK((video.inv_freq().block(5, 2, 3, 1) == space.inv_freq()).all());
  CHECK((video.inv_freq() != 0).count() == 8);

  const frequencies image = rope::axial(space, 2);
  CHECK((image.inv_freq() == rope::axial({space, space}).inv_freq()).all());
  CHECK((rope::axial({time}).inv_freq() == time.inv_freq()).all());

  // A block may itself have several axes.
  const frequencies nested = rope::axial({time, image});
  CHECK((nested.inv_freq() == video.inv_freq()).all());
  const frequencies image_first = rope::axial({image, time});
  REQUIRE(image_first.axes() == 3);
  CHECK((image_first.inv_freq().topLeftCorner(6, 2) == image.inv_freq()).all());
  CHECK((image_first.inv_freq().bottomRightCorner(2, 1) == time.inv_freq()).all());

  const frequencies listed = rope::axial_blocks({16, 56, 56}, 256);
  CHECK((listed.inv_freq() ==
         rope::axial({frequencies(16, 256), frequencies(56, 256), frequencies(56, 256)}).inv_freq())
            .all());
  CHECK((rope::axial_blocks({8, 4}).inv_freq() == rope::axial({frequencies(8), frequencies(4)}).inv_freq())
            .all());
}

TEST_CASE("axial blocks share one attention_factor", "[frequencies][axes]") {
  const rope::yarn_scaling yarn{.factor = 4, .original_max_position = 64};
  const frequencies scaled(16, 1e4, yarn), plain(16, 1e4);
  CHECK(rope::axial(scaled, 2).attention_factor() == scaled.attention_factor());
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::axial({plain, scaled});
      },
      "rope::axial: all blocks must have the same attention_factor", "got 1 and 1.138"));
}

TEST_CASE("a user-defined scheme needs only inv_freq", "[frequencies][axes]") {
  // Directions at the golden angle over the plane, with log-spaced frequencies.
  Eigen::ArrayXXd inv_freq(8, 2);
  for (Index i = 0; i < 8; ++i) {
    const double angle = 2.399963229728653 * static_cast<double>(i),
                 speed = testing::pow(10, -0.25 * static_cast<double>(i));
    inv_freq.row(i) << speed * testing::cos(angle), speed * testing::sin(angle);
  }
  const frequencies f = frequencies::custom(inv_freq);
  const Eigen::ArrayXd x = counted_channels<interleaved>(f, at({3, -2}), 16);
  for (Index i = 0; i < 8; ++i) {
    const testing::wide angle = 3.0L * inv_freq(i, 0) - 2.0L * inv_freq(i, 1);
    const auto u = static_cast<testing::wide>(2 * i + 1), v = static_cast<testing::wide>(2 * i + 2);
    const testing::wide bound = tolerance::rotation_bound<double, double>(testing::hypot(u, v));
    CHECK(testing::abs(x(2 * i) - (u * testing::cos(angle) - v * testing::sin(angle))) <= bound);
    CHECK(testing::abs(x(2 * i + 1) - (v * testing::cos(angle) + u * testing::sin(angle))) <= bound);
  }
}

// Golden: the text model of Cohere Compass as in Hugging Face transformers, sections [22, 22, 20]: the even
// ones of the first 44 frequencies rotate by the height, the odd ones by the width, each in one block,
// followed by time.
TEST_CASE("a user-defined assignment may have its own order of pairs", "[frequencies][axes]") {
  const frequencies schedule(128, 5e5);
  Eigen::ArrayXd order(64);
  axis_assignment assignment{{}, 3};
  for (Index i = 0; i < 64; ++i) {
    const Index from = i < 22 ? 2 * i : i < 44 ? 2 * (i - 22) + 1 : i;
    order(i) = schedule.inv_freq()(from, 0);
    assignment.axis_of_pair.push_back(i < 22 ? 1 : i < 44 ? 2 : 0);
  }
  const frequencies compass = rope::on_axes(frequencies::custom(order), assignment);
  const frequencies ernie = rope::on_axes(schedule, rope::height_width_then_time(22, 20));
  // These pairs, at other channels.
  for (Index i = 0; i < 64; ++i) {
    const Index from = i < 22 ? 2 * i : i < 44 ? 2 * (i - 22) + 1 : i;
    CHECK((compass.inv_freq().row(i) == ernie.inv_freq().row(from)).all());
  }
}

TEST_CASE("sections must fit", "[frequencies][axes]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  for (auto* sections : {&rope::contiguous_sections, &rope::interleaved_sections}) {
    CHECK(rejects([&] { sections({}); }, "give one section per axis, got none"));
    CHECK(rejects([&] { sections({4, -1, 2, 0}); }, "a section must be in [0, 2^31), got -1"));
    CHECK(rejects(
        [&] {
          sections({4, std::numeric_limits<std::int32_t>::max(), 2, 0});
        },
        "sections must add up to less than 2^31, got 4 + 2147483647"));
    if constexpr (sizeof(Index) > 4)
      CHECK(rejects(
          [&] {
            sections({4, std::numeric_limits<Index>::max(), 2, 0});
          },
          "a section must be in [0, 2^31)"));
  }
  CHECK(rejects([] { rope::contiguous_sections({-4}); }, "rope::contiguous_sections: "));
  CHECK(rejects([] { rope::height_width_then_time(-1, 4); }, "rope::height_width_then_time: ", "got -1"));
  CHECK(rejects([] { rope::height_width_then_time(4, -3); }, "got -3"));
  CHECK(rejects([] { rope::height_width_then_time(Index{1} << 30, 0); }, "must add up to less than 2^31"));

  // Sliced, [16, 24, 24] would silently give height 21 pairs and width 21.
  CHECK(rejects(
      [] {
        rope::interleaved_sections({16, 24, 24});
      },
      "rope::interleaved_sections: axis 1", "must find its pairs at 1, 4, ... below 64",
      "got a section of 24"));
  CHECK(rejects([] { rope::interleaved_sections({21, 21, 22}); }, "axis 2", "got a section of 22"));
  CHECK_NOTHROW(rope::interleaved_sections({22, 21, 21}));
  CHECK_NOTHROW(rope::interleaved_sections({11, 11, 10}));
  CHECK(rejects([] { rope::interleaved_sections({11, 10, 11}); }, "axis 2", "got a section of 11"));
}

TEST_CASE("an assignment must fit the schedule", "[frequencies][axes]") {
  const frequencies schedule(128);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::on_axes(schedule, rope::contiguous_sections({16, 24, 23}));
      },
      "rope::on_axes: the sections must add up to the 64 pairs of the schedule, got 63"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::on_axes(schedule, rope::contiguous_sections({16, 24, 24, 1}));
      },
      "got 65"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::on_axes(rope::axial(frequencies(64), 2), rope::contiguous_sections({16, 24, 24}));
      },
      "rope::on_axes: the schedule must have one axis, got 2"));
  axis_assignment own = rope::contiguous_sections({32, 32});
  own.axis_of_pair[7] = 2;
  CHECK(throws_saying<std::invalid_argument>([&] { rope::on_axes(schedule, own); },
                                             "an axis must be in [0, 2), got 2 for pair 7"));
  own.axis_of_pair[7] = -1;
  CHECK(throws_saying<std::invalid_argument>([&] { rope::on_axes(schedule, own); }, "got -1 for pair 7"));
  for (const Index axes : {Index{0}, Index{-5}}) {
    own.axes = axes;
    CHECK(throws_saying<std::invalid_argument>([&] { rope::on_axes(schedule, own); }, "for pair 0"));
  }
  own.axes = std::numeric_limits<Index>::max() / 64;
  CHECK_THROWS_AS(rope::on_axes(schedule, own), std::length_error);
}

TEST_CASE("blocks must fit", "[frequencies][axes]") {
  CHECK(throws_saying<std::invalid_argument>([] { rope::axial(std::vector<frequencies>{}); },
                                             "rope::axial: give one block per axis, got none"));
  for (const Index axes : {Index{0}, Index{-2}, std::numeric_limits<Index>::max() / 2})
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rope::axial(frequencies(8), axes); },
        "rope::axial: axes must be positive, and pairs * axes^2 an Index, got " + std::to_string(axes)));
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        rope::axial_blocks({16, 7, 16});
      },
      "must be even", "got 7"));
  CHECK(throws_saying<std::invalid_argument>([] { rope::axial_blocks({}); }, "got none"));
}
