// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_RECORDED_HPP
#define ROPE_TESTS_RECORDED_HPP

/// The answers of other projects: tests/recorded/, whose page says what they cover.

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace testing {

/// recorded("logits/phi3") is tests/recorded/logits/phi3.json.
inline nlohmann::json recorded(const std::string& name) {
  const std::string path = ROPE_TEST_CONFIGS "/../../tests/recorded/" + name + ".json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}

}  // namespace testing

#endif
