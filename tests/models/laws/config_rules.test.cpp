// SPDX-License-Identifier: MIT
// Rules that hold for every config.json, each tested on several architectures. Sources: Hugging Face
// transformers, modeling_rope_utils.py of 2026-09 (standardize_rope_params, convert_rope_params_to_dict,
// nested_rope_parameter_keys) and configuration_*.py of the named models, mlx-lm, models/mimo_v2_flash.py and
// kimi_linear.py. Numbers are computed from their formulas.
#include <rope/models/hugging_face.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <rope/models/describe.hpp>
#include <rope/models/tables.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"
#include "support/schedules.hpp"

namespace {

using rope::import_hugging_face;
using rope::Index;
using rope::layer_group;
using testing::changed;
using testing::has_warning;
using testing::json;
using testing::rounds_to;

const json small = {{"hidden_size", 64},
                    {"num_attention_heads", 4},
                    {"num_hidden_layers", 4},
                    {"max_position_embeddings", 4096}};

rope::model_rope model_of(const char* type, const json& changes, const json& base = small) {
  json file = changed(base, changes);
  file["model_type"] = type;
  return import_hugging_face(file);
}

/// How many warnings contain the text.
std::size_t warnings_with(const rope::model_rope& model, const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(model.warnings.begin(), model.warnings.end(),
                    [&](const std::string& warning) { return warning.find(text) != std::string::npos; }));
}

bool rejects(const json& file, const std::string& text, const rope::hugging_face_options& options = {}) {
  return testing::throws_saying<std::invalid_argument>([&] { import_hugging_face(file, options); }, text);
}

const rope::hugging_face_options describe_it = {.without_rope = rope::model_without_rope::describe};

}  // namespace

TEST_CASE(
    "original_max_position_embeddings: next to the dictionary, then inside, then the class, then the context",
    "[models][config_rules]") {
  constexpr const char* key = "original_max_position_embeddings";
  const auto original = [](const rope::model_rope& model) {
    return model.groups().front().number("original_max_position", 0);
  };
  const json eight(std::vector<double>(8, 2.0));
  for (const char* type : {"yarn", "llama3", "longrope"})
    for (const char* dictionary : {"rope_scaling", "rope_parameters"}) {
      CAPTURE(type, dictionary);
      const json rope = {{"rope_type", type},    {"rope_theta", 10000},   {"factor", 4},
                         {"low_freq_factor", 1}, {"high_freq_factor", 4}, {"short_factor", eight},
                         {"long_factor", eight}};
      const json alone = {{dictionary, rope}}, inside = {{dictionary, {{key, 1024}}}}, outside = {{key, 512}};
      const auto both = model_of("llama", changed(changed(alone, inside), outside));
      CHECK(original(both) == 512);
      CHECK(warnings_with(both, std::string(dictionary) + "." + key + " is overruled by " + key) == 1);
      const auto one = model_of("llama", changed(alone, inside));
      CHECK(original(one) == 1024);
      CHECK(warnings_with(one, key) == 0);
      const auto other = model_of("llama", changed(alone, outside));
      CHECK(original(other) == 512);
      CHECK(warnings_with(other, key) == 0);
      const auto same = model_of("llama", changed(changed(alone, inside), {{key, 1024}}));
      CHECK(warnings_with(same, key) == 0);
      const auto none = model_of("llama", alone);
      CHECK(original(none) == 4096);
      CHECK(warnings_with(none, std::string(key) + " is not given; assumed 4096, which is "
                                                   "max_position_embeddings") == 1);
      for (const char* phi : {"phi3", "phi4_multimodal", "phi3_v"}) {
        CAPTURE(phi);
        const auto by_class = model_of(phi, changed(alone, {{"max_position_embeddings", 131072}}));
        CHECK(original(by_class) == 4096);
        CHECK(warnings_with(by_class, key) == 1);
        CHECK(has_warning(by_class.warnings, key, "assumed 4096, the default of " + std::string(phi)));
        if (std::string(type) == "longrope") {
          json longrope = changed(alone, {{"max_position_embeddings", 131072}});
          longrope[dictionary].erase("factor");
          const double m = std::sqrt(1 + std::log(131072.0 / 4096) / std::log(4096.0));
          CHECK(rounds_to(model_of(phi, longrope).groups().front().frequencies.attention_factor(), m, 12));
        }
      }
    }
  // Beyond the length that the class assumes, the long factors apply.
  json phi = {{"model_type", "phi3"},
              {"max_position_embeddings", 131072},
              {"rope_scaling", {{"type", "longrope"}, {"short_factor", eight}, {"long_factor", eight}}}};
  phi = changed(small, phi);
  CHECK(import_hugging_face(phi, {.length = 4096}).groups()[0].number("uses_long_factor", 2) == 0);
  CHECK(import_hugging_face(phi, {.length = 4097}).groups()[0].number("uses_long_factor", 2) == 1);
  // A file with the length only inside keeps it, and a warning names the length that the class would use.
  const auto inside_only = model_of("phi3", changed(phi, {{"rope_scaling", {{key, 2048}}}}));
  CHECK(original(inside_only) == 2048);
  CHECK(has_warning(inside_only.warnings, key, "4096", "phi3"));
  // The growth of queries with their position starts at the same length.
  const auto ministral = model_of(
      "ministral3", {{key, 512},
                     {"rope_parameters",
                      {{"rope_type", "yarn"}, {"factor", 4}, {key, 1024}, {"llama_4_scaling_beta", 0.1}}}});
  CHECK(ministral.query_rule(511) == 1);
  CHECK(ministral.query_rule(512) > 1);
}

TEST_CASE("original_max_position_embeddings next to dictionaries for types of layers is not read",
          "[models][config_rules]") {
  // transformers, standardize_rope_params: nested dictionaries have their own key, otherwise
  // max_position_embeddings.
  constexpr const char* key = "original_max_position_embeddings";
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4}, {"rope_theta", 500000}};
  const json types = {
      {"max_position_embeddings", 4096},
      {"sliding_window", 64},
      {"num_hidden_layers", 2},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"rope_parameters",
       {{"full_attention", yarn}, {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000}}}}}};
  const auto original = [](const rope::model_rope& model) {
    return model.group("full_attention")->number("original_max_position", 0);
  };
  const std::string nested = "rope_parameters.full_attention.";
  const json inside = {{"rope_parameters", {{"full_attention", {{key, 1024}}}}}}, outside = {{key, 512}};
  const auto one = model_of("gemma3_text", changed(types, inside));
  CHECK(original(one) == 1024);
  CHECK(warnings_with(one, key) == 0);
  const auto both = model_of("gemma3_text", changed(changed(types, inside), outside));
  CHECK(original(both) == 1024);
  CHECK(warnings_with(both, std::string(key) + " is overruled by " + nested + key) == 1);
  const auto alike = model_of("gemma3_text", changed(changed(types, inside), {{key, 1024}}));
  CHECK(original(alike) == 1024);
  CHECK(warnings_with(alike, key) == 0);
  const auto other = model_of("gemma3_text", changed(types, outside));
  CHECK(original(other) == 4096);
  CHECK(warnings_with(other, std::string(key) + " is not read beside dictionaries for types of layers; write "
                                                "it into rope_parameters.full_attention") == 1);
  CHECK(warnings_with(other, nested + key + " is not given; assumed 4096") == 1);
  // The older format, which the class converts to such dictionaries.
  const json older = {{"sliding_window", 64},
                      {"rope_local_base_freq", 10000},
                      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}},
                      {"max_position_embeddings", 4096}};
  const auto flat = model_of("gemma3_text", changed(older, outside));
  CHECK(original(flat) == 4096);
  CHECK(warnings_with(flat, std::string(key) + " is not read beside") == 1);
}

TEST_CASE("an invalid window throws with what to write", "[models][config_rules]") {
  for (const char* name : {"llama", "mistral", "gemma3_text", "qwen2"}) {
    CAPTURE(name);
    CHECK(rejects(
        changed(small, {{"model_type", name}, {"sliding_window", -1}}),
        "sliding_window must be a positive whole number up to 2^53, or 0 where no layer slides, got -1"));
    CHECK(model_of(name, {{"sliding_window", 0}}).sliding_window == 0);
  }
}

TEST_CASE("a period next to the list of layers that rotate is overridden if the two disagree",
          "[models][config_rules]") {
  const json list = {{"no_rope_layers", {1, 1, 1, 0}}};
  for (const char* name : {"smollm3", "llama4_text"}) {
    CAPTURE(name);
    const auto agrees = model_of(name, changed(list, {{"no_rope_layer_interval", 4}}));
    CHECK(agrees.layers_without_rope() == std::vector<Index>{3});
    CHECK(warnings_with(agrees, "no_rope_layer_interval") == 0);
    const auto differs = model_of(name, changed(list, {{"no_rope_layer_interval", 2}}));
    CHECK(differs.layers_without_rope() == std::vector<Index>{3});
    CHECK(warnings_with(differs, "no_rope_layer_interval is overruled by no_rope_layers") == 1);
  }
}

TEST_CASE("DBRX reads its base and its length from the keys of its class", "[models][config_rules]") {
  const json dbrx = {{"model_type", "dbrx"},
                     {"d_model", 128},
                     {"n_heads", 2},
                     {"n_layers", 2},
                     {"attn_config", {{"rope_theta", 500000}}}};
  const auto model = import_hugging_face(changed(dbrx, {{"rope_theta", 10000}}));
  CHECK(model.groups()[0].base == 500000);
  CHECK(has_warning(model.warnings, "rope_theta is overruled by attn_config.rope_theta"));
  CHECK(import_hugging_face(dbrx).groups()[0].base == 500000);
  CHECK_FALSE(has_warning(import_hugging_face(dbrx).warnings, "overruled"));
  const json yarn = {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}};
  const auto given = import_hugging_face(changed(changed(dbrx, yarn), {{"max_seq_len", 8192}}));
  CHECK(given.groups()[0].number("original_max_position", 0) == 8192);
  CHECK(given.max_position == 8192);
  CHECK(has_warning(given.warnings, "original_max_position_embeddings is not given; assumed 8192"));
  const auto by_class = import_hugging_face(changed(dbrx, yarn));
  CHECK(by_class.groups()[0].number("original_max_position", 0) == 2048);
  CHECK(has_warning(by_class.warnings, "max_seq_len is not given; assumed 2048"));
}

TEST_CASE("Muse Glimmer has one base, and its list says only which layers rotate", "[models][config_rules]") {
  const json muse = {
      {"head_dim", 16},
      {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}};
  for (const json& where :
       {json{{"rope_theta", 500000}}, json{{"rope_parameters", {{"rope_theta", 500000}}}}}) {
    const auto model =
        model_of("muse_glimmer_text",
                 changed(changed(muse, where), {{"layer_rope_theta", {10000, 0, 20000, 500000}}}));
    REQUIRE(model.groups().size() == 1);
    CHECK(model.groups()[0].base == 500000);
    CHECK(model.layers_without_rope() == std::vector<Index>{1});
    CHECK(has_warning(model.warnings, "layer_rope_theta", "500000", "rope_theta holds"));
    const auto agrees = model_of(
        "muse_glimmer_text", changed(changed(muse, where), {{"layer_rope_theta", {500000, 0, 500000, 0}}}));
    CHECK(agrees.layers_without_rope() == std::vector<Index>{1, 3});
    CHECK_FALSE(has_warning(agrees.warnings, "layer_rope_theta"));
  }
  const auto by_list =
      model_of("muse_glimmer_text", changed(muse, {{"layer_rope_theta", {500000, 0, 500000, 0}}}));
  CHECK(by_list.groups()[0].base == 500000);
  const auto by_class =
      model_of("muse_glimmer_text", changed(muse, {{"layer_rope_theta", {500000, 0, 20000, 0}}}));
  CHECK(by_class.groups()[0].base == 10000);
  CHECK(has_warning(by_class.warnings, "rope_theta base is not given; assumed 10000"));
  CHECK(rejects(changed(changed(small, muse),
                        {{"model_type", "muse_glimmer_text"}, {"layer_rope_theta", {0, 0, 0, 0}}}),
                "layer_rope_theta must not be 0 for every layer"));
}

TEST_CASE("MiMo-V2: which layers have windows, and which have sinks", "[models][config_rules]") {
  const json mimo = {{"num_hidden_layers", 6},
                     {"num_key_value_heads", 1},
                     {"head_dim", 192},
                     {"swa_head_dim", 192},
                     {"rope_theta", 5000000},
                     {"swa_rope_theta", 10000},
                     {"partial_rotary_factor", 0.334},
                     {"sliding_window", 128},
                     {"sliding_window_size", 128}};
  for (const auto& [pattern, windows] :
       std::vector<std::pair<json, std::vector<Index>>>{{{0, 1, 1, 1, 1, 0}, {0, 128, 128, 128, 128, 0}},
                                                        {{1, 0, 0, 1, 0, 1}, {128, 0, 0, 128, 0, 128}},
                                                        {{0, 0, 1, 1, 1, 1}, {0, 0, 128, 128, 128, 128}}}) {
    CAPTURE(pattern.dump());
    for (const char* type : {"mimo_v2_flash", "mimo_v2"}) {
      const auto model = model_of(type, changed(mimo, {{"hybrid_layer_pattern", pattern}}));
      CHECK(model.windows == windows);
      for (std::size_t i = 0; i < 6; ++i) {
        const auto layer = static_cast<Index>(i);
        CHECK(model.layer_has_sinks(layer) == (windows[i] == 128));
        CHECK(model.group_of_layer(layer)->base == (windows[i] == 128 ? 1e4 : 5e6));
        CHECK(model.group_of_layer(layer)->rotary_dim() == 64);
      }
      CHECK_FALSE(has_warning(model.warnings, "hybrid_layer_pattern"));
      CHECK_FALSE(has_warning(model.warnings, "sliding_window_size"));
    }
  }
  const json pattern = {{"hybrid_layer_pattern", {0, 1, 1, 1, 1, 0}}};
  const auto sinks = [&](const json& more) {
    const auto model = model_of("mimo_v2_flash", changed(changed(mimo, pattern), more));
    std::string text;
    for (Index i = 0; i < 6; ++i) text += model.layer_has_sinks(i) ? '1' : '0';
    return text + (model.sink_logits ? " some" : " none");
  };
  CHECK(sinks(json::object()) == "011110 some");  // as in the class
  CHECK(sinks({{"add_swa_attention_sink_bias", true}, {"add_full_attention_sink_bias", true}}) ==
        "111111 some");
  CHECK(sinks({{"add_swa_attention_sink_bias", false}, {"add_full_attention_sink_bias", true}}) ==
        "100001 some");
  CHECK(sinks({{"add_swa_attention_sink_bias", false}}) == "000000 none");
  const auto uncounted = model_of("mimo_v2_flash", {{"num_hidden_layers", nullptr}, {"sliding_window", 64}});
  CHECK(has_warning(uncounted.warnings,
                    "num_hidden_layers is not given: only layers that slide have sink logits"));
  // The bases and the share come from the file, and layers with a window may have their own heads.
  const auto other =
      model_of("mimo_v2_flash", changed(changed(mimo, pattern), {{"rope_theta", 640000},
                                                                 {"swa_rope_theta", 20000},
                                                                 {"partial_rotary_factor", 0.5},
                                                                 {"swa_head_dim", 128}}));
  CHECK(other.group("full_attention")->base == 640000);
  CHECK(other.group("sliding_attention")->base == 20000);
  CHECK(other.group("full_attention")->rotary_dim() == 96);
  CHECK(other.group("sliding_attention")->rotary_dim() == 64);
  CHECK(other.group("sliding_attention")->head_dim == 128);
  const auto size = model_of("mimo_v2_flash", changed(changed(mimo, pattern), {{"sliding_window", nullptr}}));
  CHECK(size.windows[1] == 128);
  const auto differ =
      model_of("mimo_v2_flash", changed(changed(mimo, pattern), {{"sliding_window_size", 64}}));
  CHECK(differ.windows[1] == 128);
  CHECK(has_warning(differ.warnings, "sliding_window_size is overruled by sliding_window"));
  CHECK(rejects(changed(changed(small, changed(mimo, {{"hybrid_layer_pattern", {0, 1}}})),
                        {{"model_type", "mimo_v2_flash"}}),
                "hybrid_layer_pattern must have num_hidden_layers values, 6, got 2"));
  CHECK(rejects(changed(changed(small, changed(mimo, {{"hybrid_layer_pattern", {0, 1, 2, 0, 0, 0}}})),
                        {{"model_type", "mimo_v2_flash"}}),
                "hybrid_layer_pattern must be 0 or 1, got 2"));
}

TEST_CASE("a pattern that the class does not read is reported by its name", "[models][config_rules]") {
  for (const char* type : {"llama", "qwen3", "gemma3_text", "gpt_oss", "deepseek_v3", "lfm2", "olmo3"})
    for (const char* key : {"hybrid_layer_pattern", "hybrid_attention_pattern", "attn_layer_pattern",
                            "block_layer_types", "some_layer_types", "my_pattern"}) {
      CAPTURE(type, key);
      json more = {{key, {0, 1, 0, 1}}, {"qk_nope_head_dim", 8}, {"qk_rope_head_dim", 8}};
      if (std::string(type) != "deepseek_v3") more.erase("qk_rope_head_dim");
      if (std::string(type) == "gpt_oss") more["rope_parameters"] = {{"rope_type", "default"}};
      CHECK(has_warning(model_of(type, more).warnings, key));
    }
}

TEST_CASE("a dictionary of dictionaries, or one for all layers", "[models][config_rules]") {
  const json plain = {{"rope_type", "default"}, {"rope_theta", 500000}};
  const json types = {
      {"layer_types", {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}};
  // One dictionary of type default applies to all layers of Olmo 3, whose two kinds have one base.
  for (const json& more : {json::object(), types}) {
    const auto olmo = model_of("olmo3", changed(more, {{"rope_parameters", plain}}));
    for (Index i = 0; i < 4; ++i) CHECK(olmo.group_of_layer(i)->base == 500000);
    const auto other = model_of("olmo3", changed(more, {{"rope_parameters", {{"rope_theta", 70000}}}}));
    for (Index i = 0; i < 4; ++i) CHECK(other.group_of_layer(i)->base == 70000);
    CHECK_FALSE(has_warning(other.warnings, "overruled"));
  }
  CHECK(rejects(changed(small, {{"model_type", "olmo3"},
                                {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}}}),
                "rope_parameters must have a dictionary per layer type"));
  // Nested if any key is the name of a type of layers, whatever the other keys are.
  const json both = {{"full_attention", {{"rope_theta", 1e6}}},
                     {"sliding_attention", {{"rope_theta", 7000}}}};
  for (const json& outside : {json{{"rope_theta", 3e6}}, json{{"rope_type", "default"}, {"rope_theta", 3e6}},
                              json{{"rope_type", "yarn"}, {"factor", 4}},
                              json{{"partial_rotary_factor", 0.5}}, json{{"note", {{"a", 1}}}}})
    for (const char* type : {"gemma3_text", "olmo3", "llama"}) {
      CAPTURE(outside.dump(), type);
      const auto model = model_of(
          type, changed(changed(types, {{"head_dim", 16}}), {{"rope_parameters", changed(both, outside)}}));
      CHECK(model.groups().size() == 2);
      CHECK(model.group_of_layer(1)->base == 1e6);
      CHECK(model.group_of_layer(0)->base == 7000);
      CHECK(model.group_of_layer(0)->rule == "default");
      for (const auto& item : outside.items())
        CHECK(has_warning(model.warnings, "rope_parameters." + item.key() + " is next to the layer types"));
    }
  // Only types of the file count, if its class has one kind of layers.
  const json full = {{"layer_types", std::vector<std::string>(4, "full_attention")}};
  const auto other = model_of(
      "llama",
      changed(full, {{"rope_parameters", changed(plain, {{"sliding_attention", {{"rope_theta", 7}}}})}}));
  CHECK(other.group_of_layer(0)->base == 500000);
  CHECK(has_warning(other.warnings, "rope_parameters.sliding_attention"));
  const auto short_gemma = model_of("gemma3_text", changed(full, {{"rope_parameters", both}}));
  CHECK(short_gemma.group("sliding_attention")->base == 7000);
  // A dictionary with its own keys, none of them a type of layers, is flat.
  const auto flat =
      model_of("llama", {{"rope_parameters", changed(plain, {{"extra", {{"rope_theta", 9}}}})}});
  REQUIRE(flat.groups().size() == 1);
  CHECK(flat.groups()[0].base == 500000);
  CHECK(has_warning(flat.warnings, "rope_parameters.extra"));
}

TEST_CASE("an odd share of a head is rounded down, with a warning", "[models][config_rules]") {
  struct share {
    const char* type;
    double factor;
    Index head_dim, rotary_dim;
  };
  for (const share& one :
       {share{"llama", 0.51, 128, 64}, share{"phi3", 0.33, 192, 62}, share{"glm4_moe", 0.2, 16, 2},
        share{"stablelm", 0.35, 20, 6}, share{"gpt_neox", 0.2, 35, 6}}) {
    CAPTURE(one.type, one.factor);
    json more = {
        {"head_dim", one.head_dim}, {"partial_rotary_factor", one.factor}, {"rotary_pct", one.factor}};
    if (std::string(one.type) != "gpt_neox") more.erase("rotary_pct");
    const auto model = model_of(one.type, more);
    CHECK(model.groups()[0].rotary_dim() == one.rotary_dim);
    CHECK(has_warning(model.warnings, "rounded down to " + std::to_string(one.rotary_dim)));
  }
  const json half = {{"rope_type", "default"}, {"rope_theta", 5e6}, {"partial_rotary_factor", 0.33}};
  const auto mimo = model_of(
      "mimo_v2_flash",
      {{"head_dim", 192}, {"rope_parameters", {{"full_attention", half}, {"sliding_attention", half}}}});
  CHECK(mimo.group("full_attention")->rotary_dim() == 62);
  CHECK(mimo.group("sliding_attention")->rotary_dim() == 62);
  CHECK(rejects(changed(small, {{"model_type", "llama"}, {"partial_rotary_factor", 0.1}}),
                "partial_rotary_factor"));
  CHECK(rejects(changed(small, {{"model_type", "llama"}, {"head_dim", 15}}), "head_dim"));
}

TEST_CASE("of two shares of a head the one in the dictionary applies, with a warning",
          "[models][config_rules]") {
  for (const char* type : {"glm4_moe", "llama", "phi3", "qwen3_next", "stablelm"})
    for (const char* dictionary : {"rope_parameters", "rope_scaling"}) {
      CAPTURE(type, dictionary);
      const json file = {
          {"head_dim", 64},
          {"partial_rotary_factor", 0.5},
          {dictionary, {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}}};
      const auto model = model_of(type, file);
      CHECK(model.groups()[0].rotary_dim() == 16);
      CHECK(has_warning(model.warnings, "partial_rotary_factor is overruled by " + std::string(dictionary) +
                                            ".partial_rotary_factor"));
      CHECK_FALSE(has_warning(model.warnings, "not understood"));
      const auto same = model_of(type, changed(file, {{"partial_rotary_factor", 0.25}}));
      CHECK_FALSE(has_warning(same.warnings, "overruled"));
      CHECK_FALSE(has_warning(same.warnings, "not understood"));
    }
  // The other names of a share behave in this way too, also next to rotary_dim.
  const auto neox =
      model_of("gpt_neox", {{"rotary_pct", 0.5}, {"rope_parameters", {{"partial_rotary_factor", 0.25}}}});
  CHECK(neox.groups()[0].rotary_dim() == 4);
  CHECK(has_warning(neox.warnings, "rotary_pct is overruled by rope_parameters.partial_rotary_factor"));
  const auto gptj = model_of("gptj", {{"rotary_dim", 8}, {"partial_rotary_factor", 0.25}});
  CHECK(gptj.groups()[0].rotary_dim() == 8);
  CHECK(has_warning(gptj.warnings, "partial_rotary_factor is overruled by rotary_dim"));
}

TEST_CASE("type is read as rope_type is, and no warning claims that a class ignores it",
          "[models][config_rules]") {
  for (const char* type : {"llama", "gemma3_text", "olmo3", "qwen2", "deepseek_v4"}) {
    CAPTURE(type);
    json file = {{"num_hidden_layers", 6}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}};
    if (std::string(type) == "deepseek_v4") file["compress_ratios"] = {0, 4, 0, 128, 0, 0};
    const auto model = model_of(type, file);
    CHECK(std::any_of(model.groups().begin(), model.groups().end(),
                      [](const layer_group& group) { return group.rule == "linear"; }));
    for (const std::string& warning : model.warnings) {
      CAPTURE(warning);
      if (warning.find("rope_scaling.type") != std::string::npos)
        CHECK(warning.find("class") == std::string::npos);
    }
  }
}

TEST_CASE("a list of known names also names the next place to look", "[models][config_rules]") {
  const json file =
      changed(small, {{"model_type", "llama"}, {"rope_scaling", {{"rope_type", "lineal"}, {"factor", 2}}}});
  CHECK(rejects(file, "known are default, linear"));
  CHECK(rejects(file, "see <rope/frequencies.hpp>"));
  CHECK(rejects(changed(small, {{"model_type", "novel"}}), "see include/rope/models/README.md"));
}

TEST_CASE("import reads the dictionary of a known architecture within the config", "[models][config_rules]") {
  const json llama = {{"model_type", "llama"},           {"hidden_size", 256},
                      {"num_attention_heads", 4},        {"head_dim", 64},
                      {"num_hidden_layers", 2},          {"rope_theta", 500000},
                      {"max_position_embeddings", 4096}, {"num_key_value_heads", 2}};
  for (const char* key :
       {"thinker_config", "llm_config", "language_config", "text_config", "language_model", "decoder"})
    for (const char* outer : {"novel_vl", "internvl_chat", "llava", "qwen2_5_omni"}) {
      CAPTURE(key, outer);
      const auto one = import_hugging_face(json{{"model_type", outer}, {key, llama}});
      CHECK(one.groups()[0].base == 500000);
      CHECK(one.groups()[0].head_dim == 64);
      CHECK(one.architecture == "llama");
      CHECK(one.warnings.empty());
      // One within another, as in Omni models.
      const auto two = import_hugging_face(
          json{{"model_type", outer}, {key, {{"model_type", "novel_thinker"}, {"text_config", llama}}}});
      CHECK(two.groups()[0].base == 500000);
      // Keys next to the dictionary are named with their path.
      json outside = {{"model_type", outer}, {"rope_theta", 7}, {key, changed(llama, {{"rope_tehta", 1}})}};
      const auto named = import_hugging_face(outside);
      CHECK(named.groups()[0].base == 500000);
      CHECK(has_warning(named.warnings, "rope_theta is next to " + std::string(key) + " and has no effect"));
      CHECK(has_warning(named.warnings, std::string(key) + ".rope_tehta is not understood"));
    }
  // By `architectures` if there is no model_type.
  json by_class = llama;
  by_class.erase("model_type");
  by_class["architectures"] = {"LlamaForCausalLM"};
  CHECK(import_hugging_face(json{{"model_type", "internvl_chat"}, {"llm_config", by_class}})
            .groups()[0]
            .head_dim == 64);
  // A known architecture with parts other than its text model is imported itself.
  const auto plain =
      import_hugging_face(changed(llama, {{"decoder", {{"model_type", "novel"}, {"width", 1}}}}));
  CHECK(plain.architecture == "llama");
  const auto own =
      import_hugging_face(changed(llama, {{"decoder", {{"model_type", "gpt_neox"}, {"head_dim", 8}}}}));
  CHECK(own.architecture == "llama");
  // The first known one of several parts. If none is known, the message has the keys to pass.
  const auto first = import_hugging_face(json{
      {"model_type", "novel"}, {"decoder", {{"model_type", "novel_decoder"}}}, {"language_config", llama}});
  CHECK(first.architecture == "llama");
  const json none = {{"model_type", "novel_omni"},
                     {"talker_config", {{"model_type", "novel_talker"}}},
                     {"decoder", {{"model_type", "novel_decoder"}}}};
  CHECK(rejects(none, "novel_omni"));
  CHECK(rejects(none, "decoder"));
  // This applies also if the caller names a layout.
  const rope::hugging_face_options halves = {.layout = rope::layout_kind::half_split};
  const json vl = {{"model_type", "novel_vl"},
                   {"llm_config", {{"model_type", "novel_llm"}, {"head_dim", 8}}}};
  CHECK(rejects(vl, "to read one of its parts, pass that dictionary: llm_config", halves));
  CHECK(import_hugging_face(vl.at("llm_config"), halves).groups()[0].head_dim == 8);
  const json talker = {{"model_type", "novel_omni"}, {"talker_config", llama}};
  CHECK(rejects(talker, "talker_config is of the known architecture llama; pass that dictionary"));
}

TEST_CASE("a text model in its own dictionary has the sizes of its class", "[models][config_rules]") {
  const json classes = testing::recorded("models/transformers_classes");
  std::size_t compared = 0;
  for (const json& record : classes.at("records")) {
    json config = record.at("config");
    const std::string type = config.at("model_type");
    for (const char* key : {"text_config", "llm_config", "thinker_config"}) {
      for (const std::vector<const char*>& gone :
           std::vector<std::vector<const char*>>{{"hidden_size", "num_attention_heads", "num_hidden_layers",
                                                  "num_key_value_heads", "max_position_embeddings"},
                                                 {"num_attention_heads"},
                                                 {"hidden_size"}}) {
        json left = config;
        bool had = false;
        for (const char* name : gone) had = left.erase(name) > 0 || had;
        if (!had) continue;
        CAPTURE(type, key, gone.front());
        std::string error;
        try {
          const auto whole = import_hugging_face(json{{"model_type", "of two parts"}, {key, config}});
          ++compared;
          const auto short_one = import_hugging_face(json{{"model_type", "of two parts"}, {key, left}});
          REQUIRE(short_one.groups().size() == whole.groups().size());
          for (std::size_t g = 0; g < whole.groups().size(); ++g) {
            CHECK(short_one.groups()[g].head_dim == whole.groups()[g].head_dim);
            CHECK(short_one.groups()[g].rotary_dim() == whole.groups()[g].rotary_dim());
          }
          CHECK(short_one.query_heads == whole.query_heads);
          CHECK(short_one.key_heads == whole.key_heads);
          CHECK(short_one.max_position == whole.max_position);
          CHECK(short_one.windows == whole.windows);
          CHECK(short_one.layers() == whole.layers());
          const bool needed =
              !config.contains("qk_rope_head_dim") || std::string(gone.front()) != "hidden_size";
          const bool named =
              has_warning(short_one.warnings, std::string(key) + ".", " is not given; assumed ");
          if (needed || gone.size() > 1) CHECK(named);
        } catch (const std::invalid_argument& caught) {
          // A model that throws as a whole, for a reason that other tests cover, may throw here too.
          error = caught.what();
          CHECK(testing::throws_saying<std::invalid_argument>(
              [&] {
                import_hugging_face(json{{"model_type", "of two parts"}, {key, config}});
              },
              "import_hugging_face"));
        }
      }
    }
  }
  CHECK(compared >= 600);
  // LLaVA 1.5.
  const json llava = {{"model_type", "llava"},
                      {"text_config", {{"model_type", "llama"}, {"max_position_embeddings", 4096}}}};
  const auto model = import_hugging_face(llava);
  CHECK(model.groups()[0].head_dim == 128);
  CHECK(model.query_heads == 32);
  CHECK(model.layer_count() == 0);  // all equal
  CHECK(has_warning(model.warnings,
                    "text_config.hidden_size is not given; assumed 4096, the default of llama"));
  CHECK(has_warning(model.warnings,
                    "text_config.num_attention_heads is not given; assumed 32, the default of llama"));
  const auto wide = import_hugging_face(
      json{{"model_type", "llava"},
           {"text_config", {{"model_type", "llama"}, {"hidden_size", 5120}, {"num_attention_heads", 40}}}});
  CHECK(wide.groups()[0].head_dim == 128);
  CHECK_FALSE(has_warning(wide.warnings, "hidden_size"));
  // A file of the text model alone must still have them.
  CHECK(rejects({{"model_type", "llama"}, {"num_attention_heads", 4}}, "head_dim is missing"));
}

TEST_CASE("every key about positions is used or named in a warning, at any depth", "[models][config_rules]") {
  const std::vector<json> configs = {
      testing::config("llama_3_1_8b"),
      testing::config("gemma_3_4b"),
      testing::config("deepseek_v3"),
      testing::config("gemma_3_4b_rope_parameters"),
      testing::config("modernbert_base"),
      testing::config("qwen2_vl_7b"),
      testing::config("phi_3_5_mini"),
      testing::config("llama_4_scout"),
      {{"model_type", "mimo_v2_flash"}, {"head_dim", 192}, {"num_hidden_layers", 6}},
      {{"model_type", "novel"},
       {"thinker_config", {{"model_type", "novel"}, {"text_config", {{"model_type", "qwen2"}}}}}},
      {{"model_type", "dbrx"}, {"d_model", 64}, {"n_heads", 4}, {"attn_config", {{"rope_theta", 1e5}}}},
      {{"model_type", "qwen3_next"}, {"num_hidden_layers", 8}},
      {{"model_type", "whisper"}},
      {{"model_type", "kimi_linear"}, {"mla_use_nope", true}}};
  const std::vector<const char*> names = {
      "my_rope_key",       "ROTARY_x",    "use_positions_of", "a_nope_b",        "hybrid_pattern",
      "attn_chunk_length", "yarn_thing",  "windowed_attn",    "max_window_size", "position_bias_cfg",
      "dual_chunk_config", "someRopeKey", "xLayerPattern",    "new_layer_types"};
  const std::vector<json> values = {1, 0.5, true, "text", {1, 0, 1}, {{"a", 1}}, {{"rope_inside", 2}}};
  std::size_t planted = 0;
  for (const json& config : configs)
    for (std::size_t n = 0; n < names.size(); ++n) {
      const std::string name = names[n];
      // Every dictionary of the file is tried, and so are new ones.
      std::vector<json::json_pointer> places = {json::json_pointer()};
      for (std::size_t at = 0; at < places.size(); ++at)
        for (const auto& item : config.at(places[at]).items())
          if (item.value().is_object()) places.push_back(places[at] / item.key());
      const std::size_t in_file = places.size();
      for (std::size_t at = 0; at < in_file; ++at)
        for (const char* more :
             {"extra", "attention", "vision_config", "sparse_attention_config", "quantization_config"})
          places.push_back(places[at] / more);
      for (std::size_t at = 0; at < places.size(); ++at) {
        json file = config;
        if (at >= in_file) {
          // A new dictionary in a rope dictionary is itself the key without effect.
          const std::string parent = places[at].parent_pointer().to_string();
          if (parent.find("rope_") != std::string::npos) continue;
        }
        file[places[at]][name] = values[(n + at) % values.size()];
        CAPTURE(file.dump(), places[at].to_string(), name);
        ++planted;
        const auto model = import_hugging_face(file, describe_it);
        CHECK(has_warning(model.warnings, name));
      }
    }
  CHECK(planted >= 1000);
  // In a list of dictionaries, and at greater depth.
  json deep = testing::config("llama_2_7b");
  deep["blocks"] = {{{"kind", 1}}, {{"attention", {{"window_left", 3}}}}};
  CHECK(has_warning(import_hugging_face(deep).warnings, "blocks.attention.window_left"));
  // Qwen2.5-1M.
  const json qwen = {{"use_sliding_window", false},
                     {"dual_chunk_attention_config", {{"chunk_size", 262144}, {"local_size", 8192}}}};
  CHECK(has_warning(model_of("qwen2", qwen).warnings, "dual_chunk_attention_config is not understood"));
  // The tower of a known part is named with all its keys.
  const json tower = {
      {"vision_config",
       {{"rope_a", 1}, {"rope_b", 1}, {"rope_c", 1}, {"rope_d", 1}, {"window_e", 1}, {"position_f", 1}}}};
  for (const auto& item : tower.at("vision_config").items())
    CHECK(has_warning(model_of("llama", tower).warnings, "vision_config", item.key()));
  // Words with another meaning.
  CHECK(model_of("llama", {{"property", 1}, {"europe", 1}, {"decomposition_rank", 2}, {"composition", 1}})
            .warnings.size() == model_of("llama", json::object()).warnings.size());
}

TEST_CASE("a window that the class does not read is none, with a warning", "[models][config_rules]") {
  for (const char* type : {"llama", "cohere", "falcon", "olmo2", "glm4", "gpt_neox", "stablelm", "granite"}) {
    CAPTURE(type);
    const auto model = model_of(type, {{"sliding_window", 512}});
    CHECK(model.windows == std::vector<Index>{0});
    CHECK(model.sliding_window == 0);
    CHECK(has_warning(model.warnings, "sliding_window is not read by the class of " + std::string(type)));
    CHECK(model.attention_of_layer(0).window == 0);
  }
  // Models without a class in transformers are unknown.
  const auto minicpm = model_of("minicpm", {{"sliding_window", 512}});
  CHECK(minicpm.windows == std::vector<Index>{rope::not_known_window});
}

TEST_CASE("a share of all channels that rotary_dim overrules has a warning", "[models][config_rules]") {
  const auto m2 = model_of("minimax_m2", {{"head_dim", 128}, {"rotary_dim", 64}});
  CHECK(m2.groups()[0].rotary_dim() == 64);
  CHECK_FALSE(has_warning(m2.warnings, "overruled"));
  CHECK(has_warning(
      model_of("minimax_m2",
               {{"head_dim", 128}, {"rotary_dim", 64}, {"rope_parameters", {{"partial_rotary_factor", 1.0}}}})
          .warnings,
      "rope_parameters.partial_rotary_factor is overruled by rotary_dim"));
}

TEST_CASE("the loop over groups gives options for each of them", "[models][config_rules]") {
  const auto loops = [](const rope::model_rope& model) {
    std::vector<std::string> types;
    for (const layer_group& one : model.groups()) {
      const rope::attention_options options = model.attention_of_group(one.layer_type);
      CHECK(options.scale == one.scale);
      types.push_back(one.layer_type);
    }
    return types;
  };
  using types = std::vector<std::string>;
  const types both = {"full_attention", "sliding_attention"};
  const auto window = [](const rope::model_rope& model, const char* type) {
    return model.attention_of_group(type).window;
  };
  // Gemma 3 with so few layers that none has full attention, or none has a window.
  const auto five = model_of("gemma3_text", {{"num_hidden_layers", 5}, {"sliding_window", 512}});
  CHECK(loops(five) == both);
  CHECK(window(five, "full_attention") == 0);
  CHECK(window(five, "sliding_attention") == 512);
  const json full = {{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "full_attention"}}};
  CHECK(window(model_of("gemma3_text", full), "sliding_attention") == 4096);  // of the class
  CHECK(window(model_of("gemma3_text", changed(full, {{"sliding_window", 512}})), "sliding_attention") ==
        512);
  CHECK(window(model_of("gemma3_text",
                        changed(full, {{"sliding_window", 512}, {"use_bidirectional_attention", true}})),
               "sliding_attention") == 257);
  CHECK(loops(model_of("gemma3_text", full)) == both);
  CHECK(loops(model_of("deepseek_v4", {{"num_hidden_layers", 2}, {"compress_ratios", {0, 0}}})).size() == 3);
  CHECK(loops(model_of("olmo3", {{"num_hidden_layers", 3}})) == both);
  CHECK(loops(model_of("olmo3", {{"rope_parameters", {{"rope_theta", 70000}}}})) == both);
  CHECK(loops(model_of("mimo_v2_flash", {{"num_hidden_layers", 1}})) == both);
  CHECK(loops(model_of("laguna", {{"num_hidden_layers", 2}})) == both);
  // No layer has attention.
  CHECK(loops(model_of("bamba", json::object())) == types{""});
  CHECK(loops(model_of("qwen3_next", {{"num_hidden_layers", 2}})) == types{""});
  // The whole model, if layers are not counted.
  const auto uncounted = model_of("gemma3_text", {{"num_hidden_layers", nullptr}});
  CHECK(uncounted.groups().size() == 2);
}

TEST_CASE("architectures of autumn 2026", "[models][config_rules]") {
  // transformers, models/qwen4_exp: the released file has layer_types with full_attention, its class
  // qwen_sparse_attention.
  const json rope = {{"rope_parameters",
                      {{"rope_type", "default"},
                       {"rope_theta", 1e7},
                       {"partial_rotary_factor", 0.25},
                       {"mrope_section", {11, 11, 10}},
                       {"mrope_interleaved", true}}}};
  for (const char* type : {"qwen4_exp_text", "qwen4_exp", "qwen3_8_flash_next_text", "qwen3_8_flash_next"})
    for (const json& given : {rope, json::object()})
      for (const json& layers :
           {json::object(), json{{"full_attention_interval", 4}},
            json{{"layer_types",
                  {"linear_attention", "linear_attention", "linear_attention", "full_attention",
                   "linear_attention", "linear_attention", "linear_attention", "full_attention"}}},
            json{{"layer_types",
                  {"linear_attention", "linear_attention", "linear_attention", "qwen_sparse_attention",
                   "linear_attention", "linear_attention", "linear_attention", "qwen_sparse_attention"}}}}) {
        CAPTURE(type, given.dump(), layers.dump());
        json text = changed(changed(given, layers),
                            {{"num_hidden_layers", 8}, {"head_dim", 256}, {"indexer_head_dim", 128}});
        const auto model = model_of(type, text);
        REQUIRE(model.groups().size() == 1);
        const layer_group& group = model.groups()[0];
        CHECK(group.layout == rope::layout_kind::half_split);
        CHECK(group.head_dim == 256);
        CHECK(group.first_channel == 0);
        CHECK(group.rotary_dim() == 64);
        CHECK(group.base == 1e7);
        CHECK(group.scale == 0.0625);
        CHECK(group.mrope_sections == std::vector<Index>{11, 11, 10});
        CHECK(group.section_order == rope::mrope_order::alternating);
        CHECK(model.layers_without_rope() == std::vector<Index>{0, 1, 2, 4, 5, 6});
        CHECK(model.windows[3] == 0);
        REQUIRE(group.indexer);
        CHECK(group.indexer->head_dim == 128);
        CHECK(group.indexer->rotary_dim == 64);
        CHECK(group.indexer->first_channel == 0);
        CHECK(group.indexer->layout == rope::layout_kind::half_split);
        for (Index i : {3, 7}) CHECK(model.group_of_layer(i) == &group);
      }
  // transformers, models/minimax_m2: rotary_dim / head_dim, by default half.
  for (const json& given : {json::object(), json{{"rotary_dim", 64}}}) {
    const auto m2 = model_of("minimax_m2", given,
                             {{"hidden_size", 3072}, {"num_attention_heads", 48}, {"num_hidden_layers", 2}});
    CHECK(m2.groups()[0].head_dim == 128);
    CHECK(m2.groups()[0].rotary_dim() == 64);
    CHECK(m2.groups()[0].base == 5e6);
    CHECK(m2.groups()[0].layout == rope::layout_kind::half_split);
  }
  CHECK(model_of("minimax_m2", {{"rotary_dim", 32}, {"head_dim", 128}}).groups()[0].rotary_dim() == 32);
  // No rotation.
  const auto none = [](const json& file, const std::string& instead) {
    CHECK(rejects(file, "nothing rotates"));
    CHECK(rejects(file, "nothing rotates", {.layout = rope::layout_kind::half_split}));
    for (const auto& layout :
         {std::optional<rope::layout_kind>(), std::optional(rope::layout_kind::interleaved)}) {
      const auto model =
          import_hugging_face(file, {.layout = layout, .without_rope = rope::model_without_rope::describe});
      CHECK(model.groups().empty());
      CHECK(model.instead_of_rope() == instead);
      CHECK(model.rotation_of_layer(0) == rope::layer_rotation::none);
    }
  };
  const json kimi = {{"model_type", "kimi_linear"}, {"num_hidden_layers", 4},  {"num_attention_heads", 2},
                     {"hidden_size", 64},           {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64},
                     {"mla_use_nope", true},        {"rope_theta", 10000}};
  none(kimi, "no positions");
  none({{"model_type", "kimi_k3"}, {"text_config", kimi}}, "no positions");
  none(changed(kimi, {{"model_type", "kimi_k3"}}), "no positions");
  none(changed(kimi, {{"mla_use_nope", nullptr}}), "no positions");
  none(changed(kimi, {{"model_type", "novel_mla"}}), "no positions");
  CHECK(rejects(changed(kimi, {{"mla_use_nope", false}}), "mla_use_nope"));
  const json glm = {{"model_type", "glm5_next_text"},
                    {"num_hidden_layers", 4},
                    {"num_attention_heads", 2},
                    {"qk_rope_head_dim", 0},
                    {"mla_use_nope", true}};
  none(glm, "no positions");
  none({{"model_type", "glm5_next"}, {"text_config", glm}}, "no positions");
  CHECK(rejects(changed(glm, {{"qk_rope_head_dim", 64}, {"mla_use_nope", nullptr}}), "qk_rope_head_dim"));
  const json inkling = {{"model_type", "inkling_text"},
                        {"num_hidden_layers", 4},
                        {"num_attention_heads", 2},
                        {"d_rel", 16},
                        {"rel_extent", 1024}};
  none(inkling, "relative biases");
  none({{"model_type", "inkling_mm_model"}, {"text_config", inkling}}, "relative biases");
  // Known by name.
  for (const char* type : {"deepseek_v41", "deepseek_v41_text"})
    CHECK(rejects(changed(small, {{"model_type", type}, {"qk_rope_head_dim", 64}, {"head_dim", 512}}),
                  "DeepSeek V4"));
  // Vision towers.
  for (const char* type : {"gemma4_vision", "glm5_next_vision", "qwen4_exp_vision"})
    CHECK(rejects(changed(small, {{"model_type", type}}), "frequencies"));
  for (const char* type : {"novel_vision", "llama", "siglip_next_vision"})
    CHECK(rejects(changed(small, {{"model_type", type},
                                  {"rope_parameters", {{"rope_type", "axial"}, {"rope_theta", 1e4}}}}),
                  "axial"));
}

// DeepSeek-VL2 and DeepSeek-OCR: modeling_deepseek.py uses the attention class of Llama if use_mla is false.
TEST_CASE("DeepSeek V2 without latent attention has the heads of Llama", "[models][config_rules]") {
  const json text = {{"model_type", "deepseek_v2"}, {"use_mla", false},        {"hidden_size", 1280},
                     {"num_attention_heads", 10},   {"kv_lora_rank", nullptr}, {"qk_nope_head_dim", 0},
                     {"qk_rope_head_dim", 0},       {"v_head_dim", 0},         {"num_hidden_layers", 12}};
  const auto model = import_hugging_face(json{{"model_type", "deepseek_vl_v2"}, {"language_config", text}});
  CHECK(model.groups()[0].layout == rope::layout_kind::half_split);
  CHECK(model.groups()[0].head_dim == 128);
  CHECK(model.groups()[0].rotary_dim() == 128);
  CHECK(has_warning(model.warnings, "language_config.use_mla is false"));
  const json latent = changed(text, {{"use_mla", true}, {"qk_nope_head_dim", 128}, {"qk_rope_head_dim", 64}});
  CHECK(import_hugging_face(latent).groups()[0].first_channel == 128);
}

TEST_CASE("keys that another key overrides, and keys at depth, are named in warnings",
          "[models][config_rules]") {
  const json deep = {
      {"rope_parameters", {{"rope_type", "default"}, {"extra", {{"my_window", 1}, {"width", 2}}}}}};
  CHECK(has_warning(model_of("llama", deep).warnings, "rope_parameters.extra.my_window"));
  const auto context = model_of("llama", {{"n_positions", 128}, {"seq_length", 4096}});
  CHECK(context.max_position == 4096);
  CHECK(has_warning(context.warnings, "n_positions is overruled by max_position_embeddings"));
  CHECK_FALSE(has_warning(context.warnings, "seq_length"));
  const auto chunks = model_of("llama4_text", {{"attention_chunk_size", 2048}});
  CHECK(
      has_warning(chunks.warnings, "attention_chunk_size is 2048: layers that rotate attend within chunks"));
  CHECK(has_warning(model_of("llama", {{"attention_chunk_size", 2048}}).warnings,
                    "attention_chunk_size is not understood"));
  CHECK(has_warning(model_of("llama", {{"add_sink_bias", true}}).warnings, "add_sink_bias"));
  const json dbrx = {
      {"d_model", 64}, {"n_heads", 4}, {"attn_config", {{"rope_theta", 5e5}, {"kv_n_heads", 2}}}};
  CHECK(model_of("dbrx", dbrx, json::object()).key_heads == 2);
}

TEST_CASE("the cost of a file of nested parts is bounded", "[models][config_rules]") {
#ifdef __EMSCRIPTEN__
  const int levels = 300;  // the stack of node holds no copy of a json of 5000
#else
  const int levels = 5000;
#endif
  json deep = {{"rope_inside", 1}}, parts = {{"model_type", "llama"}, {"hidden_size", 64}};
  for (int i = 0; i < levels; ++i) {
    deep = i % 2 == 0 ? json{{"a", std::move(deep)}} : json::array({std::move(deep)});
    parts = {{"decoder", std::move(parts)}};
  }
  CHECK_FALSE(has_warning(model_of("llama", {{"extra", deep}}).warnings, "rope_inside"));
  CHECK(rejects(parts, "model_type is missing"));
}

// Source: transformers, models/llava_next/configuration_llava_next.py and models/janus.
TEST_CASE("a text_config without a model_type has the default class of the whole model",
          "[models][config_rules]") {
  for (const char* outer : {"llava", "llava_next", "janus", "perception_lm"}) {
    const auto model =
        import_hugging_face(json{{"model_type", outer}, {"text_config", {{"rope_theta", 70000}}}});
    CHECK(model.architecture == "llama");
    CHECK(model.groups()[0].head_dim == 128);
    CHECK(has_warning(model.warnings, "text_config.model_type is not given; assumed llama, the default of " +
                                          std::string(outer)));
  }
  const std::map<std::string, std::string> others = {{"aya_vision", "cohere2"},
                                                     {"cohere2_vision", "cohere2"},
                                                     {"fuyu", "persimmon"},
                                                     {"got_ocr2", "qwen2"},
                                                     {"granite_speech", "granite"},
                                                     {"idefics2", "mistral"},
                                                     {"idefics3", "llama"},
                                                     {"internvl", "qwen2"},
                                                     {"llava_next_video", "llama"},
                                                     {"ovis2", "qwen2"},
                                                     {"llava_onevision", "qwen2"},
                                                     {"paligemma", "gemma"},
                                                     {"qwen2_audio", "qwen2"},
                                                     {"smolvlm", "llama"},
                                                     {"video_llava", "llama"},
                                                     {"vipllava", "llama"},
                                                     {"audioflamingo3", "qwen2"},
                                                     {"deepseek_vl", "llama"},
                                                     {"fast_vlm", "qwen2"},
                                                     {"glmasr", "llama"},
                                                     {"lfm2-vl", "lfm2"},
                                                     {"lighton_ocr", "qwen3"},
                                                     {"mistral3", "mistral"},
                                                     {"qwen3_asr", "qwen3"},
                                                     {"vibevoice_asr", "qwen2"},
                                                     {"voxtral", "llama"},
                                                     {"cosmos3_omni", "qwen3_vl_text"},
                                                     {"deepseek_vl_hybrid", "llama"},
                                                     {"fun_asr_nano", "qwen3"},
                                                     {"glm46v", "glm4v_text"},
                                                     {"glmga", "glm4v_text"},
                                                     {"granite_speech_plus", "granite"},
                                                     {"hyperclovax_vision_v2", "hyperclovax"},
                                                     {"qianfan_ocr", "qwen3"},
                                                     {"interns2_mobius", "qwen3_5_moe_text"},
                                                     {"intern_s2_preview", "qwen3_5_moe_text"}};
  for (const auto& [outer, text] : others) {
    const auto model =
        import_hugging_face(json{{"model_type", outer}, {"text_config", {{"rope_theta", 70000}}}});
    CAPTURE(outer);
    CHECK(model.architecture == text);
    CHECK(model.groups()[0].base == 70000);
    CHECK(has_warning(model.warnings, "model_type is not given; assumed " + text));
  }
  CHECK(import_hugging_face(json{{"model_type", "kimi_k25"}, {"text_config", {{"rope_theta", 70000}}}})
            .architecture == "deepseek_v3");
  for (const char* outer : {"modernvbert", "pe_audio", "pe_audio_video", "pe_video"})
    CHECK(import_hugging_face(json{{"model_type", outer}, {"text_config", {{"hidden_size", 64 * 12}}}})
              .architecture == "modernbert");
}

// Source: VoxtralConfig and GlmAsrConfig of Hugging Face transformers, _default_text_config_kwargs
TEST_CASE("a text model has the sizes that the class of the whole model gives it", "[models][config_rules]") {
  const auto import = [](const char* outer, const json& text) {
    return import_hugging_face(json{{"model_type", outer}, {"text_config", text}});
  };
  const auto voxtral = import("voxtral", {{"model_type", "llama"}});
  CHECK(voxtral.groups()[0].head_dim == 128);
  CHECK(voxtral.groups()[0].base == 1e8);
  CHECK(voxtral.query_heads == 32);  // of LlamaConfig
  CHECK(voxtral.key_heads == 8);
  CHECK(voxtral.max_position == 131072);
  CHECK(voxtral.rotation_of_layer(29) == rope::layer_rotation::in_group);
  CHECK(has_warning(voxtral.warnings,
                    "text_config.rope_theta is not given; assumed 100000000, the default of "
                    "voxtral"));
  CHECK(has_warning(voxtral.warnings,
                    "text_config.num_attention_heads is not given; assumed 32, the default "
                    "of llama"));

  // Keys of the file hold, and a base in the dictionary is not overruled by one that the file lacks.
  const auto given =
      import("voxtral", {{"model_type", "llama"},
                         {"head_dim", 64},
                         {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}});
  CHECK(given.groups()[0].head_dim == 64);
  CHECK(given.groups()[0].base == 5e5);
  CHECK(!has_warning(given.warnings, "rope_theta"));

  const auto glm = import("glmasr", json::object());
  CHECK(glm.groups()[0].head_dim == 128);
  CHECK(glm.groups()[0].base == 10000);
  CHECK(glm.query_heads == 16);
  CHECK(glm.key_heads == 4);
  CHECK(import("pe_video", json::object()).groups()[0].head_dim == 64);
  CHECK(import("modernvbert", json::object()).groups()[0].head_dim == 64);
  CHECK(import("llava", {{"model_type", "llama"}}).key_heads == 32);
}

TEST_CASE("parts of a whole model other than its text model are named once each", "[models][config_rules]") {
  const json text = {{"model_type", "qwen2_5_omni_text"}, {"hidden_size", 64}, {"num_attention_heads", 4}};
  const auto model = import_hugging_face(
      json{{"model_type", "qwen2_5_omni"},
           {"thinker_config",
            {{"model_type", "novel"}, {"text_config", text}, {"vision_config", {{"window_size", 7}}}}},
           {"talker_config", {{"rope_theta", 5}, {"rope_scaling", {{"factor", 2}}}}},
           {"token2wav_config", {{"dit_config", {{"rope_theta", 1}}}}}});
  const std::string no_effect = " is not read: it describes another part of the model, with ";
  CHECK(has_warning(model.warnings, "talker_config" + no_effect + "rope_scaling, rope_theta"));
  CHECK(has_warning(model.warnings, "token2wav_config" + no_effect + "dit_config.rope_theta"));
  CHECK(has_warning(model.warnings, "thinker_config.vision_config" + no_effect + "window_size"));
  CHECK(has_warning(model.warnings, "thinker_config.text_config.rope_theta base is not given"));
  // Default key heads of the class that do not divide the query heads of the file are not assumed.
  const json heads = {{"model_type", "mistral"}, {"num_attention_heads", 12}, {"head_dim", 64}};
  CHECK(import_hugging_face(json{{"model_type", "llava"}, {"text_config", heads}}).key_heads == 12);
  CHECK(import_hugging_face(
            json{{"model_type", "llava"}, {"text_config", changed(heads, {{"num_attention_heads", 16}})}})
            .key_heads == 8);
}

// Source: transformers, models/deepseek_v32 and glm_moe_dsa, whose classes write that type for every layer.
TEST_CASE("layers whose keys an indexer selects have no window, with or without a type",
          "[models][config_rules]") {
  for (const char* type : {"axk2", "deepseek_v32", "glm_moe_dsa"}) {
    CAPTURE(type);
    const json latent = {{"qk_nope_head_dim", 8}, {"qk_rope_head_dim", 8}, {"index_head_dim", 16}};
    const auto plain = model_of(type, latent);
    CHECK(plain.attention_of_layer(3).window == 0);
    const auto typed = model_of(
        type, changed(latent, {{"layer_types", std::vector<std::string>(4, "deepseek_sparse_attention")}}));
    CHECK(typed.windows == std::vector<Index>(4, 0));
    CHECK(typed.attention_of_group("deepseek_sparse_attention").window == 0);
    CHECK(typed.groups()[0].indexer);
  }
  // Without an indexer nothing is known of such a type.
  const auto llama = model_of(
      "llama",
      {{"layer_types", {"full_attention", "full_attention", "full_attention", "qwen_sparse_attention"}}});
  CHECK(llama.windows[3] == rope::not_known_window);
}

// Hugging Face transformers, masking_utils.py: create_causal_mask and create_sliding_window_causal_mask give
// the mask of an encoder if config.is_causal is false; sliding_window_bidirectional_overlay is
// abs(q_idx - kv_idx) <= sliding_window. The config.json of gte-Qwen2 has is_causal: false.
TEST_CASE("is_causal: false makes every class attend both ways", "[models][config_rules]") {
  for (const char* type : {"qwen2", "qwen3", "mistral", "llama", "gemma3_text"}) {
    CAPTURE(type);
    CHECK(model_of(type, json::object()).causal);
    CHECK(model_of(type, {{"is_causal", true}}).causal);
    const auto model = model_of(type, {{"is_causal", false}});
    CHECK_FALSE(model.causal);
    CHECK(warnings_with(model, "is_causal") == 0);
    CHECK(rejects(changed(small, {{"model_type", type}, {"is_causal", "no"}}),
                  "is_causal must be true or false"));
  }
  const json both = {{"is_causal", false}, {"sliding_window", 64}};
  CHECK(model_of("mistral", both).windows == std::vector<Index>{65});
  const auto qwen =
      model_of("qwen2", changed(both, {{"use_sliding_window", true}, {"max_window_layers", 2}}));
  CHECK(qwen.windows == std::vector<Index>{0, 0, 65, 65});
  CHECK_FALSE(qwen.attention_of_layer(3).causal);
  CHECK(model_of("gemma3_text", both).window_of_sliding == rope::not_known_window);
  CHECK_FALSE(import_hugging_face(
                  json{{"model_type", "llava"},
                       {"text_config", changed(small, {{"model_type", "qwen2"}, {"is_causal", false}})}})
                  .causal);
}

// Sources: the layers that rotate as recorded in tests/recorded/models for each class.
TEST_CASE("a model throws or is described without groups if none of its layers rotates",
          "[models][config_rules]") {
  const json full(std::vector<std::string>(4, "full_attention")),
      linear(std::vector<std::string>(4, "linear_attention")), zeros(std::vector<int>(4, 0));
  const std::vector<std::tuple<const char*, json, const char*>> files = {
      {"exaone4", {{"layer_types", full}, {"sliding_window", 64}}, "layer_types leaves no layer of exaone4"},
      {"afmoe", {{"layer_types", full}}, "layer_types leaves no layer of afmoe"},
      {"cohere2", {{"sliding_window_pattern", 1}}, "sliding_window_pattern leaves no layer of cohere2"},
      {"smollm3", {{"no_rope_layers", zeros}}, "no_rope_layers must not be 0 for every layer"},
      {"smollm3",
       {{"no_rope_layers", zeros}, {"num_hidden_layers", nullptr}},
       "no_rope_layers must not be 0 for every layer"},
      {"granite_swa", {{"layer_rope_theta", zeros}}, "layer_rope_theta must not be 0 for every layer"},
      {"qwen3_next", {{"layer_types", linear}}, "layer_types leaves no layer of qwen3_next"},
      {"lfm2", {{"full_attn_idxs", json::array()}}, "full_attn_idxs leaves no layer of lfm2"}};
  for (const auto& [type, changes, reason] : files) {
    json file = changed(small, changes);
    file["model_type"] = type;
    CAPTURE(file.dump());
    CHECK(rejects(file, reason));
    CHECK(rejects(file, "pass model_without_rope::describe"));
    const auto model = import_hugging_face(file, describe_it);
    CHECK(model.instead_of_rope() == "no positions");
    CHECK(model.groups().empty());
    CHECK(model.query_heads == 4);
    CHECK(model.rotation_of_layer(0) == rope::layer_rotation::none);
    CHECK(describe(model).find("none in any layer") != std::string::npos);
  }
  // A dictionary that was read before this is known has warnings too.
  json hybrid = changed(small, {{"layer_types", linear}});
  hybrid["model_type"] = "olmo_hybrid";
  hybrid["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}, {"yarn_of_my_own", 1}};
  const auto hybrid_model = import_hugging_face(hybrid, describe_it);
  CHECK(warnings_with(hybrid_model, "rope_parameters.yarn_of_my_own is not described") == 1);
  // The file does not say so, but the class: a warning names the pattern.
  CHECK(has_warning(model_of("qwen3_next", {{"num_hidden_layers", 3}}).warnings, "layer_types is not given"));
  CHECK(model_of("qwen3_next", {{"num_hidden_layers", 4}}).layers_without_rope() ==
        std::vector<Index>{0, 1, 2});
}

// The rule of interleaved_sections, on which frequencies_on_axes and printed code rely. Three sections are cut
// as the class slices them; no class has a rule for other numbers of axes.
TEST_CASE("sections of axes that alternate must fit the pairs", "[models][config_rules]") {
  const auto file = [](const json& sections) {
    return json{{"head_dim", 128}, {"rope_scaling", {{"rope_type", "default"}, {"mrope_section", sections}}}};
  };
  CHECK(rejects(changed(changed(small, file({1, 30, 30, 3})), {{"model_type", "qwen3_vl_text"}}),
                "rope_scaling.mrope_section must fit axes that alternate"));
  const auto cut = model_of("qwen3_vl_text", file({4, 30, 30}));
  CHECK(cut.groups()[0].mrope_sections == std::vector<Index>{22, 21, 21});
  for (const json& fits : {json{16, 16, 16, 16}, json{34, 30}})
    CHECK_NOTHROW(frequencies_on_axes(model_of("qwen3_vl_text", file(fits)).groups()[0]));
}

// Hugging Face transformers, __post_init__ of SeedOssConfig, Llama4TextConfig and VoxtralRealtimeEncoderConfig.
TEST_CASE("head_dim: null means hidden_size / num_attention_heads where the class says so",
          "[models][config_rules]") {
  for (const auto& [type, by_default] : std::vector<std::pair<const char*, Index>>{
           {"seed_oss", 128}, {"llama4_text", 128}, {"voxtral_realtime_encoder", 64}}) {
    CAPTURE(type);
    json file = small;
    file["model_type"] = type;
    CHECK(import_hugging_face(file).groups()[0].head_dim == by_default);
    CHECK(has_warning(import_hugging_face(file).warnings, "head_dim is not given"));
    file["head_dim"] = nullptr;
    CHECK(import_hugging_face(file).groups()[0].head_dim == 16);
    CHECK_FALSE(has_warning(import_hugging_face(file).warnings, "head_dim is not given"));
  }
}

TEST_CASE("a note names a key only as a whole word", "[models][config_rules]") {
  // Its note has loop_window_size, and that of plamo2 attention_window_size and rope_local_theta.
  const auto loop = model_of("iquestloopcoder", {{"window_size", 64}, {"loop_window_size", 32}});
  CHECK(has_warning(loop.warnings, "window_size is not read by the class of iquestloopcoder"));
  CHECK_FALSE(has_warning(loop.warnings, "loop_window_size is"));
  const auto plamo = model_of("plamo2", {{"window", 64}, {"rope", true}, {"attention_window_size", 32}});
  CHECK(has_warning(plamo.warnings, "window is not understood"));
  CHECK(has_warning(plamo.warnings, "rope is not understood"));
}

TEST_CASE("causal has a warning unless it agrees with the class", "[models][config_rules]") {
  CHECK_FALSE(has_warning(model_of("nomic_bert", {{"causal", false}}).warnings, "causal"));
  CHECK(has_warning(model_of("nomic_bert", {{"causal", true}}).warnings, "causal is not understood"));
  CHECK(has_warning(model_of("llama", {{"causal", false}}).warnings, "causal is not understood"));
}

// Hugging Face transformers, yarn_apply_mscale: scaling (0.1 mscale_all_dim ln(factor) + 1)^2 unless rope_type
// is default.
TEST_CASE("mscale_all_dim multiplies the scores of latent heads with every rope type but default",
          "[models][config_rules]") {
  const json latent = {{"qk_nope_head_dim", 32}, {"qk_rope_head_dim", 32}};
  for (const char* type : {"deepseek_v3", "glm4_moe_lite"})
    for (const char* rule : {"linear", "dynamic", "yarn", "llama3", "default"}) {
      CAPTURE(type, rule);
      const auto model = model_of(type, changed(latent, {{"rope_scaling",
                                                          {{"rope_type", rule},
                                                           {"factor", 4},
                                                           {"low_freq_factor", 1},
                                                           {"high_freq_factor", 4},
                                                           {"mscale_all_dim", 0.5}}}}));
      const bool by_default = std::string(rule) == "default";
      const double g = by_default ? 1 : 0.05 * std::log(4.0) + 1;
      CHECK(rounds_to(model.groups()[0].softmax_multiplier, g * g, 12));
      CHECK(rounds_to(model.groups()[0].scale, g * g / 8, 12));
      CHECK((warnings_with(model, "mscale_all_dim") == 1) == by_default);
    }
  const auto whole =
      model_of("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 4}, {"mscale_all_dim", 1}}}});
  CHECK(whole.groups()[0].softmax_multiplier == 1);
  CHECK(warnings_with(whole, "mscale_all_dim is not used by rope type linear") == 1);
}

// modeling_llada.py: a model with neither rope nor alibi has position embeddings, wpe.
TEST_CASE("LLaDA with rope: false has learned positions", "[models][config_rules]") {
  const json file = {
      {"model_type", "llada"}, {"rope_theta", 1e4}, {"d_model", 64}, {"n_heads", 4}, {"rope", false}};
  CHECK(rejects(file, "rope is false: this model has learned positions"));
  CHECK(import_hugging_face(file, describe_it).instead_of_rope() == "learned positions");
  CHECK(import_hugging_face(changed(file, {{"alibi", true}}), describe_it).instead_of_rope() ==
        "ALiBi biases");
  const auto rotates = import_hugging_face(changed(file, {{"rope", true}}));
  CHECK(rotates.groups().size() == 1);
  CHECK(warnings_with(rotates, "rope is not") == 0);
}

// Hugging Face transformers: apply_multimodal_rotary_pos_emb of qwen2_5_vl and apply_interleaved_mrope of
// qwen3_vl, which read mrope_section only. vLLM: MRotaryEmbedding reads mrope_interleaved.
TEST_CASE("mrope_interleaved against the order of the class has a warning", "[models][config_rules]") {
  const auto with = [](const char* type, bool interleaved) {
    return model_of(
        type,
        {{"head_dim", 128},
         {"rope_scaling",
          {{"rope_type", "default"}, {"mrope_section", {24, 20, 20}}, {"mrope_interleaved", interleaved}}}});
  };
  constexpr const char* says = "in transformers does not read it";
  for (const auto& [type, by_class] :
       std::vector<std::pair<const char*, bool>>{{"qwen2_5_vl_text", false}, {"qwen3_vl_text", true}}) {
    CAPTURE(type);
    const auto other = with(type, !by_class), same = with(type, by_class);
    CHECK(has_warning(other.warnings, "rope_scaling.mrope_interleaved is ", says));
    CHECK_FALSE(has_warning(same.warnings, "mrope_interleaved"));
    CHECK((other.groups()[0].section_order == rope::mrope_order::alternating) == !by_class);
  }
}

// vLLM, models/nemotron_nas.py: num_kv_heads = num_attention_heads // block_config.attention.n_heads_in_group.
TEST_CASE("Nemotron NAS has the key heads of its blocks", "[models][config_rules]") {
  const auto block = [](const json& group) {
    return json{{"attention", {{"n_heads_in_group", group}, {"no_op", group.is_null()}}}};
  };
  const json blocks = {block(nullptr), block(2), block(2), block(nullptr)};
  const auto model = model_of("nemotron-nas", {{"block_configs", blocks}});
  CHECK(model.key_heads == 2);
  CHECK(warnings_with(model, "n_heads_in_group") == 0);
  const auto mixed = model_of("nemotron-nas", {{"block_configs", {block(4), block(2)}}});
  CHECK(mixed.key_heads == 1);
  CHECK(warnings_with(mixed, "n_heads_in_group differs from layer to layer") == 1);
  CHECK(model_of("nemotron-nas", {{"block_configs", blocks}, {"num_key_value_heads", 4}}).key_heads == 4);
  CHECK(model_of("nemotron-nas", json::object()).key_heads == 4);
  CHECK(rejects(changed(small, {{"model_type", "nemotron-nas"}, {"block_configs", {block(3)}}}),
                "n_heads_in_group must divide the 4 query heads, got 3"));
}

TEST_CASE("a file without layer_types and the number of layers does not say that all layers are alike",
          "[models][config_rules]") {
  const json uncounted = {{"num_hidden_layers", nullptr}};
  for (const char* type : {"gemma2", "gemma3_text", "cohere2", "exaone4", "olmo3", "modernbert", "afmoe"}) {
    CAPTURE(type);
    const auto model = model_of(type, uncounted);
    CHECK(model.window_of_sliding > 0);
    CHECK(model.windows == std::vector<Index>{rope::not_known_window});
    CHECK(testing::throws_saying<std::invalid_argument>([&] { model.attention_of_layer(0); },
                                                        "is not known from this file"));
  }
  constexpr const char* says =
      "num_hidden_layers is not given, so the layers that do not rotate are not listed";
  for (const char* type : {"cohere2", "exaone4", "afmoe", "qwen3_next", "minimax"}) {
    CAPTURE(type);
    CHECK(warnings_with(model_of(type, uncounted), says) == 1);
    CHECK(warnings_with(model_of(type, json::object()), says) == 0);
  }
  for (const char* type : {"llama", "qwen2", "gemma3_text"}) {
    CAPTURE(type);
    CHECK(warnings_with(model_of(type, uncounted), says) == 0);
  }
  CHECK(model_of("llama", uncounted).windows == std::vector<Index>{0});
}

TEST_CASE("ChatGLM-6B, which rotates by two positions, is refused; its successors are not",
          "[models][config_rules]") {
  const json two = {{"position_encoding_2d", true}}, one = {{"position_encoding_2d", false}};
  CHECK(rejects(changed(changed(small, {{"model_type", "chatglm"}}), two), "by the block position"));
  CHECK(model_of("chatglm", one).groups().size() == 1);
  CHECK(model_of("chatglm", json::object()).groups().size() == 1);
}

TEST_CASE("Llama 4 without a length of chunks attends to the whole context", "[models][config_rules]") {
  json file = changed(small, {{"model_type", "llama4_text"}});
  file["attention_chunk_size"] = nullptr;
  const auto whole = import_hugging_face(file);
  CHECK(whole.windows == std::vector<Index>{0});
  CHECK(whole.attention_chunk == 0);
  for (Index layer = 0; layer < whole.layer_count(); ++layer)
    CHECK(whole.attention_of_layer(layer).window == 0);
  const auto chunked = model_of("llama4_text", json::object());
  CHECK(chunked.windows[0] == rope::not_known_window);
  CHECK(chunked.attention_chunk == 8192);
}

TEST_CASE("OpenELM has its context in max_context_length", "[models][config_rules]") {
  CHECK(model_of("openelm", {{"max_context_length", 2048}, {"max_position_embeddings", nullptr}})
            .max_position == 2048);
}

TEST_CASE("a number of heads for each layer has a warning", "[models][config_rules]") {
  constexpr const char* key = "num_attention_heads_per_layer";
  const auto mixed = model_of("laguna", {{key, {8, 4}}});
  CHECK(mixed.query_heads == 8);
  CHECK(warnings_with(mixed, std::string(key) + " differs from layer to layer") == 1);
  CHECK(warnings_with(model_of("laguna", {{key, {4, 4}}}), key) == 0);
}
