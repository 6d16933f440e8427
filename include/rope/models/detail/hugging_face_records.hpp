// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_layered_records.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/rotation/layout.hpp>

/// The facts that a config.json omits because its architecture implies them: one record per architecture,
/// with the values that the configuration and attention classes of Hugging Face transformers use for absent
/// keys.
/// Records of models that bring their own classes follow the code of vLLM, mlx-lm or mlx-vlm, or their
/// converter in llama.cpp. If none of these has a default base, the file must have a base.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py and modeling_*.py, 2026-08-19, esmc,
///         hy_v4 and nemotron3_diarization of autumn 2026; tests/recorded/models/hugging_face.json names the
///         others

namespace rope::inline ROPE_ABI::detail {

/// The records of the other architectures.
template <class Record>
std::span<const Record> hugging_face_plain_records() {
  using enum indexer_kind;
  using enum layout_kind;
  using enum mrope_order;
  using enum query_growth;
  using enum which_slide;
  constexpr bool if_asked = true;
  constexpr std::string_view normalised_later = "queries and keys are normalised after rotation";
  constexpr std::string_view longcat_scales =
      "queries are multiplied by sqrt(hidden_size / q_lora_rank) before rotation, unless mla_scale_q_lora is "
      "false, and latents that become keys and values by sqrt(hidden_size / kv_lora_rank), unless "
      "mla_scale_kv_lora is false";
  static constexpr Record records[] = {
      {.names = "afm7",
       .layout = interleaved,
       .base = 50000,
       .note = "queries and keys are normalised after rotation, and the last num_kv_reuse_layers layers "
               "attend to the keys of the layer before them"},
      {.names = "apertus", .base = 1.2e7, .own_rule = true},
      {.names = "aquila arcee aria chameleon dbrx deci deepseek deepseekocr2 diffllama falcon internlm "
                "internlm2 internlm3 jais2 llama llavallama minicpm mistral3 nanbeige olmo olmo2 olmoe orion "
                "plamo refinedweb solar teleflm xverse"},
      {.names = "arctic exaone iquestcoder klear kormo molmo molmo2 panguembedded sarvammoe telechat3",
       .base = 0},
      {.names = "axk1 deepseekv2 deepseekv3 glm4moelite joyaillmflash kimik2 panguultramoe youtu",
       .layout = interleaved,
       .latent = true},
      {.names = "axk2 deepseekv32", .layout = interleaved, .latent = true, .indexer = first_half_split},
      {.names = "baichuan", .alibi_layers = 40},
      {.names = "bailingmoe grovemoe keye keyevl15 kimiaudio minicpmo minicpmv param2moe",
       .base = 0,
       .slides = {not_known, if_asked}},
      {.names = "bailingmoev2 mimo", .slides = {not_known, if_asked}},
      {.names = "bitnet csm csmdepthdecodermodel evolla flexolmo", .base = 500000},
      {.names = "bltglobaltransformer bltlocaldecoder bltlocalencoder cohere ernie45moe",
       .layout = interleaved,
       .base = 500000},
      {.names = "bltpatcher glmocr", .layout = interleaved},
      {.names = "chatglm glm glm4 glm4v", .layout = interleaved, .partial_rotary_factor = 0.5},
      {.names = "codegen gptj", .layout = interleaved, .rotary_dim = 64},
      {.names = "codeshell",
       .theta_unread = true,
       .rotates_if = {"position_embedding_type", "learned positions"}},
      {.names = "cosmos3edge", .base = 1e8, .head_dim = 128, .mrope_side = 20},
      {.names = "diadecoder", .head_dim = 128, .scale = {.number = 1}},
      {.names = "diaencoder", .head_dim = 128, .scale = {.number = 1}, .causal = false},
      {.names = "doge",
       .slides = {every},
       .note = "a mask that depends on values hides all but keep_window_size keys of a query"},
      {.names = "dots1", .window = {4096}, .max_window_layers = 62, .slides = {from_max_window_layers}},
      {.names = "dotsocr got llavaqwen llavaqwen2 qwen2",
       .window = {4096},
       .slides = {from_max_window_layers, if_asked}},
      {.names = "dream rnd1", .base = 0, .slides = {not_known, if_asked}, .causal = false},
      {.names = "emu3", .base = 1e6},
      {.names = "ernie45", .layout = interleaved, .base = 500000, .head_dim = 128},
      {.names = "ernie45moevl ernie45vlmoe", .layout = interleaved, .base = 500000, .mrope = time_last},
      {.names = "esm",
       .causal = false,
       .rotates_if = {"position_embedding_type", "learned positions or biases", "rotary"}},
      {.names = "esmc eurobert lasrencoder llamabidirec nemotron3diarizationaudio xlmrobertaflash",
       .causal = false},
      {.names = "falconh1", .scale = {"key_multiplier", 1}},
      {.names = "fuyu", .base = 25000, .partial_rotary_factor = 0.5},
      {.names = "gemma", .head_dim = 256},
      {.names = "glm4moe glm4vmoe glmimage nemotron persimmon phi", .partial_rotary_factor = 0.5},
      {.names = "glmasrencoder stableaudiodit", .partial_rotary_factor = 0.5, .causal = false},
      {.names = "glmmoedsa", .layout = interleaved, .latent = true, .indexer = first_interleaved},
      {.names = "gptneox", .partial_rotary_factor = 0.25, .theta_unread = true},
      {.names = "gptneoxjapanese openelm", .theta_unread = true},
      {.names = "granite granite4vision granitemoe granitemoeshared", .scale = {"attention_multiplier", 1}},
      {.names = "grok1", .scale = {"attn_output_multiplier"}, .softcap = 30},
      {.names = "helium", .layout = interleaved, .base = 100000, .head_dim = 128},
      {.names = "higgsaudiov2", .head_dim = 128, .own_rule = true},
      {.names = "hrm jetmoe seedoss", .head_dim = 128},
      {.names = "hunyuan",
       .base = 0,
       .note = "queries and keys are normalised after they rotated, and with use_cla layers share keys"},
      {.names = "hunyuanv1dense hunyuanv1moe", .note = normalised_later},
      {.names = "hunyuanvl",
       .xdrope = true,
       .note =
           "axes of mrope_sections are those of (position, width, height, image) or (width, height, image), "
           "and queries and keys are normalised after rotation"},
      {.names = "hyperclovax", .scale = {"attention_multiplier"}},
      {.names = "hyv3", .base = 11158840, .head_dim = 128},
      {.names = "hyv4",
       .layout = interleaved,
       .latent = true,
       .indexer = last_interleaved,
       .sink_logits = true,
       .note = "the class of transformers rotates halves, vLLM, SGLang and llama.cpp neighbours, as here"},
      {.names = "idefics", .note = "with qk_layer_norms queries and keys are normalised after rotation"},
      {.names = "iquestloopcoder",
       .base = 500000,
       .note = "layers run twice: the second time queries attend to the keys of the first, and to their own "
               "within the last loop_window_size tokens"},
      {.names = "isaac", .head_dim = 128, .mrope = blocks},
      {.names = "jinaembeddingsv3", .base = 20000, .causal = false},
      {.names = "jvlm jinavlm", .base = 1e6, .slides = {every}, .rotates_if = {"rope", "learned positions"}},
      {.names = "k2horizon",
       .base = 1e6,
       .head_dim = 64,
       .slides = {every, if_asked},
       .own_rule = true,
       .first_pairs = "rope_head_dim"},
      {.names = "kyutaispeechto", .window = {375}, .slides = {every}},
      {.names = "lille130m maincoder", .layout = interleaved, .base = 0},
      {.names = "llada", .base = 0, .causal = false},
      {.names = "llada2moe",
       .base = 600000,
       .partial_rotary_factor = 0.5,
       .causal = false,
       .note = "while it generates, a token sees its own block and those before it"},
      {.names = "llavamistral mistral", .window = {4096}, .slides = {every}},
      {.names = "longcataudiodittransformer", .base = 100000, .causal = false},
      {.names = "longcatcausallm longcatflash longcatflashngram",
       .layout = interleaved,
       .base = 1e7,
       .latent = true,
       .note = longcat_scales},
      {.names = "longcatflashsparse",
       .layout = interleaved,
       .base = 0,
       .latent = true,
       .indexer = first_interleaved,
       .note = longcat_scales},
      {.names = "mimi", .window = {250}, .slides = {every}},
      {.names = "minicpm3", .latent = true},
      {.names = "minimaxm2", .base = 5e6, .partial_rotary_factor = 0.5, .head_dim = 128},
      {.names = "minimaxmusic3transformer1d", .rotary_dim = 32, .causal = false},
      {.names = "ministral", .window = {4096}, .slides = {every}, .types_slide = true},
      {.names = "ministral3", .head_dim = 128, .queries = beta, .slides = {every}, .own_rule = true},
      {.names = "mistral4", .layout = interleaved, .latent = true, .queries = beta, .own_rule = true},
      {.names = "mixtral phimoe", .base = 1e6, .slides = {every}},
      {.names = "mllama", .base = 500000, .crosses = true},
      {.names = "moonshine", .layout = interleaved, .partial_rotary_factor = 0.9},
      {.names = "moonshinestreaming", .layout = interleaved, .partial_rotary_factor = 0.8},
      {.names = "moshi", .window = {3000}, .slides = {every}},
      {.names = "motif",
       .slides = {not_known, if_asked},
       .note = "attention is a difference of two softmaxes, each of its own query and key heads"},
      {.names = "museglimmerassistant",
       .base = 500000,
       .head_dim = 128,
       .window = {2048},
       .slides = {every},
       .types_slide = true},
      {.names = "nanochat", .base = 0, .backwards = true, .note = normalised_later},
      {.names = "nemotronlabsdiffusion",
       .base = 1e6,
       .head_dim = 128,
       .queries = beta,
       .note = "while it generates by diffusion, a token sees its own block and those before it"},
      {.names = "nemotronnas",
       .base = 500000,
       .note = "layers whose block_configs say no_op or replace_with_linear do not attend"},
      {.names = "neobert roformer", .layout = interleaved, .causal = false},
      {.names = "new gte",
       .causal = false,
       .rotates_if = {"position_embedding_type", "learned positions"},
       .note = "with logn_attention_scale queries grow with the length of the text, with "
               "logn_attention_clip1 by a factor of at least 1"},
      {.names = "nomicbert", .base = 1000, .causal = false},
      {.names = "omnigentransformer2d",
       .original_max_position = 4096,
       .note = "the tokens of an image see each other, also those after them"},
      {.names = "openaiprivacyfilter",
       .layout = interleaved,
       .base = 150000,
       .head_dim = 64,
       .window = {128, window_span::each_side},
       .slides = {every},
       .causal = false,
       .sink_logits = true,
       .own_rule = true},
      {.names = "openpanguvl", .base = 64e6, .slides = {not_known, if_asked}, .mrope = spread},
      {.names = "ouro",
       .window = {4096},
       .slides = {from_max_window_layers, if_asked},
       .note = "layers run total_ut_steps times, each time with keys and values of their own"},
      {.names = "paddleocrvl", .base = 500000, .head_dim = 128},
      {.names = "pangupromoe", .base = 16e6},
      {.names = "peaudioencoder peaudiovideoencoder pevideoencoder",
       .layout = interleaved,
       .base = 20000,
       .head_dim = 128,
       .causal = false},
      {.names = "phi3 phi4mm phi4multimodal", .original_max_position = 4096, .slides = {every}},
      {.names = "phi3v", .original_max_position = 4096},
      {.names = "phimsft phixtral", .rotary_dim = 32, .theta_unread = true},
      {.names = "plm sarvammla", .layout = interleaved, .base = 0, .latent = true},
      {.names = "qwen", .head_dim = 128, .queries = log_n, .stretches = true},
      {.names = "qwen25omni", .base = 1e6, .window = {32768}, .slides = {from_max_window_layers, if_asked}},
      {.names = "qwen25omnitalker",
       .base = 1e6,
       .head_dim = 128,
       .window = {32768},
       .slides = {from_max_window_layers, if_asked}},
      {.names = "qwen25vl qwen2vl",
       .base = 1e6,
       .window = {4096},
       .max_window_layers = 80,
       .slides = {from_max_window_layers, if_asked}},
      {.names = "qwen2moe", .window = {4096}, .slides = {even_below_max_window_layers, if_asked}},
      {.names = "qwen3", .head_dim = 128, .window = {4096}, .slides = {from_max_window_layers, if_asked}},
      {.names = "qwen3moe", .window = {4096}, .slides = {every, if_asked}},
      {.names = "qwen3omnimoe", .base = 1e6, .mrope_side = 20},
      {.names = "qwen3omnimoetalker", .mrope_side = 20},
      {.names = "qwen3omnimoetalkercodepredictor", .head_dim = 128, .types_slide = true},
      {.names = "qwen3vl qwen3vlmoe", .base = 500000, .head_dim = 128, .mrope_side = 20},
      {.names = "sdar sdarmoe",
       .base = 0,
       .slides = {not_known, if_asked},
       .causal = false,
       .note = "while it generates, a token sees its own block and those before it"},
      {.names = "solaropen", .base = 1e6, .head_dim = 128},
      {.names = "stableaudio3dit",
       .partial_rotary_factor = 0.5,
       .causal = false,
       .note =
           "learned tokens, num_memory_tokens of them, come before the sound, at the first positions, and "
           "with use_differential_attention attention is a difference of two softmaxes"},
      {.names = "stablelm stablelmepoch", .partial_rotary_factor = 0.25},
      {.names = "spark25", .theta_unread = true, .pattern = {1}},
      {.names = "starcoder2", .slides = {every}},
      {.names = "step3", .base = 500000, .head_dim = 256},
      {.names = "talkie", .base = 1e6, .head_dim = 128, .backwards = true, .note = normalised_later},
      {.names = "telechat telechat2",
       .note = "the class of the model stretches the base for more than base_seqlen tokens, and raises m for "
               "more than training_seqlen, but vLLM does neither, as here"},
      {.names = "timesfm25",
       .head_dim = 80,
       .scale = {.number = 1},
       .note = "queries and keys are normalised after rotation, and queries multiplied by a learned "
               "factor per channel"},
      {.names = "voxtralrealtime", .nested = {128, 1e6, 8192}, .window = {4096}, .slides = {every}},
      {.names = "voxtralrealtimeencoder", .head_dim = 64, .window = {750}, .slides = {every}},
      {.names = "youtullm", .layout = interleaved, .base = 1600000, .latent = true},
      {.names = "youtuvl", .layout = interleaved, .base = 500000, .latent = true},
      {.names = "zaya1vl", .base = 1e6, .partial_rotary_factor = 0.5, .head_dim = 128},
  };
  return records;
}

/// The record of an architecture, without its other names, or nothing if there is none. Nothing is guessed
/// then. It is a template, so that only programs which import a model compile the records.
template <class Record = hugging_face_record>
std::optional<Record> hugging_face_record_of(std::string_view architecture) {
  for (const std::span<const Record> records :
       {hugging_face_plain_records<Record>(), hugging_face_layered_records<Record>()})
    if (const Record* record = record_in(records, architecture)) {
      Record own = *record;
      own.names = name_in(record->names, architecture);
      return own;
    }
  return {};
}

/// The architecture of a text_config without model_type, for some models with several parts. Otherwise empty.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py of these models
inline std::string default_text_architecture(const std::string& outer) {
  static constexpr struct {
    std::string_view names, text;
  } defaults[] = {
      {" audioflamingo3 fastvlm gotocr2 internvl llavaonevision ovis2 qwen2audio vibevoiceasr ", "qwen2"},
      {" ayavision cohere2vision ", "cohere2"},
      {" bailingmoev3vl ", "bailing_hybrid"},
      {" cosmos3omni ", "qwen3_vl_text"},
      {" deepseekvl deepseekvlhybrid glmasr idefics3 janus llava llavanext llavanextvideo perceptionlm "
       "smolvlm videollava vipllava voxtral ",
       "llama"},
      {" funasrnano lightonocr qianfanocr qwen3asr ", "qwen3"},
      {" fuyu ", "persimmon"},
      {" gemma4assistant ", "gemma4_text"},
      {" gemma4unifiedassistant ", "gemma4_unified_text"},
      {" glm46v glmga ", "glm4v_text"},
      {" granitespeech granitespeechplus ", "granite"},
      {" hyperclovaxvisionv2 ", "hyperclovax"},
      {" idefics2 mistral3 ", "mistral"},
      {" interns2mobius interns2preview ", "qwen3_5_moe_text"},
      {" kimik25 ", "deepseek_v3"},
      {" lfm2vl ", "lfm2"},
      {" modernvbert peaudio peaudiovideo pevideo ", "modernbert"},
      {" paligemma ", "gemma"},
  };
  const auto* of_outer = record_in(defaults, plain_architecture(outer));
  return of_outer ? std::string(of_outer->text) : std::string();
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_RECORDS_HPP
