// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_MODEL_CONFIGS_HPP
#define ROPE_TESTS_MODEL_CONFIGS_HPP

/// The model descriptions of examples/configs, and GGUF metadata written as JSON.

#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

using json = nlohmann::json;

inline json config(const std::string& name) {
  const std::string path = ROPE_TEST_CONFIGS "/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return json::parse(file);
}

/// `config` changed by the values of `changes`. Dictionaries are merged, and null removes a key.
inline json changed(json config, const json& changes) {
  config.merge_patch(changes);
  return config;
}

/// A GGUF file whose metadata and tensors are the entries of one JSON dictionary.
struct gguf_file {
  json entries;

  std::optional<double> number(const std::string& key) const {
    if (!entries.contains(key) || !entries.at(key).is_number()) return {};
    return entries.at(key).get<double>();
  }
  std::optional<std::string> text(const std::string& key) const {
    if (!entries.contains(key) || !entries.at(key).is_string()) return {};
    return entries.at(key).get<std::string>();
  }
  std::optional<std::vector<double>> numbers(const std::string& key) const {
    if (!entries.contains(key) || !entries.at(key).is_array()) return {};
    for (const json& value : entries.at(key))
      if (!value.is_number()) return {};
    return entries.at(key).get<std::vector<double>>();
  }
};

/// The metadata with the architecture before each key that starts with a dot.
inline gguf_file gguf(const std::string& architecture, const json& entries) {
  gguf_file file{{{"general.architecture", architecture}}};
  for (const auto& entry : entries.items())
    file.entries[(entry.key().front() == '.' ? architecture : "") + entry.key()] = entry.value();
  return file;
}

/// A warning that contains every one of `parts`.
template <class... Parts>
bool has_warning(const std::vector<std::string>& warnings, const Parts&... parts) {
  for (const std::string& warning : warnings)
    if (((warning.find(parts) != std::string::npos) && ...)) return true;
  return false;
}

}  // namespace testing

#endif  // ROPE_TESTS_MODEL_CONFIGS_HPP
