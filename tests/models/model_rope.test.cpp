// SPDX-License-Identifier: MIT
#include <rope/models/model_rope.hpp>

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_parts.hpp"

namespace {

using rope::Index;
using rope::layer_rotation;
using testing::group_named;
using testing::throws_saying;

rope::model_rope model_of(std::vector<rope::layer_group> groups, rope::model_layers layers = {}) {
  return {{.source = "test", .architecture = "test"}, std::move(groups), std::move(layers)};
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

TEST_CASE("a model of one group has it for every layer type", "[models][model_rope]") {
  const auto model = model_of({group_named("")});
  CHECK(model.group("full_attention") == &model.groups()[0]);
  CHECK(model.group("") == &model.groups()[0]);
  CHECK(model.group_of_layer(0) == &model.groups()[0]);
  CHECK(model.group_of_layer(1000) == &model.groups()[0]);
  CHECK(throws_saying<std::out_of_range>([&] { (void)model.group_of_layer(-1); },
                                         "group_of_layer: layer must not be negative, got -1"));
  CHECK(model.rotation_of_layer(1000) == layer_rotation::in_group);
  CHECK(model.rotation_of_layer(-1) == layer_rotation::not_known);
  const auto counted = model_of({group_named("")}, {.types = {"full_attention", "full_attention"}});
  CHECK(counted.group_of_layer(1) == &counted.groups()[0]);
  CHECK(throws_saying<std::out_of_range>([&] { (void)counted.group_of_layer(2); },
                                         "group_of_layer: layer must be from 0 to 1, got 2"));
  CHECK(counted.rotation_of_layer(2) == layer_rotation::not_known);
}

TEST_CASE("a layer finds its group by its type, and none if it does not rotate", "[models][model_rope]") {
  const std::vector<rope::layer_group> groups = {group_named("full_attention"),
                                                 group_named("sliding_attention")};
  const auto silent = model_of(groups);
  CHECK(silent.group("sliding_attention") == &silent.groups()[1]);
  CHECK(silent.group("other") == nullptr);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { (void)silent.group_of_layer(0); },
      "group_of_layer: how layer 0 rotates is not known from this file; call rotation_of_layer before"));

  const auto model = model_of(
      groups, {.types = {"sliding_attention", "full_attention", "sliding_attention", "linear_attention"},
               .without_rope = {2},
               .not_known = {3}});
  CHECK(model.group_of_layer(0) == &model.groups()[1]);
  CHECK(model.group_of_layer(1) == &model.groups()[0]);
  CHECK(model.rotation_of_layer(1) == layer_rotation::in_group);
  CHECK(model.group_of_layer(2) == nullptr);
  CHECK(model.rotation_of_layer(2) == layer_rotation::none);
  CHECK_THROWS_AS(model.group_of_layer(3), std::invalid_argument);
  CHECK_THROWS_AS(model.group_of_layer(4), std::out_of_range);
  CHECK_THROWS_AS(model.group_of_layer(-1), std::out_of_range);
  for (const Index unknown : {Index{-1}, Index{3}, Index{4}})
    CHECK(model.rotation_of_layer(unknown) == layer_rotation::not_known);
}

TEST_CASE("a model whose layers do not name its groups throws", "[models][model_rope]") {
  const auto rejected = [](const std::vector<rope::layer_group>& groups, const rope::model_layers& layers,
                           const std::string& text) {
    return throws_saying<std::invalid_argument>([&] { (void)model_of(groups, layers); },
                                                "rope::model_rope: " + text);
  };
  const auto a = group_named("a"), b = group_named("b"), unnamed = group_named("");
  CHECK(rejected({}, {}, "there must be groups of layers or else instead_of_rope, got 0 and \"\""));
  CHECK(rejected({a}, {.instead_of_rope = "ALiBi biases"},
                 "there must be groups of layers or else instead_of_rope, got 1 and \"ALiBi biases\""));
  const std::string own = "each of 2 groups must have a layer type of its own, got ";
  CHECK(rejected({a, unnamed}, {}, own + "\"\""));
  CHECK(rejected({b, b}, {}, own + "\"b\" twice"));
  const std::string listed =
      "every layer must have the type of a group, or be listed as without rotation or not known, got type ";
  CHECK(rejected({a, b}, {.types = {"a", "b", "c"}}, listed + "\"c\" for layer 2"));
  CHECK(rejected({a, b}, {.types = {"", "b"}}, listed + "\"\" for layer 0"));
  CHECK(rejected({a, b}, {.types = {"c", "c"}, .without_rope = {0}}, listed + "\"c\" for layer 1"));
  const std::string without = "layers without rotation must ";
  CHECK(rejected({a}, {.without_rope = {-1}}, without + "be layers of the model, got -1"));
  CHECK(rejected({a}, {.types = {"a"}, .without_rope = {1}}, without + "be layers of the model, got 1 of 1"));
  CHECK(rejected({a}, {.without_rope = {3, 3}}, without + "increase, got 3 after 3"));
  CHECK(rejected({a}, {.without_rope = {3, 2}}, without + "increase, got 2 after 3"));
  CHECK(rejected({a}, {.not_known = {3, 2}}, "layers of unknown rotation must increase, got 2 after 3"));
  CHECK(rejected({a}, {.without_rope = {0, 2}, .not_known = {1, 2}},
                 "a layer must not be both without rotation and not known, got 2"));

  CHECK(model_of({a, b}, {.types = {"c", "d", "b"}, .without_rope = {0}, .not_known = {1}}).layers().size() ==
        3);
  CHECK(model_of({a}, {.types = {"a", "other"}}).group_of_layer(1)->layer_type == "a");
}

TEST_CASE("a model without rotating layers names its other position encoding", "[models][model_rope]") {
  rope::model_facts facts{.source = "test", .architecture = "test"};
  facts.windows.resize(3, rope::not_known_window);
  const rope::model_rope model(facts, {}, {.instead_of_rope = "ALiBi biases"});
  CHECK(model.instead_of_rope() == "ALiBi biases");
  CHECK(model.groups().empty());
  CHECK(model.layer_count() == 3);
  for (Index layer = 0; layer < 3; ++layer) {
    CHECK(model.rotation_of_layer(layer) == layer_rotation::none);
    CHECK(model.group_of_layer(layer) == nullptr);
    CHECK(model.query_scaling_of_layer(layer).is_one());
    CHECK(throws_saying<std::invalid_argument>([&] { (void)model.attention_of_layer(layer); },
                                               "attention_of_layer: how layer " + std::to_string(layer) +
                                                   " attends is not known: no layer of this"));
  }
  CHECK(model.rotation_of_layer(3) == layer_rotation::not_known);
  CHECK_THROWS_AS(model.group_of_layer(3), std::out_of_range);
  CHECK(model.group("") == nullptr);
  CHECK(throws_saying<std::invalid_argument>([&] { (void)model.attention_of_group(""); },
                                             "attention_of_group: no layer rotates as type \"\""));
  // Without a number of layers this holds for every layer.
  facts.windows.resize(1);
  const rope::model_rope uncounted(facts, {}, {.instead_of_rope = "no positions"});
  CHECK(uncounted.rotation_of_layer(100) == layer_rotation::none);
  CHECK(uncounted.rotation_of_layer(-1) == layer_rotation::not_known);
  CHECK(model_of({group_named("a")}).instead_of_rope().empty());
}

TEST_CASE("a changed description is made from another one", "[models][model_rope]") {
  rope::model_facts facts{.source = "test", .architecture = "test"};
  facts.warnings = {"one"};
  const rope::model_rope model(facts, {group_named("")});
  auto groups = model.groups();
  groups.front().layer_type = "full_attention";
  const rope::model_rope other(model, groups, {.types = {"full_attention"}});
  CHECK(other.warnings == model.warnings);
  CHECK(other.groups().front().layer_type == "full_attention");
}
