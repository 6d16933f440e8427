// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_TABLES_HPP
#define ROPE_MODELS_TABLES_HPP

#include <algorithm>  // std::find_if
#include <concepts>   // std::integral
#include <cstddef>
#include <optional>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/tables/table.hpp>

/// The frequency tables of a whole model.
///
/// frequencies_on_axes makes frequencies on several axes from the M-RoPE sections of a layer group.

namespace rope::inline ROPE_ABI {

/// The frequencies of a group on the axes of its positions: on_axes with the mrope_sections of the group. If
/// the group has no sections, its frequencies are returned unchanged. The axes are (time, height, width),
/// except for Hunyuan VL.
///
///     const auto prompt = qwen_vl_positions(runs);
///     rotate<half_split>(queries, frequency_table(frequencies_on_axes(group), prompt.coordinates));
///
/// Interleaved sections have the meaning that they have in Hugging Face transformers, also if they come from
/// a GGUF file. How ggml differs is described at ggml_interleaved_sections.
///
/// Throws:  std::invalid_argument unless the sections are not negative, add up to the pairs of the group, and
///          fit the order of axes of the group
inline frequencies frequencies_on_axes(const layer_group& group) {
  if (group.mrope_sections.empty()) return group.frequencies;
  Index left = group.frequencies.pairs();  // checked before a list of so many axes is allocated
  for (const Index pairs : group.mrope_sections) {
    if (pairs < 0 || pairs > left)
      detail::throw_invalid("frequencies_on_axes", "the sections must be at least 0 and add up to the ",
                            group.frequencies.pairs(), " pairs, got ", pairs, " for the last ", left);
    left -= pairs;
  }
  const std::vector<Index>& sections = group.mrope_sections;
  if (group.section_order == mrope_order::alternating)
    return on_axes(group.frequencies, interleaved_sections(sections));
  if (group.section_order == mrope_order::spread)
    return on_axes(group.frequencies, spread_sections(sections));
  if (group.section_order == mrope_order::blocks)
    return on_axes(group.frequencies, contiguous_sections(sections));
  // Hugging Face transformers, Ernie4_5_VLMoeTextRotaryEmbedding
  if (sections.size() != 3 || sections[1] != sections[2])
    detail::throw_invalid(
        "frequencies_on_axes",
        "with time last, the sections must be time, height and width, the latter two equal, "
        "got ",
        sections.size(), " sections");
  return on_axes(group.frequencies, height_width_then_time(sections[1], sections[0]));
}

/// One table for all layers with equal rotation. For the 34 layers of Gemma 3 there are two tables, because
/// its sliding layers have another base.
///
///     const model_rope model = import_hugging_face(json);
///     const model_tables tables(model, 8192);
///     if (const auto table = tables.of_layer(layer))  // none: the layer does not rotate
///       with_layout(model.group_of_layer(layer)->layout, [&](auto layout) {
///         rotate<decltype(layout)>(queries, *table);  // the channels that this layer rotates
///       });
///
/// \tparam S  float or double: the type of an entry
///
/// Invariant: immutable; safe to share between threads. It has no tables after a move.
/// Cost:      size() tables, whatever the number of layers
template <class S = float>
class model_tables {
 public:
  /// Positions 0 .. count - 1 in every table.
  ///
  /// Throws:  as frequency_table; std::invalid_argument if the model was moved from
  template <std::integral Count>
  model_tables(const model_rope& model, Count count) : model_tables(model) {
    build([count](const frequencies& f) { return frequency_table<S>(f, count); });
  }

  /// Positions first .. last - 1 in every table.  Throws: as above
  template <std::integral First, std::integral Last>
  model_tables(const model_rope& model, First first, Last last) : model_tables(model) {
    build([first, last](const frequencies& f) { return frequency_table<S>(f, first, last); });
  }

  model_tables(const model_tables&) = default;
  model_tables(model_tables&&) = default;
  /// Assigns all tables, or throws and changes nothing.
  model_tables& operator=(const model_tables& other) { return *this = model_tables(other); }
  model_tables& operator=(model_tables&&) = default;

  /// Number of tables.
  Index size() const { return static_cast<Index>(tables_.size()); }

  /// The model that the tables were made from.
  const model_rope& model() const { return model_; }

  /// The table of a layer, placed at the first rotated channel, or nothing if the layer does not rotate. The
  /// table is valid until this object is destroyed or assigned to.
  ///
  /// Throws:  std::out_of_range if there is no such layer or its rotation is unknown
  std::optional<placed_table<S>> of_layer(Index layer) const {
    if (model_.rotation_of_layer(layer) == layer_rotation::not_known) {
      detail::check_layer("model_tables", model_.layer_count(), layer);
      detail::throw_out_of_range("model_tables", "how layer ", layer,
                                 " rotates is not known from this file; call model().rotation_of_layer "
                                 "before, and rotate such a layer by a table of your own");
    }
    const layer_group* group = model_.group_of_layer(layer);
    if (!group) return std::nullopt;
    return of_group(detail::to_index(group - model_.groups().data()));
  }

  /// The table of a group of layers, by its number in model_rope::groups, placed at the first rotated
  /// channel.
  ///
  /// Throws:  std::out_of_range if there is no such group
  placed_table<S> of_group(Index group) const {
    if (group < 0 || group >= static_cast<Index>(table_of_group_.size()))
      detail::throw_out_of_range("model_tables", "group must be in [0, ", table_of_group_.size(), "), got ",
                                 group);
    const auto at = static_cast<std::size_t>(group);
    return tables_[static_cast<std::size_t>(table_of_group_[at])].at_channel(
        model_.groups()[at].first_channel);
  }

 private:
  explicit model_tables(const model_rope& model) : model_(model) {
    if (model.groups().empty() && model.instead_of_rope().empty())
      detail::throw_invalid("model_tables", "the model was moved from; pass the model that holds it now");
  }

  template <class Make>
  void build(const Make& make) {
    tables_.reserve(model_.groups().size());
    for (const layer_group& group : model_.groups()) {
      const auto& f = group.frequencies;
      const auto alike = std::find_if(tables_.begin(), tables_.end(), [&](const frequency_table<S>& table) {
        return detail::same_inv_freq(table, f) &&
               detail::equal(table.attention_factor(), f.attention_factor());
      });
      table_of_group_.push_back(detail::to_index(alike - tables_.begin()));
      if (alike == tables_.end()) tables_.push_back(make(f));
    }
  }

  model_rope model_;
  std::vector<Index> table_of_group_;
  std::vector<frequency_table<S>> tables_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_TABLES_HPP
