// SPDX-License-Identifier: MIT
#include <rope/models/model_rope.hpp>

#include <string>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"

namespace {

using rope::Index;

rope::layer_group group_named(const std::string& layer_type) {
  return {.layer_type = layer_type,
          .layout = rope::layout_kind::half_split,
          .head_dim = 8,
          .first_channel = 0,
          .frequencies = rope::frequencies(8),
          .rule = "default",
          .base = 10000,
          .numbers = {{"factor", 4}}};
}

rope::model_rope model_of(std::vector<rope::layer_group> groups) {
  return {.source = "test", .architecture = "test", .groups = std::move(groups)};
}

}  // namespace

TEST_CASE("a layout known at run time becomes a type", "[models][model_rope]") {
  const auto second_channel = [](auto layout) { return decltype(layout)::second(1, 4); };
  CHECK(rope::with_layout(rope::layout_kind::interleaved, second_channel) == 3);
  CHECK(rope::with_layout(rope::layout_kind::half_split, second_channel) == 5);
  CHECK(std::string(rope::name_of(rope::layout_kind::interleaved)) == "interleaved");
  CHECK(std::string(rope::name_of(rope::layout_kind::half_split)) == "half_split");
}

TEST_CASE("with_layout returns what the function returns, references too", "[models][model_rope]") {
  int value = 1;
  auto reference = [&](auto) -> int& { return value; };
  static_assert(std::is_same_v<decltype(rope::with_layout(rope::layout_kind::half_split, reference)), int&>);
  rope::with_layout(rope::layout_kind::interleaved, reference) = 2;
  CHECK(value == 2);
}

TEST_CASE("a group has its numbers by name", "[models][model_rope]") {
  const auto group = group_named("");
  CHECK(group.rotary_dim() == 8);
  CHECK(group.number("factor", 1) == 4);
  CHECK(group.number("low", -1) == -1);
}

TEST_CASE("a model of one group has it for every layer type", "[models][model_rope]") {
  const auto model = model_of({group_named("")});
  CHECK(model.group("full_attention") == &model.groups[0]);
  CHECK(model.group("") == &model.groups[0]);
  CHECK(model.group_of_layer(0) == &model.groups[0]);
  CHECK(model.group_of_layer(1000) == &model.groups[0]);
  CHECK(model.group_of_layer(-1) == nullptr);
  CHECK(model.rotation_of_layer(1000) == rope::layer_rotation::in_group);
  CHECK(model.rotation_of_layer(-1) == rope::layer_rotation::not_known);
  auto counted = model;
  counted.layers = {"full_attention", "full_attention"};
  CHECK(counted.group_of_layer(1) == &counted.groups[0]);
  CHECK(counted.group_of_layer(2) == nullptr);
  CHECK(counted.rotation_of_layer(2) == rope::layer_rotation::not_known);
}

TEST_CASE("a layer finds its group by its type, and none if it does not rotate", "[models][model_rope]") {
  auto model = model_of({group_named("full_attention"), group_named("sliding_attention")});
  CHECK(model.group("sliding_attention") == &model.groups[1]);
  CHECK(model.group("other") == nullptr);
  CHECK(model.group_of_layer(0) == nullptr);  // the types of the layers are not known

  model.layers = {"sliding_attention", "full_attention", "sliding_attention", "linear_attention"};
  model.layers_without_rope = {2};
  CHECK(model.group_of_layer(0) == &model.groups[1]);
  CHECK(model.group_of_layer(1) == &model.groups[0]);
  CHECK(model.group_of_layer(2) == nullptr);
  CHECK(model.group_of_layer(3) == nullptr);
  CHECK(model.group_of_layer(4) == nullptr);
  CHECK(model.group_of_layer(-1) == nullptr);
  using rope::layer_rotation;
  CHECK(model.rotation_of_layer(1) == layer_rotation::in_group);
  CHECK(model.rotation_of_layer(2) == layer_rotation::none);
  for (const Index unknown : {Index{-1}, Index{3}, Index{4}})
    CHECK(model.rotation_of_layer(unknown) == layer_rotation::not_known);
}
