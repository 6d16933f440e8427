// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_HUGGING_FACE_HPP
#define ROPE_MODELS_HUGGING_FACE_HPP

#include <algorithm>  // std::binary_search, std::sort, std::unique
#include <concepts>   // std::convertible_to
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/architectures.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_schedule.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

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

/// What a config.json does not say.
///
///     const model_rope model = import_hugging_face(json, {.length = 32768});
struct hugging_face_options {
  /// Tokens of the sequence, for `dynamic` and `longrope`, whose frequencies depend on it. 0 is a short
  /// sequence: the frequencies Hugging Face builds before it sees a token.
  double length = 0;
  /// The layout of the weights, where it is not that of the architecture or the architecture is not known.
  std::optional<layout_kind> layout = {};
};

namespace detail {

template <class J>
class hugging_face_importer {
 public:
  hugging_face_importer(const J& config, const hugging_face_options& options)
      : options_(options), outer_(&config, ""), text_(text_of(config, outer_)) {}

  model_rope result() {
    model_.source = "Hugging Face";
    model_.architecture = architecture_of(outer_, text_);
    defaults_ = defaults_of(plain_architecture(model_.architecture));
    layout_ = layout_of(text_, model_.architecture, options_.layout);
    head_ = head_shape_of(text_, defaults_);
    add_groups();
    add_layers();
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

  /// Whether a word of the key is rope, mrope or rotary, as in compress_rope_theta.
  static bool speaks_of_rope(const std::string& key) {
    const std::string words = "_" + key + "_";
    for (const char* word : {"_rope_", "_mrope_", "_rotary_"})
      if (words.find(word) != std::string::npos) return true;
    return false;
  }

  void add_groups() {
    const J* given = text_.object("rope_parameters");
    const J* old = text_.object("rope_scaling");
    const std::string path = text_.path() + (given || !old ? "rope_parameters." : "rope_scaling.");
    if (given && old) warn(text_.path() + "rope_scaling is overruled by rope_parameters");
    if (!given) given = old;
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
    const head_shape head = head_shape_of_type(text_, head_, layer_type);
    const std::string type = rope_type_of(rope, model_.warnings);
    const double base = base_of(rope, base_of_type);
    const Index rotary_dim = type == "proportional"
                                 ? head.window
                                 : rotary_dim_of(text_, rope, head, defaults_.partial_rotary_factor);
    allowance_.take("import_hugging_face",
                    given ? path.substr(0, path.size() - 1) : text_.path() + "head_dim", rotary_dim / 2);
    derived rule = derive_hugging_face(text_, rope, type, rotary_dim, base, options_.length);
    if ((rule.rule == "dynamic" || type == "longrope") && detail::equal(options_.length, 0))
      warn(path + "rope_type " + type +
           " depends on the length of the sequence; these frequencies are for a short one");
    layer_group group{.layer_type = layer_type,
                      .layout = layout_,
                      .head_dim = head.head_dim,
                      .first_channel = head.first_channel,
                      .frequencies = std::move(rule.frequencies),
                      .softmax_multiplier = head.latent ? rule.softmax_multiplier : 1,
                      .rule = std::move(rule.rule),
                      .base = base,
                      .numbers = std::move(rule.numbers)};
    add_sections(rope, group);
    for (const std::string& key : rope.unasked()) warn(path + key + " is not used by rope type " + type);
    model_.groups.push_back(std::move(group));
  }

  /// The base in the dictionary wins over that of the layer type, that over the one beside the dictionary.
  double base_of(json_reader<J>& rope, std::optional<double> base_of_type) {
    std::optional<double> beside = text_.number("rope_theta", range::above_one);
    if (!beside) beside = text_.number("rotary_emb_base", range::above_one);
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
    group.mrope_interleaved = alternate.value_or(false);
    if (static_cast<Index>(sum) != group.frequencies.pairs())
      rope.refuse("mrope_section", "must add up to the number of pairs, " +
                                       std::to_string(group.frequencies.pairs()) + ", got " +
                                       std::to_string(static_cast<Index>(sum)));
  }

  void add_layers() {
    const auto layers = text_.index_of({"num_hidden_layers", "n_layer", "num_layers"}, range::layers);
    const auto window = text_.number("sliding_window", range::not_negative),
               local = text_.number("local_attention", range::positive);
    const bool slides = defaults_.full_rotate ||
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
    model_.query_heads = text_.index_of({"num_attention_heads", "n_head"}).value_or(0);
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

  void warn(std::string text) { model_.warnings.push_back(std::move(text)); }

  const hugging_face_options& options_;
  json_reader<J> outer_, text_;
  architecture_defaults defaults_ = {};
  layout_kind layout_ = layout_kind::half_split;
  head_shape head_ = {};
  group_allowance allowance_ = {};
  model_rope model_ = {};
};

}  // namespace detail

/// Reads both forms of the file: `rope_scaling` beside `rope_theta`, and `rope_parameters`, also with one
/// dictionary per layer type. Of a multimodal model it reads `text_config`.
///
/// The layout is that of the weights Hugging Face distributes for the architecture. What an absent key means
/// is what the configuration class of transformers fills in; each such assumption is in the warnings, and so
/// is every key of the rope dictionary that has no effect.
///
/// A file may have up to 16384 layers, and up to 1024 groups of layers with 32768 pairs together.
///
/// \param config  the file, as a JSON value; parsing is the caller's
///
/// Throws:  std::invalid_argument naming the key: a required key that is missing, a value of the wrong type
///          or outside its range, an unknown rope type, an architecture whose layout is not known
/// Source:  Hugging Face transformers, modeling_rope_utils.py
template <json_like J>
model_rope import_hugging_face(const J& config, const hugging_face_options& options = {}) {
  if (!config.is_object())
    ROPE_THROW(std::invalid_argument, detail::message("import_hugging_face: config must be a dictionary"));
  detail::checked(options.length, detail::range::not_negative, "import_hugging_face", "options.length");
  return detail::hugging_face_importer<J>(config, options).result();
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_HUGGING_FACE_HPP
