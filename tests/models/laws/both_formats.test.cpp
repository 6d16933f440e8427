// SPDX-License-Identifier: MIT
// A config of Hugging Face and the metadata of a file converted for llama.cpp describe the same rotation and
// attention: recorded/models/both_formats.json has both for each family, and the reason for each difference
// that remains.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using testing::json;

json file_of_records(const std::string& name) { return testing::recorded("models/" + name); }

/// The relative difference of a base that one side raises to a power and the other applies to the
/// frequencies.
constexpr double rounding = 4 * std::numeric_limits<double>::epsilon();

std::string architecture_of(const json& metadata) { return metadata.at("general.architecture"); }

rope::model_rope converted(const json& metadata) {
  return rope::import_gguf(testing::gguf(architecture_of(metadata), metadata));
}

/// Differences without a recorded reason, and recorded reasons without a difference.
std::vector<std::string> unexplained(const json& record, const json& metadata) {
  std::vector<std::string> found =
      rope::compare_models(rope::import_hugging_face(record.at("config")), converted(metadata), rounding);
  const json reasons = record.at("differs");
  std::vector<std::string> left;
  std::set<std::string> used;
  for (const std::string& difference : found) {
    bool explained = false;
    for (const auto& reason : reasons.items())
      if (difference.find(reason.key()) == 0) {
        explained = difference.find("wrong weights") == std::string::npos;
        used.insert(reason.key());
      }
    if (!explained) left.push_back(difference);
  }
  for (const auto& reason : reasons.items())
    if (used.count(reason.key()) == 0) left.push_back("nothing differs as in: " + reason.key());
  return left;
}

}  // namespace

TEST_CASE("a config and the file that llama.cpp converts from it are one model", "[models][describe]") {
  const json file = file_of_records("both_formats");
  CHECK(file.at("records").size() >= 120);
  for (const json& record : file.at("records")) {
    CAPTURE(record.dump());
    CHECK(unexplained(record, record.at("metadata")) == std::vector<std::string>{});
  }
}

TEST_CASE("groups of layers have one name in both formats, with the bases in which they differ",
          "[models][describe]") {
  const json window = {0, 0, 1, 1};
  for (const json& bases : {json{1e4, 2e4, 3e4, 4e4}, json{1e4, 1e4, 2e4, 2e4}, json{1e4, 1e4, 1e4, 4e4}}) {
    const json text = {
        {"model_type", "granite_swa"},
        {"hidden_size", 1024},
        {"num_attention_heads", 8},
        {"num_hidden_layers", 4},
        {"max_position_embeddings", 8192},
        {"sliding_window", 64},
        {"attention_multiplier", 0.0625},
        {"layer_types", {"full_attention", "full_attention", "sliding_attention", "sliding_attention"}},
        {"layer_rope_theta", bases}};
    const auto config = rope::import_hugging_face(text);
    const auto file = converted({{"general.architecture", "granite_swa"},
                                 {".block_count", 4},
                                 {".embedding_length", 1024},
                                 {".context_length", 8192},
                                 {".attention.head_count", 8},
                                 {".attention.sliding_window", 64},
                                 {".attention.scale", 0.0625},
                                 {".attention.sliding_window_pattern", window},
                                 {".rope.freq_base_per_layer", bases}});
    CAPTURE(bases.dump());
    CHECK(config.layers() == file.layers());
    // The converter permutes the rows of q and k.
    for (const std::string& difference : rope::compare_models(config, file))
      CHECK(difference.find(": layout is ") != std::string::npos);
  }
}

TEST_CASE("the window of a layer is known in both formats or in neither", "[models][describe]") {
  const json file = file_of_records("both_formats");
  for (const json& record : file.at("records")) {
    CAPTURE(record.dump());
    const auto a = rope::import_hugging_face(record.at("config")), b = converted(record.at("metadata"));
    const auto known = [](const rope::model_rope& model, std::size_t layer) {
      return model.windows[model.windows.size() == 1 ? 0 : layer] != rope::not_known_window;
    };
    const std::size_t layers = (std::max)(a.windows.size(), b.windows.size());
    for (std::size_t layer = 0; layer < layers; ++layer) CHECK(known(a, layer) == known(b, layer));
  }
}

TEST_CASE("every architecture of llama.cpp with rotation is compared, or has no known config",
          "[models][describe]") {
  const json file = file_of_records("both_formats");
  std::set<std::string> compared, alone = file.at("only_gguf"), recorded;
  for (const json& record : file.at("records")) compared.insert(architecture_of(record.at("metadata")));
  const json gguf = file_of_records("gguf");
  for (const json& record : gguf.at("records")) recorded.insert(architecture_of(record.at("metadata")));
  for (const std::string& one : recorded) {
    CAPTURE(one);
    CHECK(compared.count(one) + alone.count(one) == 1);
  }
  CHECK(compared.size() >= 105);
}

TEST_CASE("a file converted with another base, window, width or scale is another model",
          "[models][describe]") {
  const json file = file_of_records("both_formats");
  for (const json& record : file.at("records")) {
    json metadata = record.at("metadata");
    for (const char* key : {".rope.freq_base", ".rope.freq_base_swa", ".attention.sliding_window",
                            ".rope.dimension_count", ".attention.scale", ".rope.scaling.factor"}) {
      if (!metadata.contains(key)) continue;
      // Llama 4 slides by chunks, which are no window, SmallThinker by 4096 for any value. Mellum has one base.
      // Sections name the width too.
      const std::string one = architecture_of(metadata) + key;
      if (one == "llama4.attention.sliding_window" || one == "smallthinker.attention.sliding_window" ||
          one == "mellum.rope.freq_base_swa")
        continue;
      if (metadata.contains(".rope.dimension_sections") && key == std::string(".rope.dimension_count"))
        continue;
      json other = metadata;
      other[key] = other.at(key).get<double>() / 2;
      CAPTURE(key, record.dump());
      CHECK_FALSE(unexplained(record, other).empty());
    }
  }
}

TEST_CASE("layouts differ between the formats only if the converter permutes rows", "[models]") {
  int pairs = 0, permuted = 0;
  const json names = file_of_records("names").at("names");
  for (const auto& name : names.items()) {
    const auto config = rope::detail::hugging_face_record_of(name.key());
    for (const json& converted_to : name.value()) {
      const auto* metadata = rope::detail::gguf_record_of(converted_to.at("gguf").get<std::string>());
      if (!config || !metadata) continue;
      CAPTURE(name.key(), converted_to.dump());
      CHECK((config->layout != metadata->layout) == converted_to.at("permutes").get<bool>());
      ++pairs;
      permuted += converted_to.at("permutes").get<bool>() ? 1 : 0;
    }
  }
  CHECK(pairs >= 90);
  CHECK(permuted >= 15);
}

TEST_CASE("the architecture of a converted file is the one to which llama.cpp converts", "[models]") {
  const json names = file_of_records("names").at("names"), file = file_of_records("both_formats");
  int known = 0;
  for (const json& record : file.at("records")) {
    const json& config = record.at("config");
    const json& text = config.contains("text_config") ? config.at("text_config") : config;
    const std::string name =
        rope::detail::plain_architecture(text.value("model_type", config.value("model_type", "")));
    // The class of nomic_bert is that of several models. Its converter reads the config.
    if (!names.contains(name) || name == "nomicbert") continue;
    const std::string architecture = architecture_of(record.at("metadata"));
    CAPTURE(name, architecture);
    CHECK(std::any_of(names.at(name).begin(), names.at(name).end(),
                      [&](const json& one) { return one.at("gguf") == architecture; }));
    ++known;
  }
  CHECK(known >= 105);
}

TEST_CASE("three of the architectures of llama.cpp are unknown", "[models]") {
  std::vector<std::string> known, unknown;
  const json file = file_of_records("gguf");
  for (const std::string name : file.at("architectures")) {
    const bool rotates = rope::detail::gguf_record_of(name);
    (rotates || rope::detail::gguf_unrotated_of(name) ? known : unknown).push_back(name);
  }
  CHECK(known.size() == 157);
  // The layout of dflash depends on whether it has hyper-connections; of gptj llama.cpp has the name alone.
  // Layers of deepseek41 share the compressed keys of others.
  CHECK(unknown == std::vector<std::string>{"deepseek41", "dflash", "gptj"});
}
