// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>

/// Which layer of a config.json is of which type, and which of them do not turn.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The type of every layer: given, or by the pattern of the architecture, or empty.
///
/// \param slides  whether there is a window for layers to slide
template <class J>
std::vector<std::string> layer_types_of(json_reader<J>& text, const hugging_face_record& defaults,
                                        std::optional<Index> layers, bool slides) {
  if (auto given = text.texts("layer_types")) {
    const std::string broken =
        broken_rule_of_layer_list(given->size(), layers.value_or(0), "num_hidden_layers values");
    if (!broken.empty()) text.refuse("layer_types", broken);
    return *std::move(given);
  }
  if (!layers || defaults.full_every == 0 || !slides) return {};
  std::vector<std::string> types;
  const auto add = [&types](bool full) { types.push_back(full ? "full_attention" : "sliding_attention"); };
  if (text.is_text("sliding_window_pattern")) {  // EXAONE: "LLLG", local and global
    const std::string letters = *text.text("sliding_window_pattern");
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
      text.refuse("sliding_window_pattern", "must be a number or made of L and G, got " + letters);
    for (Index i = 0; i < *layers; ++i) add(letters[static_cast<std::size_t>(i) % letters.size()] == 'G');
    return types;
  }
  auto every = text.index("sliding_window_pattern");
  if (!every) every = text.index("_sliding_window_pattern");
  if (!every) every = text.index("global_attn_every_n_layers");
  const Index period = every.value_or(defaults.full_every);
  const Index full = defaults.full_offset == 0 ? 0 : period - 1;
  for (Index i = 0; i < *layers; ++i) add(i % period == full);
  return types;
}

/// `no_rope_layers` holds 1 for a layer that rotates and 0 for one that does not.
template <class J>
std::vector<Index> layers_without_rope_of(json_reader<J>& text, const hugging_face_record& defaults,
                                          std::optional<Index> layers) {
  std::vector<Index> without;
  const auto given = text.numbers("no_rope_layers", range::zero_or_one);
  const auto every = text.index("no_rope_layer_interval");
  if (given && !given->empty()) {
    const std::string broken =
        broken_rule_of_layer_list(given->size(), layers.value_or(0), "num_hidden_layers values");
    if (!broken.empty()) text.refuse("no_rope_layers", broken);
    for (std::size_t i = 0; i < given->size(); ++i)
      if (equal((*given)[i], 0)) without.push_back(static_cast<Index>(i));
    return without;
  }
  const Index period = every.value_or(defaults.no_rope_every);
  if (period == 0) return without;
  if (!layers) text.missing("num_hidden_layers", "every no_rope_layer_interval-th layer does not rotate");
  for (Index i = period - 1; i < *layers; i += period) without.push_back(i);
  return without;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
