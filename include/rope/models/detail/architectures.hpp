// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_ARCHITECTURES_HPP
#define ROPE_MODELS_DETAIL_ARCHITECTURES_HPP

#include <cctype>  // std::tolower
#include <string>
#include <string_view>

#include <rope/config.hpp>

/// The names of architectures.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One spelling for `gemma3_text`, `gemma3_text_model` and `Gemma3ForConditionalGeneration`: gemma3.
inline std::string plain_architecture(std::string name) {
  for (const char* end : {"For", "Model"})
    if (const auto at = name.find(end); at != std::string::npos && at > 0) name.resize(at);
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view suffix : {"textmodel", "text"})
    if (plain.size() > suffix.size() && plain.ends_with(suffix)) {
      plain.resize(plain.size() - suffix.size());
      break;
    }
  return plain;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ARCHITECTURES_HPP
