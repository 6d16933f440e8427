// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_RECORDED_HPP
#define ROPE_TESTS_RECORDED_HPP

/// The results of other projects: tests/recorded/, whose page lists what they cover.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

inline std::filesystem::path folder_of_recorded() { return ROPE_TEST_CONFIGS "/../../tests/recorded"; }

/// The names of all files of such results.
inline std::vector<std::string> all_recorded() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_of_recorded()))
    if (file.path().extension() == ".json")
      names.push_back(
          file.path().lexically_relative(folder_of_recorded()).replace_extension().generic_string());
  std::sort(names.begin(), names.end());
  return names;
}

/// recorded("logits/phi3") is tests/recorded/logits/phi3.json.
inline nlohmann::json recorded(const std::string& name) {
  const std::filesystem::path path = folder_of_recorded() / (name + ".json");
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return nlohmann::json::parse(file);
}

}  // namespace testing

#endif
