// SPDX-License-Identifier: MIT
// The treatment of keys of windows and of sinks in llama.cpp, by architecture.
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using rope::Index;
using rope::not_known_window;
using testing::has_warning;
using testing::json;
using windows_of = std::vector<Index>;

/// A file of four layers, changed by `more`.
rope::model_rope import(const std::string& architecture, const json& more,
                        const rope::gguf_options& options = {}) {
  json entries = {{".block_count", 4},
                  {".embedding_length", 512},
                  {".attention.head_count", 4},
                  {".attention.key_length", 128},
                  {".rope.freq_base", 1e4}};
  entries.update(more);
  for (const auto& item : more.items())
    if (item.value().is_null()) entries.erase(item.key());
  return rope::import_gguf(testing::gguf(architecture, entries), options);
}

/// The architectures whose loaders read attention.sliding_window: in llama.cpp b10573 those of
/// src/models/*.cpp with LLM_KV_ATTENTION_SLIDING_WINDOW, except phi3, whose loader sets it to 0 (phi3.cpp),
/// and lfm2moe, see below.
const std::set<std::string> read_a_window = {
    "afmoe",  "cohere2",         "cohere2moe", "deepseek4",    "dots3note", "exaone-moe", "exaone4",
    "gemma2", "gemma-embedding", "gemma3",     "gemma3n",      "gemma4",    "gpt-oss",    "gemma4-assistant",
    "laguna", "granite_swa",     "lfm2",       "llama4",       "mellum",    "mimo2",      "modern-bert",
    "olmo2",  "muse-glimmer",    "plamo3",     "smallthinker", "step35",    "spark2_5",   "lfm2moe",
    "maple",  "diffusion-gemma"};

}  // namespace

TEST_CASE("a window has no effect if llama.cpp has no layers with windows, and a warning names it",
          "[models][gguf]") {
  const json file = testing::recorded("models/gguf"), probes = testing::recorded("models/probes").at("gguf");
  std::set<std::string> seen;
  for (const json& record : file.at("records")) {
    const std::string name = record.at("metadata").at("general.architecture");
    if (read_a_window.count(name) > 0 || !seen.insert(name).second) continue;
    CAPTURE(name);
    json keys = {{".attention.sliding_window", 64},
                 {".attention.sliding_window_pattern", {1, 0, 1, 0}},
                 {".rope.freq_base_swa", 777},
                 {".rope.dimension_count_swa", 32}};
    const auto model = import(name, keys);
    CHECK(model.groups().size() == 1);
    CHECK(model.sliding_window == 0);
    CHECK(model.window_of_sliding == 0);
    for (Index layer = 0; layer < 4; ++layer)
      if (model.group_of_layer(layer)) CHECK(model.attention_of_layer(layer).window == 0);
    for (const char* key :
         {".attention.sliding_window has no effect for ", ".rope.freq_base_swa has no effect for ",
          ".rope.dimension_count_swa has no effect for "})
      CHECK(has_warning(model.warnings, name + key + name + ": no layer slides"));
    CHECK(has_warning(model.warnings, name + ".attention.sliding_window_pattern is not read for " + name));
    CHECK_FALSE(has_warning(import(name, json::object()).warnings, "no layer slides"));
  }
  CHECK(seen.size() >= 95);
  CHECK(seen.count("phi3") == 1);
}

TEST_CASE("an unknown window always has a warning", "[models][gguf]") {
  const json file = testing::recorded("models/gguf"), probes = testing::recorded("models/probes").at("gguf");
  std::set<std::string> names;
  for (const json& record : file.at("records"))
    names.insert(record.at("metadata").at("general.architecture").get<std::string>());
  int unknown = 0;
  for (const std::string& name : names)
    for (const json& more :
         {json::object(), json{{".attention.sliding_window", 64}}, json{{".block_count", nullptr}},
          json{{".attention.sliding_window", 64}, {".block_count", nullptr}},
          json{{".attention.sliding_window", 64},
               {".attention.sliding_window_pattern", {1, 0, 1, 1, 0, 1}}}}) {
      json keys = probes.at("needs").value(name, json::object());
      keys.update({{".block_count", 6}});
      keys.update(more);
      CAPTURE(name, keys.dump());
      const auto model = import(name, keys);
      bool known = true;
      for (std::size_t i = 0; i < model.windows.size(); ++i)
        known = known && (model.windows[i] != not_known_window ||
                          model.rotation_of_layer(static_cast<Index>(i)) == rope::layer_rotation::none);
      if (known) continue;
      ++unknown;
      CHECK((has_warning(model.warnings, "is not given; the window of layers that slide is not known") ||
             has_warning(model.warnings, "is not given; which layers slide is not known") ||
             has_warning(model.warnings, "a window cannot express")));
    }
  CHECK(unknown >= 30);
}

TEST_CASE("a missing value for a window is named by its key", "[models][gguf]") {
  const json window = {{".attention.sliding_window", 64}};
  CHECK(has_warning(
      import("cohere2", json::object()).warnings,
      "cohere2.attention.sliding_window is not given; the window of layers that slide is not known"));
  CHECK(
      has_warning(import("cohere2", {{".block_count", nullptr}, {".attention.sliding_window", 64}}).warnings,
                  "cohere2.block_count is not given; which layers slide is not known"));
  CHECK(has_warning(import("gemma4", window).warnings,
                    "gemma4.attention.sliding_window_pattern is not given; which layers slide is not known"));
  CHECK(has_warning(import("llama4", window).warnings,
                    "llama4.attention.sliding_window is a length of chunks", "a window cannot express"));
  CHECK(has_warning(import("novel", window, {.layout = rope::layout_kind::half_split}).warnings,
                    "novel.attention.sliding_window_pattern is not given; which layers slide is not known"));
  const auto v4 = import("deepseek4", {{".attention.compress_ratios", {0, 4, 128, 0}},
                                       {".attention.compress_rope_freq_base", 160000.0}});
  CHECK(has_warning(v4.warnings, "deepseek4.attention.compress_ratios: a window cannot express"));
  CHECK(has_warning(v4.warnings, "deepseek4.attention.sliding_window is not given"));
}

// lfm2.cpp: if attention.sliding_window is above 0, is_swa is set for each layer that is not recurrent.
// lfm2moe.cpp has a graph of such layers, but its loader does not read the key in every version.
TEST_CASE("every layer of LFM2 with attention has the window and the base of the file", "[models][gguf]") {
  for (const char* name : {"lfm2", "lfm2moe"}) {
    CAPTURE(name);
    json keys = {{".attention.head_count_kv", {0, 2, 0, 2}}, {".rope.freq_base", 1e6}};
    CHECK(import(name, keys).windows == windows_of{-1, 0, -1, 0});
    CHECK(import(name, keys).window_of_sliding == 0);
    keys.update({{".attention.sliding_window", 64}, {".rope.freq_base_swa", 777}});
    const auto model = import(name, keys);
    CHECK(model.windows == windows_of{-1, 64, -1, 64});
    CHECK(model.window_of_sliding == 64);
    CHECK(model.sliding_window == 64);
    REQUIRE(model.groups().size() == 1);
    CHECK(model.groups()[0].base == 1e6);
    CHECK(has_warning(model.warnings, "rope.freq_base_swa is not read"));
    CHECK(has_warning(model.warnings, "sliding_window: not every version of llama.cpp slides by it") ==
          (name == std::string("lfm2moe")));
    CHECK(model.attention_of_group("").window == 64);
    keys[".attention.head_count_kv"] = 2;
    CHECK(import(name, keys).windows == windows_of{64});
    keys[".block_count"] = nullptr;
    CHECK(import(name, keys).windows == windows_of{64});
  }
}

TEST_CASE("models without rotation are equal in both formats", "[models][gguf]") {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"kimi_linear", "kimi-linear"}, {"kimi_k3", "kimi-k3"}, {"glm5_next_text", "glm5-next"}};
  for (const auto& [config, file] : names) {
    CAPTURE(config);
    constexpr auto describe = rope::model_without_rope::describe;
    const auto a = rope::import_hugging_face(
        json{{"model_type", config}, {"num_attention_heads", 4}, {"hidden_size", 512}},
        {.without_rope = describe});
    const auto b = import(file, json::object(), {.without_rope = describe});
    CHECK(rope::compare_models(a, b).empty());
    CHECK(b.instead_of_rope() == "no positions");
    CHECK_FALSE(rope::compare_models(a, import("gpt2", json::object(), {.without_rope = describe})).empty());
  }
}

// mimo2.cpp: attn_sinks is optional in every layer. MiMo-V2-Flash has it in layers with a window.
TEST_CASE("only layers of MiMo-V2 with a window have sink logits, unless the tensors of the file show others",
          "[models][gguf]") {
  json keys = {{".attention.sliding_window", 64}, {".attention.sliding_window_pattern", {0, 1, 1, 0}}};
  const auto assumed = import("mimo2", keys);
  CHECK(assumed.sink_logits);
  CHECK(assumed.layers_without_sinks == windows_of{0, 3});
  CHECK_FALSE(assumed.layer_has_sinks(0));
  CHECK(assumed.layer_has_sinks(1));
  CHECK(has_warning(assumed.warnings, "sink logits are assumed in layers that slide",
                    "blk.N.attn_sinks.weight"));
  keys["blk.0.attn_sinks.weight"] = {-1.5, 0.25, 0.5, 1};
  keys["blk.1.attn_sinks.weight"] = {-1.5, 0.25, 0.5, 1};
  const auto known = import("mimo2", keys);
  CHECK(known.layers_without_sinks == windows_of{2, 3});
  CHECK_FALSE(has_warning(known.warnings, "sink logits"));
  CHECK(import("gpt-oss", {{".attention.sliding_window", 64}}).layers_without_sinks.empty());

  const std::vector<float> sinks(4, 0.5f);
  std::vector<float> q(4 * 128, 1.0f), k(4 * 128, 1.0f);
  const rope::model_tables tables(assumed, 4);
  const auto layer = [&](Index of, std::span<const float> given) {
    return rope::rotate_layer(tables, of, rope::bshd(q.data(), 1, 1, 4, 128),
                              rope::bshd(k.data(), 1, 1, 4, 128), 0, given);
  };
  CHECK(layer(0, {}).sink_logits.empty());
  CHECK(layer(0, {}).window == 0);
  CHECK(layer(1, sinks).sink_logits.size() == 4);
  CHECK(layer(1, sinks).window == 64);
  CHECK(testing::throws_saying<std::invalid_argument>([&] { layer(0, sinks); }, "sink_logits must be empty",
                                                      "layer 0"));
  CHECK(testing::throws_saying<std::invalid_argument>([&] { layer(1, {}); }, "one for each of 4 query heads",
                                                      "layer 1"));
}

namespace {

/// The windows of attention_of_group for each of attention_types, by type.
std::map<std::string, Index> answers_of(const rope::model_rope& model) {
  std::map<std::string, Index> answers;
  for (const std::string& type : model.attention_types())
    answers[type] = model.attention_of_group(type).window;
  return answers;
}

}  // namespace

TEST_CASE("the loop over types of layers gives the options of each that options express",
          "[models][attention_of_group]") {
  using answers = std::map<std::string, Index>;
  const json window = {{".attention.sliding_window", 64}};
  // One group that rotates, and two windows.
  const answers both = {{"sliding_attention", 64}, {"full_attention", 0}};
  for (const char* name : {"gpt-oss", "gemma2"}) {
    const auto model = import(name, window);
    CHECK(model.groups().size() == 1);
    CHECK(answers_of(model) == both);
    CHECK(model.layers() == std::vector<std::string>{"sliding_attention", "full_attention",
                                                     "sliding_attention", "full_attention"});
  }
  CHECK(answers_of(import("gemma3", {{".attention.sliding_window", 64}, {".block_count", 2}})) == both);
  CHECK(answers_of(import("llama", json::object())) == answers{{"", 0}});
  CHECK(answers_of(import("cohere2", window)) ==
        answers{{"sliding_attention", 64}});  // the others do not rotate
  CHECK(answers_of(rope::import_hugging_face(json{{"model_type", "qwen2"},
                                                  {"num_hidden_layers", 4},
                                                  {"num_attention_heads", 4},
                                                  {"head_dim", 64},
                                                  {"use_sliding_window", true},
                                                  {"sliding_window", 16},
                                                  {"max_window_layers", 2}})) ==
        answers{{"sliding_attention", 16}, {"full_attention", 0}});

  // Chunks, compressed keys and an unknown window are not in the list. The single calls give the reason.
  const auto throws = [](const rope::model_rope& model, const char* type, const char* reason) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { static_cast<void>(model.attention_of_group(type)); }, reason));
  };
  const auto chunks = import("llama4", window);
  CHECK(answers_of(chunks).empty());
  CHECK(chunks.attention_kind_of_layer(0) == rope::layer_attention::in_chunks);
  CHECK(chunks.attention_kind_of_layer(3) == rope::layer_attention::in_options);
  CHECK(chunks.attention_kind_of_layer(4) == rope::layer_attention::not_known);
  throws(chunks, "", "layer 0 attends in chunks of 8192 tokens, which no window expresses");
  const json compressed = {{".attention.sliding_window", 64},
                           {".attention.compress_rope_freq_base", 160000.0}};
  const auto v4 =
      import("deepseek4", testing::changed(compressed, {{".attention.compress_ratios", {0, 4, 128, 0}}}));
  CHECK(answers_of(v4) == answers{{"sliding_attention", 64}});
  CHECK(v4.attention_kind_of_layer(1) == rope::layer_attention::not_known);
  for (const char* type : {"compressed_sparse_attention", "heavily_compressed_attention"})
    throws(v4, type, "a window cannot express which compressed keys a layer sees");
  // t5gemma2 has layers that slide, but this file has neither their number nor how far they see on each side.
  const auto unknown = rope::import_hugging_face(
      json{{"model_type", "t5gemma2_text"}, {"head_dim", 64}, {"num_attention_heads", 4}});
  CHECK(answers_of(unknown) == answers{{"full_attention", 0}});
  throws(unknown, "sliding_attention", "the window of layers of type \"sliding_attention\" is not known");
}

TEST_CASE("a layer that attends in chunks needs memory for their ranges, or throws with the reason",
          "[models][rotate_layer]") {
  std::vector<float> q(4 * 128, 1.0f), k(4 * 128, 1.0f);
  const rope::head_view<float> qs = rope::bshd(q.data(), 1, 1, 4, 128),
                               ks = rope::bshd(k.data(), 1, 1, 4, 128);
  const rope::model_rope of_file = import("llama4", {{".attention.sliding_window", 8192}}),
                         of_config = rope::import_hugging_face(json{{"model_type", "llama4_text"},
                                                                    {"num_hidden_layers", 4},
                                                                    {"num_attention_heads", 4},
                                                                    {"head_dim", 128}});
  const rope::model_tables file(of_file, 4), config(of_config, 4);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::rotate_layer(file, 0, qs, ks); }, "layer 0 attends in chunks of 8192 tokens",
      "; pass rotate_layer a std::vector<key_range>", "chunk_ranges(8192, "));
  CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::rotate_layer(config, 0, qs, ks); },
                                                      "layer 0 attends in chunks of 8192 tokens",
                                                      "; pass rotate_layer a std::vector<key_range>"));
  CHECK(q == std::vector<float>(4 * 128, 1.0f));
  CHECK(rope::rotate_layer(file, 3, qs, ks).window == 0);  // no rotation, full attention
}

TEST_CASE("layers with a window have that of the file, or that of the architecture", "[models][gguf]") {
  const json window = {{".attention.sliding_window", 64}};
  CHECK(import("gemma2", json::object()).window_of_sliding == 4096);
  CHECK(import("gemma2", window).window_of_sliding == 64);
  CHECK(import("modern-bert", window).window_of_sliding == 33);  // half of them after the query
  CHECK(import("smallthinker", window).window_of_sliding == 4096);
  CHECK(import("llama4", window).window_of_sliding == not_known_window);
  CHECK(import("cohere2", json::object()).window_of_sliding == not_known_window);
  CHECK(import("exaone4", window).window_of_sliding == 0);  // only the model of 64 layers has windows
  // A short Gemma 3 has layers of one kind. The group of the other kind has the options that its layers would
  // have.
  const auto gemma = import("gemma3", {{".attention.sliding_window", 64}, {".block_count", 2}});
  CHECK(gemma.attention_of_group("full_attention").window == 0);
  CHECK(gemma.attention_of_group("sliding_attention").window == 64);
  const auto full = import(
      "gemma3", {{".attention.sliding_window", 64}, {".attention.sliding_window_pattern", {0, 0, 0, 0}}});
  CHECK(full.attention_of_group("sliding_attention").window == 64);
}

// Source: llama.cpp, n_embd_head_k and n_rot of a layer in llama-hparams.cpp: by is_swa, for every
// architecture.
TEST_CASE("layers with a window may have heads of another width", "[models][gguf]") {
  for (const char* name : {"gpt-oss", "gemma2", "exaone-moe", "llama4"}) {
    CAPTURE(name);
    const json wide = {{".attention.sliding_window", 64}, {".rope.dimension_count", 32}};
    const auto alike = import(name, wide);
    CHECK(alike.groups().size() == 1);
    json own = wide;
    own[".attention.key_length_swa"] = 64;
    const auto two = import(name, own);
    REQUIRE(two.groups().size() == 2);
    CHECK(two.group("full_attention")->head_dim == 128);
    CHECK(two.group("sliding_attention")->head_dim == 64);
    CHECK(two.group("sliding_attention")->rotary_dim() == 32);
  }
}

TEST_CASE("keys of kinds of layers that llama.cpp does not read have warnings", "[models][gguf]") {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, json>>{{".attention.key_length_swa", 64},
                                                 {".attention.key_length_mla_swa", 64},
                                                 {".attention.compress_ratios", {0, 4, 0, 4}},
                                                 {".full_attention_interval", 2}})
    for (const char* name : {"llama", "qwen3", "olmoe"}) {
      CAPTURE(key, name);
      const auto model = import(name, {{key, value}});
      CHECK(has_warning(model.warnings, name + key));
    }
  CHECK_FALSE(has_warning(import("qwen3next", {{".full_attention_interval", 2}}).warnings, "interval"));
  CHECK_FALSE(has_warning(
      import("qwen4exp", {{".attention.compress_ratios", {0, 4, 0, 4}}, {".rope.dimension_count", 64}})
          .warnings,
      "compress_ratios is not read"));
}

// llama.cpp: granite-swa reads attention.rope_pattern; a layer without key heads is recurrent in lfm2.cpp.
TEST_CASE("a file throws or is described without groups if none of its layers rotates", "[models][gguf]") {
  for (const auto& [name, key, value] : std::vector<std::tuple<std::string, std::string, json>>{
           {"granite_swa", ".attention.rope_pattern", {0, 0, 0, 0}},
           {"lfm2", ".attention.head_count_kv", {0, 0, 0, 0}},
           {"qwen3next", ".attention.recurrent_layers", {1, 1, 1, 1}}}) {
    const std::string type = name;
    const json keys = {{key, value}, {".attention.sliding_window_pattern", {0, 1, 0, 1}}};
    CAPTURE(type);
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { import(type, keys); }, type + key + " leaves no layer of " + type + " that rotates",
        "pass model_without_rope::describe"));
    const auto model = import(name, keys, {.without_rope = rope::model_without_rope::describe});
    CHECK(model.instead_of_rope() == "no positions");
    CHECK(model.groups().empty());
    CHECK(model.query_heads == 4);
    CHECK(model.rotation_of_layer(0) == rope::layer_rotation::none);
  }
}

// llama.cpp, llama-model-loader.cpp: get_kv throws for a value of another type, and get_key_or_arr for a list
// of another length; the latter repeats a single number.
TEST_CASE("a value of another form throws, or stands for all values of a list", "[models][gguf]") {
  for (const auto& [key, value, says] : std::vector<std::tuple<const char*, json, const char*>>{
           {".rope.scaling.type", 2, "rope.scaling.type must be a text, got a number"},
           {".rope.scaling.type", {2}, "rope.scaling.type must be a text, got a list"},
           {".rope.freq_base", {1e6}, "rope.freq_base must be a number, got a list"},
           {".rope.dimension_sections", "16",
            "rope.dimension_sections must be a list of numbers, got the text"},
           {".rope.dimension_count_per_layer", 64, "per_layer must be a list of numbers, got a number"},
           {".rope.freq_base_per_layer", "1e4", "per_layer must be a list of numbers, got the text"},
           {".attention.head_count", {4, 4}, "attention.head_count must have block_count values, 4, got 2"},
           {".attention.head_count", "4", "attention.head_count must be a number, got the text 4"},
           {".attention.head_count_kv", {4, 4}, "head_count_kv must have block_count values, 4, got 2"}}) {
    const json keys = {{key, value}};
    CAPTURE(keys.dump());
    CHECK(testing::throws_saying<std::invalid_argument>([&] { import("qwen2vl", keys); }, says));
  }
  CHECK(import("qwen2vl", {{".rope.dimension_sections", 16}}).groups()[0].mrope_sections ==
        windows_of{16, 16, 16, 16});
  const auto one_base = import("qwen2vl", {{".rope.freq_base_per_layer", 2e4}});
  REQUIRE(one_base.groups().size() == 1);
  CHECK(one_base.groups()[0].base == 2e4);
  CHECK(one_base.layers().empty());  // all layers are alike
}

// ggml pads the sections of fewer axes with zeros at the end. A zero before the end is an axis without pairs.
TEST_CASE("an axis of M-RoPE without pairs stays an axis", "[models][gguf]") {
  const auto sections = [](const char* name, const json& list) {
    return import(name, {{".rope.dimension_sections", list}}).groups()[0].mrope_sections;
  };
  CHECK(sections("qwen2vl", {0, 32, 32, 0}) == windows_of{0, 32, 32});
  CHECK(sections("qwen2vl", {32, 0, 32, 0}) == windows_of{32, 0, 32});
  CHECK(sections("qwen2vl", {64, 0, 0, 0}) == windows_of{64});
  CHECK(sections("qwen3vl", {24, 20, 20, 0}) == windows_of{24, 20, 20});
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] {
        sections("qwen3vl", {4, 30, 30, 0});
      },
      "qwen3vl.rope.dimension_sections must fit axes that alternate", "below 64, got 88"));
}

TEST_CASE("a file without a number of layers does not say that all layers rotate", "[models][gguf]") {
  constexpr const char* says = "block_count is not given, so the layers that do not rotate are not listed";
  for (const char* name : {"smollm3", "qwen3next", "cohere2", "llama"}) {
    CAPTURE(name);
    const bool some_rotate = name != std::string("llama");
    CHECK(has_warning(import(name, {{".block_count", nullptr}}).warnings, says) == some_rotate);
    CHECK_FALSE(has_warning(import(name, {{".block_count", 8}}).warnings, says));
  }
}
