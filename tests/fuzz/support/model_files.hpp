// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_MODEL_FILES_HPP
#define ROPE_TESTS_FUZZ_MODEL_FILES_HPP

/// Model files changed by bytes: those of examples/configs and the recorded ones of tests/recorded/models,
/// with values changed, taken from one another, or removed.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <rope/models/model_rope.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "support/model_configs.hpp"
#include "support/model_promises.hpp"
#include "support/recorded.hpp"

namespace fuzz {

using testing::json;

/// The entries `member` of the recorded files, imported or throwing.
inline std::vector<json> recorded(const std::string& file, const std::string& member) {
  std::vector<json> result;
  const json all = testing::recorded("models/" + file);
  for (const char* part : {"records", "refused"})
    if (all.contains(part))
      for (const json& one : all.at(part))
        if (one.contains(member)) result.push_back(one.at(member));
  return result;
}

inline std::vector<json> example_configs() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(ROPE_TEST_CONFIGS))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<json> result;
  for (const auto& file : files) result.push_back(testing::config(file.stem().string()));
  return result;
}

/// Those of examples/configs, then the recorded ones.
inline const std::vector<json>& all_configs() {
  static const std::vector<json> all = [] {
    std::vector<json> result = example_configs();
    for (json& one : recorded("hugging_face", "config")) result.push_back(std::move(one));
    return result;
  }();
  return all;
}

class spoiler {
 public:
  spoiler(bytes& b, const std::vector<json>& originals) : b_(b), originals_(originals) {}

  json spoilt() {
    json file = b_.one_of(originals_);
    for (long change = b_.up_to(5); change > 0; --change) spoil(file, b_.one_of(originals_));
    return file;
  }

  void spoil(json& file, const json& other) {
    std::vector<json::json_pointer> places, others;
    collect(file, json::json_pointer(), places);
    collect(other, json::json_pointer(), others);
    if (!file.is_object() || places.empty())
      file = json::object(), places.assign(1, json::json_pointer("/x"));
    if (others.empty()) return;
    const json::json_pointer place = b_.one_of(places), foreign = b_.one_of(others);
    switch (b_.up_to(6)) {
      case 0:
        if (file.contains(place) && file[place.parent_pointer()].is_object())
          file[place.parent_pointer()].erase(place.back());
        break;
      case 1:
        file[place] = other[foreign];
        break;
      case 2:
        file.merge_patch(other);
        break;
      case 3:
        if (foreign.parent_pointer().empty()) file[foreign] = b_.coin() ? other[foreign] : value(0);
        break;
      case 4:
        if (json& changed = file[place]; changed.is_array() && !changed.empty()) {
          b_.coin() ? changed.push_back(changed.back()) : changed.erase(changed.size() - 1);
        }
        break;
      default:
        file[place] = value(0);
    }
  }

  std::string word() {
    static const char* const words[] = {
        "default", "linear", "dynamic", "yarn",       "longrope",       "llama3",
        "none",    "ntk",    "su",      "mrope",      "full_attention", "sliding_attention",
        "llama",   "gemma3", "cohere2", "modernbert", "deepseek_v3",    "qwen2_vl",
        "LLLG",    "",       "x",       "%s%n",       "\xff\xfe",       "proportional"};
    if (b_.one_in(24)) return std::string(b_.coin() ? 3 : 200, '\0');
    return b_.one_of(words);
  }

 private:
  json list() {
    static const long lengths[] = {0, 1, 2, 3, 4, 8, 9, 16, 24, 32, 48, 64};
    const long count = b_.one_in(64) ? 16384 + b_.up_to(1) : b_.one_of(lengths);
    const json repeated = value(1);
    const bool varied = count <= 9 && b_.coin();
    json all = json::array();
    for (long i = 0; i < count; ++i) all.push_back(varied ? json(number()) : repeated);
    return all;
  }

  json number() {
    if (b_.one_in(3)) return b_.real();
    if (b_.coin()) return b_.up_to(200);
    return b_.integer();
  }

  json value(int depth) {
    switch (b_.up_to(depth > 0 ? 5 : 7)) {
      case 0:
        return nullptr;
      case 1:
        return b_.coin();
      case 2:
        return word();
      case 6:
        return list();
      case 7:
        return json{{word(), number()}, {"rope_type", word()}};
      default:
        return number();
    }
  }

  /// The paths of values, at any depth, with one element of a list.
  void collect(const json& file, const json::json_pointer& path, std::vector<json::json_pointer>& places) {
    if (file.is_object())
      for (const auto& item : file.items()) {
        places.push_back(path / item.key());
        collect(item.value(), path / item.key(), places);
      }
    if (file.is_array() && !file.empty()) places.push_back(path / (file.size() - 1));
  }

  bytes& b_;
  const std::vector<json>& originals_;
};

/// A key about positions that no class reads.
struct planted_key {
  std::string name;                 // empty: none is planted
  std::vector<std::string> around;  // the paths of the dictionaries around it

  /// Whether the model names it: in a warning, as a type of layers where any word may be one, or by a warning
  /// that nothing is read in a dictionary around it.
  bool is_named(const rope::model_rope& model) const {
    const auto names = [&](const std::string& warning) {
      return warning.find(name) != std::string::npos ||
             std::any_of(around.begin(), around.end(),
                         [&](const std::string& path) { return warning.starts_with(path + " "); });
    };
    return name.empty() || std::any_of(model.warnings.begin(), model.warnings.end(), names) ||
           std::any_of(model.groups().begin(), model.groups().end(),
                       [&](const rope::layer_group& group) { return group.layer_type == name; });
  }
};

/// Puts a key with a value of any type into a dictionary of the file, at any depth.
inline planted_key plant(bytes& b, json& file) {
  static const char* const names[] = {"rope_foo",   "position_scale", "yarn_bar",    "sliding_baz",
                                      "nope_qux",   "some_pattern",   "chunk_quux",  "window_corge",
                                      "alibi_fred", "thud_rotary",    "layer_types_"};
  static const json values[] = {1, -0.5, true, false, "text", {0, 1}, json::object(), {{"plugh", 1}}};
  if (!file.is_object()) return {};
  planted_key planted{.name = b.one_of(names), .around = {}};
  json* place = &file;
  std::string path;
  while (!b.one_in(3)) {
    std::vector<std::string> inner;
    for (const auto& item : place->items())
      if (item.value().is_object()) inner.push_back(item.key());
    if (inner.empty()) break;
    const std::string& key = b.one_of(inner);
    path += (path.empty() ? "" : ".") + key;
    planted.around.push_back(path);
    place = &(*place)[key];
  }
  (*place)[planted.name] = b.one_of(values);
  return planted;
}

/// What an import did: whether it gave a model, and what does not hold of it, or nothing.
struct import_outcome {
  bool imported = false;
  std::string broken;
};

/// An import gives a model that keeps every promise and names the planted key, or throws with a text of the
/// library.
template <class Import>
import_outcome outcome_of(const Import& import, const planted_key& planted = {}) {
  import_outcome outcome;
  try {
    const rope::model_rope model = import();
    outcome.imported = true;
    outcome.broken = testing::broken_promise(model);
    if (outcome.broken.empty() && !planted.is_named(model))
      outcome.broken = "no warning names " + planted.name;
    for (rope::Index layer = -1; layer < 4; ++layer) {
      static_cast<void>(model.rotation_of_layer(layer));
      try {
        static_cast<void>(model.attention_of_layer(layer));
      } catch (const std::logic_error&) {  // the layer does not exist, or its attention is unknown
      }
    }
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    if (text.find("rope::") != 0 || text.size() < 20) outcome.broken = "the text is " + text;
  } catch (const std::exception& error) {
    outcome.broken = std::string("another type was thrown, saying ") + error.what();
  }
  return outcome;
}
template <class Import>
void check_import(const Import& import, const planted_key& planted = {}) {
  const import_outcome outcome = outcome_of(import, planted);
  if (!outcome.broken.empty()) fail(outcome.broken);
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_MODEL_FILES_HPP
