// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_MODEL_ROPE_HPP
#define ROPE_MODELS_MODEL_ROPE_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/base/exact.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/run_time_query_scaling.hpp>
#include <rope/rotation/layout.hpp>

/// Everything a checkpoint says about its rotary embedding, as import_hugging_face and import_gguf return it.

namespace rope {
inline namespace ROPE_ABI {

/// A number that went into the frequencies, under the name it has in this library.
///
///     for (const named_number& number : group.numbers)
///       std::cout << number.name << " = " << number.value << ", ";
struct named_number {
  std::string name;
  double value;
};

/// The rotation in the indexer of a layer, whose small heads choose the keys that attention sees (DeepSeek
/// V3.2, GLM 5). Its queries and keys turn by the table of the layer.
///
///     if (const auto& indexer = group.indexer)
///       with_layout(indexer->layout, [&](auto layout) {
///         rotate<decltype(layout)>(heads.channels(indexer->first_channel, indexer->rotary_dim), table);
///       });
///
/// The indexer of DeepSeek V4 has compressed keys, at the positions of the compressed keys of attention.
struct indexer_rotation {
  layout_kind layout;  // need not be that of attention
  Index head_dim, first_channel, rotary_dim;
};

/// The layers of a model that rotate alike: one frequency table serves them all.
///
/// Channels [first_channel, first_channel + frequencies.rotary_dim()) of every head of head_dim channels
/// turn:
///
///     rotate<Layout>(view, table.at_channel(group.first_channel));
struct layer_group {
  std::string
      layer_type;      // "full_attention", "sliding_attention", ...; empty if the group is the whole model
  layout_kind layout;  // of the weights the description came with
  Index head_dim;
  Index first_channel;
  rope::frequencies frequencies;
  double softmax_multiplier = 1;           // beside 1 / sqrt(head_dim); not 1 only for the YaRN of DeepSeek
  double scale = 0;                        // of q . k before the softmax: attention_options::scale
  double softcap = 0;                      // attention_options::softcap; 0: off
  std::vector<Index> mrope_sections = {};  // pairs per axis (time, height, width); text has all axes equal
  bool mrope_interleaved = false;          // the axes alternate from pair to pair, instead of lying in blocks
  bool mrope_time_last = false;  // height and width alternate, and time has the last pairs (ERNIE 4.5 VL)
  bool mrope_spread = false;     // the pairs of every axis are spread evenly, see spread_sections (openPangu)
  std::optional<indexer_rotation> indexer = {};  // of layers with sparse attention

  std::string rule;                        // "default", "linear", "yarn", ...
  double base;                             // before the rule
  std::vector<named_number> numbers = {};  // what the rule was given and what it derived, for reports

  Index rotary_dim() const { return frequencies.rotary_dim(); }

  /// The number of that name, or `otherwise`.
  double number(std::string_view name, double otherwise) const {
    for (const named_number& n : numbers)
      if (n.name == name) return n.value;
    return otherwise;
  }
};

/// In model_rope::windows: how far back a layer looks is not known.
inline constexpr Index not_known_window = -1;

/// What is known of the rotation of a layer.
enum class layer_rotation {
  in_group,  ///< it rotates as model_rope::group_of_layer says
  none,      ///< it does not rotate
  not_known  ///< there is no such layer, or no group for its type
};

/// Which layers multiply their queries by model_rope::query_rule.
enum class scaled_queries { none, every_layer, layers_without_rope, not_known };

/// The rotary embedding of a model.
///
///     const model_rope model = import_hugging_face(json);
///     const layer_group* group = model.group_of_layer(layer);             // nullptr: does not rotate
///     const attention_options options = model.attention_of_layer(layer);  // window, scale
///
/// Invariant (of the import functions): at least one group; layers, if known, name the groups or are all
/// alike.
struct model_rope {
  std::string source;        // "Hugging Face" or "GGUF"
  std::string architecture;  // model_type or general.architecture
  std::vector<layer_group> groups;
  std::vector<std::string> layers = {};  // the layer type of every layer; empty if unknown or all alike
  std::vector<Index> layers_without_rope = {};      // these layers do not rotate at all, in increasing order
  Index query_heads = 0, key_heads = 0;             // 0: unknown
  double max_position = 0;                          // longest context the model declares; 0: unknown
  double sliding_window = 0;                        // tokens a sliding layer sees; 0: none or unknown
  std::vector<Index> windows = {not_known_window};  // attention_options::window per layer, or one for all
  bool causal = true;                               // false: every token sees those after it too
  bool sink_logits = false;                         // the checkpoint has attention_options::sink_logits
  query_scaling query_rule = {};                    // what queries are multiplied by, beside their rotation,
  scaled_queries scaled = scaled_queries::none;     // and in which layers
  std::vector<std::string> warnings = {};           // what was not understood, assumed, renamed or left out

  /// The group of that layer type, else nullptr. A group without a layer type has every one.
  const layer_group* group(std::string_view layer_type) const {
    for (const layer_group& g : groups)
      if (g.layer_type == layer_type || g.layer_type.empty()) return &g;
    return nullptr;
  }

  /// Whether layer `layer` rotates, does not, or is not known; the import functions warn of types of layers
  /// without a group. A group alone serves every layer that the model has, or every one from 0 on where their
  /// number is not known.
  layer_rotation rotation_of_layer(Index layer) const {
    if (layer < 0) return layer_rotation::not_known;
    for (const Index without : layers_without_rope)
      if (without == layer) return layer_rotation::none;
    return group_of_layer(layer) ? layer_rotation::in_group : layer_rotation::not_known;
  }
  /// The group that layer `layer` rotates with; nullptr otherwise, and rotation_of_layer says why.
  const layer_group* group_of_layer(Index layer) const {
    if (layer < 0) return nullptr;
    for (const Index without : layers_without_rope)
      if (without == layer) return nullptr;
    if (!layers.empty() && layer >= static_cast<Index>(layers.size())) return nullptr;
    if (groups.size() == 1) return &groups.front();
    return layers.empty() ? nullptr : group(layers[static_cast<std::size_t>(layer)]);
  }

  /// How layer `layer` attends, rotating or not: causal, scale, softcap and window, as the model was trained.
  /// What is a weight is left to the caller: sink_logits, where this model has them.
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument where the description does
  ///          not tell how it attends: a window that is not known, chunks (Llama 4), or layers of several
  ///          scales of which this one has no group
  attention_options attention_of_layer(Index layer) const {
    check_layer("attention_of_layer", layer);
    const std::string type = layers.empty() ? "" : layers[static_cast<std::size_t>(layer)];
    const layer_group* own = group(type);
    bool alike = !groups.empty();
    for (const layer_group& g : groups)
      alike = alike && detail::equal(g.scale, groups.front().scale) &&
              detail::equal(g.softcap, groups.front().softcap);
    if (!own && !alike)
      ROPE_THROW(std::invalid_argument,
                 detail::message("attention_of_layer: the scale of layer ", layer,
                                 " is not known: no group is of its type; set attention_options yourself"));
    const Index window = windows.empty()       ? not_known_window
                         : windows.size() == 1 ? windows.front()
                                               : windows[static_cast<std::size_t>(layer)];
    if (window == not_known_window)
      ROPE_THROW(std::invalid_argument,
                 detail::message("attention_of_layer: how far back layer ", layer,
                                 " looks is not known from this file; set attention_options yourself"));
    const layer_group& g = own ? *own : groups.front();
    return {.scale = g.scale, .causal = causal, .window = window, .softcap = g.softcap};
  }

  /// What layer `layer` multiplies its queries by, position by position, rotated or not; without a rule
  /// nothing.
  ///
  ///     const query_scaling rule = model.query_scaling_of_layer(layer);
  ///     if (!rule.is_one()) scale_queries(queries, rule, start);
  ///
  /// Throws:  std::out_of_range if there is no such layer; std::invalid_argument where the description does
  ///          not tell, or the rule is that of layers that do not rotate and it is not known whether this
  ///          one does
  query_scaling query_scaling_of_layer(Index layer) const {
    check_layer("query_scaling_of_layer", layer);
    if (scaled == scaled_queries::none) return {};
    if (scaled == scaled_queries::every_layer) return query_rule;
    const layer_rotation rotation = rotation_of_layer(layer);
    if (scaled == scaled_queries::not_known || rotation == layer_rotation::not_known)
      ROPE_THROW(std::invalid_argument,
                 detail::message("query_scaling_of_layer: what layer ", layer,
                                 " multiplies its queries by is not known from this file; call scale_queries "
                                 "with a rule of your own"));
    return rotation == layer_rotation::none ? query_rule : query_scaling{};
  }

 private:
  void check_layer(const char* function, Index layer) const {
    const auto known = [](const auto& list) { return static_cast<Index>(list.size()); };
    const Index count = (std::max)(known(layers), windows.size() > 1 ? known(windows) : Index{0});
    if (layer < 0 || (count > 0 && layer >= count))
      ROPE_THROW(std::out_of_range,
                 detail::message(function, ": layer must be from 0 to ", count - 1, ", got ", layer));
  }
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_MODEL_ROPE_HPP
