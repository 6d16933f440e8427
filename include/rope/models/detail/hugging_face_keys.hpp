// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP

#include <cctype>  // std::isalnum, std::tolower
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/record_fields.hpp>

/// The keys of a config.json that classes of Hugging Face transformers read, and their default sizes.

namespace rope::inline ROPE_ABI::detail {

// Keys of a config.json that only some classes read. In files of other classes they have no effect.

/// The keys that change a description but are not read by the class of the architecture, with a space between
/// two keys.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py and modeling_*.py, 2026-08-19. For models
/// with their own classes (ChatGLM, Qwen, MiniMax), see their configuration files
inline std::string keys_not_read(const hugging_face_record& record) {
  static constexpr struct {
    std::string_view keys, readers;  // the architectures whose classes read the keys
  } of_few[] = {
      {"_sliding_window_pattern sliding_window_pattern",
       "cohere2 cohere2moe embeddinggemma2 exaone4 exaone45 exaonemoe gemma3 plamo3 t5gemma2 "
       "t5gemma2decoder"},
      {"add_full_attention_sink_bias add_swa_attention_sink_bias swa_head_dim", "mimov2 mimov2flash"},
      {"attention_head_dim", "hunyuan hunyuanvl minimaxmusic3transformer1d stableaudiodit zamba2"},
      {"attn_config", "dbrx"},
      {"attn_logit_softcapping", "gemma2 grok1 t5gemmamodule vaultgemma"},
      {"global_attn_every_n_layers", "afmoe modernbert modernbertdecoder"},
      {"global_head_dim per_layer_config", "diffusiongemma embeddinggemma2 gemma4 gemma4unified"},
      {"global_rope_theta local_attention local_rope_theta", "modernbert modernbertdecoder"},
      {"hidden_size_per_head", "plamo2"},
      {"kv_channels", "chatglm jetmoe qwen zamba2"},
      {"max_seq_len", "dbrx step3"},
      {"no_rope_layer_interval no_rope_layers", "llama4 smollm3"},
      {"prefix_dense_sliding_window_pattern", "cohere2moe"},
      {"rope_base", "omnigentransformer2d"},
      {"rope_freq_constant", "openelm"},
      {"rope_interleave",
       "axk1 deepseekv3 gigachat35 glm4moelite joyaillmflash kimik2 mistral4 youtu youtuvl"},
      {"rope_local_base_freq", "gemma3 gemma3n t5gemma2 t5gemma2decoder"},
      {"rope_local_theta rope_scaling_factor window_size", "plamo3"},
      {"rope_pct", "stablelm stablelmepoch zaya1vl"},
      {"rope_ratio", "chatglm"},
      {"rope_scaling_layers", "molmo2"},
      {"rotary_base", "zaya1vl"},
      {"rotary_dim", rotary_dim_in_file},
      {"rotary_emb_base", "gptneox gptneoxjapanese nomicbert qwen xlmrobertaflash"},
      {"rotary_emb_fraction rotary_emb_interleaved", "nomicbert"},
      {"rotary_pct", "gptneox gptneoxjapanese qwen"},
      {"sliding_window_size", "mimov2 mimov2flash smallthinker"},
      {"use_bidirectional_attention", look_ahead_if_asked},
      {"yarn_only_types", "step3p5"},
  };
  std::string hidden;
  if (record.names.empty()) return hidden;
  const auto hide = [&](std::string_view keys) { hidden.append(" ").append(keys); };
  for (const auto& one : of_few)
    if (!is_listed(one.readers, record.names)) hide(one.keys);
  if (is_listed("gptneox gptneoxjapanese", record.names)) hide("partial_rotary_factor");
  if (is_listed("cohere2moe panguultramoe", record.names)) hide("rope_scaling");
  for (const char* key : {"attn_type_list", "full_attention_interval", "hybrid_layer_pattern",
                          "layer_group_size", "mamba_step", "rope_layout", "sliding_window_layout"})
    if (record.pattern.key != key && record.type_ones != key && record.rope_ones != key) hide(key);
  if (!record.slides.if_asked) hide("use_sliding_window");
  if (!reads_window(record)) hide("sliding_window");
  if (record.indexer == indexer_kind::no_indexer) hide("indexer_rope_interleave");
  // In Motif 3 these keys name another model than the record's.
  if (!record.latent && !record.last_channels && record.names != "motif")
    hide("qk_nope_head_dim qk_rope_head_dim");
  return hidden;
}

/// The architectures whose classes read partial_rotary_factor also if the rope type is default. With this
/// type, other classes rotate whole heads.
///
/// Source: compute_default_rope_parameters of modeling_*.py, Hugging Face transformers c49429ed1f, 2026-08-16
inline constexpr std::string_view partial_by_default =
    " bamba deepseekv4 diffusiongemma glm glm4 glm4moe glm4moelite glm4v glm4vmoe glmasrencoder glmimage "
    "glmocr gptneox gptneoxjapanese interns2mobius laguna mellum mimov2 mimov2flash minimaxm2 moonshine "
    "moonshinestreaming nemotron persimmon phi phi3 phi4mm phi4multimodal qwen35 qwen35moe "
    "qwen38flashnext qwen3next qwen4exp solaropen stablelm step3p5 zaya ";

/// The architectures whose classes read a rope dictionary for each type of layers.
///
/// Source: {layer_type}_inv_freq in modeling_*.py, Hugging Face transformers c49429ed1f, 2026-08-16
inline constexpr std::string_view dictionary_by_type =
    " coherecompass deepseekv4 diffusiongemma embeddinggemma2 gemma3 gemma3n gemma4 gemma4unified laguna "
    "mellum mimov2 mimov2flash modernbert modernbertdecoder olmo3 step3p5 t5gemma2 t5gemma2decoder zaya ";

/// Whether transformers has a class for the architecture, and the class is not in the list.
constexpr bool has_class_not_in(std::string_view list, std::string_view architecture) {
  return !architecture.empty() && !is_listed(own_classes, architecture) && !is_listed(list, architecture);
}

/// The name of a key in lower case, without words for other things that contain "rope" or "position".
inline std::string spelled_plainly(std::string_view key) {
  std::string name;
  for (const char letter : key) name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  for (const std::string other : {"propert", "europe", "composition", "disposition"})
    for (auto at = name.find(other); at != std::string::npos; at = name.find(other))
      name.replace(at, other.size(), "_");
  return name;
}

/// Whether the name contains a word of the list.
inline bool has_a_word(const std::string& name, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (name.find(word) != std::string::npos) return true;
  return false;
}

/// Whether a note has the name of the key as a whole word.
inline bool names_key(std::string_view note, std::string_view key) {
  const auto is_letter = [&](std::size_t i) {
    return i < note.size() && (std::isalnum(static_cast<unsigned char>(note[i])) || note[i] == '_');
  };
  for (auto at = note.find(key); at != std::string_view::npos; at = note.find(key, at + 1))
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + key.size())) return true;
  return false;
}

/// Whether the name of a key is about positions, or about the types of layers.
inline bool speaks_of_positions(std::string_view key) {
  const std::string name = spelled_plainly(key);
  return has_a_word(name, {"rope", "rotary", "position", "nope", "chunk", "yarn", "ntk", "window", "sliding",
                           "alibi", "freq_allocation", "freq_base", "pos_e", "interpolation_factor",
                           "compression_ratio", "causal", "bidirectional"}) ||
         has_a_word(name, {"pattern", "layer_types", "layertypes", "block_type", "attn_type", "layer_indices",
                           "attn_idxs", "attn_every", "attention_interval", "cross_attention_layers",
                           "compress_ratios", "swa_layers", "attention_layers", "attention_types", "attn_idx",
                           "every_n_layers", "local_layers", "global_attn"});
}

/// Whether the name of a key is about positions, types of layers, or factors on scores.
inline bool speaks_of_rope(std::string_view key) {
  return speaks_of_positions(key) ||
         has_a_word(spelled_plainly(key), {"theta", "scal", "softcap", "logn", "temperature", "multiplier",
                                           "partial", "sink", "soft_cap", "logit_cap"});
}

// Default sizes of configuration classes of Hugging Face transformers. In the file of a whole model (LLaVA),
// text_config leaves out sizes that equal these defaults. The file of a text model has all sizes.

/// The sizes of one class. 0: none, or derived from the other sizes.
struct class_sizes {
  std::string_view names;  // of the architectures, as plain_architecture spells them
  double hidden_size = 0, query_heads = 0, key_heads = 0, layers = 0, context = 0;
  double nope_channels = 0, rotated_channels = 0;  // of a latent head
  double head_dim = 0, base = 0;                   // only for whole models
};

/// The sizes that the class of a whole model gives to its text model before the class of the text model fills
/// in its own. nullptr if it gives none.
///
/// Source: Hugging Face transformers, _default_text_config_kwargs of configuration_*.py, autumn 2026
inline const class_sizes* text_sizes_of_whole(std::string_view whole) {
  static constexpr class_sizes sizes[] = {
      {"glmasr", 2048, 16, 4, 28, 8192},
      {"peaudio peaudiovideo pevideo", 1024, 16, 0, 22},
      {"voxtral", 3072, 0, 8, 30, 131072, 0, 0, 128, 1e8},
  };
  return record_in(sizes, whole);
}

/// The sizes of an architecture, or nullptr if its class is unknown.
///
/// Source: Hugging Face transformers, configuration_*.py, 2026-08-19: tests/recorded/models has the files
///         that each class writes
template <class Sizes = class_sizes>
const Sizes* class_sizes_of(std::string_view architecture) {
  static constexpr Sizes sizes[] = {
      {"afmoe", 2048, 16, 0, 32, 16384},
      {"apertus", 4096, 32, 0, 32, 65536},
      {"arcee stablelm", 2560, 32, 0, 32, 4096},
      {"aria deepseekocr2 exaone4 exaonemoe granite granite4vision granitemoe granitemoehybrid "
       "granitemoeshared granitemoeswa hunyuanv1dense hunyuanv1moe hunyuanvl hyperclovax llama olmo olmo2 "
       "olmo3",
       4096, 32, 0, 32, 2048},
      {"axk1", 7168, 64, 0, 61, 32768, 128, 64},
      {"axk2", 2048, 32, 0, 48, 131072, 64, 32},
      {"bailinghybrid", 2048, 16, 4, 20, 32768, 128, 64},
      {"bamba", 4096, 32, 8, 32, 262144},
      {"bitnet", 2560, 20, 5, 30, 2048},
      {"bltglobaltransformer", 2048, 16, 0, 25, 4096},
      {"bltlocaldecoder", 1024, 16, 0, 9, 24576},
      {"bltlocalencoder", 1024, 16, 0, 1, 24576},
      {"bltpatcher", 768, 12, 0, 14, 8192},
      {"chameleon flexolmo", 4096, 32, 0, 32, 4096},
      {"cohere cohere2 cohere2moe", 8192, 64, 0, 40, 8192},
      {"cosmos3edge", 2048, 16, 8, 28, 131072},
      {"csm", 2048, 32, 8, 16, 2048},
      {"csmdepthdecodermodel", 1024, 8, 2, 4, 33},
      {"cwm", 6144, 48, 8, 64, 131072},
      {"dbrx", 2048, 16, 1, 24, 2048},
      {"deepseekv2", 4096, 32, 0, 32, 2048, 128, 64},
      {"deepseekv3", 7168, 128, 0, 61, 4096, 128, 64},
      {"deepseekv32", 7168, 128, 0, 61, 163840, 128, 64},
      {"deepseekv4", 4096, 64, 1, 43, 1048576},
      {"diadecoder", 2048, 16, 4, 18, 3072},
      {"diaencoder", 1024, 16, 0, 12, 1024},
      {"diffllama", 2048, 32, 0, 16, 2048},
      {"diffusiongemma gemma4", 2304, 8, 4, 30, 131072},
      {"doge", 1024, 8, 0, 32, 2048},
      {"dots1", 4608, 32, 0, 62, 2048},
      {"embeddinggemma2", 512, 4, 2, 24, 262144},
      {"emu3", 4096, 32, 8, 32, 9216},
      {"ernie45 paddleocrvl", 1024, 16, 2, 18, 131072},
      {"ernie45moe ernie45vlmoe", 2560, 20, 4, 28, 131072},
      {"eurobert", 768, 12, 0, 12, 8192},
      {"evolla falconh1", 4096, 32, 8, 32, 8192},
      {"falcon", 4544, 71, 0, 32, 2048},
      {"gemma", 3072, 16, 0, 28, 8192},
      {"gemma2 t5gemmamodule vaultgemma", 2304, 8, 4, 26, 8192},
      {"gemma3 t5gemma2 t5gemma2decoder", 2304, 8, 4, 26, 131072},
      {"gemma3n", 2048, 8, 2, 35, 32768},
      {"gemma4unified", 2304, 8, 4, 30, 262144},
      {"glm glm4 glmimage", 4096, 32, 2, 40, 131072},
      {"glm4moe", 4096, 96, 8, 46, 131072},
      {"glm4moelite", 2048, 20, 0, 47, 202752, 192, 64},
      {"glm4v", 4096, 32, 2, 40, 32768},
      {"glm4vmoe", 4096, 96, 8, 46, 65536},
      {"glmasrencoder", 1280, 20, 0, 32, 1500},
      {"glmmoedsa", 6144, 64, 0, 78, 202752, 192, 64},
      {"glmocr", 1024, 16, 8, 16, 131072},
      {"gptneox", 6144, 64, 0, 44, 2048},
      {"gptneoxjapanese", 2560, 32, 0, 32, 2048},
      {"gptoss", 2880, 64, 8, 36, 131072},
      {"graniteswa", 2560, 20, 4, 24, 8192},
      {"helium", 2560, 20, 0, 24, 4096},
      {"higgsaudiov2", 3072, 24, 8, 28, 2048},
      {"hrm", 1536, 12, 0, 128, 2048},
      {"hyv3", 4096, 64, 8, 80, 131072},
      {"jais2", 3328, 26, 0, 32, 8192},
      {"jetmoe", 2048, 32, 16, 12, 4096},
      {"jinaembeddingsv3", 1024, 16, 0, 24, 8194},
      {"jvlm", 768, 12, 0, 12, 1024},
      {"k2horizon", 1536, 32, 8, 28, 131072},
      {"kyutaispeechto", 2048, 32, 0, 48, 750},
      {"laguna", 2048, 48, 8, 40, 131072},
      {"lasrencoder", 512, 8, 0, 17, 10000},
      {"lfm2", 2560, 32, 8, 32, 128000},
      {"lfm2moe", 2048, 32, 8, 32, 128000},
      {"llama4", 5120, 40, 8, 48, 131072},
      {"longcatflash", 6144, 64, 0, 56, 131072, 128, 64},
      {"mellum", 2304, 32, 4, 28, 131072},
      {"mimi", 512, 8, 0, 8, 8000},
      {"mimov2flash", 4096, 64, 4, 48, 131072},
      {"minicpm3", 2560, 40, 0, 62, 32768, 64, 32},
      {"minimax minimaxtext01 ministral mistral mixtral phimoe voxtralrealtime", 4096, 32, 8, 32, 131072},
      {"minimaxm2", 3072, 48, 8, 62, 196608},
      {"ministral3", 4096, 32, 8, 34, 262144},
      {"mistral4", 4096, 32, 0, 36, 1048576, 64, 64},
      {"mllama", 4096, 32, 8, 40, 131072},
      {"modernbert modernbertdecoder", 768, 12, 0, 22, 8192},
      {"moonshine", 288, 8, 0, 6, 512},
      {"moonshinestreaming", 320, 8, 0, 6, 4096},
      {"moshi", 4096, 32, 0, 32, 3000},
      {"museglimmer", 6656, 32, 2, 52, 131072},
      {"museglimmerassistant", 6656, 32, 8, 5, 131072},
      {"nanochat", 768, 6, 0, 12, 2048},
      {"nemotron", 6144, 48, 0, 32, 4096},
      {"nomicbert", 768, 12, 0, 12, 2048},
      {"olmoe", 2048, 16, 0, 16, 4096},
      {"olmohybrid", 3840, 30, 0, 32, 65536},
      {"openaiprivacyfilter", 640, 14, 2, 8, 131072},
      {"peaudioencoder", 1792, 14, 0, 6, 10000},
      {"persimmon", 4096, 64, 0, 36, 16384},
      {"phi", 2048, 32, 0, 24, 2048},
      {"phi3", 3072, 32, 0, 32, 4096},
      {"phi4multimodal", 3072, 32, 8, 32, 131072},
      {"qwen2 qwen3", 4096, 32, 0, 32, 32768},
      {"qwen25omni qwen25omnitalker", 3584, 28, 4, 28, 32768},
      {"qwen25vl qwen2vl", 8192, 64, 8, 80, 32768},
      {"qwen2moe", 2048, 16, 0, 24, 32768},
      {"qwen35", 4096, 16, 4, 32, 32768},
      {"qwen35moe", 2048, 16, 2, 40, 32768},
      {"qwen3moe", 2048, 32, 4, 24, 32768},
      {"qwen3next", 2048, 16, 2, 48, 32768},
      {"qwen3omnimoe", 2048, 28, 4, 28, 32768},
      {"qwen3omnimoetalker", 1024, 16, 2, 20, 32768},
      {"qwen3omnimoetalkercodepredictor", 1024, 16, 8, 5, 32768},
      {"qwen3vl", 4096, 32, 0, 32, 128000},
      {"qwen3vlmoe", 2048, 16, 0, 24, 128000},
      {"seedoss", 4096, 80, 8, 64, 524288},
      {"smollm3", 2048, 16, 4, 36, 32768},
      {"solaropen", 4096, 64, 8, 48, 131072},
      {"starcoder2", 3072, 24, 2, 30, 4096},
      {"step3p5", 4096, 64, 8, 45, 128000},
      {"timesfm25", 1280, 16, 0, 20, 16384},
      {"voxtralrealtimeencoder", 1280, 32, 0, 32, 1500},
      {"youtu", 2048, 16, 0, 32, 131072, 128, 64},
      {"zamba2", 2560, 32, 0, 54, 4096},
      {"zaya", 2048, 8, 2, 40, 131072},
  };
  return record_in(sizes, architecture);
}

/// Gives a text model in its own dictionary default sizes, or none for nullptr. The number of layers is not
/// assumed if a list has one value per layer.
///
/// \param of  as in json_reader::assume
template <class J>
void assume_sizes(json_reader<J>& text, const class_sizes* sizes, const std::string& of = {}) {
  if (!sizes) return;
  const auto assume = [&](double value, std::initializer_list<const char*> names) {
    bool given = !(value > 0);
    for (const char* name : names) given = given || text.has(name);
    if (!given) text.assume(*names.begin(), value, of);
  };
  assume(sizes->hidden_size, {"hidden_size", "n_embd", "d_model"});
  assume(sizes->query_heads, {"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"});
  const auto heads =
      text.index_of({"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"});
  const auto key_heads = static_cast<Index>(sizes->key_heads);
  const bool divides = key_heads > 0 && heads.value_or(0) % key_heads == 0;
  assume(divides ? sizes->key_heads : 0, {"num_key_value_heads", "multi_query_group_num",
                                          "num_attention_groups", "decoder_num_key_value_heads"});
  assume(sizes->layers, {"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                         "decoder_num_hidden_layers", "layer_types", "layers_block_type", "no_rope_layers",
                         "layer_rope_theta", "hybrid_layer_pattern", "attn_type_list", "compress_ratios"});
  assume(sizes->context,
         {"max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length"});
  assume(sizes->nope_channels, {"qk_nope_head_dim"});
  assume(sizes->rotated_channels, {"qk_rope_head_dim"});
  assume(sizes->head_dim, {"head_dim"});
  bool has_base = false;
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (const J* rope = text.peek(key))
      has_base = has_base || (rope->is_object() && rope->contains(std::string("rope_theta")));
  if (!has_base) assume(sizes->base, {"rope_theta"});
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP
