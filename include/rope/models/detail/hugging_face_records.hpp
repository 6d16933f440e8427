// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>

/// What a config.json does not write down because its architecture implies it: one record per architecture,
/// with what the configuration and attention classes of Hugging Face transformers fill in for an absent key.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py and modeling_*.py, 2026-08-19

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What the products of queries and keys are multiplied by before the softmax.
enum class score_scale { inverse_root, query_pre_attn_scalar, attention_multiplier, one };

/// Which layers look only `sliding_window` tokens back, where a file has no layer_types.
enum class which_slide {
  by_type,                 // those of the type sliding_attention, by full_every
  every,                   // all of them
  from_max_window_layers,  // those from that layer on
  not_known
};

struct hugging_face_record {
  std::string_view architecture;  // as plain_architecture spells it
  layout_kind layout = layout_kind::half_split;
  double base = 10000;  // 0: no source is known, so a file must give it
  double local_base =
      0;  // of sliding layers, where older files give them one of their own; 0: they have none
  double partial_rotary_factor = 1;
  Index head_dim = 0;  // 0: hidden_size / num_attention_heads
  Index maybe_head_dim =
      0;  // of the class as it comes; fixed, or hidden_size / num_attention_heads: not recorded
  Index full_head_dim = 0;  // of layers that attend fully; 0: head_dim
  Index full_every = 0,
        full_offset = 0;      // layer i attends fully if i % full_every == full_offset, else it slides
  bool full_rotate = true;    // false: layers that attend fully do not rotate where others slide
  double sliding_window = 0;  // negative: layers slide whatever the window is
  Index no_rope_every = 0;    // every so many layers, the last of them does not rotate
  score_scale scale = score_scale::inverse_root;
  double scale_number = 0;  // the default of the key that `scale` names; 0: it then is the inverse root
  double softcap = 0;       // of attn_logit_softcapping
  which_slide slides = which_slide::by_type;
  bool slides_if_asked = false;    // only with use_sliding_window
  bool causal = true;              // false: an encoder
  bool sink_logits = false;        // a learned logit per query head, in the checkpoint
  bool mrope_interleaved = false;  // the axes of M-RoPE alternate from pair to pair
  bool own_rule =
      false;  // without a rope dictionary the class fills in a scaled one, which is not known here
};

/// The record of an architecture; nullptr where there is none, and nothing is guessed then.
inline const hugging_face_record* hugging_face_record_of(std::string_view architecture) {
  using enum layout_kind;
  using enum score_scale;
  using enum which_slide;
  static constexpr hugging_face_record records[] = {
      {.architecture = "afmoe",
       .maybe_head_dim = 128,
       .full_every = 4,
       .full_offset = 3,
       .full_rotate = false,
       .sliding_window = -1},
      {.architecture = "apertus", .base = 1.2e7, .own_rule = true},
      {.architecture = "arcee"},
      {.architecture = "aria", .maybe_head_dim = 128},
      {.architecture = "axk2", .layout = interleaved},
      {.architecture = "baichuan"},
      {.architecture = "bamba", .partial_rotary_factor = 0.5},
      {.architecture = "bitnet", .base = 500000},
      {.architecture = "chameleon"},
      {.architecture = "chatglm", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "codegen", .layout = interleaved},
      {.architecture = "cohere", .layout = interleaved, .base = 500000},
      {.architecture = "cohere2",
       .layout = interleaved,
       .full_every = 4,
       .full_offset = 3,
       .full_rotate = false,
       .sliding_window = 4096},
      {.architecture = "csm", .base = 500000, .maybe_head_dim = 64},
      {.architecture = "cwm", .base = 1e6, .maybe_head_dim = 128, .own_rule = true},
      {.architecture = "dbrx"},
      {.architecture = "deepseekocr2", .maybe_head_dim = 128},
      {.architecture = "deepseekv2", .layout = interleaved},
      {.architecture = "deepseekv3", .layout = interleaved},
      {.architecture = "deepseekv32", .layout = interleaved},
      {.architecture = "diadecoder", .maybe_head_dim = 128, .scale = one},
      {.architecture = "diffllama", .maybe_head_dim = 64},
      {.architecture = "diffusiongemma",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "doge"},
      {.architecture = "dots1", .slides = from_max_window_layers},
      {.architecture = "emu3", .base = 1e6},
      {.architecture = "ernie45", .layout = interleaved, .base = 500000, .head_dim = 128},
      {.architecture = "ernie45moe", .layout = interleaved, .base = 500000},
      {.architecture = "eurobert", .maybe_head_dim = 64, .causal = false},
      {.architecture = "evolla", .base = 500000},
      {.architecture = "exaone4", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaone45", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "exaonemoe", .full_every = 4, .full_offset = 3, .full_rotate = false},
      {.architecture = "falcon"},
      {.architecture = "falconh1"},
      {.architecture = "flexolmo", .base = 500000},
      {.architecture = "gemma", .head_dim = 256},
      {.architecture = "gemma2",
       .head_dim = 256,
       .full_every = 2,
       .full_offset = 1,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "gemma3",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "gemma3n",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 5,
       .full_offset = 4,
       .scale = one},
      {.architecture = "gemma4",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "gemma4unified",
       .head_dim = 256,
       .full_head_dim = 512,
       .full_every = 6,
       .full_offset = 5,
       .scale = one,
       .own_rule = true},
      {.architecture = "glm", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4moe", .partial_rotary_factor = 0.5},
      {.architecture = "glm4v", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.architecture = "glm4vmoe", .partial_rotary_factor = 0.5},
      {.architecture = "glmimage", .partial_rotary_factor = 0.5},
      {.architecture = "glmmoedsa", .layout = interleaved},
      {.architecture = "glmocr", .layout = interleaved},
      {.architecture = "gptj", .layout = interleaved},
      {.architecture = "gptneox", .partial_rotary_factor = 0.25},
      {.architecture = "gptneoxjapanese"},
      {.architecture = "gptoss",
       .base = 150000,
       .head_dim = 64,
       .full_every = 2,
       .full_offset = 1,
       .sink_logits = true,
       .own_rule = true},
      {.architecture = "granite", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "granitemoe", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "granitemoeshared", .scale = attention_multiplier, .scale_number = 1},
      {.architecture = "helium", .layout = interleaved, .base = 100000, .head_dim = 128},
      {.architecture = "hrm", .maybe_head_dim = 128},
      {.architecture = "hunyuanv1dense"},
      {.architecture = "hunyuanv1moe"},
      {.architecture = "hyperclovax", .maybe_head_dim = 128, .scale = attention_multiplier},
      {.architecture = "hyv3", .base = 0, .maybe_head_dim = 128},
      {.architecture = "internlm2"},
      {.architecture = "jais2", .maybe_head_dim = 128},
      {.architecture = "jetmoe", .maybe_head_dim = 128},
      {.architecture = "jinaembeddingsv3", .base = 20000, .causal = false},
      {.architecture = "kimik2", .layout = interleaved},
      {.architecture = "kyutaispeechto", .maybe_head_dim = 64},
      {.architecture = "lfm2", .base = 1e6},
      {.architecture = "lfm2moe", .base = 1e6},
      {.architecture = "llama"},
      {.architecture = "llama4", .layout = interleaved, .base = 500000, .head_dim = 128, .no_rope_every = 4},
      {.architecture = "longcatflash", .layout = interleaved, .base = 1e7},
      {.architecture = "mimi", .maybe_head_dim = 64},
      {.architecture = "minicpm"},
      {.architecture = "minicpm3"},
      {.architecture = "minimax", .base = 1e6},
      {.architecture = "ministral"},
      {.architecture = "ministral3", .maybe_head_dim = 128, .own_rule = true},
      {.architecture = "mistral", .sliding_window = 4096, .slides = every},
      {.architecture = "mistral3"},
      {.architecture = "mistral4", .layout = interleaved, .own_rule = true},
      {.architecture = "mixtral", .base = 1e6, .slides = every},
      {.architecture = "mllama", .base = 500000},
      {.architecture = "modernbert", .base = 160000, .local_base = 10000, .full_every = 3, .causal = false},
      {.architecture = "modernbertdecoder", .base = 160000, .local_base = 10000, .full_every = 3},
      {.architecture = "moonshine", .layout = interleaved, .partial_rotary_factor = 0.9},
      {.architecture = "moonshinestreaming",
       .layout = interleaved,
       .partial_rotary_factor = 0.8,
       .maybe_head_dim = 40},
      {.architecture = "moshi", .maybe_head_dim = 128},
      {.architecture = "museglimmerassistant", .base = 500000, .maybe_head_dim = 128},
      {.architecture = "nemotron", .partial_rotary_factor = 0.5},
      {.architecture = "nomicbert", .base = 1000, .maybe_head_dim = 64, .causal = false},
      {.architecture = "olmo"},
      {.architecture = "olmo2"},
      {.architecture = "olmo3", .base = 500000, .local_base = 500000},
      {.architecture = "olmoe"},
      {.architecture = "openaiprivacyfilter",
       .layout = interleaved,
       .base = 150000,
       .maybe_head_dim = 64,
       .own_rule = true},
      {.architecture = "paddleocrvl", .base = 500000, .maybe_head_dim = 128},
      {.architecture = "persimmon", .partial_rotary_factor = 0.5},
      {.architecture = "phi", .partial_rotary_factor = 0.5},
      {.architecture = "phi3", .slides = every},
      {.architecture = "phi3v"},
      {.architecture = "phi4multimodal"},
      {.architecture = "phimoe", .base = 1e6, .slides = every},
      {.architecture = "qwen2", .slides = from_max_window_layers, .slides_if_asked = true},
      {.architecture = "qwen25omni", .base = 1e6},
      {.architecture = "qwen25vl", .base = 1e6, .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen2moe", .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen2vl", .base = 1e6, .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen3", .head_dim = 128, .slides = from_max_window_layers, .slides_if_asked = true},
      {.architecture = "qwen35", .partial_rotary_factor = 0.25, .head_dim = 256, .mrope_interleaved = true},
      {.architecture = "qwen35moe",
       .partial_rotary_factor = 0.25,
       .head_dim = 256,
       .mrope_interleaved = true},
      {.architecture = "qwen3moe", .slides = not_known, .slides_if_asked = true},
      {.architecture = "qwen3next", .partial_rotary_factor = 0.25, .head_dim = 256},
      {.architecture = "qwen3omnimoe", .base = 1e6, .mrope_interleaved = true},
      {.architecture = "qwen3vl", .base = 500000, .head_dim = 128, .mrope_interleaved = true},
      {.architecture = "qwen3vlmoe", .base = 500000, .head_dim = 128, .mrope_interleaved = true},
      {.architecture = "seedoss"},
      {.architecture = "smollm3",
       .base = 2e6,
       .no_rope_every = 4,
       .slides = not_known,
       .slides_if_asked = true},
      {.architecture = "solaropen", .base = 1e6, .maybe_head_dim = 128},
      {.architecture = "stablelm", .partial_rotary_factor = 0.25},
      {.architecture = "starcoder2", .slides = every},
      {.architecture = "t5gemma2",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "t5gemma2decoder",
       .base = 1e6,
       .local_base = 10000,
       .head_dim = 256,
       .full_every = 6,
       .full_offset = 5,
       .scale = query_pre_attn_scalar,
       .scale_number = 256},
      {.architecture = "t5gemmamodule",
       .head_dim = 256,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "vaultgemma",
       .head_dim = 256,
       .scale = query_pre_attn_scalar,
       .scale_number = 256,
       .softcap = 50},
      {.architecture = "voxtralrealtime", .maybe_head_dim = 128},
      {.architecture = "xcodec2", .maybe_head_dim = 64},
  };
  for (const hugging_face_record& record : records)
    if (record.architecture == architecture) return &record;
  return nullptr;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
