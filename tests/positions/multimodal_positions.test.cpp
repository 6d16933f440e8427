// SPDX-License-Identifier: MIT
#include <rope/positions/multimodal_positions.hpp>

#include <array>
#include <cstdint>
#include <limits>
#include <rope/frequencies/axes.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::merged_patches;
using rope::prompt_run;
using rope::text_run;
using rope::vision_run;
using testing::spelled;
using testing::throws_saying;

constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace

// Golden: `get_rope_index` of Hugging Face transformers (Qwen2-VL): three tokens of text, an image of 1 x 4 x
// 4 patches merged by 2, two tokens of text.
TEST_CASE("an image between text", "[positions][multimodal_positions]") {
  const auto prompt = rope::qwen_vl_positions({text_run{3}, merged_patches(1, 4, 4, 2), text_run{2}});
  CHECK(spelled(prompt.coordinates) == "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(3,3,4)(3,4,3)(3,4,4)(5,5,5)(6,6,6)");
  CHECK(prompt.next == 7);
  CHECK(prompt.delta() == -2);
}

// Golden: the docstring of `get_rope_index` of Hugging Face transformers: a video of 3 x 2 x 2 tokens, then
// five of text.
TEST_CASE("a video before text", "[positions][multimodal_positions]") {
  const auto prompt = rope::qwen_vl_positions({vision_run{3, 2, 2}, text_run{5}});
  CHECK(spelled(prompt.coordinates) ==
        "(0,0,0)(0,0,1)(0,1,0)(0,1,1)(1,0,0)(1,0,1)(1,1,0)(1,1,1)(2,0,0)(2,0,1)(2,1,0)(2,1,1)"
        "(3,3,3)(4,4,4)(5,5,5)(6,6,6)(7,7,7)");
  CHECK(prompt.delta() == 8 - 17);
}

// Golden: the same docstring for Qwen2.5-VL: 25 tokens per second and one frame per second, 3 x 2 x 2.
TEST_CASE("frames of Qwen2.5-VL are spaced by their time", "[positions][multimodal_positions]") {
  const auto prompt = rope::qwen_vl_positions({vision_run{3, 2, 2, 50}, text_run{1}});
  CHECK(spelled(prompt.coordinates) ==
        "(0,0,0)(0,0,1)(0,1,0)(0,1,1)(50,0,0)(50,0,1)(50,1,0)(50,1,1)(100,0,0)(100,0,1)(100,1,0)(100,1,1)"
        "(101,101,101)");
  // A fraction of a position is truncated, and the next run starts after the larger of time and space.
  const auto fractional = rope::qwen_vl_positions({text_run{2}, vision_run{4, 1, 3, 0.7}, text_run{1}});
  CHECK(spelled(fractional.coordinates) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(2,2,4)(2,2,2)(2,2,3)(2,2,4)(3,2,2)(3,2,3)(3,2,4)(4,2,2)(4,2,3)(4,2,4)("
        "5,5,5)");
}

// Golden: `get_rope_index` of Hugging Face transformers since 5.3, evaluated by hand: the run after a video
// starts max(height, width) after it, and generation (`rope_deltas`) starts one after the largest position of
// all.
TEST_CASE("text after a long video starts where transformers or vLLM put it",
          "[positions][multimodal_positions]") {
  using rope::vision_advance;
  const std::vector<prompt_run> runs = {text_run{2}, vision_run{4, 2, 1}, text_run{2}};
  const std::string video = "(0,0,0)(1,1,1)(2,2,2)(2,3,2)(3,2,2)(3,3,2)(4,2,2)(4,3,2)(5,2,2)(5,3,2)";
  const auto whole = rope::qwen_vl_positions(runs, 0, vision_advance::past_time_and_sides);
  CHECK(spelled(whole.coordinates) == video + "(6,6,6)(7,7,7)");
  CHECK(whole.next == 8);
  CHECK(spelled(rope::qwen_vl_positions(runs).coordinates) == spelled(whole.coordinates));
  const auto sides = rope::qwen_vl_positions(runs, 0, vision_advance::past_sides);
  CHECK(spelled(sides.coordinates) == video + "(4,4,4)(5,5,5)");
  CHECK(sides.next == 6);
  CHECK(sides.delta() == 6 - 12);
  // The video may have the largest position, far beyond the text.
  const auto seconds =
      rope::qwen_vl_positions({vision_run{3, 2, 2, 50}, text_run{1}}, 7, vision_advance::past_sides);
  CHECK(spelled(seconds.coordinates).substr(spelled(seconds.coordinates).rfind('(')) == "(9,9,9)");
  CHECK(seconds.next == 7 + 100 + 1);
  // For an image, and a video no longer than its sides, both rules agree.
  const std::vector<prompt_run> alike = {text_run{3}, merged_patches(1, 4, 6, 2), vision_run{3, 2, 3},
                                         text_run{2}};
  const auto one = rope::qwen_vl_positions(alike),
             other = rope::qwen_vl_positions(alike, 0, vision_advance::past_sides);
  CHECK(spelled(one.coordinates) == spelled(other.coordinates));
  CHECK(one.next == other.next);
  CHECK(rope::qwen_vl_positions({}, 5, vision_advance::past_sides).next == 5);
  CHECK(rope::qwen_vl_positions({text_run{0}}, -3, vision_advance::past_sides).next == -3);
}

TEST_CASE("every frame of Qwen3-VL follows its timestamp", "[positions][multimodal_positions]") {
  std::vector<prompt_run> runs = {text_run{1}};
  for (const prompt_run& run : rope::frames_with_timestamps(merged_patches(2, 4, 2, 2, 99), {2, 1}))
    runs.push_back(run);
  runs.push_back(text_run{1});
  const auto prompt = rope::qwen_vl_positions(runs);
  CHECK(spelled(prompt.coordinates) == "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(3,4,3)(5,5,5)(6,6,6)(6,7,6)(8,8,8)");
  CHECK(prompt.delta() == 0);
}

// Golden: Wei et al. 2025, arXiv:2502.05173, worked by hand for two frames of 3 x 2 tokens, two positions
// apart.
TEST_CASE("VideoRoPE centers each frame on the diagonal", "[positions][multimodal_positions]") {
  const auto prompt = rope::video_rope_positions({text_run{4}, vision_run{2, 3, 2, 2}, text_run{1}});
  CHECK(spelled(prompt.coordinates) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)"
        "(4,3,4)(4,3,5)(4,4,4)(4,4,5)(4,5,4)(4,5,5)(6,5,6)(6,5,7)(6,6,6)(6,6,7)(6,7,6)(6,7,7)"
        "(7,7,7)");
  CHECK(prompt.next == 8);
  CHECK(prompt.delta() == 8 - 17);
  CHECK(spelled(rope::video_rope_positions({vision_run{1, 4, 1}}).coordinates) ==
        "(0,-1,0)(0,0,0)(0,1,0)(0,2,0)");
  CHECK(spelled(rope::video_rope_positions({vision_run{1, 1, 4}}).coordinates) ==
        "(0,0,-1)(0,0,0)(0,0,1)(0,0,2)");
  const auto real = rope::video_rope_positions({vision_run{2, 1, 1, 0.75}, text_run{1}}, 10.5);
  CHECK(spelled(real.coordinates) == "(10.5,10.5,10.5)(11.25,11.25,11.25)(12.25,12.25,12.25)");
}

TEST_CASE("a prompt may continue after another", "[positions][multimodal_positions]") {
  const std::vector<prompt_run> first = {text_run{2}, vision_run{1, 2, 5}},
                                second = {text_run{3}, vision_run{2, 2, 1}};
  std::vector<prompt_run> both = first;
  both.insert(both.end(), second.begin(), second.end());
  const auto head = rope::qwen_vl_positions(first), tail = rope::qwen_vl_positions(second, head.next),
             whole = rope::qwen_vl_positions(both);
  CHECK(spelled(whole.coordinates) == spelled(head.coordinates) + spelled(tail.coordinates));
  CHECK(whole.next == tail.next);
  // Runs without a token change nothing.
  const auto empty =
      rope::qwen_vl_positions({text_run{0}, vision_run{0, 2, 2}, vision_run{2, 0, 2}, vision_run{2, 2, 0}});
  CHECK(empty.coordinates.rows() == 0);
  CHECK(empty.next == 0);
  CHECK(rope::qwen_vl_positions({}).delta() == 0);
}

TEST_CASE("generated text decodes with a table of one axis", "[positions][multimodal_positions]") {
  const frequencies schedule(32, 1e6), mixed = rope::on_axes(schedule, rope::contiguous_sections({4, 6, 6}));
  std::vector<prompt_run> runs = {text_run{3}, merged_patches(2, 6, 4, 2), text_run{2}};
  const auto prompt = rope::qwen_vl_positions(runs);
  const Index tokens = prompt.coordinates.rows();
  runs.push_back(text_run{4});
  const auto longer = rope::qwen_vl_positions(runs);
  REQUIRE(longer.coordinates.rows() == tokens + 4);
  std::vector<float> whole = testing::random_channels<float>((tokens + 4) * 32, 61), decoded = whole;
  rope::rotate<half_split>(rope::thd(whole.data(), tokens + 4, 1, 32),
                           frequency_table<float>(mixed, longer.coordinates));
  const frequency_table<float> text(schedule, 64);
  for (Index n = tokens; n < tokens + 4; ++n)
    rope::rotate<half_split>(rope::thd(decoded.data() + n * 32, 1, 1, 32), text, n + prompt.delta());
  CHECK(testing::same_bits(whole.data() + tokens * 32, decoded.data() + tokens * 32, 4 * 32));
}

TEST_CASE("a run without tokens is skipped, for any number of rows", "[positions][multimodal_positions]") {
  constexpr Index most = std::numeric_limits<Index>::max() / 64;
  const auto prompt = rope::qwen_vl_positions({rope::vision_run{1, most, 0}, rope::text_run{2}}, 7);
  CHECK(prompt.coordinates.rows() == 2);
  CHECK(prompt.next == 9);
  for (const Index frames :
       {most, std::numeric_limits<Index>::max()})  // frames * 4 alone exceed the address space
    CHECK(rope::qwen_vl_positions({rope::vision_run{frames, 4, 0, 0}}).coordinates.rows() == 0);
  rope::vision_run untold;  // an uninitialised extent
  untold.height = 2;
  CHECK(rope::qwen_vl_positions({untold}).coordinates.rows() == 0);
}

TEST_CASE("invalid runs throw", "[positions][multimodal_positions]") {
  const auto rejects = [](const std::vector<prompt_run>& runs, const auto&... parts) {
    return throws_saying<std::invalid_argument>([&] { rope::qwen_vl_positions(runs); },
                                                "rope::qwen_vl_positions: ", parts...) &&
           throws_saying<std::invalid_argument>([&] { rope::video_rope_positions(runs); },
                                                "rope::video_rope_positions: ", parts...);
  };
  CHECK(rejects({text_run{2}, text_run{-3}}, "the tokens of a run must not be negative, got -3"));
  CHECK(rejects({vision_run{-1, 2, 2}}, "the extents of a run must not be negative, got [-1, 2, 2]"));
  CHECK(rejects({vision_run{1, -2, 2}}, "got [1, -2, 2]"));
  CHECK(rejects({vision_run{1, 2, -2}}, "got [1, 2, -2]"));
  CHECK(rejects({vision_run{1, 2, 2, -0.5}}, "frame_step must not be negative", "got -0.5 for 1 frames"));
  CHECK(rejects({vision_run{1, 2, 2, infinity}}, "frames * frame_step at most 2^53", "got inf"));
  CHECK(rejects({vision_run{1, 2, 2, std::numeric_limits<double>::quiet_NaN()}}, "nan"));
  CHECK(rejects({vision_run{1, 2, 2, 0x1p54}}, "got 18014398509481984"));
  CHECK(rejects({vision_run{4, 2, 2, 0x1p52}}, "got 4503599627370496 for 4 frames"));
  CHECK_NOTHROW(rope::qwen_vl_positions({vision_run{1, 2, 2, -0.0}}));
  constexpr std::int64_t far = (std::int64_t{1} << 53) + 1;  // no double
  for (const std::int64_t start : {far, -far, std::numeric_limits<std::int64_t>::max()})
    CHECK(throws_saying<std::out_of_range>([&] { rope::qwen_vl_positions({text_run{1}}, start); },
                                           "a position must be at most 2^53 in magnitude"));
  CHECK(throws_saying<std::out_of_range>([&] { rope::video_rope_positions({text_run{1}}, infinity); },
                                         "got inf"));
  constexpr Index huge = std::numeric_limits<Index>::max();
  CHECK(throws_saying<std::length_error>(
      [&] {
        rope::qwen_vl_positions({vision_run{1, huge, 2}});
      },
      "a run exceeds the address space, got [1, " + std::to_string(huge) + ", 2]"));
  CHECK(throws_saying<std::length_error>(
      [&] { rope::qwen_vl_positions({text_run{huge}}); },
      "the prompt exceeds the address space, got 0 + " + std::to_string(huge) + " tokens"));
  CHECK(throws_saying<std::length_error>(
      [&] {
        rope::qwen_vl_positions({text_run{huge / 100}, text_run{huge / 100}});
      },
      "got " + std::to_string(huge / 100) + " + " + std::to_string(huge / 100) + " tokens"));
  for (const auto& [height, width, merge] : {std::array<Index, 3>{5, 4, 2}, {4, 5, 2}, {4, 4, 0}, {4, 4, -1}})
    CHECK(throws_saying<std::invalid_argument>(
        [h = height, w = width, m = merge] { merged_patches(1, h, w, m); },
        "rope::merged_patches: merge must be positive and divide height and width",
        "got " + std::to_string(merge)));
  CHECK(merged_patches(1, 3, 5, 1).height == 3);
  CHECK(merged_patches(1, 3, 5, 1).width == 5);
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        rope::frames_with_timestamps(vision_run{3, 2, 2}, {1, 1});
      },
      "text_tokens must have one count per frame, 3, got 2"));
}

namespace {

using namespace rope;

const std::vector<prompt_run> runs = {text_run{3}, vision_run{.height = 2, .width = 2}, text_run{2},
                                      vision_run{.height = 1, .width = 3}, text_run{1}};

}  // namespace

// Golden: the rules of get_rope_index of transformers (hunyuan_vl, 2026), one image of 2 x 2 merged patches
// and one of 1 x 3, each row with the token that ends it.
TEST_CASE("HunYuan VL numbers the columns and rows of an image from 0", "[positions][hunyuan_positions]") {
  CHECK(spelled(hunyuan_vl_positions(runs, 4).coordinates) ==
        "(0,0,0,0)(1,1,1,1)(2,2,2,2)(3,0,0,0)(4,1,0,0)(5,2,0,0)(6,0,1,0)(7,1,1,0)(8,2,1,0)(9,9,9,9)"
        "(10,10,10,10)(11,0,0,1)(12,1,0,1)(13,2,0,1)(14,3,0,1)(15,15,15,15)");
  CHECK(spelled(hunyuan_vl_positions(runs, 3).coordinates) ==
        "(0,0,0)(1,1,1)(2,2,2)(0,0,0)(1,0,0)(2,0,0)(0,1,0)(1,1,0)(2,1,0)(9,9,9)(10,10,10)(0,0,1)(1,0,1)"
        "(2,0,1)(3,0,1)(15,15,15)");
  CHECK(hunyuan_vl_positions(runs, 4).next == 16);
  CHECK(spelled(hunyuan_vl_positions<std::int32_t>(runs, 4).coordinates) ==
        spelled(hunyuan_vl_positions(runs, 4).coordinates));
  CHECK(hunyuan_vl_positions(runs, 3).delta() == 0);
}

TEST_CASE("an image of HunYuan VL without patches throws", "[positions][hunyuan_positions]") {
  CHECK(spelled(hunyuan_vl_positions({vision_run{.height = 0, .width = (std::numeric_limits<Index>::max)()},
                                      text_run{1}, vision_run{.height = 1, .width = 1}},
                                     3)
                    .coordinates) == "(0,0,0)(0,0,0)(1,0,0)");
  CHECK(hunyuan_vl_positions({}, 4).coordinates.rows() == 0);
}

TEST_CASE("HunYuan VL has three or four axes and images of one frame", "[positions][hunyuan_positions]") {
  for (const Index axes : {Index{2}, Index{5}, Index{-1}})
    CHECK(throws_saying<std::invalid_argument>([&] { hunyuan_vl_positions(runs, axes); },
                                               "rope::hunyuan_vl_positions: axes must be 3 or 4",
                                               "got " + std::to_string(axes)));
  CHECK(throws_saying<std::invalid_argument>(
      [] {
        hunyuan_vl_positions({vision_run{2, 2, 2}}, 4);
      },
      "an image must be one frame, got 2"));
  CHECK(throws_saying<std::invalid_argument>([] { hunyuan_vl_positions({text_run{-1}}, 4); },
                                             "must not be negative"));
  CHECK(throws_saying<std::length_error>(
      [] {
        hunyuan_vl_positions({vision_run{1, 2, (std::numeric_limits<Index>::max)()}}, 4);
      },
      "exceeds the address space"));
}
