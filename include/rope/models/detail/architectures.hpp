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

/// One spelling for `gemma3_text`, `Gemma3ForConditionalGeneration` and `Gemma3TextModel`: gemma3.
inline std::string plain_architecture(std::string name) {
  for (const char* end : {"For", "Model"})
    if (const auto at = name.find(end); at != std::string::npos && at > 0) name.resize(at);
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  constexpr std::string_view suffix = "text";
  if (plain.size() > suffix.size() && plain.ends_with(suffix)) plain.resize(plain.size() - suffix.size());
  return plain;
}

/// Whether `word` is one of `words`, which stand between spaces.
inline bool listed(std::string_view words, std::string_view word) {
  return words.find(" " + std::string(word) + " ") != std::string_view::npos;
}

/// The layout of the weights that Hugging Face distributes. Nothing is guessed for an unknown architecture.
inline std::optional<layout_kind> hugging_face_layout(std::string_view architecture) {
  constexpr std::string_view interleaved_names =
      " chatglm codegen cohere cohere2 deepseekv2 deepseekv3 deepseekv32 ernie45 ernie45moe glm glm4 "
      "gptj kimik2 llama4 ";
  constexpr std::string_view half_split_names =
      " apertus arcee baichuan bitnet dbrx exaone4 exaone45 exaonemoe falcon gemma gemma2 gemma3 gemma3n "
      "gemma4 glm4moe "
      "gptneox gptneoxjapanese gptoss granite granitemoe hunyuanv1dense hunyuanv1moe internlm2 lfm2 "
      "llama minicpm minicpm3 mistral mistral3 mixtral mllama modernbert modernbertdecoder nemotron "
      "olmo olmo2 olmo3 olmoe persimmon phi phi3 phi3v phimoe qwen2 qwen25vl qwen2moe qwen2vl qwen3 "
      "qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe seedoss smollm3 stablelm starcoder2 ";
  if (listed(interleaved_names, architecture)) return layout_kind::interleaved;
  if (listed(half_split_names, architecture)) return layout_kind::half_split;
  return {};
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

/// What the configuration classes of Hugging Face transformers fill in for an absent key. 0: no such default.
struct architecture_defaults {
  std::string_view architecture;
  double base = 10000, local_base = 0, partial_rotary_factor = 1;
  Index head_dim = 0;
  Index full_every = 0,
        full_offset = 0;    // layer i attends fully if i % full_every == full_offset, else it slides
  Index no_rope_every = 0;  // every so many layers, the last of them does not rotate
  bool full_rotate = true;  // false: layers that attend fully do not rotate where others slide
  double sliding_window = 0;
};

inline architecture_defaults defaults_of(std::string_view architecture) {
  constexpr architecture_defaults table[] = {
      {.architecture = "chatglm", .partial_rotary_factor = 0.5},
      {.architecture = "cohere2",
       .full_every = 4,
       .full_offset = 3,
       .full_rotate = false,
       .sliding_window = 4096},
      {.architecture = "exaone4", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaone45", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaonemoe", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "gemma", .head_dim = 256},
      {.architecture = "gemma2", .head_dim = 256},
      {.architecture = "gemma3",
       .base = 1e6,
       .local_base = 1e4,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5},
      {.architecture = "glm", .partial_rotary_factor = 0.5},
      {.architecture = "glm4", .partial_rotary_factor = 0.5},
      {.architecture = "gptneox", .partial_rotary_factor = 0.25},
      {.architecture = "gptoss", .base = 150000, .head_dim = 64},
      {.architecture = "llama4", .base = 500000, .head_dim = 128, .no_rope_every = 4},
      {.architecture = "modernbert", .base = 160000, .local_base = 10000, .full_every = 3},
      {.architecture = "nemotron", .partial_rotary_factor = 0.5},
      {.architecture = "persimmon", .partial_rotary_factor = 0.5},
      {.architecture = "phi", .partial_rotary_factor = 0.5},
      {.architecture = "qwen3", .head_dim = 128},
      {.architecture = "smollm3", .no_rope_every = 4},
      {.architecture = "stablelm", .partial_rotary_factor = 0.25},
  };
  for (const auto& entry : table)
    if (entry.architecture == architecture) return entry;
  return {};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ARCHITECTURES_HPP
