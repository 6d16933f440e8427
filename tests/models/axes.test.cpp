// SPDX-License-Identifier: MIT
#include <rope/models/axes.hpp>

#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

rope::layer_group group_with(std::vector<rope::Index> sections, bool interleaved) {
  return {.layer_type = "",
          .layout = rope::layout_kind::half_split,
          .head_dim = 128,
          .first_channel = 0,
          .frequencies = rope::frequencies(128, 1e6),
          .mrope_sections = std::move(sections),
          .mrope_interleaved = interleaved,
          .rule = "default",
          .base = 1e6};
}

}  // namespace

TEST_CASE("the sections of a model become axes of its frequencies", "[models][model_axes]") {
  const rope::frequencies schedule(128, 1e6);
  const auto same = [](const rope::frequencies& a, const rope::frequencies& b) {
    return a.pairs() == b.pairs() && a.axes() == b.axes() && (a.inv_freq() == b.inv_freq()).all();
  };
  CHECK(same(rope::frequencies_on_axes(group_with({16, 24, 24}, false)),
             rope::on_axes(schedule, rope::contiguous_sections({16, 24, 24}))));
  CHECK(same(rope::frequencies_on_axes(group_with({24, 20, 20}, true)),
             rope::on_axes(schedule, rope::interleaved_sections({24, 20, 20}))));
  CHECK(same(rope::frequencies_on_axes(group_with({}, false)), schedule));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [] {
        rope::frequencies_on_axes(group_with({16, 24, 24}, true));
      },
      "rope::interleaved_sections"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [] {
        rope::frequencies_on_axes(group_with({16, 24}, false));
      },
      "must add up to the 64 pairs"));
}

TEST_CASE("sections far above the pairs cost no memory", "[models][model_axes]") {
  const rope::Index many = (rope::Index{1} << 31) - 1;
  for (const std::vector<rope::Index>& sections :
       {std::vector<rope::Index>{many, many}, {64, many}, {32, 33}, {-1, 65}})
    for (const bool interleaved : {false, true})
      CHECK(testing::throws_saying<std::invalid_argument>(
          [&] { rope::frequencies_on_axes(group_with(sections, interleaved)); }, "rope::frequencies_on_axes",
          "add up to the 64 pairs", "got "));
}
