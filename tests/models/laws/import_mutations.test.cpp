// SPDX-License-Identifier: MIT
#include <rope/models/hugging_face.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <rope/models/describe.hpp>
#include <rope/models/gguf.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/random.hpp"
#include "support/recorded.hpp"

/// Changed model files: for any value of any key, an import gives finite frequencies or throws
/// std::invalid_argument.

namespace {

using testing::json;

const std::vector<std::string> configs = {
    "llama_2_7b",      "llama_3_1_8b", "llama_4_scout",    "mistral_7b",
    "qwen2_5_7b_yarn", "qwen2_vl_7b",  "gemma_3_4b",       "gemma_3_4b_rope_parameters",
    "phi_3_5_mini",    "deepseek_v3",  "deepseek_v2_lite", "gpt_oss_20b",
    "pythia_410m",     "glm_4_9b",     "modernbert_base"};

const json values = {nullptr,
                     true,
                     false,
                     0,
                     1,
                     2,
                     -1,
                     0.5,
                     3,
                     1e-300,
                     1e300,
                     -1e300,
                     1e9,
                     1048577,
                     "",
                     "x",
                     "yarn",
                     "llama",
                     "default",
                     "longrope",
                     "linear",
                     "dynamic",
                     json::array(),
                     {1},
                     {1, 0},
                     {"x"},
                     json::object(),
                     {{"x", 1}},
                     {{"rope_type", "yarn"}},
                     {{"factor", nullptr}}};

/// Every path of a value in the file, at any depth.
void collect(const json& value, const json::json_pointer& path, std::vector<json::json_pointer>& places) {
  if (value.is_object())
    for (const auto& item : value.items()) {
      places.push_back(path / item.key());
      collect(item.value(), path / item.key(), places);
    }
  if (value.is_array() && !value.empty()) {
    places.push_back(path / 0);
    places.push_back(path / (value.size() - 1));
  }
}

/// The outcomes of the imports, and the message of the last one.
struct tally {
  int imported = 0, rejected = 0;
  std::string message;
};

/// Whether the import gave a model that can be described, or threw with a text of the library.
template <class Import>
bool holds(tally& seen, const Import& import) {
  try {
    const rope::model_rope model = import();
    if (model.groups().empty() || rope::describe(model).empty()) return false;
    for (const rope::layer_group& group : model.groups()) {
      if (group.first_channel < 0 || group.first_channel + group.rotary_dim() > group.head_dim) return false;
      if (!(group.frequencies.inv_freq().abs() < 0x1p64).all()) return false;
    }
    ++seen.imported;
    return rope::compare_models(model, model).empty();
  } catch (const std::invalid_argument& error) {
    ++seen.rejected;
    seen.message = error.what();
    return seen.message.find("rope::") == 0;
  }
}

}  // namespace

TEST_CASE("a config with any value at any path imports or throws", "[models][import]") {
  tally seen;
  for (const std::string& name : configs) {
    const json original = testing::config(name);
    std::vector<json::json_pointer> places;
    collect(original, json::json_pointer(), places);
    for (const json::json_pointer& place : places)
      for (const json& value : values) {
        json spoilt = original;
        spoilt[place] = value;
        const double length = name == "phi_3_5_mini" ? 200000 : 0;
        if (holds(seen, [&] { return rope::import_hugging_face(spoilt, {.length = length}); })) continue;
        FAIL(name << " with " << value << " at " << place.to_string() << ": " << seen.message);
      }
  }
  CHECK(seen.imported > 1000);
  CHECK(seen.rejected > 1000);
}

TEST_CASE("a recorded file with any value at any path imports or throws", "[models][import]") {
  tally seen;
  // A fifth of the values at every path, another fifth at the next one: most keys are in many files, and are
  // tried with all values.
  std::size_t first = 0;
  for (const std::string name : {"hugging_face", "gguf"}) {
    const json all = testing::recorded("models/" + name);
    for (const json& record : all.at("records")) {
      const bool config = record.contains("config");
      const json original = config ? record.at("config") : record.at("metadata");
      std::vector<json::json_pointer> places;
      collect(original, json::json_pointer(), places);
      for (const json::json_pointer& place : places)
        for (std::size_t i = first++ % 5; i < values.size(); i += 5) {
          if (place.to_string() == "/general.architecture") continue;
          const json& value = values[i];
          json spoilt = original;
          spoilt[place] = value;
          const bool good = holds(seen, [&] {
            return config ? rope::import_hugging_face(spoilt)
                          : rope::import_gguf(testing::gguf(original.at("general.architecture"), spoilt));
          });
          if (good) continue;  // messages are built only for failures: there are about 19,000 files
          FAIL(original << " with " << value << " at " << place.to_string() << ": " << seen.message);
        }
    }
  }
  CHECK(seen.imported > 1000);
  CHECK(seen.rejected > 1000);
}

TEST_CASE("a config with several changed paths imports or throws", "[models][import]") {
  const std::uint64_t seed = 93;
  CAPTURE(seed);
  testing::random random(seed);
  const auto below = [&](std::size_t count) {
    return static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(count) - 1));
  };
  tally seen;
  for (int sample = 0; sample < testing::draws(1000); ++sample) {
    json spoilt = testing::config(configs[below(configs.size())]);
    for (int change = 0; change < 4; ++change) {
      std::vector<json::json_pointer> places;
      collect(spoilt, json::json_pointer(), places);
      // A key of another model, or another value.
      const json other = testing::config(configs[below(configs.size())]);
      if (!spoilt.is_object() || places.empty() || random.integer(0, 1) == 0)
        spoilt.merge_patch(other);
      else
        spoilt[places[below(places.size())]] = values[below(values.size())];
    }
    CAPTURE(sample, spoilt.dump());
    REQUIRE(holds(seen, [&] { return rope::import_hugging_face(spoilt); }));
  }
  CHECK(seen.imported > testing::draws(300));
  CHECK(seen.rejected > testing::draws(300));
}

TEST_CASE("GGUF metadata with any value of any key imports or throws", "[models][gguf]") {
  const json entries = {{".embedding_length", 512},
                        {".attention.head_count", 4},
                        {".attention.head_count_kv", 2},
                        {".attention.key_length", 128},
                        {".attention.key_length_swa", 64},
                        {".attention.sliding_window", 1024},
                        {".attention.sliding_window_pattern", {1, 0}},
                        {".attention.compress_rope_freq_base", 1e4},
                        {".context_length", 4096},
                        {".block_count", 2},
                        {".rope.dimension_count", 64},
                        {".rope.dimension_count_swa", 32},
                        {".rope.dimension_count_per_layer", {64, 32}},
                        {".rope.dimension_sections", {16, 8, 8, 0}},
                        {".rope.freq_base", 1e4},
                        {".rope.freq_base_swa", 2e4},
                        {".rope.freq_base_per_layer", {1e4, 2e4}},
                        {".rope.scaling.type", "yarn"},
                        {".rope.scaling.factor", 4},
                        {".rope.scale_linear", 2},
                        {".rope.scaling.attn_factor", 1.5},
                        {".rope.scaling.yarn_attn_factor", 1.5},
                        {".rope.scaling.original_context_length", 1024},
                        {".rope.scaling.yarn_ext_factor", 0.5},
                        {".rope.scaling.yarn_beta_fast", 32},
                        {".rope.scaling.yarn_beta_slow", 1},
                        {".rope.scaling.yarn_log_multiplier", 0.1},
                        {"rope_freqs.weight", std::vector<double>(64, 2.0)},
                        {"rope_factors_short.weight", std::vector<double>(64, 3.0)},
                        {"rope_factors_long.weight", std::vector<double>(64, 4.0)}};
  const json numbers = {nullptr, true, 0,      1,        2,   -1,     0.5,        1e-300, 1e300,
                        1048577, "x",  "none", "linear", {1}, {1, 2}, {0, 1e300}, {-1, 1}};
  tally seen;
  for (const char* architecture : {"llama", "gemma3", "deepseek2", "cohere2"})
    for (const auto& entry : entries.items())
      for (const json& value : numbers)
        for (const bool removed_lists : {false, true}) {
          json spoilt = entries;
          if (removed_lists)
            for (const char* key : {".rope.dimension_count_per_layer", ".rope.freq_base_per_layer",
                                    ".rope.dimension_sections", "rope_freqs.weight"})
              spoilt.erase(key);
          spoilt[entry.key()] = value;
          CAPTURE(architecture, entry.key(), value.dump(), removed_lists);
          REQUIRE(holds(seen, [&] {
            return rope::import_gguf(testing::gguf(architecture, spoilt), {.length = 2000});
          }));
        }
  CHECK(seen.imported > 700);
  CHECK(seen.rejected > 500);
}
