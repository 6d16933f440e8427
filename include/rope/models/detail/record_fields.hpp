// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP
#define ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP

#include <cstddef>
#include <string>
#include <string_view>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/rotation/layout.hpp>

/// The fields of a record in hugging_face_records.hpp or gguf_records.hpp.
///
/// Terms in the comments: a layer slides if it attends to a sliding window of tokens, and attends fully if it
/// sees all tokens up to the query. m is the attention factor of the frequencies.

namespace rope::inline ROPE_ABI::detail {

// Names of architectures in one string, with a space between two names. A record may have several names.

/// Whether a list contains the name.
constexpr bool is_listed(std::string_view list, std::string_view name) {
  if (name.empty()) return false;
  for (std::size_t at = list.find(name); at != std::string_view::npos; at = list.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || list[at - 1] == ' ') && (end == list.size() || list[end] == ' ')) return true;
  }
  return false;
}

/// The first name of a record. In lists of architectures it stands for all names of the record.
template <class Record>
constexpr std::string_view first_name(const Record& record) {
  return record.names.substr(0, record.names.find(' '));
}

/// The record that has the name of an architecture, or nullptr if there is none.
template <class Record, std::size_t count>
const Record* record_in(const Record (&records)[count], std::string_view architecture) {
  for (const Record& record : records)
    if (is_listed(record.names, architecture)) return &record;
  return nullptr;
}

// The rotation in indexers of sparse attention. Its layout may differ from that of attention.

/// Which channels in the head of an indexer rotate, and their layout. Their number is that of an attention
/// head.
enum class indexer_kind { no_indexer, first_half_split, first_interleaved, last_interleaved };

inline indexer_rotation indexer_of(indexer_kind kind, Index head_dim, Index rotary_dim) {
  return {
      .layout = kind == indexer_kind::first_half_split ? layout_kind::half_split : layout_kind::interleaved,
      .head_dim = head_dim,
      .first_channel = kind == indexer_kind::last_interleaved ? head_dim - rotary_dim : 0,
      .rotary_dim = rotary_dim};
}

/// The broken rule if the width of an indexer's head is invalid, otherwise empty.
inline std::string broken_rule_of_indexer(Index head_dim, Index rotary_dim) {
  if (head_dim >= rotary_dim) return {};
  return "must be at least the " + std::to_string(rotary_dim) + " rotated channels, got " +
         std::to_string(head_dim);
}

/// The call that rotates the heads of an indexer, as text.
template <class Indexer>
std::string text_of(const Indexer& indexer) {
  return std::string("rotate<") + name_of(indexer.layout) + ">(heads.channels(" +
         std::to_string(indexer.first_channel) + ", " + std::to_string(indexer.rotary_dim) +
         "), table), its heads having " + std::to_string(indexer.head_dim) + " channels";
}

// The fields of a record in hugging_face_records.hpp.

/// The factor on products of queries and keys before the softmax.
enum class score_scale {
  inverse_root,            // 1 / sqrt(head_dim)
  half_head,               // 1 / sqrt(head_dim / 2)
  query_pre_attn_scalar,   // 1 / sqrt(that key)
  attention_multiplier,    // that key
  attn_output_multiplier,  // that key
  key_multiplier,          // that key / sqrt(head_dim)
  qk_scale_factor,         // that key / sqrt(head_dim)
  one
};

/// Which layers slide (attend to the last `sliding_window` tokens) in a file without layer_types.
enum class which_slide {
  by_type,                       // the layers of other_type, by full_every
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
  chunks                // the length of chunks in layers that rotate; the other layers attend to all tokens
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

struct hugging_face_record {
  std::string_view names;  // of the architectures, as plain_architecture spells them
  layout_kind layout = layout_kind::half_split;
  double base = 10000;    // 0: unknown, so a file must have a base
  double local_base = 0;  // of sliding layers, if they have their own
  double partial_rotary_factor = 1;
  Index rotary_dim = 0;              // the default of that key; 0: the share partial_rotary_factor of a head
  double original_max_position = 0;  // 0: the longest context
  Index head_dim = 0;                // 0: hidden_size / num_attention_heads
  // Class defaults for a text_config without head_dim, base or window in the file of a whole model. 0: the
  // defaults for the file of a text model.
  Index nested_head_dim = 0;
  double nested_base = 0, nested_window = 0;
  Index full_head_dim = 0;     // of layers that attend fully; 0: head_dim
  bool last_channels = false;  // the channels that rotate come last in a head
  bool latent = false;         // a head has qk_nope_head_dim channels, then qk_rope_head_dim that rotate
  bool double_head = false;  // without attention_head_dim, head_dim is 2 * hidden_size / num_attention_heads
  bool scaling_slides = false;  // rope_scaling without layer types also scales layers that slide
  bool one_base = false;        // with base_per_layer: all layers that rotate use the base of the dictionary
  bool theta_unread = false;  // the base has another key, and rope_theta next to the dictionary has no effect
  // The types of layers. Layers of full_type attend to all tokens.
  std::string_view full_type = "full_attention", other_type = "sliding_attention";
  bool others_attend = true;        // false: layers of all other types have no attention
  std::string_view full_list = {};  // the key with the numbers of the layers of full_type
  // The keys of lists with a 0 or a 1 for each layer. In full_ones, 1 means full_type. In slide_ones, 1 means
  // other_type. In rope_ones, which replaces no_rope_layers, 1 means that the layer rotates.
  std::string_view full_ones = {}, slide_ones = {}, rope_ones = {};
  dictionary_form form = dictionary_form::one_or_by_type;
  // Defaults of a class with dictionaries per_type. Layers of full_type use filled_base and filled_factor
  // (the share of rotated channels). Layers of other_type use local_base and other_factor.
  double filled_base = 0, filled_factor = 1, other_factor = 1;
  // Layer i attends fully if i % full_every == full_offset. Other layers are of other_type. interval is the
  // key with full_every if the others do not attend: the last of each run does, by mamba_step the middle one.
  Index full_every = 0, full_offset = 0;
  std::string_view interval = {};
  bool rest_full = false;      // layers after the last whole run attend fully too
  bool from_end = false;       // full_every and no_rope_every count back from the last layer
  bool more_in_lists = false;  // lists may also have values for layers of multi-token prediction
  bool first_full = false;     // layer 0 attends fully too
  bool dense_first = false;    // the first first_k_dense_replace layers attend by a pattern of their own,
                               // prefix_dense_sliding_window_pattern; where it is 1, dense layers rotate
  bool last_full = false;      // the last layer attends fully if no other does
  bool ends_full = false;      // the last layer attends fully, for any pattern or layer_types
  bool full_rotate = true;     // false: layers that attend fully do not rotate if others slide
  double sliding_window = 0;   // negative: its magnitude, and layers have other_type for any window
  bool needs_window = false;   // if sliding_window is null, no layer slides, and the others do not rotate
  window_span window = window_span::back;
  Index max_window_layers = 0;  // 0: unknown
  Index alibi_layers = 0;       // a model with this number of layers has ALiBi biases instead of rotation
  Index no_rope_every = 0;      // n: the last of every n layers does not rotate
  bool crosses = false;         // layers of cross_attention_layers attend to images, and do not rotate
  score_scale scale = score_scale::inverse_root;
  double scale_number = 0;  // the default of the key that `scale` names; 0: inverse_root
  double softcap = 0;       // the default of attn_logit_softcapping
  query_growth queries = query_growth::none;
  indexer_kind indexer = indexer_kind::no_indexer;  // of layers that attend to selected keys
  std::string_view indexer_key = "index_head_dim";  // the key with the width of an indexer's head
  which_slide slides = which_slide::by_type;
  bool slides_if_asked = false;  // layers slide only if use_sliding_window is true
  bool types_slide = false;      // layer_types gives the sliding layers, as in classes with windows by_type
  bool causal = true;            // false: an encoder, or a diffusion model
  bool sink_logits = false;      // a learned logit per query head, in the checkpoint
  // MiMo-V2: rope_theta and partial_rotary_factor are the defaults of dictionaries per_type. Layers that
  // slide have their own swa_rope_theta, swa_head_dim and sink logits.
  bool swa_keys = false;
  bool mrope_interleaved = false;  // the axes of M-RoPE alternate from pair to pair
  bool mrope_blocks = false;       // each axis has a block of pairs, for any mrope_interleaved. Without
                                   // mrope_section, height and width have a quarter of the pairs each
  bool mrope_time_last = false;    // mrope_section is (height, width, time), and the first two alternate
  bool mrope_spread = false;       // if mrope_interleaved is true, the axes are spread by their shares
  Index mrope_side = 0;            // pairs of height, and of width, if mrope_section is absent
  bool xdrope = false;             // an older name of mrope_section is xdrope_section
  bool backwards = false;          // pairs rotate by minus the position
  bool stretches = false;          // use_dynamic_ntk: the base grows with each doubling of seq_length
  bool own_rule = false;           // without a rope dictionary, the class uses one that is unknown here
  // The key with r: the first r / 2 pairs of a head rotate, by the frequencies of a head of r channels.
  std::string_view first_pairs = {};
  // If rotates_if is the name of a key, no layer rotates unless the value of this key is true, rotates_word,
  // or a dictionary with rope_theta.
  std::string_view rotates_if = {}, rotates_word = "rope";
  std::string_view instead = "no positions";  // what the model has instead of rotation
  std::string_view note = {};                 // a warning about layers for which a description has no field
};

/// Whether layer_types gives the sliding layers. In some classes all layers slide, or none, whatever their
/// types.
constexpr bool types_slide(const hugging_face_record& r) {
  if (r.names.empty() || r.types_slide || !r.others_attend) return true;
  if (r.slides == which_slide::every || r.slides == which_slide::not_known) return false;
  return r.slides != which_slide::by_type || r.full_every > 0 || !equal(r.sliding_window, 0) ||
         r.form != dictionary_form::one_or_by_type;
}

// The fields of a record in gguf_records.hpp.

/// The schedule of sliding layers.
enum class sliding_rule {
  not_known,
  as_full,   // the scaling of the other layers, and their base if rope.freq_base_swa is absent
  same,      // as as_full, but rope.freq_base_swa is not read
  unscaled,  // the base of the other layers, no scaling
  bare,      // as unscaled, and m = 1
  own_base,  // rope.freq_base_swa, 10000 if it is absent; no scaling
  plain      // rope.freq_base_swa, the base of the other layers if it is absent; no scaling, and m = 1
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
  std::string_view instead = {};  // if no layer rotates: what the model has instead
  Index alibi_layers = 0;         // a model with this number of layers has ALiBi biases instead of rotation
  bool last_channels = false;     // the channels that rotate come last in a head
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
  bool window_varies = false;  // some versions of llama.cpp do not read the pattern
  bool full_rotate = true;     // false: layers that attend fully do not rotate if others slide
  sliding_rule sliding = sliding_rule::not_known;
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
  bool scores_grow = false;     // multiplies scores by (m (1 + 0.1 k ln(factor)))^2, k as in log_multiplier
  bool needs_pattern = false;   // the file must have attention.sliding_window_pattern
  bool needs_swa_base = false;  // the file must have rope.freq_base_swa, if layers slide
  bool dense_rotate = false;   // the first leading_dense_block_count layers rotate although they do not slide
  bool rope_pattern = false;   // attention.rope_pattern is 0 for layers that do not rotate
  bool half_of_full = false;   // layers that attend fully rotate half of rope.dimension_count
  bool whole_head = false;     // all channels rotate, for any rope.dimension_count
  bool unscaled = false;       // no layer is scaled, for any rope.scaling
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

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_RECORD_FIELDS_HPP
