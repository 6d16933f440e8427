// SPDX-License-Identifier: MIT
// The query scaling of layers that a file describes.
#include <cmath>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <rope/rotation.hpp>
#include <rope/rotation_extras.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/model_parts.hpp"

namespace {

using rope::Index;
using rope::scaled_queries;
using testing::json;
using testing::throws_saying;

rope::model_rope hugging_face(const std::string& model_type, const json& more,
                              const rope::hugging_face_options& options = {}) {
  json config = {
      {"model_type", model_type}, {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"head_dim", 64}};
  config.update(more);
  return rope::import_hugging_face(config, options);
}
rope::model_rope gguf(const std::string& architecture, const json& more,
                      const rope::gguf_options& options = {}) {
  json entries = {{".block_count", 4}, {".embedding_length", 256}, {".attention.head_count", 4}};
  entries.update(more);
  return rope::import_gguf(testing::gguf(architecture, entries), options);
}
bool has_warning(const rope::model_rope& model, const std::string& part) {
  for (const std::string& warning : model.warnings)
    if (warning.find(part) != std::string::npos) return true;
  return false;
}
bool not_known(const rope::model_rope& model, Index layer) {
  return throws_saying<std::invalid_argument>(
      [&] { model.query_scaling_of_layer(layer); },
      "rope::query_scaling_of_layer: ", "is not known from this file; call scale_queries");
}

}  // namespace

TEST_CASE("a layer reports its query scaling, ready to use", "[models][query_scaling_of_layer]") {
  const auto model = hugging_face("llama4_text", {{"floor_scale", 4}, {"attn_scale", 0.5}});
  CHECK(model.query_scaling_of_layer(0).is_one());
  const rope::query_scaling rule = model.query_scaling_of_layer(3);
  REQUIRE_FALSE(rule.is_one());
  std::vector<double> memory(8, 1.0);
  const auto queries = rope::thd(memory.data(), 4, 1, 2);
  rope::scale_queries(queries, rule, 2);
  CHECK(memory[0] == 1);  // position 2
  CHECK(memory[2] == 1 + 0.5 * std::log1p(1.0));
  rope::scale_queries(queries, model.query_scaling_of_layer(0), 2);
  CHECK(memory[0] == 1);
  CHECK(hugging_face("llama", json::object()).query_scaling_of_layer(7).is_one());
}

TEST_CASE("a layer out of range has no query scaling", "[models][query_scaling_of_layer]") {
  const auto model = gguf("llama4", json::object());
  for (const Index layer : {Index{-1}, Index{4}})
    CHECK(throws_saying<std::out_of_range>(
        [&] { model.query_scaling_of_layer(layer); },
        "rope::query_scaling_of_layer: ", "layer must be from 0 to 3, got " + std::to_string(layer)));
}

TEST_CASE("an unknown query scaling is not taken as none", "[models][query_scaling_of_layer]") {
  const rope::hugging_face_options named{.layout = rope::layout_kind::half_split};
  for (const char* key : {"attn_temperature_tuning", "use_logn_attn", "llama_4_scaling"}) {
    INFO(key);
    const auto model = hugging_face("novel", {{key, true}}, named);
    CHECK(not_known(model, 0));
    CHECK(has_warning(model, std::string(key) + " is not understood"));
    CHECK(describe(model).find("query scaling           not known from this file") != std::string::npos);
    CHECK(hugging_face("llama", {{key, true}}).scaled == scaled_queries::none);  // its class has no such key
  }
  const json beta = {{"rope_parameters", {{"rope_type", "default"}, {"llama_4_scaling_beta", 0.1}}}};
  CHECK(not_known(hugging_face("novel", beta, named), 0));
  CHECK(hugging_face("llama", beta).query_scaling_of_layer(0).is_one());
  CHECK(hugging_face("novel", json::object(), named).query_scaling_of_layer(0).is_one());

  const json key = {{".attention.temperature_scale", 0.1}};
  const auto model = gguf("novel", key, {.layout = rope::layout_kind::half_split});
  CHECK(not_known(model, 0));
  CHECK(has_warning(model, "novel.attention.temperature_scale is not used"));
  CHECK(gguf("llama", key).query_scaling_of_layer(0).is_one());
  CHECK(has_warning(gguf("grok", {{".attention.temperature_length", 1024}}),
                    "grok.attention.temperature_length is not used"));
  CHECK(has_warning(gguf("mistral3", {{".context_length", 8}, {".attention.temperature_length", 1024}}),
                    "mistral3.attention.temperature_length is not used"));
  // Without chunks llama.cpp has no numbers for the one layer of Llama 4 that does not rotate.
  CHECK(not_known(gguf("llama4", {{".attention.sliding_window", 0}}), 3));
  testing::model_parts parts(hugging_face("llama4_text", json::object()));
  parts.layers = {"a", "b", "c", "d"};
  parts.groups.push_back(parts.groups.front());
  parts.groups[0].layer_type = "a";
  parts.groups[1].layer_type = "c";
  parts.layers_without_rope = {3};
  parts.layers_not_known = {1};
  const rope::model_rope unknown = parts.model();
  CHECK(unknown.query_scaling_of_layer(0).is_one());
  CHECK(not_known(unknown, 1));
  CHECK_FALSE(unknown.query_scaling_of_layer(3).is_one());
}

TEST_CASE("a base that grows with the length is that of the requested length", "[models]") {
  const json qwen = {{"seq_length", 2048}};
  const auto base_of = [&](double length) {
    const auto group = hugging_face("qwen", qwen, {.length = length}).groups().at(0);
    return group.number("new_base", group.base);
  };
  // Qwen's get_ntk_alpha: 2^ceil(log2(length / seq_length) + 1) - 1, in base alpha^(d / (d - 2)).
  CHECK(base_of(0) == 10000);
  CHECK(base_of(2048) == 10000);
  CHECK(base_of(2049) == testing::Approx(10000 * std::pow(3.0, 64.0 / 62)).epsilon(1e-12));
  CHECK(base_of(4096) == testing::Approx(10000 * std::pow(3.0, 64.0 / 62)).epsilon(1e-12));
  CHECK(base_of(4097) == testing::Approx(10000 * std::pow(7.0, 64.0 / 62)).epsilon(1e-12));
  CHECK(hugging_face("qwen", qwen, {.length = 8192}).groups().at(0).rule == "dynamic with alpha");
  CHECK(has_warning(hugging_face("qwen", qwen), "use_dynamic_ntk makes the base depend on the length"));
  CHECK_FALSE(has_warning(hugging_face("qwen", qwen, {.length = 9}), "use_dynamic_ntk"));
  json still = qwen;
  still["use_dynamic_ntk"] = false;
  CHECK(hugging_face("qwen", still, {.length = 8192}).groups().at(0).rule == "default");
}

TEST_CASE("descriptions name the query scaling, and report its differences between two files",
          "[models][describe][query_scaling_of_layer]") {
  const auto reports = [](const rope::model_rope& model, const std::string& part) {
    return describe(model).find("  query scaling           " + part + "\n") != std::string::npos;
  };
  const auto llama4 = hugging_face("llama4_text", json::object());
  CHECK(
      reports(llama4, "by 1 + 0.1 ln(1 + floor((p + 1) / 8192)) at position p, the layers without rotation"));
  const json beta = {{"rope_parameters",
                      {{"rope_type", "default"},
                       {"original_max_position_embeddings", 16384},
                       {"llama_4_scaling_beta", 0.1}}}};
  const auto ministral = hugging_face("ministral3", beta);
  CHECK(reports(ministral, "by 1 + 0.1 ln(1 + floor(p / 16384)) at position p, every layer"));
  const auto qwen = hugging_face("qwen", {{"seq_length", 2048}});
  CHECK(reports(qwen, "by max(1, ln(p + 1) / ln(2048)) at position p, every layer"));
  CHECK(describe(hugging_face("llama", json::object())).find("query scaling") == std::string::npos);

  const auto differ = [](const rope::model_rope& a, const rope::model_rope& b, const std::string& part) {
    for (const std::string& found : compare_models(a, b))
      if (found.find("queries are scaled: ") == 0) return found.find(part) != std::string::npos;
    return part.empty();
  };
  const json original = {{".context_length", 262144}, {".attention.temperature_scale", 0.1f}};
  json shorter = original;
  shorter[".rope.scaling.original_context_length"] = 16384;
  CHECK(differ(ministral, gguf("mistral3", shorter), ""));
  CHECK(differ(ministral, gguf("mistral3", original), "floor(p / 262144)"));
  CHECK(differ(ministral, gguf("mistral3", {{".context_length", 16384}}), "none in GGUF"));
  CHECK(differ(llama4, ministral, "floor((p + 1) / 8192)"));
  CHECK(differ(qwen, ministral, "floor(p / 16384)"));
  CHECK(differ(qwen, qwen, ""));
}
