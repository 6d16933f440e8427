// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_ARCHITECTURES_HPP
#define ROPE_MODELS_DETAIL_ARCHITECTURES_HPP

#include <cctype>  // std::tolower
#include <optional>
#include <string>
#include <string_view>

#include <rope/config.hpp>
#include <rope/models/model_rope.hpp>

/// What a checkpoint does not write down because the architecture implies it.

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

/// Whether `word` is one of `words`, which stand between spaces.
inline bool listed(std::string_view words, std::string_view word) {
  return words.find(" " + std::string(word) + " ") != std::string_view::npos;
}

/// The layout of GGUF weights: mode NORM of ggml is interleaved; NEOX, MROPE and IMROPE are half_split.
/// Source: llama.cpp, `llama_model_rope_type`
inline std::optional<layout_kind> gguf_layout(std::string_view architecture) {
  constexpr std::string_view norm =
      " arcee arctic baichuan bailingmoe chameleon chatglm cohere2 command-r deci deepseek deepseek2 "
      "ernie4_5 ernie4_5-moe glm4 granite granitehybrid granitemoe internlm2 llada llama llama4 "
      "minicpm mistral3 olmo plm smollm3 starcoder xverse ";
  constexpr std::string_view neox =
      " apertus bitnet codeshell dbrx dots1 exaone exaone4 falcon falcon-h1 gemma gemma-embedding "
      "gemma2 gemma3 gemma3n gemma4 glm4moe gpt-oss gptneox grok hunyuan-dense hunyuan-moe lfm2 "
      "minicpm3 modern-bert nemotron nomic-bert olmo2 olmoe openelm orion phi2 phi3 phimoe plamo "
      "qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe "
      "seed_oss smallthinker stablelm starcoder2 ";
  if (listed(norm, architecture)) return layout_kind::interleaved;
  if (listed(neox, architecture)) return layout_kind::half_split;
  return {};
}

/// Whether the M-RoPE axes of a GGUF model alternate (mode IMROPE of ggml).
inline bool gguf_interleaves_sections(std::string_view architecture) {
  constexpr std::string_view imrope = " qwen35 qwen35moe qwen3vl qwen3vlmoe ";
  return listed(imrope, architecture);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ARCHITECTURES_HPP
