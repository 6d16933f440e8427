// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_layered_records.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/rotation/layout.hpp>

/// What a config.json does not write down because its architecture implies it: one record per architecture,
/// with what the configuration and attention classes of Hugging Face transformers fill in for an absent key;
/// those of models that bring their own classes by the code of vLLM (TeleChat 3, openPangu).
///
/// Source: Hugging Face transformers, models/*/configuration_*.py and modeling_*.py, 2026-08-19

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The record of an architecture; nullptr where there is none, and nothing is guessed then.
inline const hugging_face_record* hugging_face_record_of(std::string_view architecture) {
  using enum indexer_turn;
  using enum layout_kind;
  using enum query_growth;
  using enum score_scale;
  using enum which_slide;
  static constexpr hugging_face_record records[] = {
      {.architecture = "apertus", .base = 1.2e7, .own_rule = true},
      {.architecture = "arcee"},
      {.architecture = "aria"},
      {.architecture = "axk2", .layout = interleaved, .indexer = first_half_split},
      {.architecture = "baichuan"},
      {.architecture = "bamba", .partial_rotary_factor = 0.5},
      {.architecture = "bitnet", .base = 500000},
      {.architecture = "chameleon"},
      {.architecture = "chatglm", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "codegen", .layout = interleaved},
      {.architecture = "cohere", .layout = interleaved, .base = 500000},
      {.architecture = "csm", .base = 500000},
      {.architecture = "cwm", .base = 1e6, .head_dim = 128, .own_rule = true},
      {.architecture = "dbrx"},
      {.architecture = "deepseekocr2"},
      {.architecture = "deepseekv2", .layout = interleaved},
      {.architecture = "deepseekv3", .layout = interleaved},
      {.architecture = "deepseekv32", .layout = interleaved, .indexer = first_half_split},
      {.architecture = "diadecoder", .head_dim = 128, .scale = one},
      {.architecture = "diffllama"},
      {.architecture = "doge"},
      {.architecture = "dots1", .slides = from_max_window_layers},
      {.architecture = "emu3", .base = 1e6},
      {.architecture = "ernie45", .layout = interleaved, .base = 500000, .head_dim = 128},
      {.architecture = "ernie45moe", .layout = interleaved, .base = 500000},
      {.architecture = "ernie45moevl", .layout = interleaved, .base = 500000, .mrope_time_last = true},
      {.architecture = "ernie45vlmoe", .layout = interleaved, .base = 500000, .mrope_time_last = true},
      {.architecture = "eurobert", .causal = false},
      {.architecture = "evolla", .base = 500000},
      {.architecture = "falcon"},
      {.architecture = "falconh1", .scale = key_multiplier, .scale_number = 1},
      {.architecture = "flexolmo", .base = 500000},
      {.architecture = "gemma", .head_dim = 256},
      {.architecture = "glm", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4moe", .partial_rotary_factor = 0.5},
      {.architecture = "glm4v", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4vmoe", .partial_rotary_factor = 0.5},
      {.architecture = "glmimage", .partial_rotary_factor = 0.5},
      {.architecture = "glmmoedsa", .layout = interleaved, .indexer = first_interleaved},
      {.architecture = "glmocr", .layout = interleaved},
      {.architecture = "gptj", .layout = interleaved},
      {.architecture = "gptneox", .partial_rotary_factor = 0.25},
      {.architecture = "gptneoxjapanese"},
      {.architecture = "granite", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "granitemoe", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "granitemoeshared", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "helium", .layout = interleaved, .base = 100000, .head_dim = 128},
      {.architecture = "hrm", .head_dim = 128},
      {.architecture = "hunyuanv1dense"},
      {.architecture = "hunyuanv1moe"},
      {.architecture = "hunyuanvl",
       .xdrope = true,
       .note =
           "axes of mrope_sections are those of (position, width, height, image) or (width, height, image)"},
      {.architecture = "hyperclovax", .scale = attention_multiplier},
      {.architecture = "hyv3", .base = 11158840, .head_dim = 128},
      {.architecture = "internlm2"},
      {.architecture = "jais2"},
      {.architecture = "jetmoe", .head_dim = 128},
      {.architecture = "jinaembeddingsv3", .base = 20000, .causal = false},
      {.architecture = "kimik2", .layout = interleaved},
      {.architecture = "kyutaispeechto"},
      {.architecture = "lfm2", .base = 1e6},
      {.architecture = "lfm2moe", .base = 1e6},
      {.architecture = "llama"},
      {.architecture = "longcatflash", .layout = interleaved, .base = 1e7},
      {.architecture = "mimi"},
      {.architecture = "minicpm"},
      {.architecture = "minicpm3"},
      {.architecture = "minimax", .base = 1e6},
      {.architecture = "ministral"},
      {.architecture = "ministral3", .head_dim = 128, .queries = beta, .own_rule = true},
      {.architecture = "mistral", .sliding_window = 4096, .slides = every},
      {.architecture = "mistral3"},
      {.architecture = "mistral4", .layout = interleaved, .queries = beta, .own_rule = true},
      {.architecture = "mixtral", .base = 1e6, .slides = every},
      {.architecture = "mllama", .base = 500000},
      {.architecture = "moonshine", .layout = interleaved, .partial_rotary_factor = 0.9},
      {.architecture = "moonshinestreaming", .layout = interleaved, .partial_rotary_factor = 0.8},
      {.architecture = "moshi"},
      {.architecture = "museglimmerassistant", .base = 500000, .head_dim = 128},
      {.architecture = "nanochat", .base = 0, .backwards = true},
      {.architecture = "nemotron", .partial_rotary_factor = 0.5},
      {.architecture = "nomicbert", .base = 1000, .causal = false},
      {.architecture = "olmo"},
      {.architecture = "olmo2"},
      {.architecture = "olmoe"},
      {.architecture = "openaiprivacyfilter",
       .layout = interleaved,
       .base = 150000,
       .head_dim = 64,
       .own_rule = true},
      {.architecture = "openpanguvl",
       .base = 64e6,
       .slides = not_known,
       .slides_if_asked = true,
       .mrope_spread = true},
      {.architecture = "paddleocrvl", .base = 500000, .head_dim = 128},
      {.architecture = "persimmon", .partial_rotary_factor = 0.5},
      {.architecture = "phi", .partial_rotary_factor = 0.5},
      {.architecture = "phi3", .slides = every},
      {.architecture = "phi3v"},
      {.architecture = "phi4multimodal"},
      {.architecture = "phimoe", .base = 1e6, .slides = every},
      {.architecture = "qwen", .head_dim = 128, .queries = log_n, .stretches = true},
      {.architecture = "qwen2", .slides = from_max_window_layers, .slides_if_asked = true},
      {.architecture = "qwen25omni", .base = 1e6},
      {.architecture = "qwen25vl", .base = 1e6, .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen2moe", .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen2vl", .base = 1e6, .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen3", .head_dim = 128, .slides = from_max_window_layers, .slides_if_asked = true},
      {.architecture = "qwen35",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .mrope_interleaved = true,
       .mrope_side = 11},
      {.architecture = "qwen35moe",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .mrope_interleaved = true,
       .mrope_side = 11},
      {.architecture = "qwen3moe", .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen3next", .partial_rotary_factor = 0.25, .head_dim = 256},
      {.architecture = "qwen3omnimoe", .base = 1e6, .mrope_interleaved = true, .mrope_side = 20},
      {.architecture = "qwen3vl",
       .base = 500000,
       .head_dim = 128,
       .mrope_interleaved = true,
       .mrope_side = 20},
      {.architecture = "qwen3vlmoe",
       .base = 500000,
       .head_dim = 128,
       .mrope_interleaved = true,
       .mrope_side = 20},
      {.architecture = "seedoss"},
      {.architecture = "solaropen", .base = 1e6, .head_dim = 128},
      {.architecture = "stablelm", .partial_rotary_factor = 0.25},
      {.architecture = "starcoder2", .slides = every},
      {.architecture = "t5gemmamodule",
       .head_dim = 256,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "telechat3", .base = 0},
      {.architecture = "timesfm25",
       .head_dim = 80,
       .scale = one,
       .note = "queries and keys are normalised after they turned, and queries multiplied by a learned "
               "factor per channel"},
      {.architecture = "vaultgemma",
       .head_dim = 256,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "voxtralrealtime", .nested_head_dim = 128, .nested_base = 1e6},
      {.architecture = "xcodec2", .head_dim = 64},
  };
  for (const hugging_face_record& record : records)
    if (record.architecture == architecture) return &record;
  return hugging_face_layered_record_of(architecture);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
