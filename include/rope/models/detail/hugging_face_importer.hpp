// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP

#include <algorithm>  // std::binary_search, std::sort, std::unique
#include <cmath>      // std::sqrt
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/architectures.hpp>
#include <rope/models/detail/derive.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <rope/models/detail/hugging_face_schedule.hpp>
#include <rope/models/detail/hugging_face_windows.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// Puts the description of a model together from its config.json: groups of layers first, then which layer is
/// in which.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class J>
class hugging_face_importer {
 public:
  /// \param length, layout  as in hugging_face_options
  hugging_face_importer(const J& config, double length, std::optional<layout_kind> layout)
      : length_(length), given_layout_(layout), outer_(&config, ""), text_(text_of(config, outer_)) {}

  model_rope result() {
    model_.source = "Hugging Face";
    model_.architecture = architecture_of(outer_, text_);
    defaults_ = record_of(text_, model_.architecture, given_layout_);
    refuse_models_without_rope(text_, model_.architecture);
    head_ = head_shape_of(text_, defaults_);
    add_groups();
    add_layers();
    refuse_unknown_scaling();
    for (const std::string& key : text_.unasked())
      if (speaks_of_rope(key))
        model_.warnings.push_back(text_.path() + key + " is not understood and has no effect");
    return std::move(model_);
  }

 private:
  /// A multimodal model describes its language model in a dictionary of its own.
  static json_reader<J> text_of(const J& config, json_reader<J>& outer) {
    if (const J* text = outer.object("text_config")) return {text, "text_config."};
    return {&config, ""};
  }

  /// Whether a word of the key has to do with positions, or with what scores are multiplied by.
  static bool speaks_of_rope(const std::string& key) {
    const std::string words = "_" + key;
    for (const char* word : {"_rope", "_mrope", "_xdrope", "_rotary", "_theta", "_scal", "_softcap", "_nope",
                             "_temperature", "_multiplier", "_partial", "_alibi", "_window"})
      if (words.find(word) != std::string::npos) return true;
    return false;
  }

  void add_groups() {
    const J* given = text_.object("rope_parameters");
    const J* old = text_.object("rope_scaling");
    const std::string path = text_.path() + (old ? "rope_scaling." : "rope_parameters.");
    if (given && old) warn(text_.path() + "rope_parameters is overruled by rope_scaling");
    if (old) given = old;
    if (!given && defaults_.own_rule)
      text_.missing("rope_parameters", "without it the class of " + model_.architecture +
                                           " takes a scaled rule of its own; give the dictionary");
    if (given && add_nested_groups(*given, path)) return;

    // A second base means a second kind of layer: Gemma 3 and ModernBERT, before rope_parameters.
    auto local = text_.number("rope_local_base_freq", range::above_one);
    if (!local) local = text_.number("local_rope_theta", range::above_one);
    if (!local && detail::equal(defaults_.local_base, 0)) return add_group("", given, path, {});
    add_group("full_attention", given, path, text_.number("global_rope_theta", range::above_one));
    add_group("sliding_attention", nullptr, path, local ? *local : assumed("local", defaults_.local_base));
  }

  /// rope_parameters with one dictionary per layer type.
  bool add_nested_groups(const J& given, const std::string& path) {
    std::vector<std::string> beside;
    bool nested = false;
    for (const auto& item : given.items()) {
      const std::string key = item.key();
      if (!item.value().is_object()) {
        if (!item.value().is_null()) beside.push_back(key);
        continue;
      }
      nested = true;
      if (key.empty() || key.size() > longest_layer_type)
        ROPE_THROW(
            std::invalid_argument,
            message("import_hugging_face: a layer type in ", path.substr(0, path.size() - 1).c_str(),
                    " must have a name of 1 to ", longest_layer_type, " characters, got ", key.size()));
      add_group(key, &item.value(), path + key + ".", {});
    }
    if (nested)
      for (const std::string& key : beside)
        warn(path + key + " lies beside the layer types and has no effect");
    return nested;
  }

  void add_group(const std::string& layer_type, const J* given, const std::string& path,
                 std::optional<double> base_of_type) {
    json_reader<J> rope(given, path);
    const head_shape head = head_shape_of_type(text_, head_, defaults_, layer_type);
    const std::string type = rope_type_of(rope, model_.warnings);
    const double base = base_of(rope, base_of_type);
    const Index rotary_dim = type == "proportional"
                                 ? head.window
                                 : rotary_dim_of(text_, rope, head, defaults_.partial_rotary_factor);
    allowance_.take("import_hugging_face",
                    given ? path.substr(0, path.size() - 1) : text_.path() + "head_dim", rotary_dim / 2);
    derived rule = derive_hugging_face(text_, rope, type, rotary_dim, base, length_);
    if ((rule.rule == "dynamic" || type == "longrope") && detail::equal(length_, 0))
      warn(path + "rope_type " + type +
           " depends on the length of the sequence; these frequencies are for a short one");
    layer_group group{.layer_type = layer_type,
                      .layout = defaults_.layout,
                      .head_dim = head.head_dim,
                      .first_channel = head.first_channel,
                      .frequencies = std::move(rule.frequencies),
                      .softmax_multiplier = head.latent ? rule.softmax_multiplier : 1,
                      .scale = scale_of(head, rule.softmax_multiplier),
                      .softcap = softcap_of(),
                      .rule = std::move(rule.rule),
                      .base = base,
                      .numbers = std::move(rule.numbers)};
    add_sections(rope, group);
    for (const std::string& key : rope.unasked()) warn(path + key + " is not used by rope type " + type);
    model_.groups.push_back(std::move(group));
  }

  /// What q . k is multiplied by.
  double scale_of(const head_shape& head, double latent_multiplier) {
    const double root = 1 / std::sqrt(static_cast<double>(head.head_dim));
    if (head.latent) return latent_multiplier * root;
    switch (defaults_.scale) {
      case score_scale::one:
        return 1;
      case score_scale::query_pre_attn_scalar: {
        const double width =
            text_.number("query_pre_attn_scalar", range::positive).value_or(defaults_.scale_number);
        return detail::equal(width, 0) ? root : 1 / std::sqrt(width);
      }
      case score_scale::attention_multiplier: {
        const double factor =
            text_.number("attention_multiplier", range::positive).value_or(defaults_.scale_number);
        return detail::equal(factor, 0) ? root : factor;
      }
      case score_scale::inverse_root:
        break;
    }
    return root;
  }
  double softcap_of() {
    if (text_.is_null("attn_logit_softcapping")) return 0;
    return text_.number("attn_logit_softcapping", range::positive).value_or(defaults_.softcap);
  }

  /// The base in the dictionary wins over that of the layer type, that over the one beside the dictionary.
  double base_of(json_reader<J>& rope, std::optional<double> base_of_type) {
    std::optional<double> beside = text_.number("rope_theta", range::above_one);
    if (!beside) beside = text_.number("rotary_emb_base", range::above_one);
    if (const J* attention = text_.object("attn_config"); attention && !beside)  // DBRX
      beside =
          json_reader<J>(attention, text_.path() + "attn_config.").number("rope_theta", range::above_one);
    const auto inside = rope.number("rope_theta", range::above_one);
    if (inside) {
      if (beside && !detail::equal(*beside, *inside))
        warn(text_.path() + "rope_theta is overruled by " + rope.path() + "rope_theta");
      return *inside;
    }
    if (base_of_type) return *base_of_type;
    const auto ratio = text_.number("rope_ratio", range::positive);
    const double base = beside ? *beside : assumed("rope_theta", defaults_.base);
    return checked(base * ratio.value_or(1), range::above_one, "import_hugging_face",
                   text_.path() + "rope_theta * rope_ratio");
  }

  double assumed(const std::string& what, double value) {
    if (detail::equal(value, 0))
      text_.missing(what.c_str(), "no default of " + model_.architecture + " is known; give the base");
    warn(what + " base is not given; assumed " + exact_digits(value) + ", the default of " +
         model_.architecture);
    return value;
  }

  void add_sections(json_reader<J>& rope, layer_group& group) {
    const auto sections = rope.numbers("mrope_section", range::whole);
    const auto alternate = rope.boolean("mrope_interleaved");
    if (!sections) return;
    if (static_cast<Index>(sections->size()) > most_sections)
      rope.refuse("mrope_section", "must have at most " + std::to_string(most_sections) + " values, got " +
                                       std::to_string(sections->size()));
    double sum = 0;
    for (const double pairs : *sections) {
      sum += pairs;
      group.mrope_sections.push_back(static_cast<Index>(pairs));
    }
    group.mrope_interleaved = alternate.value_or(defaults_.mrope_interleaved);
    if (static_cast<Index>(sum) != group.frequencies.pairs())
      rope.refuse("mrope_section", "must add up to the number of pairs, " +
                                       std::to_string(group.frequencies.pairs()) + ", got " +
                                       std::to_string(static_cast<Index>(sum)));
  }

  void add_layers() {
    const auto layers =
        text_.index_of({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, range::layers);
    const auto window = text_.number("sliding_window", range::not_negative),
               local = text_.number("local_attention", range::positive);
    const bool slides = defaults_.full_rotate || defaults_.sliding_window < 0 ||
                        window.value_or(defaults_.sliding_window) > 0;  // else there are no local layers
    model_.layers = layer_types_of(text_, defaults_, layers, slides);
    model_.layers_without_rope = layers_without_rope_of(text_, defaults_, layers);
    if (!defaults_.full_rotate && slides)
      for (std::size_t i = 0; i < model_.layers.size(); ++i)
        if (model_.layers[i] == "full_attention") model_.layers_without_rope.push_back(static_cast<Index>(i));
    // Both rules may have named a layer.
    std::vector<Index>& without = model_.layers_without_rope;
    std::sort(without.begin(), without.end());
    without.erase(std::unique(without.begin(), without.end()), without.end());
    note_unknown_types();
    model_.windows = windows_of(text_, defaults_, model_.layers, layers);
    model_.causal = is_causal(text_, defaults_);
    model_.sink_logits = defaults_.sink_logits;
    model_.query_heads = text_.index_of({"num_attention_heads", "n_head", "n_heads"}).value_or(0);
    model_.key_heads =
        text_.index_of({"num_key_value_heads", "multi_query_group_num"}).value_or(model_.query_heads);
    for (const char* key : {"max_position_embeddings", "n_positions", "seq_length"})
      if (const auto context = text_.number(key, range::positive);
          context && detail::equal(model_.max_position, 0))
        model_.max_position = *context;
    if (text_.boolean("use_sliding_window").value_or(true))
      model_.sliding_window = window.value_or(local.value_or(0));
  }

  /// Names the types of layers that rotate and have no group.
  void note_unknown_types() {
    const std::vector<Index>& without = model_.layers_without_rope;
    std::vector<std::string> types;
    for (std::size_t i = 0; i < model_.layers.size(); ++i)
      if (!std::binary_search(without.begin(), without.end(), static_cast<Index>(i)))
        types.push_back(model_.layers[i]);
    std::sort(types.begin(), types.end());
    types.erase(std::unique(types.begin(), types.end()), types.end());
    constexpr std::size_t most = 4;  // names in the warning
    std::string names;
    std::size_t unknown = 0;
    for (const std::string& type : types)
      if (!model_.group(type) && ++unknown <= most)
        names += (unknown > 1 ? ", " : "") + type.substr(0, longest_layer_type);
    if (unknown == 0) return;
    if (unknown > most) names += " and " + std::to_string(unknown - most) + " more";
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
  json_reader<J> outer_, text_;
  hugging_face_record defaults_ = {};
  head_shape head_ = {};
  group_allowance allowance_ = {};
  model_rope model_ = {};
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
