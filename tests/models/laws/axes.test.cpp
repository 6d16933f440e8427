// SPDX-License-Identifier: MIT
#include <rope/models/tables.hpp>

#include <cstddef>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

namespace {

rope::layer_group group_with(std::vector<rope::Index> sections,
                             rope::mrope_order order = rope::mrope_order::blocks) {
  return {.layer_type = "",
          .layout = rope::layout_kind::half_split,
          .head_dim = 128,
          .first_channel = 0,
          .frequencies = rope::frequencies(128, 1e6),
          .mrope_sections = std::move(sections),
          .section_order = order,
          .rule = "default",
          .base = 1e6};
}

}  // namespace

TEST_CASE("the sections of a model become axes of its frequencies", "[models][model_axes]") {
  const rope::frequencies schedule(128, 1e6);
  const auto same = [](const rope::frequencies& a, const rope::frequencies& b) {
    return a.pairs() == b.pairs() && a.axes() == b.axes() && (a.inv_freq() == b.inv_freq()).all();
  };
  CHECK(same(rope::frequencies_on_axes(group_with({16, 24, 24})),
             rope::on_axes(schedule, rope::contiguous_sections({16, 24, 24}))));
  CHECK(same(rope::frequencies_on_axes(group_with({24, 20, 20}, rope::mrope_order::alternating)),
             rope::on_axes(schedule, rope::interleaved_sections({24, 20, 20}))));
  CHECK(same(rope::frequencies_on_axes(group_with({})), schedule));
  rope::layer_group untold = {.layer_type = "",
                              .layout = rope::layout_kind::half_split,
                              .head_dim = 128,
                              .first_channel = 0,
                              .frequencies = schedule,
                              .mrope_sections = {16, 24, 24},
                              .rule = "default",
                              .base = 1e6};
  CHECK(same(rope::frequencies_on_axes(untold),
             rope::on_axes(schedule, rope::contiguous_sections({16, 24, 24}))));
  rope::layer_group pangu = group_with({24, 20, 20}, rope::mrope_order::spread);
  CHECK(same(rope::frequencies_on_axes(pangu), rope::on_axes(schedule, rope::spread_sections({24, 20, 20}))));
  // ERNIE 4.5 VL: pairs 0, 2, ... 42 by height, 1, 3, ... 43 by width, 44 to 63 by time.
  rope::layer_group ernie = group_with({20, 22, 22}, rope::mrope_order::time_last);
  rope::axis_assignment by_axis{.axis_of_pair = std::vector<rope::Index>(64, 0), .axes = 3};
  for (std::size_t i = 0; i < 44; i += 2) {
    by_axis.axis_of_pair[i] = 1;
    by_axis.axis_of_pair[i + 1] = 2;
  }
  CHECK(same(rope::frequencies_on_axes(ernie), rope::on_axes(schedule, by_axis)));
  ernie.mrope_sections = {20, 20, 24};
  CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::frequencies_on_axes(ernie); },
                                                      "height and width", "the latter two equal"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [] {
        rope::frequencies_on_axes(group_with({16, 24, 24}, rope::mrope_order::alternating));
      },
      "rope::interleaved_sections"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [] {
        rope::frequencies_on_axes(group_with({16, 24}));
      },
      "must add up to the 64 pairs"));
}

TEST_CASE("sections far above the pairs allocate no memory", "[models][model_axes]") {
  const rope::Index many = (rope::Index{1} << 31) - 1;
  for (const std::vector<rope::Index>& sections :
       {std::vector<rope::Index>{many, many}, {64, many}, {32, 33}, {-1, 65}})
    for (const auto order : {rope::mrope_order::blocks, rope::mrope_order::alternating,
                             rope::mrope_order::time_last, rope::mrope_order::spread})
      CHECK(testing::throws_saying<std::invalid_argument>(
          [&] { rope::frequencies_on_axes(group_with(sections, order)); }, "rope::frequencies_on_axes",
          "add up to the 64 pairs", "got "));
}
