// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP
#define ROPE_MODELS_DETAIL_GGUF_RECORDS_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/detail/record_rules.hpp>
#include <rope/rotation/layout.hpp>

/// Facts about architectures that GGUF files lack because they are fixed in llama.cpp: one record per
/// architecture. The rotation mode NORM of ggml is interleaved. Its modes NEOX, MROPE and IMROPE are
/// half_split.
///
/// Source: llama.cpp of 2026-08-22, llama-model.cpp and src/models/*.cpp; of October 2026 clef, glm5-next,
/// hrm_text, hy_v4, k2-horizon, maple, qwen4exp and spark2_5; codec.cpp, its patch of llama.cpp, for barbet

namespace rope::inline ROPE_ABI::detail {

/// The record of an architecture, or nullptr if there is none: facts are never guessed. This is a template,
/// so that only programs which import a model compile the records.
template <class Record = gguf_record>
const Record* gguf_record_of(std::string_view architecture) {
  using enum indexer_kind;
  using enum layout_kind;
  using enum sliding_rule;
  using enum gguf_scale;
  using enum gguf_temperature;
  using enum window_kind;
  using enum log_multiplier;
  using enum pattern_form;
  static constexpr Record records[] = {
      {.names = "afmoe", .period = 4, .needs_window = true, .sliding = as_full, .no_rope_every = 4},
      {.names =
           "apertus bailingmoe2 bitnet codeshell dbrx dots1 eurobert exaone falcon falcon-h1 gemma glm4moe "
           "gptneox grovemoe hunyuan-moe hy_v3 jais2 jina-bert-v3 minimax-m2 nemotron nomic-bert "
           "nomic-bert-moe olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 qwen "
           "qwen2 qwen2moe qwen2vl qwen3 qwen3moe seed_oss stablelm starcoder2 talkie"},
      {.names =
           "arcee arctic bailingmoe chameleon chatglm command-r deci deepseek eagle3 ernie4_5 ernie4_5-moe "
           "internlm2 llama llama-embed maincoder minicpm nanbeige neo-bert olmo pockettts xverse",
       .layout = interleaved},
      {.names = "arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7", .instead = "no attention"},
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
      {.names = "bert gpt2 starcoder", .instead = "learned positions"},
      {.names = "bloom jais jina-bert-v2 refact", .instead = "ALiBi biases"},
      {.names = "clef qwen35 qwen35moe", .attends_every = 4, .interleaved_sections = true},
      {.names = "cogvlm", .whole_head = true, .unscaled = true, .fixed_base = 10000},
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
      {.names = "deepseek2-ocr", .whole_head = true, .unscaled = true},
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
       .sliding = as_full,
       .needs_pattern = true,
       .needs_swa_base = true},
      {.names = "dream llada-moe rnd1", .causal = false},
      {.names = "exaone-moe", .period = 4, .full_rotate = false, .sliding = as_full},
      {.names = "exaone4",
       .period = 4,
       .default_window = 4096,
       .period_layers = 64,
       .full_rotate = false,
       .sliding = as_full},
      {.names = "gemma-embedding", .period = 6, .sliding = own_base, .window = both_sides, .causal = false},
      {.names = "gemma2",
       .period = 2,
       .default_window = 4096,
       .sliding = as_full,
       .wide_layers = 46,
       .softcap = 50},
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
      {.names = "glm5-next glm5next jamba kimi-k3 kimi-linear nemotron_h nemotron_h_moe wavtokenizer-dec",
       .instead = "no positions"},
      {.names = "gpt-oss", .period = 2, .sliding = as_full, .sink_logits = true},
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
       .sliding = as_full,
       .window = chunks,
       .no_rope_every = 4,
       .temperature = fixed},
      {.names = "maple", .pattern = list, .full_rotate = false, .sliding = as_full, .needs_pattern = true},
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
      {.names = "mpt", .instead = "ALiBi biases or learned positions"},
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
       .sliding = as_full,
       .no_rope_every = 4,
       .no_rope_first = true},
      {.names = "smollm3", .layout = interleaved, .no_rope_every = 4},
      {.names = "spark2_5", .pattern = list, .sliding = as_full, .needs_pattern = true},
      {.names = "step35", .pattern = list, .sliding = own_base, .needs_pattern = true, .half_of_full = true},
      {.names = "t5 t5encoder", .instead = "biases by distance"},
  };
  static_assert(keep_the_rules(records), "record_rules.hpp says which fields go together");
  return record_in(records, architecture);
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
