// SPDX-License-Identifier: MIT
#include <rope/frequencies.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/positions/token_order.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/rotate_heads.hpp>
#include <rope/tables/table.hpp>

#include <vector>

#include "support/catch.hpp"
#include "support/schedules.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;
using testing::same_schedule;

TEST_CASE("the example of a user-defined rule in the comment of schedule works", "[frequencies]") {
  struct half_speed {  // a rule of your own
    void apply(schedule& axis) const { axis.inv_freq /= 2; }
  };
  const frequencies f(128, 10000.0, half_speed{});
  CHECK(same_schedule(f, frequencies(128, 10000.0, linear_scaling{2})));
}

TEST_CASE("the examples in the comments of frequencies work", "[frequencies]") {
  {
    const frequencies f(128, 500000.0, llama3_scaling{.factor = 8});
    const frequency_table table(f, 8192);
    CHECK(table.rows() == 8192);
  }
  const frequencies f(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768});
  CHECK(f.attention_factor() > 1.1);
}

TEST_CASE("the examples in the comments of the rules work", "[frequencies]") {
  const double prompt_length = 9000;
  const std::vector<double> short_factor(48, 1.0), long_factor(48, 4.0), rope_freqs(64, 8.0);
  {
    const frequencies f(128, 10000.0, linear_scaling{.factor = 4});
    CHECK(f.inv_freq()(0, 0) == 0.25);
  }
  {
    const frequencies f(128, 10000.0, ntk_scaling{.factor = 8});
    CHECK(f.inv_freq()(0, 0) == 1);
  }
  {
    const dynamic_ntk_scaling rule = {.factor = 2, .max_position = 4096, .length = prompt_length};
    const frequencies f(128, 10000.0, rule);
    CHECK(f.inv_freq()(63, 0) < frequencies(128).inv_freq()(63, 0));
  }
  {
    const frequencies f(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768});  // Qwen 2.5
    CHECK(f.attention_factor() > 1.1);
  }
  {
    const longrope_scaling rule = {.short_factor = short_factor,
                                   .long_factor = long_factor,
                                   .original_max_position = 4096,
                                   .max_position = 131072,
                                   .length = prompt_length};
    const frequencies f(96, 10000.0, rule);  // Phi-3
    CHECK(f.inv_freq()(0, 0) == 0.25);
  }
  {
    const frequencies f(128, 500000.0, llama3_scaling{.factor = 8});  // Llama 3.1
    CHECK(f.inv_freq()(0, 0) == 1);
  }
  {
    const frequencies f(512, 1e6, proportional_scaling{.partial_rotary_factor = 0.25});  // Gemma 4
    CHECK(f.inv_freq()(64, 0) == 0);
  }
  {
    const frequencies f(128, 500000.0, pair_factor_scaling{rope_freqs});
    CHECK(f.inv_freq()(0, 0) == 0.125);
  }
  {
    const frequencies f(128, 10000.0, alpha_scaling{.alpha = 1000});
    CHECK(same_schedule(f, frequencies(128, 10000.0, ntk_scaling{1000})));
  }
  {
    const frequencies f(128, 10000.0, mixed_ntk_scaling{.factor = 8, .mixed_b = 0.625});
    CHECK(f.inv_freq()(0, 0) < 1);
  }
  {
    const frequencies f(128, 10000.0, ntk_by_parts_scaling{.factor = 8, .original_max_position = 2048});
    CHECK(f.inv_freq()(0, 0) == 1);
  }
  {
    const yarn_scaling yarn = {.factor = 4, .original_max_position = 4096};
    const frequencies f(128, 10000.0, yarn, resonance_scaling{});
    CHECK(f.attention_factor() > 1.1);
  }
  {
    const frequencies f(128, 10000.0, clipped_scaling{.low_count = 20});
    CHECK(f.inv_freq()(63, 0) == 0);
  }
}

TEST_CASE("the examples in the comments of the axes work", "[frequencies]") {
  const Index side = 4;
  {
    const frequencies time(16, 256), height(56, 256), width(56, 256);
    const frequencies f = axial({time, height, width});
    CHECK(f.axes() == 3);
    CHECK(same_schedule(f, axial_blocks({16, 56, 56}, 256)));
  }
  {
    const frequencies f = axial(frequencies::pixel(16, 256), 3);  // video in [-1, 1]; 48 channels rotate
    CHECK(f.rotary_dim() == 48);
  }
  {
    const frequencies f = axial_blocks({16, 56, 56}, 256);  // HunyuanVideo; Flux, Qwen-Image: base 10000
    CHECK(f.pairs() == 64);
  }
  {
    const axis_assignment alternating = {.axis_of_pair = {0, 1, 0, 1}, .axes = 2};
    const frequencies f = on_axes(frequencies(8), alternating);
    CHECK(f.inv_freq()(3, 0) == 0);
  }
  {
    const axis_assignment axes = contiguous_sections({16, 24, 24});  // time, height, width
    CHECK(axes.axis_of_pair.size() == 64);
  }
  {
    const axis_assignment axes = spread_sections({24, 20, 20});
    CHECK(axes.axes == 3);
  }
  {
    const axis_assignment ernie = height_width_then_time(22, 20);
    const axis_assignment video_rope = height_width_then_time(24, 16);
    CHECK(ernie.axis_of_pair.size() == 64);
    CHECK(video_rope.axis_of_pair.size() == 64);
  }
  {
    const frequencies f = on_axes(frequencies(128, 1e6), contiguous_sections({16, 24, 24}));  // Qwen2-VL
    CHECK(f.axes() == 3);
  }
  {
    const frequencies f = cosmos_frequencies(128, {.time = 1, .height = 4, .width = 4});
    CHECK(f.axes() == 3);
  }
  {
    const Index height = 2, width = 3;
    const frequencies f = on_axes(frequencies(256, 5e6), interleaved_sections({24 + 64, 20, 20}));
    const frequency_table table(f, grid_positions({1, height, width}, {65536, 65536, 65536}));
    CHECK(table.rows() == 6);
  }
  {
    std::vector<float> channels(2 * 4096, 1.0f);
    const head_view<float> queries = bshd(channels.data(), 1, 2, 32, 128);
    const Eigen::ArrayXXd coordinates = Eigen::ArrayXXd::Constant(2, 3, 0.123);
    const auto of_heads = frequencies_of_heads(ltx_frequencies(4096), 32);
    std::vector<frequency_table<>> tables;
    for (const frequencies& f : of_heads) tables.emplace_back(f, coordinates);
    rotate_heads<half_split>(queries, tables);
    CHECK(channels[4095] != 1);
  }
  const auto positions = with_unrotated_tokens(grid_positions({side, side}, {1, 1}), 0, 1);
  CHECK(positions.rows() == side * side + 1);
}

TEST_CASE("the example of the two rotated ranges of Gemma 4 works", "[frequencies]") {
  std::vector<float> channels(16, 1.0f);
  const head_view<float> queries = bshd(channels.data(), 1, 2, 1, 8);
  const Index half = 4;
  const frequency_table by_column(frequencies(half, 100.0), 2), by_row(frequencies(half, 100.0), 2);
  rotate<half_split>(queries.channels(0, half), by_column);
  rotate<half_split>(queries.channels(half, half), by_row);
  CHECK(channels[8] != 1);
  CHECK(channels[0] == 1);
}

TEST_CASE("the examples in the comments of ggml_frequencies work", "[frequencies]") {
  const ggml_rope_parameters yarn = {.n_dims = 128,
                                     .n_ctx_orig = 32768,
                                     .freq_base = 1e6,
                                     .freq_scale = 0.25,
                                     .ext_factor = 1,
                                     .beta_fast = 32,
                                     .beta_slow = 1};
  const frequency_table table(ggml_frequencies(yarn), 131072);
  CHECK(same_schedule(ggml_frequencies(yarn),
                      frequencies(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768})));
  CHECK(table.rows() == 131072);
  const Eigen::ArrayXXd coordinates = Eigen::ArrayXXd::Constant(3, 4, 7);
  const frequencies f = ggml_frequencies(
      {.n_dims = 128, .sections = {24, 20, 20, 0}, .mode = ggml_rope_type::imrope, .freq_base = 5e6});
  const frequency_table of_prompt(f, coordinates);  // [n_tokens, 4]
  CHECK(of_prompt.rows() == 3);
}
