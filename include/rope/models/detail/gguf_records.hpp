// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP
#define ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>

/// What the metadata of a GGUF file does not say because llama.cpp has it fixed for an architecture: one
/// record per architecture. Mode NORM of ggml is interleaved; NEOX, MROPE and IMROPE are half_split.
///
/// Source: llama.cpp of 2026-08-22, llama-model.cpp and src/models/*.cpp

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// By which schedule layers that slide turn.
enum class sliding_rule {
  not_known,
  as_full,   // the base and the scaling of the other layers
  unscaled,  // their base, no scaling
  own_base   // rope.freq_base_swa, 10000 where it is absent; no scaling
};
/// What scores are multiplied by: 1 / sqrt(head_dim), 1, or attention.scale where the file has it.
enum class gguf_scale { inverse_root, one, of_key };

/// What attention.sliding_window counts: tokens up to the query's own, those of both its sides, or chunks of
/// the sequence.
enum class window_kind { back, both_sides, chunks };

struct gguf_record {
  std::string_view architecture;
  layout_kind layout = layout_kind::half_split;
  bool rotates = true;         // false: no positions, or learned ones, or biases
  bool last_channels = false;  // the channels that rotate come last in a head
  Index period = 0;            // of so many layers one attends fully, the others slide; 0: none, or by a list
  bool full_first = false;     // it is the first of them, else the last
  bool needs_window = false;   // without attention.sliding_window no layer slides
  Index period_layers = 0;     // only in models of so many layers; 0: in all
  bool full_rotate = true;     // false: layers that attend fully do not rotate where others slide
  sliding_rule sliding = sliding_rule::not_known;
  window_kind window = window_kind::back;
  bool causal = true;                 // false: an encoder, whatever attention.causal says
  bool sink_logits = false;           // a learned logit per query head, in a tensor
  Index no_rope_every = 0;            // every so many layers, the last of them does not rotate
  bool half_split_sections = false;   // a model with M-RoPE sections is half_split
  bool interleaved_sections = false;  // the axes of M-RoPE alternate
  gguf_scale scale = gguf_scale::inverse_root;
  Index wide_layers = 0;  // in models of so many layers the scale is by embedding_length / head_count
  double softcap = 0;     // of attn_logit_softcapping, where it is read
};

/// The record of an architecture; nullptr where there is none, and nothing is guessed then.
inline const gguf_record* gguf_record_of(std::string_view architecture) {
  using enum layout_kind;
  using enum sliding_rule;
  using enum gguf_scale;
  using enum window_kind;
  static constexpr gguf_record records[] = {
      {.architecture = "afmoe", .period = 4, .full_rotate = false, .sliding = as_full},
      {.architecture = "apertus"},
      {.architecture = "arcee", .layout = interleaved},
      {.architecture = "arctic", .layout = interleaved},
      {.architecture = "arwkv7", .rotates = false},
      {.architecture = "baichuan", .layout = interleaved},
      {.architecture = "bailingmoe", .layout = interleaved},
      {.architecture = "bailingmoe2"},
      {.architecture = "bailingmoe3", .layout = interleaved, .last_channels = true},
      {.architecture = "bert", .rotates = false},
      {.architecture = "bitnet"},
      {.architecture = "bloom", .rotates = false},
      {.architecture = "chameleon", .layout = interleaved},
      {.architecture = "chatglm", .layout = interleaved},
      {.architecture = "codeshell"},
      {.architecture = "cohere2",
       .layout = interleaved,
       .period = 4,
       .full_rotate = false,
       .sliding = as_full},
      {.architecture = "command-r", .layout = interleaved},
      {.architecture = "dbrx"},
      {.architecture = "deci", .layout = interleaved},
      {.architecture = "deepseek", .layout = interleaved},
      {.architecture = "deepseek2", .layout = interleaved, .last_channels = true},
      {.architecture = "dots1"},
      {.architecture = "dream"},
      {.architecture = "eagle3", .layout = interleaved},
      {.architecture = "ernie4_5", .layout = interleaved},
      {.architecture = "ernie4_5-moe", .layout = interleaved},
      {.architecture = "eurobert"},
      {.architecture = "exaone"},
      {.architecture = "exaone-moe", .period = 4, .full_rotate = false, .sliding = as_full},
      {.architecture = "exaone4", .period = 4, .period_layers = 64, .full_rotate = false, .sliding = as_full},
      {.architecture = "falcon"},
      {.architecture = "falcon-h1", .scale = of_key},
      {.architecture = "gemma"},
      {.architecture = "gemma-embedding",
       .period = 6,
       .sliding = own_base,
       .window = both_sides,
       .causal = false},
      {.architecture = "gemma2", .period = 2, .sliding = as_full, .wide_layers = 46, .softcap = 50},
      {.architecture = "gemma3", .period = 6, .sliding = own_base, .wide_layers = 62},
      {.architecture = "gemma3n", .period = 5, .sliding = own_base, .scale = one},
      {.architecture = "gemma4", .sliding = own_base, .scale = one},
      {.architecture = "glm4", .layout = interleaved, .half_split_sections = true},
      {.architecture = "glm4moe"},
      {.architecture = "gpt-oss", .sink_logits = true},
      {.architecture = "gpt2", .rotates = false},
      {.architecture = "gptj", .rotates = false},
      {.architecture = "gptneox"},
      {.architecture = "granite", .layout = interleaved, .scale = of_key},
      {.architecture = "granitehybrid", .layout = interleaved, .scale = of_key},
      {.architecture = "granitemoe", .layout = interleaved, .scale = of_key},
      {.architecture = "graniteswitch", .layout = interleaved, .scale = of_key},
      {.architecture = "grok", .softcap = 30},
      {.architecture = "grovemoe"},
      {.architecture = "hunyuan-dense"},
      {.architecture = "hunyuan-moe"},
      {.architecture = "hy_v3"},
      {.architecture = "internlm2", .layout = interleaved},
      {.architecture = "jais", .rotates = false},
      {.architecture = "jais2"},
      {.architecture = "jamba", .rotates = false},
      {.architecture = "jina-bert-v2", .rotates = false},
      {.architecture = "jina-bert-v3"},
      {.architecture = "kimi-k3", .rotates = false},
      {.architecture = "kimi-linear", .rotates = false},
      {.architecture = "lfm2"},
      {.architecture = "lfm2moe"},
      {.architecture = "llada", .layout = interleaved},
      {.architecture = "llada-moe"},
      {.architecture = "llama", .layout = interleaved},
      {.architecture = "llama-embed", .layout = interleaved},
      {.architecture = "llama4",
       .layout = interleaved,
       .period = 4,
       .full_rotate = false,
       .sliding = as_full,
       .window = chunks},
      {.architecture = "maincoder", .layout = interleaved},
      {.architecture = "mamba", .rotates = false},
      {.architecture = "mamba2", .rotates = false},
      {.architecture = "mellum", .period = 4, .sliding = unscaled},
      {.architecture = "mimo2", .sliding = own_base},
      {.architecture = "minicpm", .layout = interleaved},
      {.architecture = "minicpm3", .last_channels = true},
      {.architecture = "minimax-01"},
      {.architecture = "minimax-m2"},
      {.architecture = "minimax-m3"},
      {.architecture = "mistral3", .layout = interleaved},
      {.architecture = "modern-bert",
       .period = 3,
       .full_first = true,
       .sliding = own_base,
       .window = both_sides},
      {.architecture = "mpt", .rotates = false},
      {.architecture = "muse-glimmer",
       .layout = interleaved,
       .period = 4,
       .full_rotate = false,
       .sliding = unscaled},
      {.architecture = "nanbeige", .layout = interleaved, .scale = of_key},
      {.architecture = "nemotron"},
      {.architecture = "nemotron_h", .rotates = false},
      {.architecture = "nemotron_h_moe", .rotates = false},
      {.architecture = "neo-bert", .layout = interleaved},
      {.architecture = "nomic-bert"},
      {.architecture = "nomic-bert-moe"},
      {.architecture = "olmo", .layout = interleaved},
      {.architecture = "olmo2", .period = 4, .needs_window = true, .sliding = unscaled},
      {.architecture = "olmoe"},
      {.architecture = "openelm"},
      {.architecture = "orion"},
      {.architecture = "paddleocr"},
      {.architecture = "pangu-embedded"},
      {.architecture = "phi2"},
      {.architecture = "phi3"},
      {.architecture = "phimoe"},
      {.architecture = "plamo"},
      {.architecture = "plamo2"},
      {.architecture = "plamo3", .period = 8, .sliding = own_base},
      {.architecture = "plm", .layout = interleaved, .last_channels = true},
      {.architecture = "pockettts", .layout = interleaved},
      {.architecture = "qwen"},
      {.architecture = "qwen2"},
      {.architecture = "qwen2moe"},
      {.architecture = "qwen2vl"},
      {.architecture = "qwen3"},
      {.architecture = "qwen35", .interleaved_sections = true, .scale = of_key},
      {.architecture = "qwen35moe", .interleaved_sections = true, .scale = of_key},
      {.architecture = "qwen3moe"},
      {.architecture = "qwen3next", .scale = of_key},
      {.architecture = "qwen3tts", .interleaved_sections = true},
      {.architecture = "qwen3vl", .interleaved_sections = true},
      {.architecture = "qwen3vlmoe", .interleaved_sections = true},
      {.architecture = "refact", .rotates = false},
      {.architecture = "rnd1"},
      {.architecture = "rwkv6", .rotates = false},
      {.architecture = "rwkv6qwen2", .rotates = false},
      {.architecture = "rwkv7", .rotates = false},
      {.architecture = "seed_oss"},
      {.architecture = "smallthinker",
       .period = 4,
       .full_first = true,
       .needs_window = true,
       .full_rotate = false,
       .sliding = as_full},
      {.architecture = "smollm3", .layout = interleaved, .no_rope_every = 4, .scale = of_key},
      {.architecture = "stablelm"},
      {.architecture = "starcoder", .rotates = false},
      {.architecture = "starcoder2"},
      {.architecture = "t5", .rotates = false},
      {.architecture = "t5encoder", .rotates = false},
      {.architecture = "talkie"},
      {.architecture = "wavtokenizer-dec", .rotates = false},
      {.architecture = "xverse", .layout = interleaved},
  };
  for (const gguf_record& record : records)
    if (record.architecture == architecture) return &record;
  return nullptr;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP
