// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP
#define ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP

#include <cctype>  // std::tolower
#include <cstddef>
#include <string>
#include <string_view>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/rotation/layout.hpp>

/// The fields of a record in hugging_face_records.hpp, and what the records of both formats share.
///
/// Terms in the comments: a layer slides if it attends to a sliding window of tokens, and attends fully if it
/// sees all tokens up to the query. m is the attention factor of the frequencies.

namespace rope::inline ROPE_ABI::detail {

// Names of architectures in one string, with a space between two names. A record may have several names.

/// The name, as a part of the list. Empty if the list does not contain it.
constexpr std::string_view name_in(std::string_view list, std::string_view name) {
  if (name.empty()) return {};
  for (std::size_t at = list.find(name); at != std::string_view::npos; at = list.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' '))
      return list.substr(at, name.size());
  }
  return {};
}
constexpr bool is_listed(std::string_view list, std::string_view name) {
  return !name_in(list, name).empty();
}

/// The record that has the name of an architecture, or nullptr if there is none.
template <class Records>
auto record_in(const Records& records, std::string_view architecture) -> decltype(&records[0]) {
  for (const auto& record : records)
    if (is_listed(record.names, architecture)) return &record;
  return nullptr;
}

/// The common spelling of an architecture: gemma3 for `gemma3_text`, `gemma3_text_model` and
/// `Gemma3ForConditionalGeneration`.
inline std::string plain_architecture(std::string name) {
  for (const char* end : {"For", "Model"})
    if (const auto at = name.find(end); at != std::string::npos && at > 0) name.resize(at);
  std::string plain;
  for (const char c : name)
    if (c != '_' && c != '-') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view suffix : {"textmodel", "text"})
    if (plain.size() > suffix.size() && plain.ends_with(suffix)) {
      plain.resize(plain.size() - suffix.size());
      break;
    }
  return plain;
}

// The rotation in indexers of sparse attention. Its layout may differ from that of attention.

/// Which channels in the head of an indexer rotate, and their layout. Their number is that of an attention
/// head.
enum class indexer_kind { no_indexer, first_half_split, first_interleaved, last_interleaved };

/// \param refuse  throws, with the broken rule in the message
template <class Refuse>
indexer_rotation indexer_of(indexer_kind kind, Index head_dim, Index rotary_dim, const Refuse& refuse) {
  if (head_dim < rotary_dim)
    refuse("must be at least the " + std::to_string(rotary_dim) + " rotated channels, got " +
           std::to_string(head_dim));
  return {
      .layout = kind == indexer_kind::first_half_split ? layout_kind::half_split : layout_kind::interleaved,
      .head_dim = head_dim,
      .first_channel = kind == indexer_kind::last_interleaved ? head_dim - rotary_dim : 0,
      .rotary_dim = rotary_dim};
}

/// The call that rotates the heads of an indexer, as text.
template <class Indexer>
std::string text_of(const Indexer& indexer) {
  return std::string("rotate<") + name_of(indexer.layout) + ">(heads.channels(" +
         std::to_string(indexer.first_channel) + ", " + std::to_string(indexer.rotary_dim) +
         "), table), its heads having " + std::to_string(indexer.head_dim) + " channels";
}

// The fields of a record in hugging_face_records.hpp.

/// Which layers slide (attend to the last `sliding_window` tokens) in a file without layer_types.
enum class which_slide {
  by_type,                       // the layers of other_type, by the pattern
  every,                         // all layers
  from_max_window_layers,        // the layers from number max_window_layers on
  even_below_max_window_layers,  // the layers of even number below max_window_layers
  without_rope,                  // the layers that do not rotate
  not_known
};

/// The tokens that sliding_window counts.
enum class window_span {
  back,                 // the tokens visible to a query, up to its own
  both_sides,           // half before the query, half after it
  each_side,            // the tokens on each side of a query, without its own
  both_sides_if_asked,  // both_sides if use_bidirectional_attention of the file asks for it, otherwise back
  chunks                // layers that rotate attend in chunks of attention_chunk_size, others to all tokens
};

/// The rule for factors of the position on queries.
enum class query_growth {
  none,
  temperature,  // attn_temperature_tuning: llama4_query_scaling, in layers that do not rotate
  beta,         // llama_4_scaling_beta in the rope dictionary: the rule of Llama 4, offset 0, in every layer
  log_n         // use_logn_attn: log_n_query_scaling by seq_length, in every layer
};

/// How rope dictionaries become groups of layers.
enum class dictionary_form {
  one_or_by_type,  // one rope dictionary, or one per layer type
  per_type,        // one per layer type; the class reads no other form
  base_per_layer,  // one dictionary; layer_rope_theta has the base of each layer, 0: it does not rotate
  base_by_type,  // one per layer type; or rope_theta and partial_rotary_factors are lists, a value per layer.
                 // The last value of a type holds. rope_scaling is for layers that attend fully
  compressed     // two kinds: layers that slide, unscaled; and layers of compressed keys, which have the rope
                 // dictionary, m = 1, and the base compress_rope_theta (filled_base if absent)
};

// Parts of a record that have a meaning only together.

/// The layers of a pattern that attend fully: one of each run, and in some classes others too.
enum class full_layers {
  last,            // the last of a run
  first,           // the first of a run
  first_from_end,  // as first, with runs counted back from the last layer, as are those of no_rope_every
  last_and_rest,   // as last, and all layers after the last whole run
  last_and_first,  // as last, and layer 0
  last_if_none,    // as last; where no run is whole, the last layer
  last_and_end     // as last, and the last layer, for any pattern or layer_types
};

/// The length of a run of layers, and which of them attend fully. Other layers are of other_type. If a key
/// replaces a length of 1, the first of a run attends fully. `key` is the key with the length if the others
/// do not attend: then the last of a run does also for a length of 1, and by mamba_step the middle one.
struct layer_pattern {
  Index every = 0;  // 0: no pattern
  full_layers full = full_layers::last;
  std::string_view key = {};
};

/// The layers that slide, and whether they do so only if use_sliding_window is true.
struct sliding_layers {
  which_slide which = which_slide::by_type;
  bool if_asked = false;
};

/// The default of sliding_window, and what it counts. Negative tokens: their magnitude, and layers have
/// other_type for any window.
struct sliding_tokens {
  double tokens = 0;
  window_span span = window_span::back;
};

/// The factor on products of queries and keys before the softmax: the value of the key, or this number if the
/// key is absent or empty, or 1 / sqrt(head_dim) if the number is 0. query_pre_attn_scalar is n of
/// 1 / sqrt(n), and key_multiplier and qk_scale_factor multiply 1 / sqrt(head_dim).
struct score_scale {
  std::string_view key = {};
  double number = 0;
};

/// No layer rotates unless the value of the key is true or the word or, for rope_parameters, a dictionary
/// with rope_theta. Without a key all models of the class rotate. `instead` is what others have.
struct rotation_switch {
  std::string_view key = {}, instead = "no positions", word = "rope";
};

/// Defaults of a class with dictionaries per_type: the base and the share of rotated channels of layers of
/// full_type, and the share of those of other_type, whose base is local_base.
struct type_defaults {
  double base = 0, factor = 1, other_factor = 1;
};

/// Class defaults for a text_config without these keys in the file of a whole model. 0: the defaults for the
/// file of a text model.
struct nested_defaults {
  Index head_dim = 0;
  double base = 0, window = 0;
};

struct hugging_face_record {
  // Of the architectures, as plain_architecture spells them. A record that was looked up has one.
  std::string_view names;
  layout_kind layout = layout_kind::half_split;
  double base = 10000;    // 0: unknown, so a file must have a base
  double local_base = 0;  // of sliding layers, if they have their own
  double partial_rotary_factor = 1;
  Index rotary_dim = 0;              // the default of that key; 0: the share partial_rotary_factor of a head
  double original_max_position = 0;  // 0: the longest context
  Index head_dim = 0;                // 0: hidden_size / num_attention_heads
  nested_defaults nested = {};
  Index full_head_dim = 0;     // of layers that attend fully; 0: head_dim
  bool last_channels = false;  // the channels that rotate come last in a head
  bool latent = false;         // a head has qk_nope_head_dim channels, then qk_rope_head_dim that rotate
  bool double_head = false;  // without attention_head_dim, head_dim is 2 * hidden_size / num_attention_heads,
                             // and scores are multiplied by 1 / sqrt(head_dim / 2)
  bool scaling_slides = false;  // rope_scaling without layer types also scales layers that slide
  bool one_base = false;        // with base_per_layer: all layers that rotate use the base of the dictionary
  bool theta_unread = false;  // the base has another key, and rope_theta next to the dictionary has no effect
  // The types of layers. Layers of full_type attend to all tokens. Layers of other_type slide, or have no
  // attention, see others_attend.
  std::string_view full_type = "full_attention", other_type = "sliding_attention";
  std::string_view full_list = {};  // the key with the numbers of the layers of full_type
  // The keys of lists with a 0 or a 1 for each layer. In type_ones, 1 means other_type if these layers
  // attend, otherwise full_type. In rope_ones, which replaces no_rope_layers, 1 means that the layer rotates.
  std::string_view type_ones = {}, rope_ones = {};
  dictionary_form form = dictionary_form::one_or_by_type;
  type_defaults filled = {};  // of dictionaries per_type; the base also of compressed
  layer_pattern pattern = {};
  bool more_in_lists = false;  // lists may also have values for layers of multi-token prediction
  bool dense_first = false;    // the first first_k_dense_replace layers attend by a pattern of their own,
                               // prefix_dense_sliding_window_pattern; where it is 1, dense layers rotate
  bool full_rotate = true;     // false: layers that attend fully do not rotate if others slide
  sliding_tokens window = {};
  bool needs_window = false;     // if sliding_window is null, no layer slides, and the others do not rotate
  Index max_window_layers = 28;  // the default of this key
  Index alibi_layers = 0;        // a model with this number of layers has ALiBi biases instead of rotation
  Index no_rope_every = 0;       // n: the last of every n layers does not rotate
  bool crosses = false;          // layers of cross_attention_layers attend to images, and do not rotate
  score_scale scale = {};
  double softcap = 0;  // the default of attn_logit_softcapping
  query_growth queries = query_growth::none;
  indexer_kind indexer = indexer_kind::no_indexer;  // of layers that attend to selected keys
  std::string_view indexer_key = "index_head_dim";  // the key with the width of an indexer's head
  sliding_layers slides = {};
  bool types_slide = false;  // layer_types gives the sliding layers, as in classes with windows by_type
  bool causal = true;        // false: an encoder, or a diffusion model
  bool sink_logits = false;  // a learned logit per query head, in the checkpoint
  // MiMo-V2: rope_theta and partial_rotary_factor are the defaults of dictionaries per_type. Layers that
  // slide have their own swa_rope_theta, swa_head_dim and sink logits.
  bool swa_keys = false;
  // The order of the axes of M-RoPE if mrope_interleaved is true. blocks and time_last hold for any value of
  // that key. With blocks and without mrope_section, height and width have a quarter of the pairs each. With
  // time_last, mrope_section is (height, width, time).
  mrope_order mrope = mrope_order::alternating;
  Index mrope_side = 0;    // if not 0, the axes of M-RoPE alternate from pair to pair, and without
                           // mrope_section this is the number of pairs of height, and of width
  bool xdrope = false;     // an older name of mrope_section is xdrope_section
  bool backwards = false;  // pairs rotate by minus the position
  bool stretches = false;  // use_dynamic_ntk: the base grows with each doubling of seq_length
  bool own_rule = false;   // without a rope dictionary, the class uses one that is unknown here
  // The key with r: the first r / 2 pairs of a head rotate, by the frequencies of a head of r channels.
  std::string_view first_pairs = {};
  rotation_switch rotates_if = {};
  std::string_view note = {};  // a warning about layers for which a description has no field
};

/// Whether layers of other_type attend. If not, layers of all types except full_type have no attention.
constexpr bool others_attend(const hugging_face_record& r) {
  return r.other_type.find("sliding") != std::string_view::npos;
}

/// Whether layer_types gives the sliding layers. In some classes all layers slide, or none, whatever their
/// types.
constexpr bool types_slide(const hugging_face_record& r) {
  if (r.names.empty() || r.types_slide || !others_attend(r)) return true;
  if (r.slides.which == which_slide::every || r.slides.which == which_slide::not_known) return false;
  return r.slides.which != which_slide::by_type || r.pattern.every > 0 || !equal(r.window.tokens, 0) ||
         r.form != dictionary_form::one_or_by_type;
}

/// The key of the list that has a 0 for each layer that does not rotate: bases, or ones for the others.
constexpr std::string_view list_of_rotated(const hugging_face_record& record) {
  if (record.form == dictionary_form::base_per_layer) return "layer_rope_theta";
  return record.rope_ones.empty() ? "no_rope_layers" : record.rope_ones;
}

/// The architectures whose classes read use_bidirectional_attention, which makes attention non-causal.
inline constexpr std::string_view look_ahead_if_asked =
    " diffusiongemma gemma gemma2 gemma3 gemma4 gemma4unified step3p5 ";

/// The architectures whose classes read rotary_dim, the number of rotated channels.
inline constexpr std::string_view rotary_dim_in_file =
    " bailingmoe bailingmoev2 codegen gptj llada2moe minimax minimaxm1 minimaxm2 "
    "minimaxmusic3transformer1d minimaxtext01 phimsft phixtral ";

/// The architectures whose classes read sizes in block_config.
inline constexpr std::string_view sizes_in_block_config = " jinavlm jvlm ";

/// The architectures whose classes take head_dim: null for hidden_size / num_attention_heads, although a file
/// without the key has another default.
///
/// Source: Hugging Face transformers, __post_init__ in configuration_*.py
inline constexpr std::string_view null_head_dim = " llama4 seedoss voxtralrealtimeencoder ";

/// Architectures whose models bring their own classes instead of those of transformers.
inline constexpr std::string_view own_classes =
    " acesteptransformer1d afm7 aquila arctic baichuan bailinghybrid bailingmoe bailingmoelinear "
    "bailingmoelinearv2 bailingmoev2 chatglm codeshell deepseek dream ernie45moevl exaone gigachat35 "
    "grok1 grovemoe gte hunyuan internlm internlm2 internlm3 iquestcoder iquestloopcoder jinavlm "
    "joyaillmflash jvlm keye keyevl15 kimik2 klear kormo lille130m llada llada2moe "
    "longcataudiodittransformer longcatflashngram longcatflashsparse maincoder maple mimo minicpm "
    "minicpmo minicpmv minimaxm1 minimaxmusic3transformer1d minimaxtext01 molmo molmo2 motif nanbeige "
    "nemotronlabsdiffusion nemotronnas neobert new omnigentransformer2d openelm openpanguvl orion ouro "
    "panguembedded pangupromoe panguultramoe param2moe phi3v phimsft phixtral plamo plamo2 plamo3 plm "
    "qwen rnd1 sarvammla sarvammoe sdar sdarmoe smallthinker spark25 stableaudio3dit stableaudiodit "
    "stablelmepoch step3 telechat telechat2 telechat3 xlmrobertaflash xverse youtuvl zaya1vl ";

/// Whether the class of the architecture reads sliding_window, so that layers may have a sliding window. In
/// other classes all layers attend to all tokens, whatever the value of the key.
constexpr bool reads_window(const hugging_face_record& record) {
  const bool all_or_none = record.slides.which == which_slide::by_type && others_attend(record);
  if (is_listed(own_classes, record.names)) return true;
  return all_or_none ? types_slide(record)
                     : others_attend(record) || record.slides.which == which_slide::every;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP
