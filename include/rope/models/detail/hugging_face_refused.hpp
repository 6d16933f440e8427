// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP

#include <string_view>

#include <rope/config.hpp>

/// Architectures without a record of which it is known why.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Why an architecture has no record.
enum class refusal {
  in_doubt,    // files and class disagree, or too little is known: a layout that is named is believed
  axes,        // its tokens lie on more than one axis, so that no layout makes it right
  other_turn,  // what turns is not a head of queries and keys by one position, or no option says who sees it
  parts,       // it has several parts, which say each for itself
  no_turn      // nothing rotates
};

struct refused_architecture {
  std::string_view architecture;  // as plain_architecture spells it
  std::string_view reason;        // what follows its name; for axes, what makes the frequencies
  refusal kind = refusal::in_doubt;
};

/// Why an architecture has no record; nullptr where it has one, or where nothing is known of it.
///
/// Source: Hugging Face transformers of 2026-08-19, modeling_*.py
template <class Refused = refused_architecture>
const Refused* refused_architecture_of(std::string_view architecture) {
  using enum refusal;
  constexpr std::string_view columns_first =
      "rope_vit_axial_frequencies, with the base of the file, for interleaved channels";
  static constexpr Refused refused[] = {
      {.architecture = "blt",
       .reason = "patcher_config, encoder_config, decoder_config and global_config",
       .kind = parts},
      {.architecture = "minimaxm3vl",
       .reason = "its layers of type minimax_m3_sparse attend to blocks of keys that an indexer chooses"},
      {.architecture = "recurrentgemma",
       .reason = "its released files turn half of a head, its class all of it"},
      {.architecture = "coherecompassvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "dinov3vit", .reason = "dino_v3_frequencies", .kind = axes},
      {.architecture = "edgetamvideo", .reason = columns_first, .kind = axes},
      {.architecture = "efficientloftr",
       .reason =
           "custom, over the channels of all heads as one: each speed of frequencies(hidden_size / 2) by the "
           "row, then by the column, from 1",
       .kind = axes},
      {.architecture = "eomtdinov3", .reason = "dino_v3_frequencies", .kind = axes},
      {.architecture = "ernie45vlmoevision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "exaone45vision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "gemma4vision", .reason = "frequencies, for each half of a head", .kind = axes},
      {.architecture = "glm5nextvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "glm4vmoevision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "glm4vvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "glmocrvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "kimik25vision",
       .reason = "custom: each speed of frequencies(head_dim / 2) by the column, then by the row",
       .kind = axes},
      {.architecture = "lightglue", .reason = "along_directions, with learned directions", .kind = axes},
      {.architecture = "llama4visionmodel", .reason = "llama4_vision_frequencies", .kind = axes},
      {.architecture = "minimaxm3vlvision",
       .reason = "axial: frame, row and column have a third of the head each, rounded down to even",
       .kind = axes},
      {.architecture = "mlcdvisionmodel",
       .reason = "qwen_vl_vision_frequencies, but for learned angles of the class token",
       .kind = axes},
      {.architecture = "museglimmervision",
       .reason = "llama4_vision_frequencies, for half_split channels",
       .kind = axes},
      {.architecture = "paddleocrvlvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "pixtral", .reason = "pixtral_frequencies", .kind = axes},
      {.architecture = "qwen25omnivisionencoder", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen25vlvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen2vlvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen35moevision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen35vision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen3omnimoevisionencoder", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen3vlmoevision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen38flashnextvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen3vlvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "qwen4expvision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "sam2video", .reason = columns_first, .kind = axes},
      {.architecture = "sam3trackervideo", .reason = columns_first, .kind = axes},
      {.architecture = "sam3vitmodel", .reason = columns_first, .kind = axes},
      {.architecture = "sapiens2", .reason = "dino_v3_frequencies", .kind = axes},
      {.architecture = "step3p5vision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "videollama3vision", .reason = "qwen_vl_vision_frequencies", .kind = axes},
      {.architecture = "clvpencoder", .reason = "turns values too", .kind = other_turn},
      {.architecture = "deepseekocr2encoder",
       .reason = "shows its first num_patches tokens to every token, the others to those after them: a mask "
                 "that no option of attention stands for",
       .kind = other_turn},
      {.architecture = "deepseekv41",
       .reason = "is not that of DeepSeek V4: layers share the compressed keys of others, which no option of "
                 "attention stands for",
       .kind = other_turn},
      {.architecture = "musicflamingo",
       .reason = "turns features of sound by their time in seconds",
       .kind = other_turn},
      {.architecture = "qwen25omnidit",
       .reason = "turns the first head of every layer and no other",
       .kind = other_turn},
      {.architecture = "seamlessm4t",
       .reason = "turns hidden states, if any, before they become queries and keys",
       .kind = other_turn},
      {.architecture = "vjepa2",
       .reason = "multiplies the two channels of a pair by cos and sin of two different angles",
       .kind = other_turn},
      {.architecture = "wav2vec2bert",
       .reason = "turns hidden states, if any, before they become queries and keys",
       .kind = other_turn},
      {.architecture = "wav2vec2conformer",
       .reason = "turns hidden states, if any, before they become queries and keys",
       .kind = other_turn},
      {.architecture = "bert", .reason = "learned positions", .kind = no_turn},
      {.architecture = "bloom", .reason = "ALiBi biases", .kind = no_turn},
      {.architecture = "gpt2", .reason = "learned positions", .kind = no_turn},
      {.architecture = "gptbigcode", .reason = "learned positions", .kind = no_turn},
      {.architecture = "gptneo", .reason = "learned positions", .kind = no_turn},
      {.architecture = "glm5next", .reason = "no positions", .kind = no_turn},
      {.architecture = "inkling", .reason = "relative biases", .kind = no_turn},
      {.architecture = "inklingmmmodel", .reason = "relative biases", .kind = no_turn},
      {.architecture = "jamba", .reason = "no positions", .kind = no_turn},
      {.architecture = "kimik3", .reason = "no positions", .kind = no_turn},
      {.architecture = "kimilinear", .reason = "no positions", .kind = no_turn},
      {.architecture = "mamba", .reason = "no attention", .kind = no_turn},
      {.architecture = "mamba2", .reason = "no attention", .kind = no_turn},
      {.architecture = "mpt", .reason = "ALiBi biases", .kind = no_turn},
      {.architecture = "nemotronh", .reason = "no positions", .kind = no_turn},
      {.architecture = "opt", .reason = "learned positions", .kind = no_turn},
      {.architecture = "parakeetencoder", .reason = "relative positions", .kind = no_turn},
      {.architecture = "roberta", .reason = "learned positions", .kind = no_turn},
      {.architecture = "t5", .reason = "biases by distance", .kind = no_turn},
      {.architecture = "whisper", .reason = "learned positions", .kind = no_turn},
  };
  for (const Refused& one : refused)
    if (one.architecture == architecture) return &one;
  return nullptr;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_REFUSED_HPP
