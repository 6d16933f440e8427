// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_MODEL_ROPE_HPP
#define ROPE_MODELS_MODEL_ROPE_HPP

#include <algorithm>  // std::all_of, std::any_of, std::binary_search, std::find, std::max
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/positions/key_ranges.hpp>

/// The rotary embedding of a checkpoint: the result of import_hugging_face and import_gguf.

namespace rope::inline ROPE_ABI {

namespace detail {

/// Throws:  std::out_of_range if a model has no such layer
///
/// \param count  the number of layers. 0: unknown
inline void check_layer(const char* function, Index count, Index layer) {
  if (layer < 0 || (count > 0 && layer >= count))
    ROPE_THROW(std::out_of_range,
               count > 0 ? message(function, ": layer must be from 0 to ", count - 1, ", got ", layer)
                         : message(function, ": layer must not be negative, got ", layer));
}

/// The group with that layer type, or nullptr. A group without a layer type matches every type.
inline const layer_group* group_in(const std::vector<layer_group>& groups, std::string_view layer_type) {
  for (const layer_group& group : groups)
    if (group.layer_type == layer_type || group.layer_type.empty()) return &group;
  return nullptr;
}

/// Whether all groups have the same scale and softcap.
inline bool alike_in_scores(const std::vector<layer_group>& groups) {
  return std::all_of(groups.begin(), groups.end(), [&](const layer_group& g) {
    return equal(g.scale, groups.front().scale) && equal(g.softcap, groups.front().softcap);
  });
}

/// attention_options::window of a layer, or not_known_window. A list with one window holds for every layer.
inline Index window_in(const std::vector<Index>& windows, Index layer) {
  const auto at = windows.size() == 1 ? 0 : static_cast<std::size_t>(layer);
  return at < windows.size() ? windows[at] : not_known_window;
}

}  // namespace detail

/// The type of each layer of a model, and the layers that do not rotate.
///
///     const model_layers layers = {.types = {"sliding_attention", "full_attention", "linear_attention"},
///                                  .without_rope = {2}};
struct model_layers {
  std::vector<std::string> types = {};   // the type of every layer; empty if unknown or all alike
  std::vector<Index> without_rope = {};  // these layers do not rotate, in increasing order
  std::vector<Index> not_known = {};     // the rotation of these layers is unknown, in increasing order
  std::string instead_of_rope = {};      // if no layer rotates, what the model has instead; otherwise empty
};

/// The rotary embedding of a model.
///
///     const model_rope model = import_hugging_face(json);
///     const layer_group* group = model.group_of_layer(layer);             // nullptr: does not rotate
///     const attention_options options = model.attention_of_layer(layer);  // window, scale
///
/// Groups and types of layers are immutable. To change them, make a new description:
///
///     const model_rope other(model, groups, {.types = model.layers()});
///
/// Invariant: there is at least one group, or instead_of_rope() is not empty and no layer rotates. If there
///            are several groups, each has its own layer type. Each layer then has the type of a group, or is
///            in layers_without_rope() or layers_not_known(). Empty after a move.
class model_rope : public model_facts {
 public:
  /// Throws:  std::invalid_argument if the invariant does not hold, a list is not increasing, or a number in
  ///          it is negative or, if layers have types, not below the number of types
  model_rope(model_facts facts, std::vector<layer_group> groups, model_layers layers = {})
      : model_facts(std::move(facts)), groups_(std::move(groups)), layers_(std::move(layers)) {
    check_list("layers without rotation", layers_.without_rope);
    check_list("layers of unknown rotation", layers_.not_known);
    check_names();
  }
  model_rope(const model_rope&) = default;
  model_rope(model_rope&&) = default;
  /// Assigns all of `other`, or changes nothing if an allocation fails. Facts of one model would not fit the
  /// groups of another.
  model_rope& operator=(const model_rope& other) { return *this = model_rope(other); }
  model_rope& operator=(model_rope&&) = default;
  ~model_rope() = default;

  /// The groups of layers with equal rotation. There is at least one, unless no layer rotates.
  const std::vector<layer_group>& groups() const { return groups_; }
  /// What the model has if no layer rotates, such as "learned positions". Empty if some layer rotates.
  const std::string& instead_of_rope() const { return layers_.instead_of_rope; }
  /// The layer type of every layer. Empty if unknown or all alike.
  const std::vector<std::string>& layers() const { return layers_.types; }
  /// The number of layers, from the list of types or of windows. 0 if unknown, or if all layers are alike.
  Index layer_count() const {
    if (!layers_.types.empty()) return static_cast<Index>(layers_.types.size());
    return windows.size() > 1 ? static_cast<Index>(windows.size()) : 0;
  }
  /// The layers that do not rotate, in increasing order.
  const std::vector<Index>& layers_without_rope() const { return layers_.without_rope; }
  /// The layers whose rotation is not known, in increasing order.
  const std::vector<Index>& layers_not_known() const { return layers_.not_known; }

  /// The group with that layer type, or nullptr. A group without a layer type matches every type.
  const layer_group* group(std::string_view layer_type) const {
    return detail::group_in(groups_, layer_type);
  }

  /// Whether layer `layer` rotates, does not rotate, or has an unknown rotation. The import functions warn
  /// about unknown rotations. A single group serves every layer of the model. If the number of layers is
  /// unknown, it serves every layer from 0 on.
  layer_rotation rotation_of_layer(Index layer) const {
    if (!may_be_layer(layer) || is_listed(layers_.not_known, layer)) return layer_rotation::not_known;
    if (!instead_of_rope().empty() || is_listed(layers_.without_rope, layer)) return layer_rotation::none;
    if (layers_.types.empty())
      return groups_.size() == 1 ? layer_rotation::in_group : layer_rotation::not_known;
    return layer_rotation::in_group;
  }

  /// The group that layer `layer` rotates with, or nullptr if it does not rotate.
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument if its rotation is unknown.
  ///          To test for that, call rotation_of_layer
  const layer_group* group_of_layer(Index layer) const {
    detail::check_layer("group_of_layer", layer_count(), layer);
    const layer_rotation rotation = rotation_of_layer(layer);
    if (rotation == layer_rotation::not_known)
      detail::throw_invalid("group_of_layer", "how layer ", layer,
                            " rotates is not known from this file; call rotation_of_layer before, and rotate "
                            "such a layer by a table of your own");
    if (rotation == layer_rotation::none) return nullptr;
    return groups_.size() == 1 ? &groups_.front() : group(layers_.types[static_cast<std::size_t>(layer)]);
  }

  /// Attention options of layer `layer`, with or without rotation: causal, scale, softcap and window, as in
  /// training. Sink logits are weights: set sink_logits yourself if the model has them.
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument unless
  ///          attention_kind_of_layer is in_options: an unknown window, several scales and no group for this
  ///          layer, or chunks (Llama 4), which no window can express
  attention_options attention_of_layer(Index layer) const {
    attention_options options = numbers_of_layer(layer);
    if (const Index chunk = chunk_of_layer(layer); chunk > 0)
      detail::throw_invalid("attention_of_layer", "layer ", layer, " attends in chunks of ", chunk,
                            " tokens, which no window expresses; pass rotate_layer a std::vector<key_range>, "
                            "or pass attention_of_layer chunk_ranges(",
                            chunk, ", {.queries, .keys})");
    options.window = window_of_layer(layer);
    if (options.window == not_known_window)
      detail::throw_invalid("attention_of_layer", "the attention window of layer ", layer,
                            " is not known from this file", reason_of_no_window(layer),
                            "; set attention_options yourself");
    return options;
  }

  /// Whether attention_of_layer returns the options of layer `layer`. A file may leave out a window, or the
  /// number of layers if layers differ. rotate_layer also needs sink logits if layer_has_sinks, and a known
  /// query_scaling_of_layer.
  ///
  ///     std::vector<key_range> ranges;
  ///     for (Index layer = 0; layer < layers; ++layer)
  ///       if (!model.keys_are_values && model.attention_kind_of_layer(layer) != layer_attention::not_known)
  ///         attention(q, k, v, out, rotate_layer(tables, layer, q, k, start, ranges));  // else: yours
  layer_attention attention_kind_of_layer(Index layer) const {
    if (!may_be_layer(layer) || !numbers_group(layer)) return layer_attention::not_known;
    if (chunk_of_layer(layer) > 0) return layer_attention::in_chunks;
    return window_of_layer(layer) == not_known_window ? layer_attention::not_known
                                                      : layer_attention::in_options;
  }

  /// The number of tokens of a chunk if layer `layer` attends in chunks (the layers of Llama 4 that rotate),
  /// or 0. A query at position p attends to the keys at positions p - p % chunk .. p.
  ///
  ///     const Index chunk = model.chunk_of_layer(layer);
  ///
  /// Throws:  std::out_of_range if there is no such layer
  Index chunk_of_layer(Index layer) const {
    detail::check_layer("chunk_of_layer", layer_count(), layer);
    const bool listed = static_cast<std::size_t>(layer) < windows.size();
    return listed && causal && window_of_layer(layer) == not_known_window &&
                   rotation_of_layer(layer) == layer_rotation::in_group
               ? attention_chunk
               : 0;
  }

  /// Attention options of a layer that attends in chunks, with the given ranges of keys.
  ///
  ///     const auto ranges = chunk_ranges(model.chunk_of_layer(layer), {.queries = 1, .keys = 9});
  ///     const attention_options options = model.attention_of_layer(layer, ranges);
  ///
  /// \param ranges  [queries] or [batch * queries], which must outlive the result
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument if it does not attend in
  ///          chunks
  attention_options attention_of_layer(Index layer, std::span<const key_range> ranges) const {
    if (chunk_of_layer(layer) == 0)
      detail::throw_invalid("attention_of_layer", "layer ", layer,
                            " does not attend in chunks, leave the ranges out, got ", ranges.size());
    attention_options options = numbers_of_layer(layer);
    options.key_ranges = ranges;
    return options;
  }

  /// The layer types that attention_of_group accepts: types of layers that rotate, in the order of layers,
  /// then types of groups without layers. If neither layers nor groups have types, the list has one empty
  /// type, which means all layers. Types whose layers attend in chunks or differ, or whose window is unknown,
  /// are not in the list: attention_kind_of_layer describes each of their layers.
  ///
  ///     for (const std::string& type : model.attention_types())
  ///       options_of[type] = model.attention_of_group(type);
  std::vector<std::string> attention_types() const {
    std::vector<std::string> types;
    const auto add = [&](const std::string& type) {
      if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    };
    for (std::size_t i = 0; i < layers().size(); ++i)
      if (rotation_of_layer(static_cast<Index>(i)) == layer_rotation::in_group) add(layers()[i]);
    for (const layer_group& g : groups_)
      if (!g.layer_type.empty() || types.empty()) add(g.layer_type);
    std::erase_if(types, [&](const std::string& type) {
      const std::vector<Index> own = layers_of_type(type);
      if (own.empty()) return !group(type) || window_without_layers(*group(type)) == not_known_window;
      return std::any_of(own.begin(), own.end(), [&](Index layer) {
        return attention_kind_of_layer(layer) != layer_attention::in_options ||
               window_of_layer(layer) != window_of_layer(own.front());
      });
    });
    return types;
  }

  /// Attention options of the layers of that type that rotate, if they are the same for all of them. A group
  /// without layers returns the options that its layers would have. If layers have types, an unknown window
  /// then counts as 0. An empty type means every layer of a group that serves the whole model.
  ///
  /// \param layer_type  one of attention_types
  ///
  /// Throws:  std::invalid_argument if there is no such group, or its layers have different windows;
  ///          otherwise as attention_of_layer
  attention_options attention_of_group(std::string_view layer_type) const {
    const layer_group* own = group(layer_type);
    if (!own)
      detail::throw_invalid("attention_of_group", "no layer rotates as type \"", std::string(layer_type),
                            "\"; call attention_of_layer");
    const std::vector<Index> list = layers_of_type(layer_type);
    if (list.empty()) {
      const Index window = window_without_layers(*own);
      if (window == not_known_window)
        detail::throw_invalid("attention_of_group", "the window of layers of type \"",
                              std::string(layer_type),
                              "\" is not known from this file; set attention_options yourself");
      return {.scale = own->scale, .causal = causal, .window = window, .softcap = own->softcap};
    }
    const attention_options common = attention_of_layer(list.front());
    for (const Index layer : list)
      if (const Index window = attention_of_layer(layer).window; window != common.window)
        detail::throw_invalid("attention_of_group", "layers of type \"", std::string(layer_type),
                              "\" have the windows ", common.window, " and ", window, "; ",
                              layer_type.empty() && !layers().empty()
                                  ? "call it for each of attention_types, or call attention_of_layer"
                                  : "call attention_of_layer");
    return common;
  }

  /// Whether layer `layer` has sink logits in the checkpoint. In MiMo-V2 only sliding layers have them.
  ///
  ///     const bool sinks = model.layer_has_sinks(layer);
  ///
  /// Throws:  std::out_of_range if there is no such layer
  bool layer_has_sinks(Index layer) const {
    detail::check_layer("layer_has_sinks", layer_count(), layer);
    return sink_logits && !is_listed(layers_without_sinks, layer);
  }

  /// The rule for factors on the queries of layer `layer`, by their positions. Without a rule the factor is
  /// 1.
  ///
  ///     const query_scaling rule = model.query_scaling_of_layer(layer);
  ///     if (!rule.is_one()) scale_queries(queries, rule, start);
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument if its rule is unknown, or
  ///          if the rule depends on the rotation of the layer, which is unknown
  query_scaling query_scaling_of_layer(Index layer) const {
    detail::check_layer("query_scaling_of_layer", layer_count(), layer);
    if (scaled == scaled_queries::none) return {};
    if (scaled == scaled_queries::every_layer) return query_rule;
    const layer_rotation rotation = rotation_of_layer(layer);
    if (scaled == scaled_queries::not_known || rotation == layer_rotation::not_known)
      detail::throw_invalid("query_scaling_of_layer", "what layer ", layer,
                            " multiplies its queries by is not known from this file; call scale_queries with "
                            "a rule of your own");
    return rotation == layer_rotation::none ? query_rule : query_scaling{};
  }

 private:
  /// The options of a layer: its numbers, and of the rules about visible keys only `causal`.
  attention_options numbers_of_layer(Index layer) const {
    detail::check_layer("attention_of_layer", layer_count(), layer);
    if (groups_.empty())
      detail::throw_invalid(
          "attention_of_layer", "how layer ", layer,
          " attends is not known: no layer of this model rotates; set attention_options yourself");
    const layer_group* g = numbers_group(layer);
    if (!g)
      detail::throw_invalid("attention_of_layer", "the scale of layer ", layer,
                            " is not known: no group is of its type; set attention_options yourself");
    return {.scale = g->scale, .causal = causal, .softcap = g->softcap};
  }

  /// The group with the scale and softcap of a layer. Null if they are unknown.
  const layer_group* numbers_group(Index layer) const {
    if (const layer_group* own = group(layers().empty() ? "" : layers()[static_cast<std::size_t>(layer)]))
      return own;
    return detail::alike_in_scores(groups_) && !groups_.empty() ? &groups_.front() : nullptr;
  }

  /// The layers that rotate as that type. Layer 0 stands for all layers if they are alike.
  std::vector<Index> layers_of_type(std::string_view layer_type) const {
    std::vector<Index> list;
    const layer_group* own = group(layer_type);
    for (Index layer = 0; own && layer < std::max<Index>(layer_count(), 1); ++layer)
      if (rotation_of_layer(layer) == layer_rotation::in_group && group_of_layer(layer) == own &&
          (layer_type.empty() || layers().empty() || layers()[static_cast<std::size_t>(layer)] == layer_type))
        list.push_back(layer);
    return list;
  }

  /// The window that layers of a group would have, if none is known to have its type. An unknown window is 0
  /// if no layer has it.
  Index window_without_layers(const layer_group& g) const {
    const bool slides = g.layer_type.find("sliding") != std::string::npos;
    const Index window = slides ? window_of_sliding : keys_are_values ? not_known_window : 0;
    return layers().empty() ? window : std::max<Index>(window, 0);
  }

  Index window_of_layer(Index layer) const { return detail::window_in(windows, layer); }

  /// ": " and the reason if the layer rotates (and therefore attends). Otherwise empty.
  std::string reason_of_no_window(Index layer) const {
    const bool attends = rotation_of_layer(layer) == layer_rotation::in_group;
    return attends && !no_window_because.empty() ? ": " + no_window_because : "";
  }

  /// \param list  in increasing order
  static bool is_listed(const std::vector<Index>& list, Index layer) {
    return std::binary_search(list.begin(), list.end(), layer);
  }
  bool may_be_layer(Index layer) const {
    const Index count = layer_count();
    return layer >= 0 && (count == 0 || layer < count);
  }

  void check_list(const char* what, const std::vector<Index>& list) const {
    const auto count = static_cast<Index>(layers_.types.size());
    for (const Index layer : list)
      if (layer < 0 || (count > 0 && layer >= count))
        detail::throw_invalid("model_rope", "", what, " must be layers of the model, ", "got ", layer, " of ",
                              count);
    for (std::size_t i = 1; i < list.size(); ++i)
      if (list[i] <= list[i - 1])
        detail::throw_invalid("model_rope", "", what, " must increase, got ", list[i], " after ",
                              list[i - 1]);
  }

  void check_names() const {
    if (groups_.empty() == instead_of_rope().empty())
      detail::throw_invalid("model_rope", "there must be groups of layers or else instead_of_rope, got ",
                            groups_.size(), " and \"", instead_of_rope(), "\"");
    if (groups_.empty()) return;
    for (const Index layer : layers_.not_known)
      if (is_listed(layers_.without_rope, layer))
        detail::throw_invalid("model_rope", "a layer must not be both without rotation and not known, got ",
                              layer);
    if (groups_.size() == 1) return;  // one group serves every layer
    for (const layer_group& g : groups_)
      if (g.layer_type.empty() || group(g.layer_type) != &g)
        detail::throw_invalid("model_rope", "each of ", groups_.size(),
                              " groups must have a layer type of its own, got \"", g.layer_type, "\"",
                              g.layer_type.empty() ? "" : " twice");
    for (std::size_t i = 0; i < layers_.types.size(); ++i) {
      const auto layer = static_cast<Index>(i);
      if (group(layers_.types[i]) || is_listed(layers_.without_rope, layer) ||
          is_listed(layers_.not_known, layer))
        continue;
      detail::throw_invalid("model_rope",
                            "every layer must have the type of a group, or be listed as without rotation or "
                            "not known, got type \"",
                            layers_.types[i], "\" for layer ", i);
    }
  }

  std::vector<layer_group> groups_;
  model_layers layers_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_MODEL_ROPE_HPP
