// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP

#include <algorithm>  // std::binary_search, std::min, std::none_of
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_assumptions.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_groups.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_layers.hpp>
#include <rope/models/detail/hugging_face_query_scaling.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/hugging_face_windows.hpp>
#include <rope/models/detail/hugging_face_without_rope.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/detail/unrotated_model.hpp>
#include <rope/models/model_rope.hpp>

/// Puts the description of a model together from its config.json: groups of layers first, then which layer is
/// in which.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class J>
class hugging_face_importer {
 public:
  /// \param length, layout, without_rope  as in hugging_face_options
  hugging_face_importer(const J& config, double length, std::optional<layout_kind> layout,
                        model_without_rope without_rope)
      : length_(length),
        given_layout_(layout),
        without_rope_(without_rope),
        outer_(&config, ""),
        text_(text_of(config, outer_)) {}

  model_rope result() {
    model_.source = "Hugging Face";
    model_.architecture = architecture_of(outer_, text_);
    if (const auto* known = hugging_face_record_of(plain_architecture(model_.architecture)))
      text_.hide(keys_not_read(*known));
    if (const auto none = unrotated_model_of(text_, model_.architecture); none.is_so())
      return without_rope(none);
    defaults_ = record_of(text_, model_.architecture, given_layout_);
    add_layers();
    add_query_scaling(text_, defaults_, model_);
    hugging_face_groups<J>(text_, defaults_, length_, model_).add();
    name_assumed_layers(text_, defaults_, layers_, model_);
    note_unknown_types();
    refuse_unknown_scaling();
    if (!defaults_.note.empty()) warn(std::string(defaults_.note));
    for (const std::string& key : text_.unasked()) {
      if (defaults_.architecture.empty() && speaks_of_query_scaling(key))
        model_.scaled = scaled_queries::not_known;
      if (text_.hides(key))
        warn(text_.path() + key + " is not read by the class of " + model_.architecture +
             " and has no effect");
      else if (speaks_of_rope(key) && defaults_.note.find(key) == std::string_view::npos)
        warn(text_.path() + key + " is not understood and has no effect");
    }
    note_outer_keys();
    note_inner_keys();
    return std::move(model_).finished();
  }

 private:
  /// A multimodal model describes its language model in a dictionary of its own.
  static json_reader<J> text_of(const J& config, json_reader<J>& outer) {
    if (const J* text = outer.object("text_config")) return {text, "text_config."};
    return {&config, ""};
  }

  /// The keys of a dictionary that speak of rope, but for one that is read, each with the path in front.
  static void add_inner_keys(const J& dictionary, const std::string& path, std::string_view read,
                             std::vector<std::string>& keys) {
    for (const auto& item : dictionary.items())
      if (item.key() != read && !item.value().is_null() && speaks_of_rope(item.key()))
        keys.push_back(path + item.key());
  }

  /// Names the keys without effect in the dictionaries that are read but for the rope dictionaries, and what
  /// other parts of a model have. Towers of vision and sound are named once each; what quantization_config
  /// says is about weights.
  void note_inner_keys() {
    std::vector<std::string> keys;
    if (const J* attention = text_.object("attn_config"))
      add_inner_keys(*attention, text_.path() + "attn_config.", "rope_theta", keys);
    if (const J* layers = text_.object("per_layer_config"))
      for (const auto& layer : layers->items())
        if (layer.value().is_object())
          add_inner_keys(layer.value(), text_.path() + "per_layer_config: ", "", keys);
    for (auto* reader : {&text_, &outer_}) {
      if (reader == &outer_ && text_.path().empty()) break;
      reader->each_unasked([&](const std::string& key, const J& part) {
        if (!key.ends_with("_config") || key == "quantization_config" || !part.is_object()) return;
        if (key == "vision_config" || key == "audio_config")
          note_tower(reader->path() + key, part);
        else
          add_inner_keys(part, reader->path() + key + ".", "", keys);
      });
    }
    sort_distinct(keys);
    for (const std::string& key : keys) warn(key + " is not understood and has no effect");
  }

  /// Names a part of the model that is never read, where it rotates or slides in a way of its own.
  void note_tower(const std::string& path, const J& part) {
    std::vector<std::string> keys;
    add_inner_keys(part, "", "", keys);
    if (keys.empty()) return;
    constexpr std::size_t most = 4;  // keys in the warning
    std::string names;
    for (std::size_t i = 0; i < (std::min)(most, keys.size()); ++i) names += (i > 0 ? ", " : "") + keys[i];
    if (keys.size() > most) names += " and " + std::to_string(keys.size() - most) + " more";
    warn(path + " is not read, for it tells of another part of the model: " + names);
  }

  /// Names what lies beside text_config and would have had a meaning inside.
  void note_outer_keys() {
    if (text_.path().empty()) return;
    for (const std::string& key : outer_.unasked())
      if (speaks_of_rope(key)) warn(key + " lies beside text_config and has no effect");
  }

  std::optional<Index> count_of_layers() {
    return text_.index_of(
        {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers"},
        range::layers);
  }

  /// How many heads there are, and how long a context may be.
  void add_sizes() {
    model_.query_heads =
        text_.index_of({"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads"})
            .value_or(0);
    model_.key_heads = text_
                           .index_of({"num_key_value_heads", "multi_query_group_num", "num_attention_groups",
                                      "decoder_num_key_value_heads"})
                           .value_or(model_.query_heads);
    for (const char* key : {"max_position_embeddings", "n_positions", "seq_length"})
      if (const auto context = text_.number(key, range::positive);
          context && detail::equal(model_.max_position, 0))
        model_.max_position = *context;
  }

  /// The description of a model of which no layer rotates.
  model_rope without_rope(const unrotated_model& none) {
    if (without_rope_ == model_without_rope::refuse) text_.refuse(none.key.c_str(), none.refusal());
    add_sizes();
    model_.windows.resize(static_cast<std::size_t>(count_of_layers().value_or(1)), not_known_window);
    model_.instead_of_rope = none.instead;
    return std::move(model_).finished();
  }

  void add_layers() {
    const auto layers = layers_ = count_of_layers();
    const auto window = text_.number("sliding_window", range::window),
               local = text_.number("local_attention", range::positive);
    const bool slides = defaults_.full_rotate || defaults_.sliding_window < 0 ||  // else no layer is local
                        (!text_.is_null("sliding_window") && window.value_or(defaults_.sliding_window) > 0);
    model_.layers = layer_types_of(text_, defaults_, layers, slides);
    end_with_full_layer();
    model_.layers_without_rope = layers_without_rope_of(text_, defaults_, layers, model_.layers, slides);
    model_.windows = windows_of(text_, defaults_, model_.layers, layers, model_.layers_without_rope);
    model_.causal = is_causal(text_, defaults_);
    model_.sink_logits = defaults_.sink_logits;
    model_.keys_are_values = defaults_.form == dictionary_form::compressed;
    add_sizes();
    if (text_.boolean("use_sliding_window").value_or(true))
      model_.sliding_window = window.value_or(local.value_or(0));
    note_assumed_window();
    note_unread_types();
  }

  /// Names types of layers that say who slides where the class does not ask them.
  void note_unread_types() {
    if (types_slide(defaults_) || !text_.has("layer_types")) return;
    const bool all = defaults_.slides != which_slide::by_type;
    const std::string type(all ? defaults_.full_type : defaults_.other_type);
    if (contains(model_.layers, type))
      warn(text_.path() + "layer_types is not read by the class of " + model_.architecture +
           " where layers slide: " + (all ? "all do, or none" : "none does"));
  }

  /// Some classes take the last layer for one that attends fully.
  void end_with_full_layer() {
    if (!defaults_.ends_full || model_.layers.empty() || model_.layers.back() == defaults_.full_type) return;
    model_.layers.back() = defaults_.full_type;
    if (text_.has("layer_types"))
      warn(text_.path() + "layer_types: the class of " + model_.architecture +
           " takes the last layer for one of " + model_.layers.back());
  }

  /// Names the window of the class, where the file has none and layers slide.
  void note_assumed_window() {
    const double assumed = (std::abs)(defaults_.sliding_window);
    if (detail::equal(assumed, 0) || text_.has("sliding_window") || text_.has("local_attention") ||
        std::none_of(model_.windows.begin(), model_.windows.end(), [](Index window) { return window > 0; }))
      return;
    const bool both_sides = defaults_.window == window_span::both_sides;
    warn(text_.path() + (both_sides ? "local_attention" : "sliding_window") + " is not given; assumed " +
         exact_digits(assumed) + ", the default of " + model_.architecture);
  }

  /// Names the types of layers that rotate and have no group. How these rotate is not known, unless all
  /// layers of the file have one group.
  void note_unknown_types() {
    const std::vector<Index>& without = model_.layers_without_rope;
    std::vector<std::string> types;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      const auto layer = static_cast<Index>(i);
      if (std::binary_search(without.begin(), without.end(), layer) || model_.group(model_.layers[i]))
        continue;
      types.push_back(model_.layers[i]);
      if (model_.groups.size() > 1) model_.layers_not_known.push_back(layer);
    }
    sort_distinct(types);
    constexpr std::size_t most = 4;  // names in the warning
    std::string names;
    for (std::size_t i = 0; i < (std::min)(most, types.size()); ++i)
      names += (i > 0 ? ", " : "") + types[i].substr(0, longest_layer_type);
    if (types.empty()) return;
    if (types.size() > most) names += " and " + std::to_string(types.size() - most) + " more";
    warn("layers of type " + names + " have no rope dictionary; " +
         (model_.groups.size() > 1 ? "it is not known how they rotate"
                                   : "they are taken to rotate like " + model_.groups.front().layer_type));
  }

  /// Architectures differ in whether layers that slide are scaled.
  void refuse_unknown_scaling() const {
    if (!defaults_.architecture.empty() || model_.groups.size() > 1) return;
    if (model_.sliding_window > 0 && model_.groups.front().rule != "default")
      text_.refuse(
          "model_type",
          "is no known architecture, and this one both slides and scales: give rope_parameters for each "
          "layer type, got " +
              model_.architecture);
  }

  void warn(std::string text) { model_.warnings.push_back(std::move(text)); }

  double length_;
  std::optional<layout_kind> given_layout_;
  model_without_rope without_rope_;
  json_reader<J> outer_, text_;
  hugging_face_record defaults_ = {};
  std::optional<Index> layers_ = {};  // how many
  model_draft model_ = {};
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
