// SPDX-License-Identifier: MIT
#include <rope/models/tables.hpp>

#include <cstdint>
#include <rope/frequencies/scaling.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_parts.hpp"
#include "support/same_table.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::Index;
using rope::model_tables;
using testing::group_named;
using testing::same_table;
using testing::throws_saying;

/// Six layers. Every third has full attention, as in Gemma 3.
testing::model_parts gemma_parts(const frequencies& full, const frequencies& sliding) {
  testing::model_parts parts;
  parts.groups = {group_named("full_attention", full), group_named("sliding_attention", sliding)};
  for (int i = 0; i < 6; ++i) parts.layers.push_back(i % 3 == 2 ? "full_attention" : "sliding_attention");
  return parts;
}
rope::model_rope gemma(const frequencies& full, const frequencies& sliding) {
  return gemma_parts(full, sliding).model();
}

}  // namespace

TEMPLATE_TEST_CASE("layers with equal rotations share one table", "[models][model_tables]", float, double) {
  const frequencies full(16, 1e6, rope::linear_scaling{8}), sliding(16, 1e4);
  const model_tables<TestType> tables(gemma(full, sliding), 50);
  const frequency_table<TestType> of_full(full, 50), of_sliding(sliding, 50);
  CHECK(tables.size() == 2);
  for (Index layer = 0; layer < 6; ++layer) {
    CAPTURE(layer);
    const auto table = tables.of_layer(layer);
    REQUIRE(table);
    CHECK(same_table(table->table(), layer % 3 == 2 ? of_full : of_sliding));
    CHECK(table->first_channel() == 0);
    CHECK(&table->table() == &tables.of_layer(layer % 3)->table());
    CHECK(&table->table() == &tables.of_group(layer % 3 == 2 ? 0 : 1).table());
  }
  const model_tables<TestType> range(gemma(full, sliding), -5, 7);
  CHECK(same_table(range.of_layer(2)->table(), frequency_table<TestType>(full, -5, 7)));
}

TEST_CASE("tables are of float by default", "[models][model_tables]") {
  const model_tables tables(gemma(frequencies(8), frequencies(8, 1e5)), 2);
  STATIC_REQUIRE(std::is_same_v<decltype(tables), const model_tables<float>>);
}

TEST_CASE("a table has the first channel of its layer, also if groups share it", "[models][model_tables]") {
  testing::model_parts parts = gemma_parts(frequencies(8), frequencies(8));
  parts.groups[0].first_channel = 128;
  const model_tables tables(parts.model(), 4);
  CHECK(tables.size() == 1);
  CHECK(tables.of_group(0).first_channel() == 128);
  CHECK(tables.of_layer(2)->first_channel() == 128);
  CHECK(tables.of_layer(0)->first_channel() == 0);
  CHECK(&tables.of_layer(0)->table() == &tables.of_layer(2)->table());
}

TEST_CASE("groups of one schedule share a table too, and nearly equal ones do not",
          "[models][model_tables]") {
  CHECK(model_tables<>(gemma(frequencies(8), frequencies(8)), 4).size() == 1);
  CHECK(model_tables<>(gemma(frequencies(8), frequencies(8, 1.0000001e4)), 4).size() == 2);
  CHECK(model_tables<>(gemma(frequencies(8), frequencies(6)), 4).size() == 2);
  const frequencies louder = frequencies::custom(frequencies(8).inv_freq(), 1.25);
  CHECK(model_tables<>(gemma(frequencies(8), louder), 4).size() == 2);
}

TEST_CASE("a layer that does not rotate has no table", "[models][model_tables]") {
  testing::model_parts parts = gemma_parts(frequencies(8), frequencies(8, 1e5));
  parts.layers_without_rope = {1, 4};
  const model_tables<> tables(parts.model(), 4);
  for (Index layer = 0; layer < 6; ++layer) CHECK(tables.of_layer(layer).has_value() == (layer % 3 != 1));
}

TEST_CASE("a model of one group has its table for every layer", "[models][model_tables]") {
  testing::model_parts parts;
  parts.groups = {group_named("")};
  parts.layers_without_rope = {3};
  const model_tables<> tables(parts.model(), 4);
  CHECK(&tables.of_layer(0)->table() == &tables.of_group(0).table());
  CHECK(&tables.of_layer(1000)->table() == &tables.of_group(0).table());
  CHECK_FALSE(tables.of_layer(3).has_value());
  // Layers with a known number end there.
  parts.layers = std::vector<std::string>(5, "full_attention");
  const model_tables<> counted(parts.model(), 4);
  CHECK(counted.of_layer(4).has_value());
  CHECK_THROWS_AS(counted.of_layer(5), std::out_of_range);
}

TEST_CASE("a model without rotating layers has no table", "[models][model_tables]") {
  const rope::model_rope model({.source = "test"}, {}, {.instead_of_rope = "learned positions"});
  const model_tables<> tables(model, 4);
  CHECK(tables.size() == 0);
  CHECK_FALSE(tables.of_layer(5).has_value());
  CHECK(throws_saying<std::out_of_range>([&] { tables.of_group(0); },
                                         "rope::model_tables: group must be in [0, 0), got 0"));
}

TEST_CASE("invalid layers, groups and models throw", "[models][model_tables]") {
  testing::model_parts parts = gemma_parts(frequencies(8), frequencies(8, 1e5));
  parts.layers[2] = "linear_attention";
  parts.layers_not_known = {2};
  rope::model_rope model = parts.model();
  const model_tables<> tables(model, 4);
  for (const Index layer : {Index{-1}, Index{6}})
    CHECK(throws_saying<std::out_of_range>(
        [&] { tables.of_layer(layer); },
        "rope::model_tables: layer must be from 0 to 5, got " + std::to_string(layer)));
  CHECK(throws_saying<std::out_of_range>(
      [&] { tables.of_layer(2); }, "rope::model_tables: how layer 2 rotates is not known from this file"));
  parts.layers.clear();
  const model_tables<> uncounted(parts.model(), 4);
  CHECK(throws_saying<std::out_of_range>(
      [&] { uncounted.of_layer(0); }, "rope::model_tables: how layer 0 rotates is not known from this file"));
  CHECK(throws_saying<std::out_of_range>([&] { uncounted.of_layer(-1); },
                                         "rope::model_tables: layer must not be negative, got -1"));
  for (const Index group : {Index{-1}, Index{2}})
    CHECK(throws_saying<std::out_of_range>(
        [&] { tables.of_group(group); },
        "rope::model_tables: group must be in [0, 2), got " + std::to_string(group)));
  const rope::model_rope moved = std::move(model);
  CHECK(throws_saying<std::invalid_argument>([&] { model_tables<>(model, 4); }, "was moved from"));
  CHECK_THROWS_AS(model_tables<>(gemma(frequencies(8), frequencies(8)), -4), std::invalid_argument);
}
