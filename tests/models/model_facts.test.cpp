// SPDX-License-Identifier: MIT
#include <rope/models/model_facts.hpp>

#include <rope/models/model_rope.hpp>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_parts.hpp"

using rope::Index;
using rope::layer_rotation;
using testing::group_named;
using testing::throws_saying;

TEST_CASE("absent facts are unknown, and nothing is assumed", "[models][model_facts]") {
  rope::model_facts facts{.source = "test"};
  const rope::model_rope silent(facts, {group_named("")});
  CHECK(silent.layer_count() == 0);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { (void)silent.attention_of_layer(7); },
      "attention_of_layer: the attention window of layer 7 is not known"));
  CHECK(silent.query_scaling_of_layer(7).is_one());
  facts.scaled = rope::scaled_queries::not_known;
  CHECK(throws_saying<std::invalid_argument>(
      [&] { (void)rope::model_rope(facts, {group_named("")}).query_scaling_of_layer(7); },
      "query_scaling_of_layer: what layer 7 multiplies its queries by is not known"));
  facts.windows = {128};
  facts.causal = false;
  const rope::attention_options options = rope::model_rope(facts, {group_named("")}).attention_of_layer(7);
  CHECK(options.window == 128);
  CHECK_FALSE(options.causal);
}

TEST_CASE("windows of more layers than there are throw", "[models][model_rope]") {
  rope::model_facts facts{.source = "test", .architecture = "test"};
  facts.windows = {4, 0, 7};
  const rope::model_rope two(facts, {group_named("a"), group_named("b")}, {.types = {"a", "b"}});
  CHECK(two.attention_of_layer(0).window == 4);
  CHECK(throws_saying<std::out_of_range>([&] { (void)two.attention_of_layer(2); },
                                         "attention_of_layer: layer must be from 0 to 1, got 2"));
  CHECK_THROWS_AS(two.group_of_layer(2), std::out_of_range);
  CHECK_THROWS_AS(two.query_scaling_of_layer(2), std::out_of_range);
  // If no types are known, windows determine the number of layers.
  const rope::model_rope three(facts, {group_named("a")});
  CHECK(three.rotation_of_layer(2) == layer_rotation::in_group);
  CHECK(three.rotation_of_layer(3) == layer_rotation::not_known);
  CHECK_THROWS_AS(three.group_of_layer(3), std::out_of_range);
}
