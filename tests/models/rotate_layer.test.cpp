// SPDX-License-Identifier: MIT
#include <rope/models/rotate_layer.hpp>

#include <Eigen/Core>
#include <cstdint>
#include <exception>
#include <rope/attention/attention.hpp>
#include <rope/base/parallel.hpp>
#include <rope/models/gguf.hpp>
#include <rope/models/hugging_face.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/model_parts.hpp"

namespace {

using rope::Index;
using rope::model_tables;
using rope::rotate_layer;
using testing::config;
using testing::json;
using testing::throws_saying;

/// Queries of four heads and keys of two, [1, 3, heads, head_dim], none of whose channels are equal.
struct heads {
  Index head_dim;
  std::vector<float> q_memory, k_memory;

  explicit heads(Index of) : head_dim(of) {
    for (Index i = 0; i < 3 * 4 * of; ++i) q_memory.push_back(1 + 0.001f * static_cast<float>(i % 977));
    for (Index i = 0; i < 3 * 2 * of; ++i) k_memory.push_back(2 - 0.001f * static_cast<float>(i % 941));
  }
  rope::head_view<float> q() { return rope::bshd(q_memory.data(), 1, 3, 4, head_dim); }
  rope::head_view<float> k() { return rope::bshd(k_memory.data(), 1, 3, 2, head_dim); }
  bool operator==(const heads& other) const {
    return q_memory == other.q_memory && k_memory == other.k_memory;
  }
};

rope::model_rope import(const char* name) { return rope::import_hugging_face(config(name)); }

}  // namespace

TEST_CASE("every layer of a model follows its description", "[models][rotate_layer]") {
  // Layers in two groups, with the first or the last channels only, and a layer that does not rotate and
  // scales its queries.
  struct known {
    const char* name;
    Index layer, head_dim;
  };
  for (const known& of :
       {known{"llama_3_1_8b", 31, 128}, known{"gemma_3_4b", 4, 256}, known{"gemma_3_4b", 5, 256},
        known{"deepseek_v3", 0, 192}, known{"llama_4_scout", 3, 128}, known{"modernbert_base", 1, 64}}) {
    CAPTURE(of.name, of.layer);
    const rope::model_rope model = import(of.name);
    const model_tables tables(model, 10010);
    constexpr Index start = 10000;
    heads at_once(of.head_dim), by_hand(of.head_dim), alone(of.head_dim);
    const rope::attention_options options = rotate_layer(tables, of.layer, at_once.q(), at_once.k(), start);
    if (const rope::layer_group* group = model.group_of_layer(of.layer)) {
      const rope::frequency_table table(group->frequencies, 10010);
      rope::with_layout(group->layout, [&](auto layout) {
        rope::rotate<decltype(layout)>(by_hand.q(), by_hand.k(), table.at_channel(group->first_channel),
                                       start);
      });
      CHECK_FALSE(at_once.k_memory == alone.k_memory);
    } else {
      CHECK(at_once.k_memory == alone.k_memory);
    }
    rope::scale_queries(by_hand.q(), model.query_scaling_of_layer(of.layer), start);
    CHECK(at_once == by_hand);
    CHECK_FALSE(at_once.q_memory == alone.q_memory);
    const rope::attention_options expected = model.attention_of_layer(of.layer);
    CHECK(options.scale == expected.scale);
    CHECK(options.window == expected.window);
    CHECK(options.softcap == expected.softcap);
    CHECK(options.causal == expected.causal);
    CHECK(options.sink_logits.empty());
    CHECK(options.queries_are_rotated);

    // Queries alone, by a list of positions, and on threads.
    const std::vector<std::int64_t> ids = {start, start + 1, start + 2};
    CHECK(rotate_layer(tables, of.layer, alone.q(), ids).window == options.window);
    CHECK(alone.q_memory == at_once.q_memory);
    heads again(of.head_dim);
    rotate_layer(tables, of.layer, again.q(), again.k(), ids, {}, rope::this_thread{});
    CHECK(again == at_once);
  }
}

TEST_CASE("sink logits come from the caller if a model has them, and throw otherwise",
          "[models][rotate_layer]") {
  const std::vector<float> sinks = {1, 2, 3, 4}, three = {1, 2, 3};
  const model_tables with(import("gpt_oss_20b"), 16), without(import("llama_3_1_8b"), 16);
  heads x(64), untouched(64), large(128);
  const auto options = rotate_layer(with, 0, x.q(), x.k(), 0, sinks);
  CHECK(options.sink_logits.data() == sinks.data());
  CHECK(options.sink_logits.size() == 4);
  CHECK(options.window == 128);
  heads y(64);
  CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(with, 0, y.q(), y.k()); },
                                             "rotate_layer: sink_logits must be those of the checkpoint, one "
                                             "for each of 4 query heads, got 0 for layer 0"));
  CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(with, 0, y.q(), y.k(), 0, three); },
                                             "rotate_layer: sink_logits must be those of the checkpoint, one "
                                             "for each of 4 query heads, got 3 for layer 0"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rotate_layer(without, 1, large.q(), large.k(), 0, sinks); },
      "rotate_layer: sink_logits must be empty, for this model has none, got 4 for layer 1"));
  CHECK(y == untouched);
  CHECK(large == heads(128));
}

TEST_CASE("layers of Llama 4 that rotate attend in chunks, the others to all tokens before",
          "[models][rotate_layer]") {
  const json chunks_of_2 = {{"model_type", "llama4_text"},
                            {"num_hidden_layers", 4},
                            {"num_attention_heads", 4},
                            {"head_dim", 128},
                            {"attention_chunk_size", 2}};
  const rope::model_rope model = rope::import_hugging_face(chunks_of_2), scout = import("llama_4_scout");
  CHECK(model.attention_chunk == 2);
  CHECK(scout.attention_chunk == 8192);  // that of the class
  for (const Index layer : {0, 1, 2}) CHECK(model.chunk_of_layer(layer) == 2);
  CHECK(model.chunk_of_layer(3) == 0);
  CHECK(scout.chunk_of_layer(46) == 8192);
  CHECK(scout.chunk_of_layer(47) == 0);
  CHECK(import("llama_3_1_8b").chunk_of_layer(0) == 0);
  json no_chunks = chunks_of_2;
  no_chunks["attention_chunk_size"] = nullptr;
  CHECK(rope::import_hugging_face(no_chunks).chunk_of_layer(0) == 0);

  // Tokens 1, 2 and 3 of a sequence whose keys are tokens 0 to 3.
  const model_tables tables(model, 16);
  std::vector<rope::key_range> ranges(7);
  heads x(128), by_hand(128);
  const auto options = rotate_layer(tables, 0, x.q(), x.k(), 1, ranges);
  const std::vector<Index> first = {0, 2, 2}, count = {2, 1, 2};
  REQUIRE(ranges.size() == 3);
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(ranges[t].first == first[t]);
    CHECK(ranges[t].count == count[t]);
  }
  CHECK(options.key_ranges.data() == ranges.data());
  CHECK(options.key_ranges.size() == 3);
  CHECK(options.window == 0);
  CHECK(rope::detail::equal(options.scale, model.groups().front().scale));
  rope::rotate<rope::interleaved>(by_hand.q(), by_hand.k(),
                                  rope::frequency_table(model.groups().front().frequencies, 16), 1);
  CHECK(x == by_hand);

  // Rows with their own starts.
  heads two(128);
  const std::vector<int> ids = {5};
  const auto row = rotate_layer(tables, 1, two.q().token_range(0, 1), two.k().token_range(0, 1), ids, ranges);
  REQUIRE(row.key_ranges.size() == 1);
  CHECK(ranges[0].first == 4);
  CHECK(ranges[0].count == 2);

  // A layer of another kind empties them. A call that throws does not.
  heads last(128), narrow(64);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rotate_layer(tables, 0, narrow.q(), narrow.k(), 1, ranges); }, "q must have whole heads"));
  CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, 0, last.q(), last.k(), -1, ranges); },
                                             "chunks begin at position 0, got position -1"));
  CHECK(ranges.size() == 1);
  CHECK(rotate_layer(tables, 3, last.q(), last.k(), 1, ranges).key_ranges.empty());
  CHECK(ranges.empty());
  CHECK(throws_saying<std::invalid_argument>(
      [&] { static_cast<void>(model.attention_of_layer(3, std::span<const rope::key_range>())); },
      "layer 3 does not attend in chunks, leave the ranges out, got 0"));
}

// Source: mlx-lm, models/mimo_v2_flash.py, and Hugging Face transformers, models/mimo_v2_flash: has_sinks of
// each layer.
TEST_CASE("only the layers that have sink logits accept them", "[models][rotate_layer]") {
  const std::vector<float> sinks = {1, 2, 3, 4};
  const json mimo = {{"model_type", "mimo_v2_flash"},    {"hidden_size", 64}, {"num_attention_heads", 4},
                     {"num_hidden_layers", 3},           {"head_dim", 192},   {"sliding_window", 128},
                     {"hybrid_layer_pattern", {0, 1, 0}}};
  const model_tables tables(rope::import_hugging_face(mimo), 16);
  heads x(192), y(192), untouched(192);
  CHECK(rotate_layer(tables, 0, x.q(), x.k()).sink_logits.empty());
  CHECK(rotate_layer(tables, 1, x.q(), x.k(), 0, sinks).sink_logits.data() == sinks.data());
  CHECK(rotate_layer(tables, 2, x.q(), x.k()).window == 0);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rotate_layer(tables, 0, y.q(), y.k(), 0, sinks); },
      "rotate_layer: sink_logits must be empty, for this layer has none, got 4 for layer 0"));
  CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, 1, y.q(), y.k()); },
                                             "rotate_layer: sink_logits must be those of the checkpoint, one "
                                             "for each of 4 query heads, got 0 for layer 1"));
  CHECK(y == untouched);
}

TEST_CASE("unknown values of a layer and invalid calls throw before anything is written",
          "[models][rotate_layer]") {
  const auto rejected = [](const rope::model_rope& model, Index layer, Index head_dim, Index start,
                           const std::string& text) {
    const model_tables tables(model, -4, 16);
    heads x(head_dim);
    const auto reports = [&](const auto& call) {
      try {
        call();
      } catch (const std::exception& error) {
        return std::string(error.what()).find(text) != std::string::npos;
      }
      return false;
    };
    const bool both = reports([&] { rotate_layer(tables, layer, x.q(), x.k(), start); }) &&
                      reports([&] { rotate_layer(tables, layer, x.q(), start); });
    return both && x == heads(head_dim);
  };
  const rope::model_rope llama = import("llama_3_1_8b");
  CHECK(rejected(llama, 0, 64, 0,
                 "rotate_layer: q must have whole heads of the layer, of 128 channels, got 64"));
  CHECK(rejected(llama, -1, 128, 0, "layer must not be negative, got -1"));
  CHECK(rejected(llama, 0, 128, 14, "position"));
  // Layers that attend in chunks, and layers without attention.
  CHECK(rejected(import("llama_4_scout"), 0, 128, 0, "layer 0 attends in chunks of 8192 tokens"));
  CHECK(rejected(import("llama_4_scout"), 0, 128, 0, "pass rotate_layer a std::vector<key_range>"));
  const json hybrid = {{"model_type", "qwen3_next"}, {"head_dim", 128}, {"num_hidden_layers", 4}};
  CHECK(
      rejected(rope::import_hugging_face(hybrid), 0, 128, 0, "the attention window of layer 0 is not known"));
  // A scale that is undefined at a position of the table.
  testing::model_parts parts(llama);
  parts.query_rule = {rope::llama4_query_scaling{}};
  parts.scaled = rope::scaled_queries::every_layer;
  CHECK(rejected(parts.model(), 0, 128, 14, "position"));
  CHECK(rejected(parts.model(), 0, 128, -3, "a position must not be negative, got -3"));

  const json v4 = {{"model_type", "deepseek_v4"},
                   {"num_hidden_layers", 2},
                   {"layer_types", {"sliding_attention", "compressed_sparse_attention"}}};
  const rope::model_rope rotated = rope::import_hugging_face(v4);
  CHECK(rotated.keys_are_values);
  CHECK_FALSE(llama.keys_are_values);
  parts = testing::model_parts(rotated);
  parts.sink_logits = false;
  CHECK(rejected(parts.model(), 0, 512, 0, "rotate_layer: layer 0 also un-rotates the output of attention"));

  // Keys of another head size than the queries.
  const model_tables tables(llama, 16);
  heads x(128), narrow(64);
  CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, 0, x.q(), narrow.k()); },
                                             "rotate_layer: k must have whole heads of the layer"));
  CHECK(x == heads(128));
}

TEST_CASE("a layer that does not rotate rejects the heads and positions that the others reject",
          "[models][rotate_layer]") {
  testing::model_parts parts;
  parts.groups = {testing::group_named("")};
  parts.layers_without_rope = {1};
  parts.windows = {0};
  const model_tables tables(parts.model(), 16);
  heads x(8);
  const std::vector<int> two = {0, 1};
  for (const Index layer : {Index{0}, Index{1}}) {
    CAPTURE(layer);
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rotate_layer(tables, layer, x.q(), x.k().token_range(0, 2)); },
        "q and k must have the same batch and tokens, got [1, 3] and [1, 2]"));
    CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, layer, x.q(), x.k(), two); },
                                               "ids must be [tokens] = 3, got 2"));
    CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, layer, x.q(), two); },
                                               "ids must be [tokens] = 3, got 2"));
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rotate_layer(tables, layer, rope::bshd<float>(nullptr, 1, 3, 4, 8)); },
        "a view must have data, got null"));
    CHECK(throws_saying<std::invalid_argument>([&] { rotate_layer(tables, layer, x.q(), x.q()); },
                                               "must not share channels"));
  }
  CHECK(x == heads(8));
}

TEST_CASE("a layer evaluates an expression of positions once", "[models][rotate_layer]") {
  testing::model_parts parts;
  parts.groups = {testing::group_named("")};
  parts.windows = {0};
  parts.query_rule = {rope::log_n_query_scaling{2}};
  parts.scaled = rope::scaled_queries::every_layer;
  const model_tables tables(parts.model(), 64);
  heads expected(8), x(8);
  rotate_layer(tables, 0, expected.q(), expected.k(), std::vector<int>{5, 6, 7});
  int next = 5;  // other positions at each evaluation
  const auto counted = Eigen::ArrayXi::NullaryExpr(3, [&next](Index) { return next++; });
  rotate_layer(tables, 0, x.q(), x.k(), counted);
  CHECK(next == 8);
  CHECK(x == expected);
}

TEST_CASE("ids of a layer may be written in braces", "[models][rotate_layer]") {
  testing::model_parts parts;
  parts.groups = {testing::group_named("")};
  parts.windows = {0};
  const model_tables tables(parts.model(), 64);
  heads expected(8), x(8);
  rotate_layer(tables, 0, expected.q(), expected.k(), std::vector<int>{5, 0, 7});
  rotate_layer(tables, 0, x.q(), x.k(), {5, 0, 7});
  CHECK(x == expected);
  rotate_layer(tables, 0, expected.q(), std::vector<int>{5, 0, 7});
  rotate_layer(tables, 0, x.q(), {5, 0, 7});
  CHECK(x == expected);
}
