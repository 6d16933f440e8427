// SPDX-License-Identifier: MIT
#include <rope/positions/multimodal_positions.hpp>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using namespace rope;
using testing::spelled;
using testing::throws_saying;

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
