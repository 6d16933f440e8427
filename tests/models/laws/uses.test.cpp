// SPDX-License-Identifier: MIT
#include <rope/attention/attention.hpp>
#include <rope/cache.hpp>
#include <rope/models.hpp>
#include <rope/positions/multimodal_positions.hpp>
#include <rope/rotation/query_scaling.hpp>
#include <rope/rotation/rotate.hpp>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"

// The code in the comments of this module, as it is written there: tests/class_comments.cmake.

using namespace rope;

namespace {

/// Heads [1, 3, 2, 128] of ones.
struct ones {
  std::vector<float> memory = std::vector<float>(3 * 2 * 128, 1.0f);
  head_view<float> view = bshd(memory.data(), 1, 3, 2, 128);
};

const testing::json json = testing::config("llama_3_1_8b");

}  // namespace

TEST_CASE("the examples in the comments of imports work", "[models]") {
  {
    std::istringstream file(json.dump());
    const model_rope model = import_hugging_face(nlohmann::json::parse(file));
    const frequency_table table(model.groups()[0].frequencies, 8192);
    CHECK(table.pairs() == 64);
  }
  {
    const model_rope model = import_hugging_face(json, {.length = 32768});
    CHECK(model.groups().size() == 1);
  }
  const testing::gguf_file file = testing::gguf(
      "llama", {{".attention.head_count", 32}, {".embedding_length", 4096}, {".block_count", 32}});
  const model_rope model = import_gguf(file, {.length = 32768, .layout = layout_kind::half_split});
  CHECK(model.groups()[0].rotary_dim() == 128);
}

TEST_CASE("the examples in the comments of chunks work", "[models]") {
  const Index layer = 2;
  const model_rope model = import_hugging_face(testing::config("llama_4_scout"));
  const Index chunk = model.chunk_of_layer(layer);
  CHECK(chunk == 8192);
  const auto ranges = chunk_ranges(model.chunk_of_layer(layer), {.queries = 1, .keys = 9});
  const attention_options options = model.attention_of_layer(layer, ranges);
  CHECK(options.key_ranges.size() == 1);
}

TEST_CASE("the examples in the comments of kinds of attention work", "[models]") {
  ones queries, keys, values, memory_of_out;
  const head_view<float> q = queries.view, k = keys.view, v = values.view, out = memory_of_out.view;
  const Index layers = 4;
  constexpr Index start = 0;
  const model_rope model = import_hugging_face(testing::config("llama_4_scout"));
  const model_tables tables(model, 16);
  std::vector<key_range> ranges;
  for (Index layer = 0; layer < layers; ++layer)
    if (!model.keys_are_values && model.attention_kind_of_layer(layer) != layer_attention::not_known)
      attention(q, k, v, out, rotate_layer(tables, layer, q, k, start, ranges));  // else: yours
  CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  CHECK(ranges.empty());  // layer 3 does not attend in chunks
}

TEST_CASE("the examples in the comments of models work", "[models]") {
  ones memory;
  const head_view<float> view = memory.view, queries = memory.view;
  const Index layer = 3;
  {
    const model_rope model = import_hugging_face(json);
    const layer_group* group = model.group_of_layer(layer);             // nullptr: does not rotate
    const attention_options options = model.attention_of_layer(layer);  // window, scale
    CHECK(group == &model.groups()[0]);
    CHECK(options.scale == group->scale);
    const bool sinks = model.layer_has_sinks(layer);
    CHECK_FALSE(sinks);
    std::map<std::string, attention_options> options_of;
    for (const std::string& type : model.attention_types()) options_of[type] = model.attention_of_group(type);
    CHECK(options_of.at("").scale == options.scale);
    constexpr Index start = 0;
    const query_scaling rule = model.query_scaling_of_layer(layer);
    if (!rule.is_one()) scale_queries(queries, rule, start);
  }
  {
    const model_facts facts = {.source = "my file", .architecture = "mine", .max_position = 8192};
    const model_layers layers = {.types = {"sliding_attention", "full_attention", "linear_attention"},
                                 .without_rope = {2}};
    CHECK(model_rope(facts, import_hugging_face(json).groups(), layers).group_of_layer(2) == nullptr);
  }
  {
    const model_rope model = import_hugging_face(testing::config("gemma_3_4b"));
    const std::vector<layer_group> groups = model.groups();
    const model_rope other(model, groups, {.types = model.layers()});
    CHECK(compare_models(model, other).empty());
  }
  {
    const model_rope model = import_hugging_face(json);
    const model_tables tables(model, 8192);
    if (const auto table = tables.of_layer(layer))  // none: the layer does not rotate
      with_layout(model.group_of_layer(layer)->layout, [&](auto layout) {
        rotate<decltype(layout)>(queries, *table);  // the channels that this layer rotates
      });
    CHECK(*queries.at(0, 1, 0) != 1);
  }
  {
    ones keys, memory_of_values, memory_of_out;
    const head_view<float> q = memory.view, k = keys.view, v = memory_of_values.view,
                           out = memory_of_out.view;
    constexpr Index start = 0;
    const model_rope model = import_hugging_face(testing::config("llama_4_scout"));
    const model_tables tables(model, 16);
    std::vector<key_range> ranges;
    attention(q, k, v, out, rotate_layer(tables, layer, q, k, start, ranges));
    CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  }
  {
    ones keys, memory_of_values, memory_of_out;
    const head_view<float> q = memory.view, k = keys.view, v = memory_of_values.view,
                           out = memory_of_out.view;
    constexpr Index start = 0;
    const model_tables tables(import_hugging_face(json), 8192);
    attention(q, k, v, out, rotate_layer(tables, layer, q, k, start));
    kv_cache<float> cache(1, 8, 2, 128);
    const attention_options options = rotate_layer(tables, layer, q, k, cache.size());
    cache.append(k, v);
    attention(q, cache, out, options);
    attention(q, cache, out, rotate_layer(tables, layer, q, start));
    CHECK(*out.at(0, 0, 0) == testing::Approx(1));
  }
  using Layout = half_split;
  const model_rope model = import_hugging_face(json);
  const layer_group& group = model.groups()[0];
  const frequency_table table(group.frequencies, 20);
  rotate<Layout>(view, table.at_channel(group.first_channel));

  std::ostringstream printed;
  std::streambuf* before = std::cout.rdbuf(printed.rdbuf());
  for (const named_number& number : group.numbers) std::cout << number.name << " = " << number.value << ", ";
  const pair_census census = pair_census_of(model.groups()[0]);
  std::cout << census.kept << " pairs kept, " << census.interpolated << " interpolated\n";
  std::cout.rdbuf(before);
  CHECK(printed.str().find("factor = 8, ") != std::string::npos);
  CHECK(printed.str().find(" pairs kept, ") != std::string::npos);
}

TEST_CASE("the example in the comment of indexer_rotation works", "[models]") {
  ones memory;
  const head_view<float> heads = memory.view;
  const testing::json config = {
      {"model_type", "deepseek_v32"}, {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64}};
  const model_rope model = import_hugging_face(config);
  const layer_group& group = model.groups()[0];
  const frequency_table table(group.frequencies, 20);
  if (const auto& indexer = group.indexer)
    with_layout(indexer->layout, [&](auto layout) {
      rotate<decltype(layout)>(heads.channels(indexer->first_channel, indexer->rotary_dim), table);
    });
  CHECK(heads.at(0, 1, 0)[63] != 1);
  CHECK(heads.at(0, 1, 0)[64] == 1);
}

TEST_CASE("the example in the comment of frequencies_on_axes works", "[models]") {
  ones memory;
  const head_view<float> queries = memory.view;
  const model_rope model = import_hugging_face(testing::config("qwen2_vl_7b"));
  const layer_group& group = model.groups()[0];
  const std::vector<prompt_run> runs = {text_run{3}};
  const auto prompt = qwen_vl_positions(runs);
  rotate<half_split>(queries, frequency_table(frequencies_on_axes(group), prompt.coordinates));
  CHECK(*queries.at(0, 1, 0) != 1);
}

TEST_CASE("the example in the comment of query_scaling works", "[models]") {
  ones memory;
  const head_view<float> q = memory.view;
  const Index start = 4096;
  const query_scaling rule{log_n_query_scaling{.train_length = 2048}};
  if (!rule.is_one()) scale_queries(q, rule, start);
  CHECK(*q.at(0, 0, 0) > 1);
}
