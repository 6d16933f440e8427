// Reads an untrusted config.json.

#ifndef ROPE_EXAMPLES_CONFIG_FILE_HPP
#define ROPE_EXAMPLES_CONFIG_FILE_HPP

#include <cstddef>
#include <ios>
#include <istream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

/// Reads the rest of the stream. Size and depth are limited before anything is parsed.
///
/// Throws:  std::runtime_error if the file is larger or more deeply nested than the file of any model, and
///          the exceptions of nlohmann::json::parse
inline nlohmann::json parsed_config(std::istream& file) {
  constexpr std::size_t largest = std::size_t{4} << 20;
  constexpr int deepest = 64;
  std::string text(largest + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw std::runtime_error("cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > largest) throw std::runtime_error("must be a config of at most 4 MiB, got more");
  return nlohmann::json::parse(text, [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > deepest)
      throw std::runtime_error("must have lists and dictionaries at most " + std::to_string(deepest) +
                               " deep, got " + std::to_string(depth));
    return true;
  });
}

#endif  // ROPE_EXAMPLES_CONFIG_FILE_HPP
