// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_ASSUMPTIONS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_ASSUMPTIONS_HPP

#include <algorithm>  // std::any_of
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/group_comparison.hpp>
#include <rope/models/detail/hugging_face_layers.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/hugging_face_windows.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_draft.hpp>

/// What a config.json leaves to the class of its architecture and says nothing of: which layers are of which
/// type, and what only some of them have.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// "the last of every 4 layers"
inline std::string one_of_every(Index period, bool first, bool from_end) {
  return std::string(first ? "the first" : "the last") + " of every " + std::to_string(period) + " layers" +
         (from_end ? ", counted from the end," : "");
}

/// The pattern of layer types that a record has, if a file of so many layers is left to it; else nothing.
template <class J>
std::string assumed_pattern(json_reader<J>& text, const hugging_face_record& defaults,
                            const model_draft& model) {
  const bool other_keys = defaults.form == dictionary_form::compressed || text.has("layer_types") ||
                          (!defaults.others_attend && text.has("layers_block_type"));
  if (model.layers.empty() || other_keys) return {};
  const std::string does = defaults.others_attend ? " attends fully" : " attends, and no other";
  if (!defaults.full_list.empty() && text.has(std::string(defaults.full_list).c_str())) return {};
  if (defaults.full_every == 0) return defaults.others_attend ? "" : "no layer attends";
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
                          "hybrid_layer_pattern"})
    if (text.has(key)) return {};
  if (!defaults.others_attend && text.has("full_attention_interval")) return {};
  if (defaults.full_every == 1) return "every layer attends fully";
  return one_of_every(defaults.full_every, (defaults.full_offset == 0) != defaults.from_end,
                      defaults.from_end) +
         does + (defaults.first_full ? ", and so does the first" : "");
}

/// Names the defaults of the class that say how layers differ, where they were used.
///
/// \param layers  how many; nothing: not known
/// \param model   with its groups
template <class J>
void name_assumed_layers(json_reader<J>& text, const hugging_face_record& defaults,
                         std::optional<Index> layers, model_draft& model) {
  const auto name = [&](const char* key, const std::string& what) {
    model.warnings.push_back(text.path() + key + " is not given; assumed " + what + ", the default of " +
                             model.architecture);
  };
  if (const std::string pattern = assumed_pattern(text, defaults, model); !pattern.empty())
    name("layer_types", "that " + pattern);
  const bool by_base = defaults.form == dictionary_form::base_per_layer;
  if (defaults.no_rope_every > 0 && !model.layers_without_rope.empty() && !text.has("no_rope_layers") &&
      !text.has("no_rope_layer_interval") && !(by_base && text.has("layer_rope_theta")))
    name(by_base ? "layer_rope_theta" : "no_rope_layers",
         "that " + one_of_every(defaults.no_rope_every, false, defaults.from_end) + " does not rotate");
  if (defaults.crosses && !text.has("cross_attention_layers") && !model.layers_without_rope.empty())
    name("cross_attention_layers", joined(model.layers_without_rope));
  const bool from = defaults.slides == which_slide::from_max_window_layers,
             even = defaults.slides == which_slide::even_below_max_window_layers;
  if ((from || even) && defaults.max_window_layers > 0 && layers && model.layers.empty() &&
      !text.has("max_window_layers") && sliding_window_of(text, defaults) > 0)
    name("max_window_layers", std::to_string(defaults.max_window_layers));

  if (defaults.full_head_dim == 0 || text.has("global_head_dim")) return;
  bool told = false;
  if (const J* each = text.object("per_layer_config"))
    for (const auto& item : each->items())
      told = told || (item.value().is_object() && item.value().contains("head_dim"));
  const bool used = std::any_of(model.groups.begin(), model.groups.end(), [](const layer_group& group) {
    return group.layer_type == "full_attention";
  });
  if (used && !told) name("global_head_dim", std::to_string(defaults.full_head_dim));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_ASSUMPTIONS_HPP
