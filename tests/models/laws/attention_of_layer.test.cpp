// SPDX-License-Identifier: MIT
// The attention of layers that a file describes: window, direction, scale and softcap, by layer.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <rope/models.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using rope::Index;
using testing::json;

/// A config of four layers, changed by `more`.
rope::model_rope hugging_face(const std::string& model_type, const json& more) {
  json config = {
      {"model_type", model_type}, {"num_hidden_layers", 4}, {"num_attention_heads", 4}, {"head_dim", 64}};
  config.update(more);
  return rope::import_hugging_face(config);
}
rope::model_rope gguf(const std::string& architecture, const json& more) {
  json entries = {{".block_count", 4}, {".embedding_length", 256}, {".attention.head_count", 4}};
  entries.update(more);
  return rope::import_gguf(testing::gguf(architecture, entries));
}

/// The window of every layer, "?" if it is unknown: "16 0 ? 0".
std::string windows(const rope::model_rope& model, Index layers = 4) {
  std::string text;
  for (Index layer = 0; layer < layers; ++layer) {
    std::string window = "?";
    try {
      window = std::to_string(model.attention_of_layer(layer).window);
    } catch (const std::invalid_argument&) {
    }
    text += (layer > 0 ? " " : "") + window;
  }
  return text;
}

}  // namespace

// Source of each row: configuration_<model_type>.py and the mask of its model, transformers of 2026-08.
TEST_CASE("windows of layers are those of the class", "[models][attention_of_layer]") {
  const json window = {{"sliding_window", 16}};
  const auto with = [&](json more) {
    more.update(window);
    return more;
  };
  const json types = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  CHECK(windows(hugging_face("llama", json::object())) == "0 0 0 0");
  CHECK(windows(hugging_face("llama", window)) == "0 0 0 0");  // its class has no such key
  CHECK(windows(hugging_face("mistral", window)) == "16 16 16 16");
  CHECK(windows(hugging_face("mistral", {{"sliding_window", nullptr}})) == "0 0 0 0");
  CHECK(windows(hugging_face("mistral", json::object())) == "4096 4096 4096 4096");
  for (const char* name : {"mixtral", "phi3", "phimoe", "starcoder2"}) {
    INFO(name);
    CHECK(windows(hugging_face(name, window)) == "16 16 16 16");
    CHECK(windows(hugging_face(name, json::object())) == "0 0 0 0");
  }
  for (const char* name : {"qwen2", "qwen3"}) {
    INFO(name);
    const json asked = with({{"use_sliding_window", true}, {"max_window_layers", 3}});
    CHECK(windows(hugging_face(name, window)) == "0 0 0 0");  // use_sliding_window is false by default
    CHECK(windows(hugging_face(name, with({{"use_sliding_window", false}, {"layer_types", types}}))) ==
          "0 0 0 0");
    CHECK(windows(hugging_face(name, asked)) == "0 0 0 16");
    CHECK(windows(hugging_face(name, with({{"use_sliding_window", true}, {"layer_types", types}}))) ==
          "16 0 0 16");
    CHECK(windows(hugging_face(name, with({{"use_sliding_window", true}}))) == "0 0 0 0");  // from 28 on
    CHECK(windows(hugging_face(name, {{"use_sliding_window", true}, {"max_window_layers", 3}})) ==
          "0 0 0 4096");
  }
  CHECK(windows(hugging_face("dots1", json::object())) == "0 0 0 0");  // from 62 on
  const auto many = hugging_face("dots1", with({{"num_hidden_layers", 64}}));
  CHECK(many.attention_of_layer(61).window == 0);
  CHECK(many.attention_of_layer(62).window == 16);
  CHECK(windows(hugging_face("modernbert", json::object())) == "0 65 65 0");
  CHECK(windows(hugging_face("modernbert-decoder", {{"local_attention", 100}})) == "0 50 50 0");
  CHECK(windows(hugging_face("afmoe", {{"sliding_window", nullptr}})) == "0 0 0 0");
  CHECK(windows(hugging_face("dots1", with({{"max_window_layers", 2}}))) == "0 0 16 16");
  CHECK(windows(hugging_face("qwen2_moe", window)) == "0 0 0 0");
  CHECK(windows(hugging_face("qwen2_moe", with({{"use_sliding_window", true}}))) == "16 0 16 0");
  CHECK(windows(hugging_face("smollm3", window)) == "0 0 0 0");
  CHECK(windows(hugging_face("gemma2", window)) == "16 0 16 0");
  CHECK(windows(hugging_face("gemma2", json::object())) == "4096 0 4096 0");
  CHECK(testing::has_warning(hugging_face("gemma2", json::object()).warnings,
                             "sliding_window is not given; assumed 4096, the default of gemma2"));
  CHECK_FALSE(testing::has_warning(hugging_face("gemma2", window).warnings, "assumed 16"));
  CHECK_FALSE(testing::has_warning(hugging_face("qwen2", json::object()).warnings, "window"));  // no windows
  CHECK(windows(hugging_face("gemma3_text", with({{"num_hidden_layers", 7}})), 7) == "16 16 16 16 16 0 16");
  CHECK(windows(hugging_face("cohere2", json::object())) == "4096 4096 4096 0");
  CHECK(windows(hugging_face("cohere2", {{"sliding_window", 1}})) == "1 1 1 0");
  CHECK(windows(hugging_face("gpt_oss", with({{"rope_parameters", {{"rope_type", "default"}}}}))) ==
        "16 0 16 0");
  CHECK(windows(hugging_face("llama4_text", {{"layer_types",
                                              {"chunked_attention", "full_attention", "chunked_attention",
                                               "chunked_attention"}}})) == "? 0 ? ?");
  CHECK(windows(hugging_face("llama4_text", json::object())) == "? ? ? 0");  // its class uses chunks anyway
}

TEST_CASE("families with several kinds of layers have the windows of their kinds",
          "[models][attention_of_layer]") {
  const json window = {{"sliding_window", 16}};
  const auto types = [&](const char* a, const char* b, json more = json::object()) {
    more.update({{"layer_types", {a, b, b, a}}, {"sliding_window", 16}});
    return more;
  };
  const char *full = "full_attention", *slides = "sliding_attention";
  CHECK(windows(hugging_face("cohere2_moe", {{"sliding_window", 16}, {"first_k_dense_replace", 1}})) ==
        "0 16 16 16");
  for (const char* name :
       {"laguna", "mellum", "mimo_v2_flash", "granite_swa", "granitemoe_swa", "muse_glimmer", "step3p5"}) {
    INFO(name);
    CHECK(windows(hugging_face(name, types(full, slides, {{"head_dim", 192}}))) == "0 16 16 0");
  }
  CHECK(windows(hugging_face("laguna", json::object())) == "0 0 0 0");
  CHECK(windows(hugging_face("mimo_v2_flash", {{"sliding_window", 16}, {"head_dim", 192}})) == "0 16 16 16");
  CHECK(windows(hugging_face("granite_swa", window)) == "0 16 16 16");
  CHECK(windows(hugging_face("muse_glimmer", window)) == "16 16 16 0");
  CHECK(windows(hugging_face("zaya", types("hybrid", "hybrid_sliding"))) == "0 16 16 0");
  // Layers without attention, and those with compressed keys, have no known window.
  CHECK(windows(hugging_face("granitemoehybrid", types("attention", "mamba",
                                                       {{"position_embedding_type", "rope"}}))) == "0 ? ? 0");
  CHECK(windows(hugging_face("deepseek_v4", types(slides, "compressed_sparse_attention"))) == "16 ? ? 16");
  const auto zamba =
      hugging_face("zamba2", types("hybrid", "mamba", {{"use_mem_rope", true}, {"hidden_size", 256}}));
  CHECK(windows(zamba) == "0 ? ? 0");
  CHECK(zamba.attention_of_layer(0).scale == 1 / std::sqrt(64.0));
  CHECK(zamba.rotation_of_layer(1) == rope::layer_rotation::none);
}

TEST_CASE("an encoder attends in both directions", "[models][attention_of_layer]") {
  const auto modern = hugging_face("modernbert", {{"local_attention", 128}});
  CHECK_FALSE(modern.causal);
  CHECK(windows(modern) == "0 65 65 0");
  CHECK_FALSE(modern.attention_of_layer(0).causal);
  const auto embedding =
      hugging_face("gemma3_text", {{"sliding_window", 512}, {"use_bidirectional_attention", true}});
  CHECK_FALSE(embedding.causal);
  CHECK(windows(embedding) == "257 257 257 257");
  CHECK(windows(hugging_face("gemma2", {{"sliding_window", 16}, {"use_bidirectional_attention", true}})) ==
        "? 0 ? 0");
  CHECK(hugging_face("llama", json::object()).causal);
}

TEST_CASE("windows of GGUF files are those that llama.cpp masks", "[models][attention_of_layer]") {
  const json window = {{".attention.sliding_window", 16}};
  const auto with = [&](json more) {
    more.update(window);
    return more;
  };
  CHECK(windows(gguf("llama", json::object())) == "0 0 0 0");
  CHECK(windows(gguf("llama", window)) == "0 0 0 0");
  CHECK(windows(gguf("gemma2", window)) == "16 0 16 0");
  CHECK(windows(gguf("gemma2", json::object())) == "4096 0 4096 0");  // the default of its code
  CHECK(windows(gguf("gpt-oss", json::object())) == "? 0 ? 0");
  CHECK(windows(gguf("smallthinker", window)) == "0 4096 4096 4096");  // for every value in the file
  CHECK(windows(gguf("gemma3", json::object())) == "0 0 0 0");
  CHECK(windows(gguf("cohere2", with({{".attention.sliding_window_pattern", {0, 1, 1, 0}}}))) == "0 16 16 0");
  CHECK(windows(gguf("llama4", window)) == "? ? ? 0");  // chunks
  CHECK(windows(gguf("laguna", window)) == "0 16 16 16");
  CHECK(windows(gguf("laguna", json::object())) == "0 0 0 0");
  for (const char* name : {"cohere2moe", "granite_swa", "step35"}) {
    INFO(name);
    CHECK(windows(gguf(name, with({{".attention.sliding_window_pattern", {0, 1, 1, 0}}}))) == "0 16 16 0");
  }
  CHECK(windows(gguf("deepseek4", with({{".attention.compress_ratios", {0, 4, 128, 0}},
                                        {".attention.compress_rope_freq_base", 1.6e5}}))) == "16 ? ? 16");
  CHECK(windows(gguf("modern-bert", with({{".attention.causal", 0}}))) == "0 9 9 0");
  CHECK_FALSE(gguf("modern-bert", with({{".attention.causal", 0}})).causal);
  CHECK_FALSE(gguf("gemma-embedding", window).attention_of_layer(0).causal);
  CHECK(gguf("gpt-oss", json::object()).sink_logits);
  CHECK_FALSE(gguf("llama", json::object()).sink_logits);
}

TEST_CASE("scale and softcap are imported with the window", "[models][attention_of_layer]") {
  const auto gemma = hugging_face(
      "gemma2", {{"sliding_window", 16}, {"query_pre_attn_scalar", 144}, {"attn_logit_softcapping", 30.0}});
  for (const Index layer : {Index{0}, Index{1}}) {
    const auto options = gemma.attention_of_layer(layer);
    CHECK(options.scale == 1.0 / 12);
    CHECK(options.softcap == 30);
    CHECK(options.causal);
  }
  const auto gpt =
      hugging_face("gpt_oss", {{"sliding_window", 16}, {"rope_parameters", {{"rope_type", "default"}}}});
  CHECK(gpt.sink_logits);
  CHECK(gpt.attention_of_layer(1).sink_logits.empty());
}

// Gemma 3 and T5Gemma 2 keep the key of Gemma 2 in their configuration classes, but their attention does not
// use it. Other classes of transformers with rotation do not have it.
TEST_CASE("scores are capped if the architecture caps them", "[models][attention_of_layer]") {
  const std::string key = "attn_logit_softcapping";
  const json given = {{key, 30.0}};
  for (const char* type : {"gemma2", "t5_gemma_module", "vaultgemma"}) {
    CAPTURE(type);
    const auto model = hugging_face(type, given);
    CHECK(model.groups().front().softcap == 30);
    CHECK_FALSE(testing::has_warning(model.warnings, key));
    CHECK(hugging_face(type, {{key, nullptr}}).groups().front().softcap == 0);
  }
  for (const char* type : {"llama", "gemma3_text", "gemma3n_text", "t5gemma2_text", "t5gemma2_decoder"}) {
    CAPTURE(type);
    const auto model = hugging_face(type, given);
    for (const rope::layer_group& group : model.groups()) CHECK(group.softcap == 0);
    CHECK(testing::has_warning(model.warnings, key + " is not read by the class of "));
    CHECK_FALSE(testing::has_warning(hugging_face(type, {{key, nullptr}}).warnings, key));
  }
  // The effect in an unknown architecture is unknown.
  const json novel = {{"model_type", "novel"}, {"head_dim", 64}, {key, 30.0}};
  CHECK(
      rope::import_hugging_face(novel, {.layout = rope::layout_kind::half_split}).groups().front().softcap ==
      30);
}

// Source: configuration_qwen3_moe.py, configuration_qwen2_moe.py, configuration_qwen2_5_omni.py and
// configuration_smollm3.py, transformers of 2026-08. One mask for all layers in modeling_qwen3_moe.py.
TEST_CASE("a class assumes its default window if one is requested", "[models][attention_of_layer]") {
  const json asked = {{"use_sliding_window", true}};
  const auto with = [&](json more) { return testing::changed(asked, more); };
  CHECK(windows(hugging_face("qwen3_moe", asked)) == "4096 4096 4096 4096");
  CHECK(windows(hugging_face("qwen3_moe", with({{"sliding_window", 16}}))) == "16 16 16 16");
  CHECK(windows(hugging_face("qwen3_moe", {{"use_sliding_window", true}, {"sliding_window", nullptr}})) ==
        "0 0 0 0");
  CHECK(windows(hugging_face("qwen3_moe", {{"sliding_window", 16}})) == "0 0 0 0");
  CHECK(windows(hugging_face("qwen2_moe", asked)) == "4096 0 4096 0");
  CHECK(windows(hugging_face("qwen2_moe", with({{"max_window_layers", 2}}))) == "4096 0 0 0");
  CHECK(windows(hugging_face("qwen2_moe", {{"max_window_layers", 2}})) == "0 0 0 0");
  CHECK(windows(hugging_face("smollm3", asked)) == "0 0 0 0");
  CHECK(windows(hugging_face("smollm3", with({{"sliding_window", 16}}))) == "0 0 0 16");
  CHECK(windows(hugging_face("smollm3", with({{"sliding_window", 16}, {"no_rope_layers", {0, 1, 0, 1}}}))) ==
        "16 0 16 0");
  CHECK(windows(hugging_face("smollm3", {{"sliding_window", 16}})) == "0 0 0 0");
  for (const char* type : {"qwen2_5_omni_text", "qwen2_5_omni_talker"}) {
    CAPTURE(type);
    CHECK(windows(hugging_face(type, with({{"max_window_layers", 2}}))) == "0 0 32768 32768");
    CHECK(windows(hugging_face(type, asked)) == "0 0 0 0");  // from layer 28 on
    CHECK(windows(hugging_face(type, {{"max_window_layers", 2}})) == "0 0 0 0");
  }
}

TEST_CASE("a layer that does not rotate follows the same rules of attention",
          "[models][attention_of_layer]") {
  const auto model = hugging_face("cohere2", {{"sliding_window", 16}});
  REQUIRE(model.group_of_layer(3) == nullptr);
  CHECK(model.attention_of_layer(3).window == 0);
  CHECK(model.attention_of_layer(3).scale == model.attention_of_layer(0).scale);
}

TEST_CASE("a group whose layers have equal attention reports it", "[models][attention_of_group]") {
  const char *full = "full_attention", *slides = "sliding_attention";
  const json types = {{"layer_types", {slides, full, slides, full}}, {"sliding_window", 16}};
  const auto gemma3 = hugging_face("gemma3_text", types);
  REQUIRE(gemma3.groups().size() == 2);
  for (const rope::layer_group& group : gemma3.groups()) {
    const rope::attention_options options = gemma3.attention_of_group(group.layer_type);
    const rope::Index layer = group.layer_type == slides ? 0 : 1;
    CHECK(options.window == (layer == 0 ? 16 : 0));
    CHECK(options.scale == group.scale);
    CHECK(options.softcap == gemma3.attention_of_layer(layer).softcap);
    CHECK(options.causal == gemma3.attention_of_layer(layer).causal);
  }
  CHECK_THROWS_WITH(gemma3.attention_of_group("other"),
                    testing::ContainsSubstring("no layer rotates as type"));
  CHECK_THROWS_AS(gemma3.attention_of_group(""), std::invalid_argument);

  // One group of layers with two windows: the types have options, the whole group has none.
  const auto gemma2 = hugging_face("gemma2", types);
  REQUIRE(gemma2.groups().size() == 1);
  CHECK(gemma2.attention_of_group(slides).window == 16);
  CHECK(gemma2.attention_of_group(full).window == 0);
  CHECK_THROWS_WITH(
      gemma2.attention_of_group(""),
      testing::ContainsSubstring("have the windows 16 and 0; call it for each of attention_types"));
  CHECK(gemma2.attention_types() == std::vector<std::string>{slides, full});
  CHECK(hugging_face("mistral", {{"sliding_window", 16}}).attention_of_group("").window == 16);

  // Layers that do not rotate are in no group: those of Cohere 2 with full attention.
  CHECK(hugging_face("cohere2", {{"sliding_window", 16}}).attention_of_group("").window == 16);
  CHECK_THROWS_WITH(hugging_face("minicpm", {{"sliding_window", 16}}).attention_of_group(""),
                    testing::ContainsSubstring("the attention window of layer 0 is not known"));
}

// The loops of model_rope.hpp, over every recorded file. attention_kind_of_layer agrees with the calls, and
// rotate_layer answers for the layers of which the file describes all.
TEST_CASE("the documented loops work for every model that imports", "[models][attention_of_layer]") {
  using rope::layer_attention, rope::layer_rotation;
  int files = 0, in_chunks = 0, not_known = 0;
  const auto check = [&](const rope::model_rope& model) {
    ++files;
    std::map<std::string, rope::attention_options> options_of;
    for (const std::string& type : model.attention_types()) options_of[type] = model.attention_of_group(type);
    const rope::model_tables tables(model, 4);
    bool chunks = false, unknown = false;
    std::vector<rope::key_range> ranges;
    for (Index layer = 0; layer < std::max<Index>(model.layer_count(), 1); ++layer) {
      CAPTURE(layer);
      const layer_attention kind = model.attention_kind_of_layer(layer);
      const bool rotates = model.rotation_of_layer(layer) == layer_rotation::in_group;
      const std::string type = model.layers().empty() ? "" : model.layers()[static_cast<std::size_t>(layer)];
      if (kind == layer_attention::in_options) {
        const Index window = model.attention_of_layer(layer).window;
        if (rotates && options_of.contains(type)) CHECK(options_of.at(type).window == window);
      } else {
        CHECK_THROWS_AS(model.attention_of_layer(layer), std::invalid_argument);
        if (rotates) CHECK_FALSE(options_of.contains(type));
      }
      CHECK((kind == layer_attention::in_chunks) == (model.chunk_of_layer(layer) > 0));
      chunks = chunks || kind == layer_attention::in_chunks;
      unknown = unknown || (rotates && kind == layer_attention::not_known);
      if (kind == layer_attention::not_known || !rotates || model.keys_are_values ||
          model.scaled == rope::scaled_queries::not_known)
        continue;
      const Index head_dim = model.group_of_layer(layer)->head_dim;
      std::vector<float> q(static_cast<std::size_t>(head_dim), 1), k = q;
      const std::vector<float> sinks(model.layer_has_sinks(layer) ? 1 : 0);
      const auto options =
          rope::rotate_layer(tables, layer, rope::bshd(q.data(), 1, 1, 1, head_dim),
                             rope::bshd(k.data(), 1, 1, 1, head_dim), 3, ranges, std::span(sinks));
      CHECK(options.key_ranges.empty() == (kind == layer_attention::in_options));
    }
    in_chunks += chunks;
    not_known += unknown;
  };
  for (const char* name :
       {"hugging_face", "transformers_classes", "transformers_layers", "both_formats", "gguf"}) {
    const json file = testing::recorded(std::string("models/") + name);
    for (const json& record : file.at("records")) {
      CAPTURE(record.dump());
      if (record.contains("metadata"))
        check(rope::import_gguf(
            testing::gguf(record.at("metadata").at("general.architecture"), record.at("metadata"))));
      std::optional<rope::model_rope> of_config;
      if (record.contains("config")) try {
          of_config = rope::import_hugging_face(record.at("config"));
        } catch (const std::invalid_argument&) {  // other tests have the reasons
        }
      if (of_config) check(*of_config);
    }
  }
  CHECK(files >= 1250);
  CHECK(in_chunks >= 5);
  CHECK(not_known >= 10);
  CHECK(not_known <= 40);  // of them, files without a window, or without the number of their layers
}

TEST_CASE("an unknown value of a layer is reported", "[models][attention_of_layer]") {
  const auto model = hugging_face("gemma2", {{"use_bidirectional_attention", true}});
  CHECK_THROWS_AS(model.attention_of_layer(-1), std::out_of_range);
  CHECK_THROWS_AS(model.attention_of_layer(4), std::out_of_range);
  CHECK_THROWS_WITH(model.attention_of_layer(4), testing::ContainsSubstring("from 0 to 3, got 4"));
  CHECK_THROWS_WITH(model.attention_of_layer(0),
                    testing::ContainsSubstring("the attention window of layer 0 is not known"));
  // Groups of several scales, and a layer of neither.
  const auto gemma4 = hugging_face(
      "gemma4_text", {{"layer_types", {"full_attention", "sliding_attention", "novel", "full_attention"}},
                      {"sliding_window", 16},
                      {"query_pre_attn_scalar", 64},
                      {"rope_parameters",
                       {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}});
  CHECK_THROWS_WITH(gemma4.attention_of_layer(2), testing::ContainsSubstring("layer 2"));
}

// Source: transformers of 2026-08-16, run by reference_layers.py: one mask for all layers in
// modeling_mistral.py and its kin, no window in modeling_llama.py and its kin, masks by layer_types in
// modeling_ministral.py and modeling_smollm3.py.
TEST_CASE("types of layers determine windows only if the class reads them", "[models][attention_of_layer]") {
  const char *full = "full_attention", *slides = "sliding_attention";
  const json types = {{"layer_types", {full, slides, slides, full}}, {"sliding_window", 16}};
  const std::string unread = "layer_types is not read by the class of ";
  for (const char* name : {"mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral3"}) {
    INFO(name);
    json file = types;
    if (std::string(name) == "ministral3") file["rope_parameters"] = {{"rope_type", "default"}};
    CHECK(windows(hugging_face(name, file)) == "16 16 16 16");
    CHECK(testing::has_warning(hugging_face(name, file).warnings,
                               unread + name + " where layers slide: all do, or none"));
    file["layer_types"] = {slides, slides, slides, slides};
    CHECK_FALSE(testing::has_warning(hugging_face(name, file).warnings, unread));
  }
  for (const char* name : {"llama", "gemma", "qwen3_vl_text", "olmo2"}) {
    INFO(name);
    CHECK(windows(hugging_face(name, types)) == "0 0 0 0");
    CHECK(testing::has_warning(hugging_face(name, types).warnings,
                               unread + name + " where layers slide: none does"));
    json file = types;
    file["layer_types"] = {full, full, full, full};
    CHECK(windows(hugging_face(name, file)) == "0 0 0 0");
    CHECK_FALSE(testing::has_warning(hugging_face(name, file).warnings, unread));
  }
  for (const char* name : {"ministral", "smollm3", "gemma2", "qwen3_omni_moe_talker_code_predictor"}) {
    INFO(name);
    CHECK(windows(hugging_face(name, types)) == "0 16 16 0");
    CHECK_FALSE(testing::has_warning(hugging_face(name, types).warnings, unread));
  }
}
