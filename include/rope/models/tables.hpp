// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_TABLES_HPP
#define ROPE_MODELS_TABLES_HPP

#include <algorithm>  // std::equal, std::find_if
#include <concepts>   // std::integral
#include <cstddef>
#include <optional>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// The tables of a whole model, held together.

namespace rope {
inline namespace ROPE_ABI {

/// One table for all layers that rotate alike: two for the 34 layers of Gemma 3, whose sliding layers have a
/// base of their own.
///
///     const model_rope model = import_hugging_face(json);
///     const model_tables tables(model, 8192);
///     if (const auto table = tables.of_layer(layer))  // none: the layer does not rotate
///       with_layout(model.group_of_layer(layer)->layout, [&](auto layout) {
///         rotate<decltype(layout)>(queries, *table);  // the channels that this layer turns
///       });
///
/// \tparam S  float or double: the type of an entry
///
/// Invariant: immutable; safe to share between threads. Without tables once it was moved from.
/// Cost:      size() tables, however many layers there are
template <class S = float>
class model_tables {
 public:
  /// Positions 0 .. count - 1 in every table.
  ///
  /// Throws:  as frequency_table does; std::invalid_argument if the model has no group of layers
  template <std::integral Count>
  model_tables(const model_rope& model, Count count) : model_tables(model) {
    build(model, [count](const frequencies& f) { return frequency_table<S>(f, count); });
  }

  /// Positions first .. last - 1 in every table.
  template <std::integral First, std::integral Last>
  model_tables(const model_rope& model, First first, Last last) : model_tables(model) {
    build(model, [first, last](const frequencies& f) { return frequency_table<S>(f, first, last); });
  }

  model_tables(const model_tables&) = default;
  model_tables(model_tables&&) = default;
  /// All or nothing.
  model_tables& operator=(const model_tables& other) { return *this = model_tables(other); }
  model_tables& operator=(model_tables&&) = default;

  /// Number of tables.
  Index size() const { return static_cast<Index>(tables_.size()); }

  /// The table of a layer, placed at the first channel that turns, or nothing if the layer does not rotate.
  /// Valid while this object lives and is not assigned to.
  ///
  /// Throws:  std::out_of_range if the model does not say of which type the layer is
  std::optional<placed_table<S>> of_layer(Index layer) const {
    if (detail::contains(without_, layer)) return std::nullopt;
    if (layer >= 0 && group_of_layer_.empty() && place_of_group_.size() == 1) return of_group(0);
    if (layer < 0 || layer >= static_cast<Index>(group_of_layer_.size()) ||
        group_of_layer_[static_cast<std::size_t>(layer)] == unknown)
      ROPE_THROW(std::out_of_range, detail::message("model_tables: the model does not say how layer ", layer,
                                                    " rotates; it has ", group_of_layer_.size(), " layers"));
    return of_group(group_of_layer_[static_cast<std::size_t>(layer)]);
  }

  /// The table of a group of layers, by its number in model_rope::groups, placed as above.
  ///
  /// Throws:  std::out_of_range
  placed_table<S> of_group(Index group) const {
    if (group < 0 || group >= static_cast<Index>(place_of_group_.size()))
      ROPE_THROW(std::out_of_range, detail::message("model_tables: group must be in [0, ",
                                                    place_of_group_.size(), "), got ", group));
    const place& at = place_of_group_[static_cast<std::size_t>(group)];
    return tables_[at.table].at_channel(at.first_channel);
  }

 private:
  static constexpr Index unknown = -1;
  struct place {
    std::size_t table;
    Index first_channel;
  };

  explicit model_tables(const model_rope& model) : without_(model.layers_without_rope) {
    if (model.groups.empty())
      ROPE_THROW(std::invalid_argument,
                 detail::message("model_tables: the model must have a group of layers"));
    for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
      const layer_group* group =
          model.groups.size() == 1 ? &model.groups.front() : model.group(model.layers[layer]);
      group_of_layer_.push_back(group ? detail::to_index(group - model.groups.data()) : unknown);
    }
  }

  template <class Make>
  void build(const model_rope& model, const Make& make) {
    tables_.reserve(model.groups.size());
    for (const layer_group& group : model.groups) {
      const auto& f = group.frequencies;
      const auto alike = std::find_if(tables_.begin(), tables_.end(), [&](const frequency_table<S>& table) {
        if (table.pairs() != f.pairs() || table.axes() != f.axes() ||
            !detail::equal(table.attention_factor(), f.attention_factor()))
          return false;
        for (Index a = 0; a < f.axes(); ++a)
          for (Index i = 0; i < f.pairs(); ++i)
            if (!detail::equal(table.inv_freq(i, a), f.inv_freq(i, a))) return false;
        return true;
      });
      place_of_group_.push_back({static_cast<std::size_t>(alike - tables_.begin()), group.first_channel});
      if (alike == tables_.end()) tables_.push_back(make(f));
    }
  }

  std::vector<Index> without_;
  std::vector<Index> group_of_layer_;  // empty if the model does not name the types of its layers
  std::vector<place> place_of_group_;
  std::vector<frequency_table<S>> tables_;
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_TABLES_HPP
