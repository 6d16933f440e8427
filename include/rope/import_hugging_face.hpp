// SPDX-License-Identifier: MIT
#ifndef ROPE_IMPORT_HUGGING_FACE_HPP
#define ROPE_IMPORT_HUGGING_FACE_HPP

#include <concepts>  // std::convertible_to
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/architectures.hpp>
#include <rope/detail/hugging_face_config.hpp>
#include <rope/detail/hugging_face_schedule.hpp>
#include <rope/detail/json_reader.hpp>
#include <rope/detail/message.hpp>
#include <rope/model_rope.hpp>

/// The rotary embedding of a model, from its Hugging Face config.json:
///
///     const model_rope model = import_hugging_face(nlohmann::json::parse(file));
///     const frequency_table table(model.groups[0].frequencies, 8192);

namespace rope {
inline namespace ROPE_ABI {

/// A JSON value with the member functions of nlohmann::json, which this library does not include.
template <class J>
concept json_like = requires(const J& json, const std::string& key) {
  { json.is_object() } -> std::convertible_to<bool>;
  { json.is_array() } -> std::convertible_to<bool>;
  { json.is_number() } -> std::convertible_to<bool>;
  { json.is_string() } -> std::convertible_to<bool>;
  { json.is_boolean() } -> std::convertible_to<bool>;
  { json.is_null() } -> std::convertible_to<bool>;
  { json.contains(key) } -> std::convertible_to<bool>;
  { json.at(key) } -> std::convertible_to<const J&>;
  { *json.begin() } -> std::convertible_to<const J&>;  // of an array
  json.end();
  json.items();  // of a dictionary: a range of entries with key() and value()
  json.template get<double>();
  json.template get<bool>();
  json.template get<std::string>();
};

struct hugging_face_options {
  /// Tokens of the sequence, for `dynamic` and `longrope`, whose frequencies depend on it. 0 is a short sequence: the
  /// frequencies Hugging Face builds before it sees a token.
  double length = 0;
  /// The layout of the weights, where it is not that of the architecture or the architecture is not known.
  std::optional<pairing> layout = {};
};

namespace detail {

template <class J>
class hugging_face_importer {
 public:
  hugging_face_importer(const J& config, const hugging_face_options& options)
      : options_(options), outer_(config, ""), text_(text_of(config, outer_)) {}

  model_rope result() {
    const std::string architecture = architecture_of(outer_, text_);
    defaults_ = defaults_of(plain_architecture(architecture));
    layout_ = layout_of(text_, architecture, options_.layout);
    head_ = head_shape_of(text_, defaults_);
    model_.source = "Hugging Face";
    model_.architecture = architecture;
    add_groups();
    add_layers();
    for (const std::string& key : text_.unasked())
      if (key.starts_with("rope_") || key.starts_with("rotary_") || key.starts_with("mrope_"))
        model_.warnings.push_back(text_.path() + key + " is not understood and has no effect");
    return std::move(model_);
  }

 private:
  static json_reader<J> text_of(const J& config, json_reader<J>& outer) {
    for (const char* key : {"text_config", "llm_config"})
      if (const J* text = outer.object(key)) return {*text, std::string(key) + "."};
    return {config, ""};
  }

  void add_groups() {
    const char* key = "rope_parameters";
    const J* given = text_.object(key);
    const J* old = text_.object("rope_scaling");
    if (given && old) model_.warnings.push_back("rope_scaling is overruled by rope_parameters");
    if (!given && old) {
      given = old;
      key = "rope_scaling";
    }
    const std::string path = text_.path() + key + ".";
    if (given && add_nested_groups(*given, path)) return;

    // A second base means a second kind of layer: Gemma 3 and ModernBERT, before rope_parameters.
    const auto local = first_number({"rope_local_base_freq", "local_rope_theta"});
    if (!local && (given || defaults_.local_base == 0)) return add_group("", given, path, {});
    add_group("full_attention", given, path, first_number({"global_rope_theta"}));
    if (!local) assumed("rope_local_base_freq", defaults_.local_base);
    add_group("sliding_attention", nullptr, path, local.value_or(defaults_.local_base));
  }

  /// rope_parameters with one dictionary per layer type.
  bool add_nested_groups(const J& given, const std::string& path) {
    json_reader<J> types(given, path);
    bool nested = false;
    for (const auto& item : given.items()) {
      if (!item.value().is_object()) continue;
      nested = true;
      types.find(std::string(item.key()).c_str());
      add_group(item.key(), &item.value(), path + item.key() + ".", {});
    }
    if (nested)
      for (const std::string& key : types.unasked())
        model_.warnings.push_back(path + key + " is beside the layer types and has no effect");
    return nested;
  }

  void add_group(const std::string& layer_type, const J* given, const std::string& path,
                 std::optional<double> base_of_type) {
    static const J nothing{};
    json_reader<J> none(nothing, path);
    json_reader<J> rope(given ? *given : empty_, path);
    const std::string type = given ? rope_type_of(rope, model_.warnings) : "default";
    const double base = base_of(rope, base_of_type);
    const Index rotary_dim =
        type == "proportional" ? head_.window : rotary_dim_of(text_, rope, head_, defaults_.partial_rotary_factor);
    derived rule = derive_hugging_face(text_, rope, type, rotary_dim, base, options_.length);
    if ((rule.rule == "dynamic" || type == "longrope") && options_.length == 0)
      model_.warnings.push_back(path + "rope_type " + type + " depends on the length; made for a short sequence");
    layer_group group{.layer_type = layer_type,
                      .layout = layout_,
                      .head_dim = head_.head_dim,
                      .first_channel = head_.first_channel,
                      .frequencies = std::move(rule.frequencies),
                      .softmax_multiplier = head_.latent ? rule.softmax_multiplier : 1,
                      .rule = std::move(rule.rule),
                      .base = base,
                      .numbers = std::move(rule.numbers)};
    add_sections(rope, group);
    if (given)
      for (const std::string& key : rope.unasked())
        model_.warnings.push_back(path + key + " is not used by rope type " + type);
    model_.groups.push_back(std::move(group));
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_IMPORT_HUGGING_FACE_HPP
