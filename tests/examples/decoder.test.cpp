// SPDX-License-Identifier: MIT
// The decoder of examples/generate_text.cpp compared with logits of Hugging Face transformers' own classes
// for the same weights: recorded/logits/, made by record_logits.py there.
#include "../../examples/decoder.hpp"

#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <rope/rope.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../examples/checkpoint_layout.hpp"
#include "../../examples/safetensors.hpp"
#include "examples/tiny_model.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/wide.hpp"

namespace {

using nlohmann::json;
using rope::Index;

constexpr Index tokens = 400;

std::filesystem::path scratch(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / ("rope_tests_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  return folder / name;
}

/// The tokens of every record: (7919 i + 31 i^2) mod 96.
std::vector<int> recorded_ids() {
  std::vector<int> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back((7919 * i + 31 * i * i) % 96);
  return ids;
}

template <class T>
decoder<T> decoder_of(const json& record, const std::string& type) {
  const auto path = scratch("tiny.safetensors");
  testing::write_tiny_model(record, type, path);
  const json& config = record.at("config");
  return {config, rope::import_hugging_face(config, {.length = tokens}), safetensors(path), tokens};
}

/// Logits of all tokens: `prompt` of them in one call, then one by one.
template <class T>
typename decoder<T>::matrix logits_of(decoder<T>& model, Index prompt) {
  const std::vector<int> ids = recorded_ids();
  typename decoder<T>::matrix logits(tokens, 96);
  for (Index first = 0, count = prompt; first < tokens; first += count, count = 1)
    logits.middleRows(first, count) = model.forward(
        std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)), count);
  return logits;
}

/// The largest difference from the recorded logits, relative to the largest of these.
template <class Matrix>
double error_of(const Matrix& logits, const json& record) {
  double worst = 0, largest = 0;
  std::size_t row = 0;
  for (const Index position : record.at("positions").get<std::vector<Index>>()) {
    const auto expected = record.at("logits").at(row++).get<std::vector<double>>();
    for (std::size_t id = 0; id < expected.size(); ++id) {
      testing::raise_to(
          worst, std::abs(static_cast<double>(logits(position, static_cast<Index>(id))) - expected[id]));
      largest = std::max(largest, std::abs(expected[id]));
    }
  }
  return worst / largest;
}

constexpr const char* families[] = {
    "cohere",  "cohere2", "gemma",         "gemma2",       "gemma3",     "glm4",    "gpt_neox", "granite",
    "llama_2", "llama_3", "llama_dynamic", "llama_linear", "llama_yarn", "mistral", "olmo",     "olmo2",
    "olmo3",   "phi",     "phi3",          "qwen2",        "qwen3",      "smollm3", "stablelm", "starcoder2"};

/// Records have 12 digits: half a unit of the last is 5e-12 of a number. The rest of the bound is for another
/// order of sums.
constexpr double rounded_record = 6e-12;
/// Roundings of float through two to four layers. Largest seen: 13 units (GLM-4).
constexpr double float_error = 32 * std::numeric_limits<float>::epsilon() / 2;

}  // namespace

TEST_CASE("logits of every family are those of transformers", "[examples][decoder]") {
  for (const char* family : families) {
    INFO(family);
    const json record = testing::recorded_logits(family);
    auto exact = decoder_of<double>(record, "BF16");
    CHECK(error_of(logits_of(exact, tokens), record) < rounded_record);
    CHECK(exact.size() == tokens);
    exact.clear();
    CHECK(error_of(logits_of(exact, 150), record) < rounded_record);  // a prompt, then token by token
    auto single = decoder_of<float>(record, "BF16");
    CHECK(error_of(logits_of(single, tokens), record) < float_error);
  }
}

TEST_CASE("weights of any type that represents them give the same bits", "[examples][decoder]") {
  const json record = testing::recorded_logits("llama_3");
  auto single = decoder_of<float>(record, "F32");
  const auto expected = logits_of(single, tokens);
  for (const char* type : {"BF16", "F16"}) {
    auto narrow = decoder_of<float>(record, type);
    CHECK((logits_of(narrow, tokens).array() == expected.array()).all());
  }
}

TEST_CASE("a checkpoint converted to the other layout is the same model", "[examples][checkpoint_layout]") {
  const auto folder = scratch("original"), other = scratch("other"), back = scratch("back");
  std::filesystem::create_directories(folder);
  for (const char* family : {"llama_2", "gemma3", "qwen3", "olmo2", "phi3", "gpt_neox", "glm4", "cohere2"}) {
    INFO(family);
    const json record = testing::recorded_logits(family);
    std::ofstream(folder / "config.json") << record.at("config");
    testing::write_tiny_model(record, "BF16", folder / "model.safetensors");
    const auto own = rope::import_hugging_face(record.at("config")).groups().front().layout;
    const auto target =
        own == rope::layout_kind::half_split ? rope::layout_kind::interleaved : rope::layout_kind::half_split;
    CHECK(checkpoint_layout::convert(folder, other, target) >= 2);
    json config;
    std::ifstream(other / "config.json") >> config;
    const auto model = rope::import_hugging_face(
        config, {.length = tokens, .layout = checkpoint_layout::converted_layout(config)});
    CHECK(model.groups().front().layout == target);
    decoder<double> converted(config, model, safetensors(other), tokens);
    CHECK(error_of(logits_of(converted, tokens), record) < rounded_record);

    checkpoint_layout::convert(other, back, own);
    const safetensors before(folder), after(back);
    for (const std::string& name : before.names()) CHECK(before.read<float>(name) == after.read<float>(name));
    CHECK(testing::throws_saying<std::runtime_error>([&] { checkpoint_layout::convert(folder, other, own); },
                                                     "already"));
  }
}

TEST_CASE("a checkpoint whose queries or keys are not converted throws", "[examples][checkpoint_layout]") {
  const auto folder = scratch("unknown"), other = scratch("unknown_converted");
  std::filesystem::create_directories(folder);
  const auto rejects = [&](const json& record, const char* message) {
    INFO(record.at("tensors").dump());
    std::ofstream(folder / "config.json") << record.at("config");
    testing::write_tiny_model(record, "F32", folder / "model.safetensors");
    const auto own = rope::import_hugging_face(record.at("config")).groups().front().layout;
    const auto target =
        own == rope::layout_kind::half_split ? rope::layout_kind::interleaved : rope::layout_kind::half_split;
    const bool throws = testing::throws_saying<std::runtime_error>(
        [&] { checkpoint_layout::convert(folder, other, target); }, message);
    CHECK_FALSE(std::filesystem::exists(other));
    return throws;
  };
  const auto config = [](const char* name) {
    return json::parse(std::ifstream(std::string(ROPE_TEST_CONFIGS "/") + name));
  };
  const std::string layer = "model.layers.0.", attention = layer + "self_attn.";
  CHECK(rejects(
      {{"config", config("deepseek_v3.json")},
       {"tensors", {{attention + "q_b_proj.weight", {4, 2}}, {attention + "kv_b_proj.weight", {4, 2}}}}},
      "last channels"));
  CHECK(rejects(
      {{"config", config("deepseek_v2_lite.json")},
       {"tensors",
        {{attention + "q_proj.weight", {16 * 192, 1}}, {attention + "kv_a_proj_with_mqa.weight", {576, 1}}}}},
      "last channels"));
  CHECK(rejects(
      {{"config", config("modernbert_base.json")}, {"tensors", {{layer + "attn.Wqkv.weight", {4, 2}}}}},
      "layer 0"));
  json without_keys = testing::recorded_logits("llama_2");
  without_keys["tensors"].erase("model.layers.1.self_attn.k_proj.weight");
  CHECK(rejects(without_keys, "layer 1"));
}

TEST_CASE("a checkpoint with an unused part throws", "[examples][decoder]") {
  using testing::throws_saying;
  const json record = testing::recorded_logits("qwen2");
  const std::string layer = "model.layers.0.";
  const auto load = [&](const json& changed) { return [=] { decoder_of<float>(changed, "F32"); }; };
  json more = record, less = record, other = record;
  more["tensors"][layer + "self_attn.sinks"] = {4};
  CHECK(throws_saying<std::runtime_error>(load(more), "self_attn.sinks", "does not know"));
  less["tensors"].erase(layer + "mlp.down_proj.weight");
  CHECK(throws_saying<std::runtime_error>(load(less), "no tensor", layer + "mlp.down_proj.weight"));
  other["tensors"][layer + "self_attn.k_proj.weight"] = {64, 64};
  CHECK(throws_saying<std::runtime_error>(load(other), "self_attn.k_proj",
                                          "must have the shape [32, 64], got [64, 64]"));
  other = record;
  other["config"]["hidden_act"] = "relu2";
  CHECK(throws_saying<std::runtime_error>(load(other), "hidden_act", "relu2"));
  auto model = decoder_of<float>(record, "F32");
  CHECK(throws_saying<std::out_of_range>([&] { model.forward(std::vector<int>{96}); }, "96"));
  CHECK(throws_saying<std::invalid_argument>([&] { model.forward({}); }, "from 1 to", "0, got 1"));
  CHECK(throws_saying<std::invalid_argument>([&] { model.forward(std::vector<int>{5}, 2); }, "1, got 2"));
  CHECK(model.size() == 0);
}

TEST_CASE("a tensor of another shape throws, and so does a missing one", "[examples][decoder]") {
  struct change {
    const char *family, *tensor;
    json shape;  // null: the tensor is missing
    const char* message;
  };
  const change changes[] = {
      {"qwen2", "model.layers.1.self_attn.q_proj.bias", {63}, "must have the shape [64], got [63]"},
      {"qwen2", "model.layers.1.self_attn.q_proj.weight", {64, 63}, "[64, 64], got [64, 63]"},
      {"qwen2", "model.layers.1.self_attn.o_proj.weight", {64, 32}, "[64, 64], got [64, 32]"},
      {"qwen2", "model.layers.1.input_layernorm.weight", {32}, "[64], got [32]"},
      {"qwen2", "model.layers.1.mlp.up_proj.weight", {95, 64}, "[96, 64], got [95, 64]"},
      {"qwen2", "model.layers.1.mlp.down_proj.weight", {64, 0}, "[64, any], got [64, 0]"},
      {"qwen2", "model.norm.weight", {1}, "[64], got [1]"},
      {"qwen2", "lm_head.weight", {96, 32}, "[96, 64], got [96, 32]"},
      {"qwen2", "model.embed_tokens.weight", {96}, "[any, any], got [96]"},
      {"stablelm", "model.norm.bias", {65}, "[64], got [65]"},
      {"phi3", "model.layers.1.mlp.gate_up_proj.weight", {191, 64}, "[192, 64], got [191, 64]"},
      {"phi3", "model.layers.1.self_attn.qkv_proj.weight", {128, 32}, "[128, 64], got [128, 32]"},
      {"qwen3", "model.layers.1.self_attn.q_norm.weight", {0}, "[32], got [0]"},
      {"qwen3", "model.layers.1.self_attn.q_norm.weight", {48}, "[32], got [48]"},
      {"qwen2", "model.layers.1.mlp.up_proj.weight", nullptr, "no tensor"},
      {"qwen2", "model.layers.1.mlp.gate_proj.weight", nullptr, "no tensor"},
      {"starcoder2", "model.layers.1.mlp.c_fc.weight", nullptr, "no tensor model.layers.1.mlp.fc1.weight"},
      {"qwen2", "model.layers.1.input_layernorm.weight", nullptr, "no tensor"},
      {"qwen2", "model.layers.1.post_attention_layernorm.weight", nullptr,
       "other tensors in model.layers.1.*"},
      {"qwen2", "model.layers.1.self_attn.q_proj.bias", nullptr, "other tensors in model.layers.1.*"},
      {"qwen2", "model.norm.weight", nullptr, "no tensor model.norm.weight"},
      {"qwen2", "model.embed_tokens.weight", nullptr, "no tensor model.embed_tokens.weight"},
  };
  for (const change& of : changes) {
    INFO(of.family << ": " << of.tensor << " " << of.shape.dump());
    json record = testing::recorded_logits(of.family);
    REQUIRE(record["tensors"].erase(of.tensor) == 1);
    if (!of.shape.is_null()) record["tensors"][of.tensor] = of.shape;
    CHECK(testing::throws_saying<std::runtime_error>([&] { decoder_of<float>(record, "F32"); }, of.message));
  }
}

TEST_CASE("a norm whose weight differs between heads throws", "[examples][decoder]") {
  json record = testing::recorded_logits("cohere");  // use_qk_norm, as in Command R+
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    record["tensors"][std::string(layer) + "self_attn.q_norm.weight"] = {4, 16};
    record["tensors"][std::string(layer) + "self_attn.k_norm.weight"] = {2, 16};
  }
  CHECK(testing::throws_saying<std::runtime_error>([&] { decoder_of<float>(record, "F32"); },
                                                   "q_norm.weight must have the shape [16], got [4, 16]"));
}

TEST_CASE("a checkpoint without its last layer throws", "[examples][decoder]") {
  json record = testing::recorded_logits("llama_2");
  record["config"]["num_hidden_layers"] = 3;
  const auto load = [&] { decoder_of<float>(record, "F32"); };
  CHECK(testing::throws_saying<std::runtime_error>(load, "no tensor model.layers.2."));
  record["config"]["num_hidden_layers"] = 1;
  CHECK(testing::throws_saying<std::runtime_error>(load, "model.layers.1.", "does not know"));
  record["config"].erase("num_hidden_layers");
  CHECK(testing::throws_saying<std::runtime_error>(load, "num_hidden_layers"));
}
