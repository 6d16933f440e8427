// SPDX-License-Identifier: MIT
// The files that the configuration classes of Hugging Face transformers write, and their own values of the
// rotation: recorded/models/transformers_classes.json, written by reference_classes.py. Each is read twice:
// unchanged, and with only its sizes, so that the defaults of the class are needed.
#include <cstddef>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <rope/models.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/model_configs.hpp"
#include "support/recorded.hpp"

namespace {

using rope::Index;
using testing::json;

json records_named(const std::string& name) { return testing::recorded("models/" + name); }

/// The file with only its sizes.
json sizes_of(const json& config) {
  json sizes = json::object();
  for (const char* key :
       {"model_type", "hidden_size", "d_model", "num_attention_heads", "n_heads", "num_key_value_heads",
        "num_hidden_layers", "n_layers", "num_layers", "qk_nope_head_dim", "qk_rope_head_dim", "kv_channels",
        "attention_head_dim", "max_position_embeddings", "decoder_num_attention_heads",
        "decoder_num_hidden_layers"})
    if (config.contains(key)) sizes[key] = config.at(key);
  return sizes;
}

/// The values of a group that differ from those of the class.
std::string difference(const rope::layer_group* group, const std::string& name, const json& recorded,
                       bool latent) {
  if (!group) return name + ": there is no such group; ";
  std::string found;
  if (json(group->base) != recorded.at("base").get<double>())
    found += name + ": base is " + json(group->base).dump() + ", of the class " + recorded.at("base").dump() +
             "; ";
  if (group->rule != recorded.at("rule").get<std::string>())
    found += name + ": rule is " + group->rule + ", of the class " + recorded.at("rule").dump() + "; ";
  if (recorded.contains("share") && !latent && group->rule != "proportional") {
    const Index width =
        static_cast<Index>(static_cast<double>(group->head_dim) * recorded.at("share").get<double>());
    if (group->rotary_dim() != width - width % 2)
      found += name + ": " + std::to_string(group->rotary_dim()) + " channels rotate, of the class " +
               std::to_string(width) + "; ";
  }
  return found;
}

/// The window of every layer, -2 if it does not rotate.
std::vector<Index> windows_of(const rope::model_rope& model, std::size_t layers) {
  std::vector<Index> windows;
  for (std::size_t i = 0; i < layers; ++i)
    windows.push_back(model.rotation_of_layer(static_cast<Index>(i)) == rope::layer_rotation::none ? -2
                      : model.windows.size() == 1 ? model.windows.front()
                                                  : model.windows.at(i));
  return windows;
}

/// The values of the import of `file` that differ from those of the class.
std::string difference(const json& record, const json& file) {
  const rope::model_rope model = rope::import_hugging_face(file);
  const json& expect = record.at("expect");
  const json& config = record.at("config");
  const bool latent = config.contains("qk_rope_head_dim");
  std::string found;
  if (expect.contains("all"))
    for (const rope::layer_group& group : model.groups())
      found += difference(&group, group.layer_type, expect.at("all"), latent);
  // Gemma 4 has heads of another width too.
  bool has_width = config.value("head_dim", json()).is_null() || latent;
  for (const rope::layer_group& group : model.groups())
    has_width = has_width || json(group.head_dim) == config.at("head_dim");
  if (!has_width)
    found += "heads have " + std::to_string(model.groups().front().head_dim) +
             " channels, those of the class " + config.at("head_dim").dump() + "; ";
  const json groups = expect.value("groups", json::object());
  const json names = {{"main", "sliding_attention"}, {"compress", "compressed_sparse_attention"}};
  for (const auto& item : groups.items())
    found += difference(model.group(names.value(item.key(), item.key())), item.key(), item.value(), latent);
  const json layers = expect.value("layers", config.value("layer_types", json::array()));
  if (!model.layers().empty() && model.groups().size() > 1)
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (i >= model.layers().size() || model.layers()[i] != layers.at(i).get<std::string>()) {
        found += "layer " + std::to_string(i) + " is of another type than " + layers.at(i).dump() + "; ";
        break;
      }
  return found;
}

struct count {
  int agree = 0, rejected = 0, wrong = 0;
  std::set<std::string> unexplained = {}, unused = {};
};

/// Reads every file of the kind. `says` has the reasons why some of them throw, by model_type.
count count_of(const json& records, const std::string& kind, const json& says, bool sizes_only) {
  count result;
  for (const json& record : records) {
    if (record.at("kind") != kind) continue;
    const std::string type = record.at("config").at("model_type");
    try {
      const std::string found =
          difference(record, sizes_only ? sizes_of(record.at("config")) : record.at("config"));
      if (!found.empty()) {
        ++result.wrong;
        result.unexplained.insert(type + ": " + found);
      } else {
        ++result.agree;
        if (says.contains(type)) result.unused.insert(type);
      }
    } catch (const std::exception& error) {
      const std::string reason = says.value(type, "?");
      if (std::string(error.what()).find(reason) == std::string::npos)
        result.unexplained.insert(type + ": " + error.what());
      else
        ++result.rejected;
    }
  }
  return result;
}

}  // namespace

TEST_CASE(
    "the files that the classes of transformers write import with their values, or throw for a known reason",
    "[models]") {
  const json file = records_named("transformers_classes"), reasons = records_named("transformers_rejected");
  for (const char* kind : {"text", "other"})
    for (const bool sizes_only : {false, true}) {
      const bool text = std::string(kind) == "text";
      const count found = count_of(file.at("records"), kind,
                                   reasons.at(!text        ? "other"
                                              : sizes_only ? "sizes"
                                                           : "written"),
                                   sizes_only);
      CAPTURE(kind, sizes_only, found.agree, found.rejected, found.wrong);
      for (const std::string& one : found.unexplained) FAIL_CHECK(one);
      for (const std::string& one : found.unused) FAIL_CHECK(one << " does not throw");
      if (text) CHECK(found.agree >= (sizes_only ? 125 : 140));
      if (const char* print = std::getenv("ROPE_PRINT_COUNTS"); print)
        WARN(kind << (sizes_only ? ", sizes alone: " : ": ") << found.agree << " import and agree, "
                  << found.rejected << " throw with a reason, " << found.unexplained.size() << " neither");
    }
}

TEST_CASE("a file with only its sizes has the windows of the class, and its layers without rotation",
          "[models]") {
  const json file = records_named("transformers_classes");
  int compared = 0;
  for (const json& record : file.at("records")) {
    const json& config = record.at("config");
    const std::string type = config.at("model_type");
    // Types of layers with an indexer, or with chunks, are in no file of sizes.
    if (type == "axk2" || type == "deepseek_v32" || type == "glm_moe_dsa" || type == "llama4_text") continue;
    json sizes = sizes_of(config);
    if (config.contains("rope_parameters") && !config.at("rope_parameters").contains("full_attention"))
      sizes["rope_parameters"] = config.at("rope_parameters");
    try {
      const rope::model_rope written = rope::import_hugging_face(config),
                             alone = rope::import_hugging_face(sizes);
      if (written.layers().empty() && written.windows.size() == 1 && alone.windows == written.windows)
        continue;
      const std::size_t layers = config.at("num_hidden_layers");
      CAPTURE(type);
      CHECK(windows_of(alone, layers) == windows_of(written, layers));
      ++compared;
    } catch (const std::invalid_argument&) {
      // One of them throws. The test above has the reason.
    }
  }
  CHECK(compared >= 25);
}
