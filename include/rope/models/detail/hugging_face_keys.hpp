// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP

#include <cctype>  // std::tolower
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>

/// Which keys of a config.json only some classes read. To the others they say nothing, whatever their value.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A key, and the architectures whose classes read it, with a blank on either side of each.
struct key_of_few {
  const char* key;
  std::string_view readers;
};

/// Those whose classes read use_bidirectional_attention: whether queries see what comes after them.
inline constexpr std::string_view look_ahead_if_asked =
    " diffusiongemma gemma gemma2 gemma3 gemma4 gemma4unified step3p5 ";

/// Whether a word stands in such a list.
constexpr bool is_listed(std::string_view list, std::string_view word) {
  for (std::size_t at = list.find(word); at != std::string_view::npos; at = list.find(word, at + 1))
    if (at > 0 && list[at - 1] == ' ' && list.substr(at + word.size(), 1) == " ") return true;
  return false;
}

/// Models that bring their own classes.
inline constexpr std::string_view own_classes =
    " baichuan chatglm ernie45moevl internlm2 kimik2 minicpm openpanguvl phi3v qwen telechat3 ";

/// Whether the class of the architecture reads sliding_window: some layers slide then. The others attend to
/// all tokens whatever the key says.
constexpr bool reads_window(const hugging_face_record& record) {
  const bool all_or_none = record.slides == which_slide::by_type && record.others_attend;
  if (is_listed(own_classes, record.architecture)) return true;
  return all_or_none ? types_slide(record) : record.others_attend || record.slides == which_slide::every;
}

/// The keys that change a description, and that the class of the architecture does not read.
///
/// Source: Hugging Face transformers, models/*/configuration_*.py and modeling_*.py, 2026-08-19; of models
/// that bring their own classes (ChatGLM, Qwen, MiniMax), their configuration files
inline std::vector<std::string> keys_not_read(const hugging_face_record& record) {
  static constexpr std::string_view periods =
      " gemma3 t5gemma2 t5gemma2decoder cohere2 cohere2moe exaone4 exaone45 exaonemoe ";
  static constexpr key_of_few keys[] = {
      {"_sliding_window_pattern", periods},
      {"add_full_attention_sink_bias", " mimov2 mimov2flash "},
      {"add_swa_attention_sink_bias", " mimov2 mimov2flash "},
      {"attn_config", " dbrx "},
      {"attn_logit_softcapping", " gemma2 t5gemmamodule vaultgemma "},
      {"full_attention_interval", " qwen35 qwen35moe qwen38flashnext qwen3next qwen4exp "},
      {"global_attn_every_n_layers", " afmoe modernbert modernbertdecoder "},
      {"global_head_dim", " diffusiongemma gemma4 gemma4unified "},
      {"global_rope_theta", " modernbert modernbertdecoder "},
      {"hybrid_layer_pattern", " mimov2 mimov2flash "},
      {"kv_channels", " chatglm jetmoe qwen zamba2 "},
      {"local_attention", " modernbert modernbertdecoder "},
      {"local_rope_theta", " modernbert modernbertdecoder "},
      {"max_seq_len", " dbrx "},
      {"no_rope_layer_interval", " llama4 smollm3 "},
      {"no_rope_layers", " llama4 smollm3 "},
      {"per_layer_config", " diffusiongemma gemma4 gemma4unified "},
      {"prefix_dense_sliding_window_pattern", " cohere2moe "},
      {"rope_interleave", " axk1 deepseekv3 glm4moelite kimik2 mistral4 youtu "},
      {"rope_local_base_freq", " gemma3 gemma3n t5gemma2 t5gemma2decoder "},
      {"rope_pct", " stablelm "},
      {"rope_ratio", " chatglm "},
      {"rotary_dim", " codegen gptj minimax minimaxm2 "},
      {"rotary_emb_base", " gptneox gptneoxjapanese qwen "},
      {"rotary_pct", " gptneox gptneoxjapanese qwen "},
      {"sliding_window_pattern", periods},
      {"sliding_window_size", " mimov2 mimov2flash "},
      {"swa_head_dim", " mimov2 mimov2flash "},
      {"use_bidirectional_attention", look_ahead_if_asked},
  };
  static constexpr key_of_few not_keys[] = {
      // read by all classes but these
      {"partial_rotary_factor", " gptneox gptneoxjapanese "},
      {"rope_scaling", " cohere2moe "},
  };
  std::vector<std::string> hidden;
  if (record.architecture.empty()) return hidden;
  for (const key_of_few& one : keys)
    if (!is_listed(one.readers, record.architecture)) hidden.emplace_back(one.key);
  for (const key_of_few& one : not_keys)
    if (is_listed(one.readers, record.architecture)) hidden.emplace_back(one.key);
  if (!record.slides_if_asked) hidden.emplace_back("use_sliding_window");
  if (!reads_window(record)) hidden.emplace_back("sliding_window");
  if (record.indexer == indexer_turn::no_indexer) hidden.emplace_back("indexer_rope_interleave");
  return hidden;
}

/// Those whose classes read partial_rotary_factor under the default rule, too. The others turn whole heads.
///
/// Source: compute_default_rope_parameters of modeling_*.py, Hugging Face transformers c49429ed1f, 2026-08-16
inline constexpr std::string_view partial_by_default =
    " bamba deepseekv4 diffusiongemma glm glm4 glm4moe glm4moelite glm4v glm4vmoe glmasrencoder glmimage "
    "glmocr gptneox gptneoxjapanese laguna mellum mimov2 mimov2flash minimaxm2 moonshine moonshinestreaming "
    "nemotron persimmon phi phi3 phi4multimodal qwen35 qwen35moe qwen38flashnext qwen3next qwen4exp "
    "solaropen stablelm "
    "step3p5 zaya ";

/// Those whose classes read a rope dictionary for each type of layers.
///
/// Source: {layer_type}_inv_freq in modeling_*.py, Hugging Face transformers c49429ed1f, 2026-08-16
inline constexpr std::string_view dictionary_by_type =
    " coherecompass deepseekv4 diffusiongemma gemma3 gemma3n gemma4 gemma4unified laguna mellum "
    "mimov2 mimov2flash modernbert modernbertdecoder olmo3 step3p5 t5gemma2 t5gemma2decoder zaya ";

/// Whether a class of transformers is known, and is not in the list.
constexpr bool has_class_not_in(std::string_view list, std::string_view architecture) {
  return !architecture.empty() && !is_listed(own_classes, architecture) && !is_listed(list, architecture);
}

/// The name of a key in small letters, without words of other things that have "rope" or "position" in them.
inline std::string spelled_plainly(std::string_view key) {
  std::string name;
  for (const char letter : key) name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  for (const std::string other : {"propert", "europe", "composition", "disposition"})
    for (auto at = name.find(other); at != std::string::npos; at = name.find(other))
      name.replace(at, other.size(), "_");
  return name;
}

/// Whether a word of the list is in the name.
inline bool has_a_word(const std::string& name, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (name.find(word) != std::string::npos) return true;
  return false;
}

/// Whether the name of a key has to do with positions, or with which layer is of which type.
inline bool speaks_of_positions(std::string_view key) {
  const std::string name = spelled_plainly(key);
  return has_a_word(name, {"rope", "rotary", "position", "nope", "pattern", "chunk", "yarn", "window",
                           "alibi", "layer_types", "layertypes"});
}

/// The same, or with what scores are multiplied by.
inline bool speaks_of_rope(std::string_view key) {
  return speaks_of_positions(key) ||
         has_a_word(spelled_plainly(key),
                    {"theta", "scal", "softcap", "logn", "temperature", "multiplier", "partial", "sink"});
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_KEYS_HPP
