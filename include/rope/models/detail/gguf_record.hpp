// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_RECORD_HPP
#define ROPE_MODELS_DETAIL_GGUF_RECORD_HPP

#include <string_view>

#include <rope/config.hpp>
#include <rope/models/detail/indexer.hpp>
#include <rope/rotation/layout.hpp>

/// What a record of gguf_records.hpp can say about an architecture.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// By which schedule layers that slide turn.
enum class sliding_rule {
  not_known,
  as_full,   // the base and the scaling of the other layers
  same,      // and their base whatever rope.freq_base_swa says
  unscaled,  // their base, no scaling
  bare,      // unscaled, and m = 1
  own_base,  // rope.freq_base_swa, 10000 where it is absent; no scaling
  plain      // rope.freq_base_swa, their base where it is absent; no scaling, and m = 1
};

/// What rope.scaling.yarn_log_multiplier says: g(k) is 0.1 k ln(factor) + 1, or 1 for a factor up to 1.
enum class log_multiplier {
  as_given,   // m = g(1) / g(it)
  tenths,     // of it: m = g(1) / g(10 it)
  cancelled,  // tenths, but m = 1 wherever it is given
  ignored
};
/// Which of rope.scaling.yarn_{ext_factor, attn_factor, beta_fast, beta_slow} are read.
enum class yarn_keys { none, betas, all };

/// What scores are multiplied by: 1 / sqrt(head_dim), 1, attention.scale where the file has it, or
/// attention.output_scale, which is 1 / sqrt(128) where the file does not have it, whatever head_dim is.
enum class gguf_scale { inverse_root, one, of_key, output_key };

/// The llama4_query_scaling of an architecture.
enum class gguf_temperature {
  none,
  of_length,   // attention_scale is attention.temperature_scale, floor_scale attention.temperature_length
  of_context,  // attention_scale is the same, floor_scale the context length before scaling
  fixed        // the numbers of Llama 4, in layers that do not rotate; the others are for every layer
};

/// What attention.sliding_window means.
enum class window_kind {
  back,        // the tokens that a query sees: those up to its own
  both_sides,  // the same, half of them after its own
  chunks       // the length of chunks; a query sees those of its chunk up to its own
};

/// How attention.sliding_window_pattern is read.
enum class pattern_form {
  number,  // n: one of every n layers attends fully
  list,    // per layer, whether it slides; with a number in its place every layer would slide
  either
};

struct gguf_record {
  std::string_view architecture;
  layout_kind layout = layout_kind::half_split;
  std::string_view instead = {};  // what an architecture has of which no layer rotates
  Index alibi_layers = 0;         // a model of so many layers has ALiBi biases in place of rotation
  bool last_channels = false;     // the channels that rotate come last in a head
  Index period = 0;         // of so many layers one attends fully, the others slide; 0: none, or by a list
  bool full_first = false;  // it is the first of them, else the last
  pattern_form pattern = pattern_form::number;
  bool needs_window = false;   // without attention.sliding_window no layer slides
  Index default_window = 0;    // where attention.sliding_window is absent; 0: not known
  Index fixed_window = 0;      // whatever attention.sliding_window says, unless that is 0
  Index period_layers = 0;     // only in models of so many layers; 0: in all
  bool all_slide = false;      // every layer that attends slides, if the file has a window
  bool window_varies = false;  // some versions of llama.cpp do not read it
  bool full_rotate = true;     // false: layers that attend fully do not rotate where others slide
  sliding_rule sliding = sliding_rule::not_known;
  window_kind window = window_kind::back;
  bool causal = true;                 // false: an encoder, whatever attention.causal says
  bool sink_logits = false;           // a learned logit per query head, in a tensor
  bool sinks_slide = false;           // only layers that slide have it, if no tensor says otherwise
  Index attends_every = 0;            // every so many layers, the last of them attends, and no other; 0: all
  Index no_rope_every = 0;            // every so many layers, the last of them does not rotate, slide or not
  bool no_rope_first = false;         // the first of them, and none where no layer slides
  bool half_split_sections = false;   // a model with M-RoPE sections is half_split
  bool interleaved_sections = false;  // the axes of M-RoPE alternate
  gguf_scale scale = gguf_scale::inverse_root;
  Index wide_layers = 0;  // in models of so many layers the scale is by embedding_length / head_count
  double softcap = 0;     // of attn_logit_softcapping, where it is read
  gguf_temperature temperature = gguf_temperature::none;
  indexer_turn indexer = indexer_turn::no_indexer;  // of layers that choose their keys
  log_multiplier multiplier = log_multiplier::ignored;
  yarn_keys yarn = yarn_keys::none;
  double beta_fast = 32;        // of YaRN, where it is not read
  bool scores_grow = false;     // by (m (1 + 0.1 k ln(factor)))^2, k as in log_multiplier
  bool needs_pattern = false;   // attention.sliding_window_pattern must be there
  bool needs_swa_base = false;  // and rope.freq_base_swa, where layers slide
  bool dense_rotate = false;   // the first leading_dense_block_count layers rotate although they do not slide
  bool rope_pattern = false;   // attention.rope_pattern has 0 for a layer that does not rotate
  bool half_of_full = false;   // layers that attend fully rotate half of rope.dimension_count
  bool whole_head = false;     // all channels rotate, whatever rope.dimension_count says
  bool unscaled = false;       // no layer is scaled, whatever rope.scaling says
  double fixed_base = 0;       // in place of rope.freq_base, whatever it says
  bool alpha = false;          // rope.scaling.alpha stretches the base
  bool finetuned = false;      // no layer rotates where rope.scaling.finetuned is false
  bool compressed = false;     // attention.compress_ratios: layers of 0 slide, unscaled; the others have
                               // attention.compress_rope_freq_base and m = 1
  std::string_view note = {};  // what a description has no word for: a warning
};

/// Whether layers may slide. llama.cpp reads attention.sliding_window only for architectures whose graphs
/// have such layers. An architecture without a record may be one of them.
constexpr bool may_slide(const gguf_record& r) {
  return r.architecture.empty() || r.period > 0 || r.pattern != pattern_form::number || r.all_slide ||
         r.compressed;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_RECORD_HPP
