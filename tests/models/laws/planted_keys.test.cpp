// SPDX-License-Identifier: MIT
// A key about positions, windows or kinds of layers that no class reads has a warning that names it: in every
// dictionary of a file of every architecture.
#include <rope/models/hugging_face.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using rope::import_hugging_face;
using testing::has_warning;
using testing::json;

const rope::hugging_face_options describe_it = {.without_rope = rope::model_without_rope::describe};

const std::vector<std::string> names = {"rope_foo",
                                        "foo_rotary",
                                        "position_scale",
                                        "nope_foo",
                                        "yarn_bar",
                                        "sliding_baz",
                                        "window_foo",
                                        "foo_chunk",
                                        "foo_pattern",
                                        "foo_layer_types",
                                        "ntk_foo",
                                        "layers_block_types",
                                        "attn_type_foo",
                                        "foo_layer_indices",
                                        "foo_attn_idxs",
                                        "foo_sink_bias",
                                        "alibi_foo",
                                        "foo_causal",
                                        "compression_ratio",
                                        "attention_layers",
                                        "freq_base_foo",
                                        "attention_types",
                                        "local_layers",
                                        "every_n_layers",
                                        "foo_global_attn",
                                        "pos_emb_foo",
                                        "pos_encoding",
                                        "foo_soft_cap",
                                        "foo_logit_cap",
                                        "bidirectional_foo",
                                        "interpolation_factor"};
const std::vector<json> values = {1, -0.5, true, "text", {0, 1, 1}, json::object(), {{"bar", 1}}};

/// Every dictionary of a file.
std::vector<json::json_pointer> dictionaries_of(const json& file) {
  std::vector<json::json_pointer> places = {json::json_pointer()};
  for (std::size_t at = 0; at < places.size(); ++at)
    for (const auto& item : file.at(places[at]).items())
      if (item.value().is_object()) places.push_back(places[at] / item.key());
  return places;
}

/// Whether a warning reports that nothing is read in a dictionary around the path.
bool is_left_out(const std::vector<std::string>& warnings, json::json_pointer place) {
  for (; !place.empty(); place.pop_back()) {
    std::string path = place.to_string().substr(1);
    std::replace(path.begin(), path.end(), '/', '.');
    for (const std::string& warning : warnings)
      if (warning.starts_with(path + " ")) return true;
  }
  return false;
}

/// Plants the key in every dictionary of the file, and returns how often.
std::size_t plant(const json& config, std::size_t& drawn) {
  std::size_t planted = 0;
  for (const json::json_pointer& place : dictionaries_of(config)) {
    const std::string& name = names[drawn % names.size()];
    json file = config;
    file[place][name] = values[drawn % values.size()];
    ++drawn;
    CAPTURE(file.dump(), place.to_string(), name);
    const auto model = import_hugging_face(file, describe_it);
    CHECK((has_warning(model.warnings, name) || is_left_out(model.warnings, place)));
    ++planted;
  }
  return planted;
}

rope::model_rope import(const char* type, json file) {
  file["model_type"] = type;
  file["hidden_size"] = 64;
  file["num_attention_heads"] = 4;
  return import_hugging_face(file, describe_it);
}

}  // namespace

TEST_CASE("a key that no class reads has a warning in every architecture", "[models][import]") {
  const json files = testing::recorded("models/hugging_face"),
             classes = testing::recorded("models/transformers_classes");
  std::size_t planted = 0, drawn = 0;
  for (const json& record : files.at("records")) planted += plant(record.at("config"), drawn);
  for (const json& record : classes.at("records")) {
    bool imports = true;
    try {
      import_hugging_face(record.at("config"), describe_it);
    } catch (const std::invalid_argument&) {  // other tests have the reasons
      imports = false;
    }
    if (imports) planted += plant(record.at("config"), drawn);
  }
  CHECK(planted >= 700);
}

TEST_CASE("a key has a warning if no layer rotates, next to dictionaries, and in one that is not read",
          "[models][import]") {
  const auto bare =
      import("olmo_hybrid", {{"rope_parameters", {{"rope_theta", nullptr}, {"window_foo", 1}}}});
  CHECK(bare.groups().empty());
  CHECK(has_warning(bare.warnings, "rope_parameters.window_foo is not described, because nothing rotates"));
  // Found by the fuzzer: whether a base is assumed depends on a dictionary that is not read otherwise.
  const json rotation = {{"rope_parameters", {{"rope_theta", 1e4}, {"rope_foo", 1}}}};
  const auto zamba = import("zamba2", {{"use_mem_rope", false}, {"text_config", rotation}});
  CHECK(has_warning(zamba.warnings, "rope_parameters is not described, because nothing rotates"));
  // A string cannot be a dictionary.
  const auto granite =
      import("granitemoehybrid", {{"layer_types", {"attention"}},
                                  {"position_embedding_type", {{"rope_theta", 10000}, {"sliding_baz", 1}}}});
  CHECK(granite.groups().empty());
  CHECK(has_warning(granite.warnings, "position_embedding_type.sliding_baz is not described"));
  // A dictionary for layers with full attention, in a model that has none.
  const auto step = import("step3p5", {{"hidden_size", 64},
                                       {"num_attention_heads", 1},
                                       {"layer_types", {"attention"}},
                                       {"rope_scaling", {{"type", "default"}, {"sliding_baz", false}}}});
  CHECK(has_warning(step.warnings, "rope_scaling.sliding_baz has no effect, because no layer has type"));
  // DeepSeek V4 has two dictionaries.
  const json main = {{"rope_type", "default"}, {"rope_theta", 30000}, {"partial_rotary_factor", 0.25}},
             compress = {{"rope_type", "default"}, {"rope_theta", 90000}, {"partial_rotary_factor", 0.25}};
  const auto two =
      import("deepseek_v4", {{"num_hidden_layers", 2},
                             {"compress_ratios", {0, 4}},
                             {"qk_rope_head_dim", 64},
                             {"rope_parameters", {{"main", main}, {"compress", compress}, {"rope_foo", 1}}}});
  CHECK(has_warning(two.warnings, "rope_parameters.rope_foo is next to the layer types"));
  CHECK(two.groups()[1].base == 90000);
  CHECK_FALSE(has_warning(two.warnings, "compress_rope_theta base is not given"));
  CHECK(has_warning(two.warnings,
                    "qk_rope_head_dim is overruled by rope_parameters.main.partial_rotary_factor"));
  CHECK(two.groups()[0].rotary_dim() == 128);
  // Step 3.5 reads rope_scaling if there are no dictionaries for types of layers.
  const json types = {
      {"num_hidden_layers", 2},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"sliding_window", 64},
      {"rope_scaling", {{"rope_type", "llama3"}, {"factor", 2}}},
      {"rope_parameters",
       {{"full_attention", {{"rope_theta", 1e6}}}, {"sliding_attention", {{"rope_theta", 1e4}}}}}};
  for (const char* type : {"step3p5", "laguna", "mellum"})
    CHECK(has_warning(import(type, types).warnings, "rope_scaling is not understood and has no effect"));
}

// Source: transformers, nested_rope_parameter_keys: only types of layers of the file make a dictionary
// nested.
TEST_CASE("a key inside a value that a note is about has a warning", "[models][import]") {
  const auto model = import("new", {{"position_embedding_type", "rope"},
                                    {"logn_attention_scale", {{"layer_types_", 0.5}, {"plain", 2}}}});
  CHECK(has_warning(model.warnings, "logn_attention_scale.layer_types_"));
  CHECK_FALSE(has_warning(model.warnings, "plain"));
}

// Found by the fuzzer: a list of architectures may say that the model is MiniMax-M2, and hidden_size tells a text model
// from a dictionary of parts, and Bailing needs no number.
TEST_CASE("a key has a warning inside a dictionary of which only the presence was read", "[models][import]") {
  const auto model = import_hugging_face(json{{"model_type", "bailing_moe_v3_vl"},
                                              {"text_config",
                                               {{"hidden_size", {{"thud_rotary", 1}}},
                                                {"num_attention_heads", 16},
                                                {"num_hidden_layers", 6},
                                                {"layer_group_size", 6},
                                                {"rope_theta", 6000000}}}});
  CHECK(has_warning(model.warnings, "text_config.hidden_size", "thud_rotary"));
  const auto minimax = import("minimax", {{"num_hidden_layers", 4}, {"architectures", {{"yarn_bar", 1}}}});
  CHECK(has_warning(minimax.warnings, "architectures.yarn_bar"));
}

TEST_CASE("a dictionary in a rope dictionary does not hide the keys next to it", "[models][import]") {
  for (const json& inner : {json::object(), json{{"rope_theta", 7}}}) {
    const auto model = import("qwen2_vl", {{"head_dim", 16},
                                           {"rope_theta", 50000},
                                           {"rope_scaling", {{"mrope_section", {2, 3, 3}}, {"foo", inner}}}});
    REQUIRE(model.groups().size() == 1);
    CHECK(model.groups()[0].mrope_sections == std::vector<rope::Index>{2, 3, 3});
    CHECK(model.groups()[0].base == 50000);
    CHECK(model.groups()[0].layer_type.empty());
  }
}

// Source: transformers, models/gemma4: full layers have their own heads, and each type a dictionary.
TEST_CASE("one dictionary for heads of two widths has a warning", "[models][import]") {
  for (const char* type : {"gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"})
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      CAPTURE(type, key);
      const json flat = {{"num_hidden_layers", 6}, {key, {{"rope_type", "default"}, {"rope_theta", 1e6}}}};
      CHECK(has_warning(import(type, flat).warnings, std::string(key) + " is not read by the class of",
                        "global_head_dim"));
    }
}

// Source: transformers, convert_rope_params_to_dict: rope_scaling or rope_parameters.
TEST_CASE("an empty rope_scaling is none", "[models][import]") {
  for (const char* type : {"llama", "qwen3", "gemma3_text", "mimo_v2_flash"}) {
    CAPTURE(type);
    json file = {{"num_hidden_layers", 2},
                 {"head_dim", 192},
                 {"layer_types", {"full_attention", "sliding_attention"}}};
    const json rule = {{"rope_type", "linear"}, {"factor", 4}, {"rope_theta", 70000}};
    file["rope_parameters"] = {{"full_attention", rule}, {"sliding_attention", {{"rope_theta", 20000}}}};
    const auto without = import(type, file);
    file["rope_scaling"] = json::object();
    const auto with = import(type, file);
    CHECK(with.group("full_attention")->base == 70000);
    CHECK(with.group("full_attention")->rule == "linear");
    CHECK(with.warnings == without.warnings);
  }
}

TEST_CASE("a base that a dictionary overrides has a warning", "[models][import]") {
  const json own = {{"full_attention", {{"rope_theta", 70000}}},
                    {"sliding_attention", {{"rope_theta", 20000}}}};
  const auto mimo = import("mimo_v2_flash", {{"num_hidden_layers", 2},
                                             {"hybrid_layer_pattern", {0, 1}},
                                             {"rope_theta", 80000},
                                             {"swa_rope_theta", 30000},
                                             {"rope_parameters", own}});
  CHECK(mimo.group("full_attention")->base == 70000);
  CHECK(mimo.group("sliding_attention")->base == 20000);
  const std::string full = " is overruled by rope_parameters.full_attention.rope_theta",
                    sliding = " is overruled by rope_parameters.sliding_attention.rope_theta";
  CHECK(std::count(mimo.warnings.begin(), mimo.warnings.end(), "rope_theta" + full) == 1);
  CHECK(std::count(mimo.warnings.begin(), mimo.warnings.end(), "swa_rope_theta" + sliding) == 1);
  const auto bert =
      import("modernbert", {{"num_hidden_layers", 3},
                            {"global_rope_theta", 40000},
                            {"rope_scaling", {{"rope_type", "default"}, {"rope_theta", 70000}}}});
  CHECK(bert.group("full_attention")->base == 70000);
  CHECK(has_warning(bert.warnings, "global_rope_theta is overruled by rope_scaling.rope_theta"));
}

TEST_CASE("layers with a window but without a dictionary of their type have a warning", "[models][import]") {
  const auto model = import("qwen2", {{"num_hidden_layers", 4},
                                      {"max_window_layers", 2},
                                      {"sliding_window", 512},
                                      {"use_sliding_window", true},
                                      {"rope_parameters", {{"full_attention", {{"rope_theta", 70000}}}}}});
  CHECK(model.layers()[3] == "sliding_attention");
  CHECK(model.group_of_layer(3)->base == 70000);
  CHECK(
      has_warning(model.warnings,
                  "layers of type sliding_attention have no rope dictionary; they are taken to rotate like"));
}
