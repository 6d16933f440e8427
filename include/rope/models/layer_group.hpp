// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_LAYER_GROUP_HPP
#define ROPE_MODELS_LAYER_GROUP_HPP

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>

/// How one kind of layers rotates.

namespace rope::inline ROPE_ABI {

/// A number from which the frequencies were made, under the name that rope gives it.
///
///     for (const named_number& number : group.numbers)
///       std::cout << number.name << " = " << number.value << ", ";
struct named_number {
  std::string name;  // such as "factor"
  double value;      // its value
};

/// The rotation in the indexer of a layer, whose narrow heads select the visible keys (DeepSeek
/// V3.2, GLM 5). The layer's table rotates its queries and keys.
///
///     if (const auto& indexer = group.indexer)
///       with_layout(indexer->layout, [&](auto layout) {
///         rotate<decltype(layout)>(heads.channels(indexer->first_channel, indexer->rotary_dim), table);
///       });
///
/// The indexer of DeepSeek V4 has compressed keys, at the positions of the compressed keys of attention.
struct indexer_rotation {
  layout_kind layout;   // may differ from that of attention
  Index head_dim;       // channels of a head of the indexer
  Index first_channel;  // channels [first_channel, first_channel + rotary_dim) rotate
  Index rotary_dim;     // number of rotated channels
};

/// The assignment of pairs to the axes of M-RoPE.
enum class mrope_order {
  blocks,       // the first pairs rotate by the first axis, the next pairs by the second, ...
  alternating,  // the axes alternate from pair to pair, see interleaved_sections (Qwen3-VL)
  time_last,    // height and width alternate, and time has the last pairs (ERNIE 4.5 VL)
  spread        // the pairs of every axis are spread evenly, see spread_sections (openPangu)
};

/// The layers of a model with equal rotation: one frequency table serves them all.
///
/// Channels [first_channel, first_channel + frequencies.rotary_dim()) of every head of head_dim channels
/// rotate:
///
///     rotate<Layout>(view, table.at_channel(group.first_channel));
struct layer_group {
  std::string
      layer_type;       // "full_attention", "sliding_attention", ...; empty if the group is the whole model
  layout_kind layout;   // of the weights in the described format
  Index head_dim;       // channels of a query or key head
  Index first_channel;  // the first channel that rotates
  rope::frequencies frequencies;           // inv_freq [rad per position] and attention_factor
  double softmax_multiplier = 1;           // factor on 1 / sqrt(head_dim); 1 except with the YaRN of DeepSeek
  double scale = 0;                        // the factor on q . k: attention_options::scale
  double softcap = 0;                      // attention_options::softcap; 0: off
  std::vector<Index> mrope_sections = {};  // pairs per axis (time, height, width); text has all axes equal
  mrope_order section_order = mrope_order::blocks;  // the order of the axes
  std::optional<indexer_rotation> indexer = {};     // of layers with sparse attention

  std::string rule;                        // "default", "linear", "yarn", ...
  double base;                             // the base before the rule is applied
  std::vector<named_number> numbers = {};  // arguments of the rule and derived numbers, for reports

  /// The number of rotated channels.
  Index rotary_dim() const { return frequencies.rotary_dim(); }

  /// The number with that name, or `otherwise` if there is none.
  double number(std::string_view name, double otherwise) const {
    for (const named_number& n : numbers)
      if (n.name == name) return n.value;
    return otherwise;
  }
};

namespace detail {

/// True if every inv_freq of `a` is `sign` times that of `b`. Both are frequencies or tables.
template <class A, class B>
bool same_inv_freq(const A& a, const B& b, double sign = 1) {
  bool same = a.pairs() == b.pairs() && a.axes() == b.axes();
  for (Index axis = 0; same && axis < a.axes(); ++axis)
    for (Index i = 0; same && i < a.pairs(); ++i)
      same = equal(a.inv_freq(i, axis), sign * b.inv_freq(i, axis));
  return same;
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_LAYER_GROUP_HPP
