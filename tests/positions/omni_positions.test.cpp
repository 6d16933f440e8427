// SPDX-License-Identifier: MIT
#include <rope/positions/omni_positions.hpp>

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

namespace {

using namespace rope;
using testing::throws_saying;

/// "(0,0,0)(1,1,1) next 2".
template <class Scalar>
std::string spelled(const prompt_positions<Scalar>& prompt) {
  return testing::spelled(prompt.coordinates) + " next " + testing::spelled(prompt.next);
}

}  // namespace

// The results of get_rope_index of Hugging Face transformers (qwen2_5_omni and qwen3_omni_moe, November 2025)
// for these prompts, with merged extents, and its largest position plus one.
TEST_CASE("Qwen2.5-Omni alternates frames and sound by chunks of time", "[positions][omni_positions]") {
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{2, 1, 2, 25.0}, 6}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(3,3,4)(28,3,3)(28,3,4)(3,3,3)(4,4,4)"
        "(5,5,5)(6,6,6)(7,7,7)(8,8,8)(9,9,9)(9,9,9)(10,10,10)(11,11,11)"
        " next 29");
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{2, 1, 2, 4.0}, 6}, text_run{2}}, 0,
                                       4)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(3,3,4)(3,3,3)(4,4,4)(5,5,5)(6,6,6)"
        "(7,3,3)(7,3,4)(7,7,7)(8,8,8)(9,9,9)(9,9,9)(10,10,10)(11,11,11)"
        " next 12");
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{2, 1, 2, 3.0}, 6}, text_run{2}}, 0,
                                       2)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(3,3,4)(3,3,3)(4,4,4)(6,3,3)(6,3,4)"
        "(5,5,5)(6,6,6)(7,7,7)(8,8,8)(9,9,9)(9,9,9)(10,10,10)(11,11,11)"
        " next 12");
  CHECK(
      spelled(qwen2_5_omni_positions({text_run{1}, sounding_video_run{{3, 2, 1, 50.0}, 12}, text_run{1}})) ==
      "(0,0,0)(1,1,1)(1,1,1)(2,2,2)(2,3,2)(2,2,2)(3,3,3)(4,4,4)(5,5,5)(6,6,6)"
      "(7,7,7)(8,8,8)(9,9,9)(10,10,10)(11,11,11)(12,12,12)(13,13,13)(52,2,2)(52,3,2)"
      "(102,2,2)(102,3,2)(103,103,103)(103,103,103)(104,104,104)"
      " next 105");
  CHECK(spelled(qwen2_5_omni_positions({text_run{1}, sounding_video_run{{3, 2, 1, 8.0}, 12}, text_run{1}}, 0,
                                       4)) ==
        "(0,0,0)(1,1,1)(1,1,1)(2,2,2)(2,3,2)(2,2,2)(3,3,3)(4,4,4)(5,5,5)(10,2,2)"
        "(6,6,6)(7,7,7)(8,8,8)(9,9,9)(10,3,2)(10,10,10)(11,11,11)(12,12,12)(13,13,13)"
        "(18,2,2)(18,3,2)(19,19,19)(19,19,19)(20,20,20)"
        " next 21");
  CHECK(spelled(qwen2_5_omni_positions({text_run{1}, sounding_video_run{{3, 2, 1, 6.0}, 12}, text_run{1}}, 0,
                                       2)) ==
        "(0,0,0)(1,1,1)(1,1,1)(2,2,2)(2,3,2)(2,2,2)(3,3,3)(8,2,2)(4,4,4)(5,5,5)"
        "(8,3,2)(6,6,6)(7,7,7)(14,2,2)(8,8,8)(9,9,9)(14,3,2)(10,10,10)(11,11,11)"
        "(12,12,12)(13,13,13)(14,14,14)(14,14,14)(15,15,15)"
        " next 16");
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{4, 1, 1, 12.5}, 2}, text_run{1},
                                        vision_run{1, 2, 3}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(15,3,3)(28,3,3)(40,3,3)(3,3,3)(4,4,4)"
        "(5,5,5)(5,5,5)(6,6,6)(7,7,7)(7,7,8)(7,7,9)(7,8,7)(7,8,8)(7,8,9)(10,10,10)"
        "(11,11,11)"
        " next 41");
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{4, 1, 1, 2.0}, 2}, text_run{1},
                                        vision_run{1, 2, 3}, text_run{2}},
                                       0, 4)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(5,3,3)(3,3,3)(4,4,4)(7,3,3)(9,3,3)"
        "(10,10,10)(10,10,10)(11,11,11)(12,12,12)(12,12,13)(12,12,14)(12,13,12)"
        "(12,13,13)(12,13,14)(15,15,15)(16,16,16)"
        " next 17");
  CHECK(spelled(qwen2_5_omni_positions({text_run{2}, sounding_video_run{{4, 1, 1, 1.5}, 2}, text_run{1},
                                        vision_run{1, 2, 3}, text_run{2}},
                                       0, 2)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(3,3,3)(4,3,3)(3,3,3)(4,4,4)(6,3,3)(7,3,3)"
        "(8,8,8)(8,8,8)(9,9,9)(10,10,10)(10,10,11)(10,10,12)(10,11,10)(10,11,11)"
        "(10,11,12)(13,13,13)(14,14,14)"
        " next 15");
  CHECK(spelled(qwen2_5_omni_positions(
            {text_run{2}, vision_run{3, 1, 2, 37.5}, text_run{3}, vision_run{1, 1, 2}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(39,2,2)(39,2,3)(77,2,2)(77,2,3)(78,78,78)"
        "(79,79,79)(80,80,80)(81,81,81)(81,81,82)(83,83,83)(84,84,84)"
        " next 85");
  CHECK(spelled(qwen2_5_omni_positions(
            {text_run{2}, vision_run{3, 1, 2, 6.0}, text_run{3}, vision_run{1, 1, 2}, text_run{2}}, 0, 4)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(8,2,2)(8,2,3)(14,2,2)(14,2,3)(15,15,15)"
        "(16,16,16)(17,17,17)(18,18,18)(18,18,19)(20,20,20)(21,21,21)"
        " next 22");
  CHECK(spelled(qwen2_5_omni_positions(
            {text_run{2}, vision_run{3, 1, 2, 4.5}, text_run{3}, vision_run{1, 1, 2}, text_run{2}}, 0, 2)) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(6,2,2)(6,2,3)(11,2,2)(11,2,3)(12,12,12)"
        "(13,13,13)(14,14,14)(15,15,15)(15,15,16)(17,17,17)(18,18,18)"
        " next 19");
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{9, 1, 1, 25.0}, 2}, text_run{1}})) ==
        "(0,0,0)(0,0,0)(1,1,1)(26,1,1)(1,1,1)(2,2,2)(51,1,1)(76,1,1)(101,1,1)(126,1,1)"
        "(151,1,1)(176,1,1)(201,1,1)(202,202,202)(202,202,202)(203,203,203)"
        " next 204");
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{9, 1, 1, 4.0}, 2}, text_run{1}}, 0, 4)) ==
        "(0,0,0)(0,0,0)(1,1,1)(1,1,1)(2,2,2)(5,1,1)(9,1,1)(13,1,1)(17,1,1)(21,1,1)"
        "(25,1,1)(29,1,1)(33,1,1)(34,34,34)(34,34,34)(35,35,35)"
        " next 36");
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{9, 1, 1, 3.0}, 2}, text_run{1}}, 0, 2)) ==
        "(0,0,0)(0,0,0)(1,1,1)(1,1,1)(2,2,2)(4,1,1)(7,1,1)(10,1,1)(13,1,1)(16,1,1)"
        "(19,1,1)(22,1,1)(25,1,1)(26,26,26)(26,26,26)(27,27,27)"
        " next 28");
}

TEST_CASE("a chunk of one position has at most one token of sound", "[positions][omni_positions]") {
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{2, 1, 2, 3.0}, 4}}, 0, 1)) ==
        "(0,0,0)(0,0,0)(1,1,1)(1,1,2)(1,1,1)(4,1,1)(2,2,2)(4,1,2)(3,3,3)(4,4,4)(5,5,5)(5,5,5) next 6");
}

TEST_CASE("Qwen3-Omni alternates frames and sound token by token", "[positions][omni_positions]") {
  CHECK(spelled(qwen3_omni_positions({text_run{2}, sounding_video_run{{2, 1, 2, 13.0}, 3}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(4,4,4)(4,4,5)(4,4,4)(5,5,5)(6,6,6)(17,4,4)"
        "(17,4,5)(18,18,18)(19,19,19)(20,20,20)(21,21,21)"
        " next 22");
  CHECK(spelled(qwen3_omni_positions({text_run{2}, sounding_video_run{{2, 1, 2, 3.25}, 3}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(4,4,4)(4,4,5)(4,4,4)(5,5,5)(6,6,6)(7.25,4,4)"
        "(7.25,4,5)(8.25,8.25,8.25)(9.25,9.25,9.25)(10.25,10.25,10.25)(11.25,11.25,11.25)"
        " next 12.25");
  CHECK(spelled(qwen3_omni_positions({text_run{1}, sounding_video_run{{3, 2, 1, 26.0}, 6}, text_run{1}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(3,4,3)(3,3,3)(4,4,4)(5,5,5)(6,6,6)(7,7,7)"
        "(8,8,8)(29,3,3)(29,4,3)(55,3,3)(55,4,3)(56,56,56)(57,57,57)(58,58,58)"
        " next 59");
  CHECK(spelled(qwen3_omni_positions({text_run{1}, sounding_video_run{{3, 2, 1, 6.5}, 6}, text_run{1}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(3,4,3)(3,3,3)(4,4,4)(5,5,5)(6,6,6)(7,7,7)"
        "(8,8,8)(9.5,3,3)(9.5,4,3)(16,3,3)(16,4,3)(17,17,17)(18,18,18)(19,19,19)"
        " next 20");
  CHECK(spelled(qwen3_omni_positions({text_run{2}, sounding_video_run{{4, 1, 1, 6.5}, 2}, text_run{1},
                                      vision_run{1, 2, 3}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(4,4,4)(4,4,4)(5,5,5)(10.5,4,4)(17,4,4)(23.5,4,4)"
        "(24.5,24.5,24.5)(25.5,25.5,25.5)(26.5,26.5,26.5)(27.5,27.5,27.5)(27.5,27.5,28.5)"
        "(27.5,27.5,29.5)(27.5,28.5,27.5)(27.5,28.5,28.5)(27.5,28.5,29.5)(30.5,30.5,30.5)"
        "(31.5,31.5,31.5)"
        " next 32.5");
  CHECK(spelled(qwen3_omni_positions({text_run{2}, sounding_video_run{{4, 1, 1, 1.625}, 2}, text_run{1},
                                      vision_run{1, 2, 3}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(4,4,4)(4,4,4)(5,5,5)(5.625,4,4)(7.25,4,4)"
        "(8.875,4,4)(9.875,9.875,9.875)(10.875,10.875,10.875)(11.875,11.875,11.875)"
        "(12.875,12.875,12.875)(12.875,12.875,13.875)(12.875,12.875,14.875)"
        "(12.875,13.875,12.875)(12.875,13.875,13.875)(12.875,13.875,14.875)"
        "(15.875,15.875,15.875)(16.875,16.875,16.875)"
        " next 17.875");
  CHECK(spelled(qwen3_omni_positions(
            {text_run{2}, vision_run{3, 1, 2, 19.5}, text_run{3}, vision_run{1, 1, 2}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(21.5,2,2)(21.5,2,3)(41,2,2)(41,2,3)(42,42,42)"
        "(43,43,43)(44,44,44)(45,45,45)(45,45,46)(47,47,47)(48,48,48)"
        " next 49");
  CHECK(spelled(qwen3_omni_positions(
            {text_run{2}, vision_run{3, 1, 2, 4.875}, text_run{3}, vision_run{1, 1, 2}, text_run{2}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,3)(6.875,2,2)(6.875,2,3)(11.75,2,2)(11.75,2,3)"
        "(12.75,12.75,12.75)(13.75,13.75,13.75)(14.75,14.75,14.75)(15.75,15.75,15.75)"
        "(15.75,15.75,16.75)(17.75,17.75,17.75)(18.75,18.75,18.75)"
        " next 19.75");
  CHECK(spelled(qwen3_omni_positions({sounding_video_run{{9, 1, 1, 13.0}, 1}, text_run{1}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(15,2,2)(28,2,2)(41,2,2)(54,2,2)(67,2,2)(80,2,2)"
        "(93,2,2)(106,2,2)(107,107,107)(108,108,108)(109,109,109)"
        " next 110");
  CHECK(spelled(qwen3_omni_positions({sounding_video_run{{9, 1, 1, 3.25}, 1}, text_run{1}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(2,2,2)(5.25,2,2)(8.5,2,2)(11.75,2,2)(15,2,2)(18.25,2,2)"
        "(21.5,2,2)(24.75,2,2)(28,2,2)(29,29,29)(30,30,30)(31,31,31)"
        " next 32");
}

TEST_CASE("without a video with audio the positions are those of Qwen2.5-VL", "[positions][omni_positions]") {
  const vision_run image{1, 2, 3}, video{3, 2, 2, 2.5};
  const auto omni = qwen2_5_omni_positions({text_run{3}, image, text_run{0}, video, text_run{2}}, 7);
  const auto vl = qwen_vl_positions({text_run{3}, image, text_run{0}, video, text_run{2}}, 7);
  CHECK((omni.coordinates == vl.coordinates).all());
  CHECK(omni.next == vl.next);
  CHECK(omni.delta() == vl.delta());
  CHECK(qwen2_5_omni_positions({}, 5).next == 5);
  CHECK(qwen3_omni_positions({}, 5).next == 5);
}

TEST_CASE("either stream of a video with audio may be empty", "[positions][omni_positions]") {
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{}})) == "(0,0,0)(0,0,0)(1,1,1)(1,1,1) next 2");
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{}, 2}})) ==
        "(0,0,0)(0,0,0)(1,1,1)(2,2,2)(3,3,3)(3,3,3) next 4");
  CHECK(spelled(qwen2_5_omni_positions({sounding_video_run{{1, 1, 2}, 0}})) ==
        "(0,0,0)(0,0,0)(1,1,1)(1,1,2)(3,3,3)(3,3,3) next 4");
  CHECK(spelled(qwen3_omni_positions({sounding_video_run{}})) == "(0,0,0)(1,1,1)(2,2,2)(3,3,3) next 4");
  CHECK(spelled(qwen3_omni_positions({sounding_video_run{{}, 1}})) ==
        "(0,0,0)(1,1,1)(2,2,2)(3,3,3)(4,4,4) next 5");
}

TEST_CASE("a prompt without valid positions throws", "[positions][omni_positions]") {
  constexpr std::int64_t far = std::int64_t{1} << 60;
  constexpr Index most = (std::numeric_limits<Index>::max)() / 64;
  const auto rejects = [](const omni_run& run, const char* part) {
    CHECK(throws_saying<std::invalid_argument>([&] { qwen2_5_omni_positions({run}); },
                                               "rope::qwen2_5_omni_positions: ", part));
    CHECK(throws_saying<std::invalid_argument>([&] { qwen3_omni_positions({run}); },
                                               "rope::qwen3_omni_positions: ", part));
  };
  rejects(text_run{-1}, "the tokens of a run must not be negative, got -1");
  rejects(vision_run{1, -1, 2}, "the extents of a run must not be negative");
  rejects(sounding_video_run{{1, 1, 1}, -2}, "the tokens of a run must not be negative, got -2");
  rejects(sounding_video_run{{1, 1, 1, -1.0}, 2}, "frame_step must not be negative");
  CHECK(throws_saying<std::invalid_argument>([] { qwen2_5_omni_positions({}, 0, 0); },
                                             "chunk must be from 1 to 2^53, got 0"));
  CHECK(throws_saying<std::invalid_argument>([] { qwen2_5_omni_positions({}, 0, far); }, "chunk must be"));
  CHECK(throws_saying<std::out_of_range>([] { qwen2_5_omni_positions({text_run{1}}, far); },
                                         "a position must be at most 2^53 in magnitude"));
  CHECK(throws_saying<std::length_error>(
      [] {
        qwen3_omni_positions({sounding_video_run{{}, most - 4}, text_run{1}});
      },
      "exceeds the address space"));
}
