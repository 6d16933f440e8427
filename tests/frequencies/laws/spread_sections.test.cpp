// SPDX-License-Identifier: MIT
#include <rope/frequencies/axes_variants.hpp>

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

using rope::Index;

std::string digits_of(const std::vector<Index>& sections) {
  std::string text;
  for (const Index axis : rope::spread_sections(sections).axis_of_pair) text += "0123"[axis];
  return text;
}

}  // namespace

// Golden: get_mrope_interleaved_id_list of vLLM, with force_last for three sections.
TEST_CASE("openPangu spreads the pairs of every axis", "[frequencies][spread_sections]") {
  CHECK(digits_of({24, 20, 20}) == "0120120120120120120120102012012012012012012010201201201201201200");
  CHECK(digits_of({16, 8, 8}) == "01201201020102010201020102010200");
  CHECK(digits_of({3, 2, 2}) == "0120120");
  CHECK(digits_of({2, 1, 1}) == "0120");
  CHECK(digits_of({1, 8, 3}) == "121212111110");
  CHECK(digits_of({5, 9, 2}) == "0121010121011110");
  CHECK(digits_of({4, 8}) == "010101011111");
  CHECK(digits_of({8, 4}) == "010101010000");
  CHECK(rope::spread_sections({24, 20, 20}).axes == 3);
  CHECK(rope::spread_sections({4, 8}).axes == 2);
}

TEST_CASE("every axis has its pairs for any spread", "[frequencies][spread_sections]") {
  for (Index time = 1; time < 12; ++time)
    for (Index height = 0; height < 9; ++height)
      for (Index width = 0; width < 9; width += 2) {
        std::vector<Index> counts(3, 0);
        for (const Index axis : rope::spread_sections({time, height, width}).axis_of_pair)
          ++counts[static_cast<std::size_t>(axis)];
        CAPTURE(time, height, width);
        CHECK(counts == std::vector<Index>{time, height, width});
      }
}

TEST_CASE("sections that cannot be spread throw", "[frequencies][spread_sections]") {
  for (const std::vector<Index>& sections :
       {std::vector<Index>{8}, {2, 2, 2, 2}, {0, 4, 4}, {4, -1, 4}, std::vector<Index>{}})
    CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::spread_sections(sections); },
                                                        "rope::spread_sections"));
}
