// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP
#define ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP

#include <span>
#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/rotation/layout.hpp>

/// Facts about architectures that GGUF files lack because they are fixed in llama.cpp: one record per
/// architecture, and its fields. The rotation mode NORM of ggml is interleaved. Its
/// modes NEOX, MROPE and IMROPE are half_split.
///
/// Source: llama.cpp of 2026-08-22, llama-model.cpp and src/models/*.cpp; of October 2026 clef, glm5-next,
/// hrm_text, hy_v4, k2-horizon, maple, qwen4exp and spark2_5; codec.cpp, its patch of llama.cpp, for barbet

namespace rope::inline ROPE_ABI::detail {

/// The schedule of sliding layers.
enum class sliding_rule {
  not_known,  // of an unknown architecture, whose layers are not scaled if they slide
  as_full,    // the scaling of the other layers, and their base if rope.freq_base_swa is absent
  same,       // as as_full, but rope.freq_base_swa is not read
  unscaled,   // the base of the other layers, no scaling
  bare,       // as unscaled, and m = 1
  own_base,   // rope.freq_base_swa, 10000 if it is absent; no scaling
  plain       // rope.freq_base_swa, the base of the other layers if it is absent; no scaling, and m = 1
};

/// The meaning of x = rope.scaling.yarn_log_multiplier. g(k) is 0.1 k ln(factor) + 1, or 1 if factor <= 1.
enum class log_multiplier {
  as_given,   // k = x, and m = g(1) / g(k)
  tenths,     // k = 10 x, and m = g(1) / g(k)
  cancelled,  // k = 10 x, and m = 1 if the file has x
  ignored
};
/// The keys among rope.scaling.yarn_{ext_factor, attn_factor, beta_fast, beta_slow} that are read.
enum class yarn_keys { none, betas, all };

/// The factor on scores. inverse_root: 1 / sqrt(head_dim). one: 1. of_key: attention.scale, or as
/// inverse_root without this key. output_key: attention.output_scale, by default 1 / sqrt(128) for every
/// head_dim.
enum class gguf_scale { inverse_root, one, of_key, output_key };

/// The llama4_query_scaling of an architecture. It is for every layer, except with `fixed`.
enum class gguf_temperature {
  none,
  of_length,   // attention_scale is attention.temperature_scale, floor_scale attention.temperature_length
  of_context,  // attention_scale as in of_length, floor_scale is the context length before scaling
  fixed        // the numbers of Llama 4, only in layers that do not rotate
};

/// The meaning of attention.sliding_window.
enum class window_kind {
  back,        // the tokens visible to a query: those up to its own
  both_sides,  // half before the query, half after it
  chunks       // the length of chunks; a query attends to the tokens of its chunk up to its own
};

/// The form of attention.sliding_window_pattern.
enum class pattern_form {
  number,  // n: one of every n layers attends fully
  list,    // per layer, whether it slides; a number would make every layer slide
  either
};

struct gguf_record {
  std::string_view names;  // of the architectures, as llama.cpp spells them
  layout_kind layout = layout_kind::half_split;
  Index alibi_layers = 0;      // a model with this number of layers has ALiBi biases instead of rotation
  bool last_channels = false;  // the channels that rotate come last in a head
  // Of every `period` layers, the last one attends fully, or the first one if full_first is true. The others
  // slide. 0: the architecture has no such pattern.
  Index period = 0;
  bool full_first = false;
  pattern_form pattern = pattern_form::number;
  bool needs_window = false;   // without attention.sliding_window no layer slides
  Index default_window = 0;    // the window if attention.sliding_window is absent; 0: unknown
  Index fixed_window = 0;      // the window for any value of attention.sliding_window except 0
  Index period_layers = 0;     // layers slide only in models with this number of layers; 0: in all
  bool all_slide = false;      // every layer that attends slides, if the file has a window
  bool window_varies = false;  // some versions of llama.cpp do not read attention.sliding_window
  bool full_rotate = true;     // false: layers that attend fully do not rotate if others slide
  sliding_rule sliding = sliding_rule::as_full;
  window_kind window = window_kind::back;
  bool causal = true;                 // false: as in Hugging Face, for any attention.causal
  bool sink_logits = false;           // a learned logit per query head, in a tensor
  bool sinks_slide = false;           // only sliding layers have sink logits, unless tensors show others
  Index attends_every = 0;            // n: only the last of every n layers attends; 0: all layers attend
  Index no_rope_every = 0;            // n: the last of every n layers does not rotate
  bool no_rope_first = false;         // instead, the first of every n does not rotate; if none slides, all do
  bool half_split_sections = false;   // a model with M-RoPE sections is half_split
  bool interleaved_sections = false;  // the axes of M-RoPE alternate
  gguf_scale scale = gguf_scale::inverse_root;
  // In models with this number of layers, the scale uses embedding_length / head_count in place of head_dim.
  Index wide_layers = 0;
  double softcap = 0;  // the default of attn_logit_softcapping; 0: scores have no bound
  gguf_temperature temperature = gguf_temperature::none;
  indexer_kind indexer = indexer_kind::no_indexer;  // of layers that select their keys
  log_multiplier multiplier = log_multiplier::ignored;
  yarn_keys yarn = yarn_keys::none;
  double beta_fast = 32;        // of YaRN, if the file does not have it
  bool scores_grow = false;     // multiplies scores by the result of score_growth
  bool needs_pattern = false;   // the file must have attention.sliding_window_pattern
  bool needs_swa_base = false;  // the file must have rope.freq_base_swa, if layers slide
  bool dense_rotate = false;   // the first leading_dense_block_count layers rotate although they do not slide
  bool rope_pattern = false;   // attention.rope_pattern is 0 for layers that do not rotate
  bool half_of_full = false;   // layers that attend fully rotate half of rope.dimension_count
  bool whole_head = false;     // all channels rotate, unscaled, for any rope.dimension_count and rope.scaling
  double fixed_base = 0;       // used instead of rope.freq_base
  bool alpha = false;          // rope.scaling.alpha increases the base
  bool finetuned = false;      // no layer rotates if rope.scaling.finetuned is false
  bool compressed = false;     // attention.compress_ratios: layers with 0 slide, unscaled; the others have
                               // attention.compress_rope_freq_base and m = 1
  std::string_view note = {};  // a warning about facts for which a description has no field
};

/// Whether layers of this architecture may have a sliding window. llama.cpp reads attention.sliding_window
/// only for architectures whose graphs have such layers. Without a record, an architecture may be one of
/// them.
constexpr bool may_slide(const gguf_record& r) {
  return r.names.empty() || r.period > 0 || r.pattern != pattern_form::number || r.all_slide || r.compressed;
}

/// The records of all architectures. This is a template, so that only programs which import a model compile
/// the records.
template <class Record = gguf_record>
std::span<const Record> gguf_records() {
  using enum indexer_kind;
  using enum layout_kind;
  using enum sliding_rule;
  using enum gguf_scale;
  using enum gguf_temperature;
  using enum window_kind;
  using enum log_multiplier;
  using enum pattern_form;
  static constexpr Record records[] = {
      {.names = "afmoe", .period = 4, .needs_window = true, .no_rope_every = 4},
      {.names =
           "apertus bailingmoe2 bitnet codeshell dbrx dots1 eurobert exaone falcon falcon-h1 gemma glm4moe "
           "gptneox grovemoe hunyuan-moe hy_v3 jais2 jina-bert-v3 minimax-m2 nemotron nomic-bert "
           "nomic-bert-moe olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 qwen "
           "qwen2 qwen2moe qwen2vl qwen3 qwen3moe seed_oss stablelm starcoder2 talkie"},
      {.names =
           "arcee arctic bailingmoe chameleon chatglm command-r deci deepseek eagle3 ernie4_5 ernie4_5-moe "
           "internlm2 llama llama-embed maincoder minicpm nanbeige neo-bert olmo pockettts xverse",
       .layout = interleaved},
      {.names = "axk2 deepseek32",
       .layout = interleaved,
       .last_channels = true,
       .indexer = first_half_split,
       .multiplier = tenths,
       .scores_grow = true},
      {.names = "baichuan", .layout = interleaved, .alibi_layers = 40},
      {.names = "bailingmoe3", .layout = interleaved, .last_channels = true, .half_split_sections = true},
      {.names = "barbet",
       .note = "layers of the model that slide attend fully in the code that is known to run its files"},
      {.names = "clef qwen35 qwen35moe", .attends_every = 4, .interleaved_sections = true},
      {.names = "cogvlm", .whole_head = true, .fixed_base = 10000},
      {.names = "cohere2", .layout = interleaved, .period = 4, .full_rotate = false, .sliding = same},
      {.names = "cohere2moe",
       .layout = interleaved,
       .full_first = true,
       .pattern = either,
       .full_rotate = false,
       .sliding = same,
       .needs_pattern = true,
       .dense_rotate = true},
      {.names = "deepseek2",
       .layout = interleaved,
       .last_channels = true,
       .temperature = of_length,
       .multiplier = cancelled,
       .scores_grow = true},
      {.names = "deepseek2-ocr", .whole_head = true},
      {.names = "deepseek4",
       .layout = interleaved,
       .last_channels = true,
       .sink_logits = true,
       .indexer = last_interleaved,
       .compressed = true},
      {.names = "diffusion-gemma",
       .pattern = list,
       .sliding = own_base,
       .scale = one,
       .needs_pattern = true,
       .note = "a token of the canvas, the last diffusion.canvas_length tokens, sees all of them and the "
               "prompt, of which layers that slide show it the last attention.sliding_window - 1 tokens"},
      {.names = "dots3note",
       .layout = interleaved,
       .last_channels = true,
       .pattern = list,
       .needs_pattern = true,
       .needs_swa_base = true},
      {.names = "dream llada-moe rnd1", .causal = false},
      {.names = "exaone-moe", .period = 4, .full_rotate = false},
      {.names = "exaone4", .period = 4, .default_window = 4096, .period_layers = 64, .full_rotate = false},
      {.names = "gemma-embedding", .period = 6, .sliding = own_base, .window = both_sides, .causal = false},
      {.names = "gemma2", .period = 2, .default_window = 4096, .wide_layers = 46, .softcap = 50},
      {.names = "gemma3", .period = 6, .needs_window = true, .sliding = own_base, .wide_layers = 62},
      {.names = "gemma3n", .period = 5, .sliding = own_base, .scale = one},
      {.names = "gemma4 gemma4-assistant", .pattern = list, .sliding = own_base, .scale = one},
      {.names = "gigachat35",
       .layout = interleaved,
       .last_channels = true,
       .attends_every = 4,
       .multiplier = tenths,
       .scores_grow = true,
       .note =
           "queries are multiplied by sqrt(embedding_length / attention.q_lora_rank) before they rotate, and "
           "latents that become keys and values by sqrt(embedding_length / attention.kv_lora_rank)"},
      {.names = "glm-dsa",
       .layout = interleaved,
       .last_channels = true,
       .indexer = first_interleaved,
       .scores_grow = true},
      {.names = "glm4", .layout = interleaved, .half_split_sections = true},
      {.names = "gpt-oss", .period = 2, .sink_logits = true},
      {.names = "granite granitehybrid granitemoe graniteswitch",
       .layout = interleaved,
       .scale = of_key,
       .finetuned = true},
      {.names = "granite_swa",
       .layout = interleaved,
       .pattern = list,
       .sliding = same,
       .sink_logits = true,
       .scale = of_key,
       .needs_pattern = true,
       .rope_pattern = true},
      {.names = "grok", .scale = output_key, .softcap = 30, .yarn = yarn_keys::all, .beta_fast = 8},
      {.names = "hrm_text",
       .note = "where the file asks for a prefix-LM, tokens of the prompt see those after them, too"},
      {.names = "hunyuan-dense hunyuan_vl", .alpha = true},
      {.names = "hy_v4",
       .layout = interleaved,
       .last_channels = true,
       .sink_logits = true,
       .indexer = last_interleaved},
      {.names = "k2-horizon", .yarn = yarn_keys::betas},
      {.names = "laguna", .period = 4, .full_first = true, .needs_window = true, .sliding = plain},
      {.names = "lfm2", .all_slide = true, .sliding = same},
      {.names = "lfm2moe", .all_slide = true, .window_varies = true, .sliding = same},
      {.names = "llada", .layout = interleaved, .causal = false},
      {.names = "llama4",
       .layout = interleaved,
       .period = 4,
       .window = chunks,
       .no_rope_every = 4,
       .temperature = fixed},
      {.names = "maple", .pattern = list, .full_rotate = false, .needs_pattern = true},
      {.names = "mellum", .period = 4, .pattern = either, .needs_window = true, .sliding = bare},
      {.names = "mimo2", .pattern = list, .sliding = own_base, .sink_logits = true, .sinks_slide = true},
      {.names = "minicpm3", .last_channels = true},
      {.names = "minimax-01", .attends_every = 8},
      {.names = "minimax-m3", .indexer = first_half_split},
      {.names = "mistral3",
       .layout = interleaved,
       .temperature = of_context,
       .multiplier = as_given,
       .yarn = yarn_keys::betas},
      {.names = "mistral4",
       .layout = interleaved,
       .last_channels = true,
       .temperature = of_length,
       .multiplier = tenths,
       .scores_grow = true},
      {.names = "modern-bert",
       .period = 3,
       .full_first = true,
       .needs_window = true,
       .sliding = own_base,
       .window = both_sides},
      {.names = "muse-glimmer",
       .layout = interleaved,
       .period = 4,
       .pattern = either,
       .full_rotate = false,
       .sliding = unscaled,
       .note = "queries are multiplied by qk_scale_factor too, which is in attn_q_norm.weight"},
      {.names = "olmo2", .period = 4, .needs_window = true, .sliding = bare},
      {.names = "plamo3", .period = 8, .needs_window = true, .sliding = own_base},
      {.names = "plm", .layout = interleaved, .last_channels = true},
      {.names = "qwen3next", .attends_every = 4},
      {.names = "qwen3tts qwen3vl qwen3vlmoe", .interleaved_sections = true},
      {.names = "qwen4exp",
       .attends_every = 4,
       .interleaved_sections = true,
       .indexer = first_half_split,
       .note =
           "the indexer rotates the mean of attention.compress_ratios keys, by the position of the first"},
      {.names = "smallthinker",
       .period = 4,
       .full_first = true,
       .needs_window = true,
       .fixed_window = 4096,
       .no_rope_every = 4,
       .no_rope_first = true},
      {.names = "smollm3", .layout = interleaved, .no_rope_every = 4},
      {.names = "spark2_5", .pattern = list, .needs_pattern = true},
      {.names = "step35", .pattern = list, .sliding = own_base, .needs_pattern = true, .half_of_full = true},
  };
  return records;
}

/// The record of an architecture, or nullptr if there is none: facts are never guessed.
template <class Record = gguf_record>
const Record* gguf_record_of(std::string_view architecture) {
  return record_in(gguf_records<Record>(), architecture);
}

/// Why import_gguf rejects files of an architecture, whatever the layout. Empty if it does not reject them.
constexpr std::string_view gguf_refusal_of(std::string_view architecture) {
  if (architecture == "dflash")
    return "is dflash, which rotates like deepseek4 if dflash.hyper_connection.count is above 0, else "
           "half-split "
           "channels; neither is read, rotate its layers by a table of your own";
  if (architecture == "deepseek41")
    return "is deepseek41, whose attention is not that of deepseek4: layers share the compressed keys of "
           "others, which no option of attention stands for; rotate its layers by a table of your own";
  return {};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP
