// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_GROUPS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_GROUPS_HPP

#include <algorithm>  // std::all_of
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_group.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_layers.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// Makes the groups of layers of a config.json from its rope dictionaries.

namespace rope::inline ROPE_ABI::detail {

/// Finds the rope dictionaries of a file, and makes a group of layers from each.
template <class J>
struct hugging_face_groups {
  json_reader<J>& text;
  const hugging_face_record& defaults;
  double length;  // as in import_options
  model_draft& model;
  hugging_face_group_maker<J> maker = {text, defaults, length, model};

  void add() {
    if (defaults.form == dictionary_form::per_type) return add_by_type();
    if (defaults.form == dictionary_form::base_by_type) return add_from_lists();
    const J* given = text.object("rope_parameters");
    const J* old = scaling_dictionary();
    const std::string path = text.path() + (old ? "rope_scaling." : "rope_parameters.");
    if (given && old) model.warn(text.path() + "rope_parameters is overruled by rope_scaling");
    if (old) given = old;
    if (!given && defaults.own_rule)
      text.missing("rope_parameters", "without it the class of ", model.architecture,
                   " takes a scaled rule of its own; give the dictionary");
    if (defaults.form == dictionary_form::compressed) return add_compressed(given, path);
    if (add_scaled_layers(given, path)) return;
    if (given && add_nested_groups(*given, path)) {
      if (has_class_not_in(dictionary_by_type, defaults.names))
        model.warn(path.substr(0, path.size() - 1) + " has dictionaries for types of layers; they hold, " +
                   "though the class of " + model.architecture + " in transformers 5 does not read them");
      return;
    }
    if (defaults.form == dictionary_form::base_per_layer && add_groups_of_bases(given, path)) return;

    constexpr const char* factor = "rope_scaling_factor";  // PLaMo 3
    if (!detail::equal(text.number(factor, range::positive).value_or(1), 1))
      text.refuse(
          factor,
          "is not 1; give rope_parameters with a dictionary for each layer type instead, that of "
          "full_attention with rope_type yarn, this factor, original_max_position_embeddings in place "
          "of initial_context_length, and truncate false");

    // A second base means a second kind of layer: Gemma 3 and ModernBERT before rope_parameters.
    const auto local = local_base();
    if (given && defaults.full_head_dim > 0)
      model.warn(
          path.substr(0, path.size() - 1) + " is not read by the class of " + model.architecture +
          " in this form: it has a dictionary for each layer type, and layers that attend fully have " +
          "heads of their own, global_head_dim");
    if (!local && detail::equal(defaults.local_base, 0)) return maker.add("", given, path);
    if (given && !old && defaults.local_base > 0) {
      if (!holds_for_all(*given, path)) refuse_flat_dictionary();
      maker.add("full_attention", given, path);
      return maker.add_again("sliding_attention");
    }
    maker.add("full_attention", given, path, global_terms());
    maker.add("sliding_attention", defaults.scaling_slides ? given : nullptr, path,
              {.base = local ? *local : maker.assumed("local", defaults.local_base), .by_type = true});
  }

  /// The dictionary rope_scaling, or nullptr if it is absent or empty. Hugging Face transformers treats both
  /// cases alike.
  const J* scaling_dictionary() {
    const J* given = text.object("rope_scaling");
    if (!given) return nullptr;
    const auto& items = given->items();
    return items.begin() == items.end() ? nullptr : given;
  }

  /// Warns about a rope dictionary that no layer uses, and about each of its keys.
  void note_unused(const J& given, const std::string& path, const std::string& because) {
    std::vector<std::string> keys = {path.substr(0, path.size() - 1)};
    add_inner_keys(given, path, speaks_of_rope, keys);
    for (const std::string& key : keys) model.warn(key + " has no effect, because " + because);
  }

  /// Molmo 2: rope_scaling holds for the layers whose numbers rope_scaling_layers has. Others are unscaled.
  ///
  /// Source:  Molmo2TextModel of the released models; mlx-vlm, models/molmo_point
  bool add_scaled_layers(const J* given, const std::string& path) {
    constexpr const char* key = "rope_scaling_layers";
    const auto scaled = text.numbers(key, range::whole);
    if (!scaled) return false;
    if (!given) {
      model.warn(text.path() + key + " has no effect without rope_scaling");
      return false;
    }
    const auto layers = text.index("num_hidden_layers", range::layers);
    if (!layers) text.missing("num_hidden_layers", "rope_scaling_layers lists some of so many");
    model.types.assign(static_cast<std::size_t>(*layers), "default");
    for (const double layer : *scaled) {
      if (layer >= static_cast<double>(*layers))
        text.refuse(key, "must have numbers below num_hidden_layers, ", *layers, ", got ",
                    exact_digits(layer));
      model.types[static_cast<std::size_t>(layer)] = "scaling";
    }
    if (scaled->empty())
      note_unused(*given, path, "rope_scaling_layers is empty");
    else
      maker.add("scaling", given, path);
    if (contains(model.types, std::string("default"))) maker.add("default", nullptr, path);
    return true;
  }

  /// The base of sliding layers, from a key next to the dictionaries.
  std::optional<double> local_base() {
    const auto local = text.number("rope_local_base_freq", range::above_one);
    if (local) return local;
    const auto theta = text.number("local_rope_theta", range::above_one);      // ModernBERT
    return theta ? theta : text.number("rope_local_theta", range::above_one);  // PLaMo 3
  }

  group_terms global_terms() {
    constexpr const char* key = "global_rope_theta";
    return {.base = text.number(key, range::above_one), .base_key = key, .by_type = true};
  }

  /// The base for the dictionary of a layer type if it has no rope_theta and the architecture has two bases.
  group_terms terms_of(const std::string& type, const J& given) {
    if (detail::equal(defaults.local_base, 0) || given.contains("rope_theta")) return {};
    if (type == defaults.full_type) return global_terms();
    const auto local = local_base();
    return {.base = local ? *local : maker.assumed(type, defaults.local_base)};
  }

  /// Whether one dictionary is for both kinds of layers: its type is default, and both kinds have the same
  /// base.
  bool holds_for_all(const J& given, const std::string& path) const {
    json_reader<J> rope(&given, path);
    const std::string type = rope.text("rope_type").value_or(rope.text("type").value_or("default"));
    return type == "default" && detail::equal(defaults.local_base, defaults.base);
  }

  /// Makes groups from rope_parameters, if the file has it, for classes that need one dictionary per layer
  /// type there.
  bool add_given_types() {
    const J* given = text.object("rope_parameters");
    if (given && !add_nested_groups(*given, text.path() + "rope_parameters.")) refuse_flat_dictionary();
    return given != nullptr;
  }
  void refuse_flat_dictionary() {
    text.refuse("rope_parameters", "must have a dictionary per layer type, such as ",
                std::string(defaults.full_type));
  }

  /// Makes groups from one dictionary per layer type, or from the class defaults. Keys of an older form are
  /// not read by the class, and must agree with these defaults.
  void add_by_type() {
    if (defaults.swa_keys) return add_by_swa_keys();
    if (add_given_types()) return;
    const std::string full(defaults.full_type), other(defaults.other_type);
    const std::string instead =
        "give rope_parameters with a dictionary for each of " + full + " and " + other;
    if (scaling_dictionary())
      text.refuse("rope_scaling", "is not read by the class of ", model.architecture, "; ", instead);
    const auto agrees = [&](const char* key, double filled) {
      const auto value = text.number(key, range::positive);
      if (value && !detail::equal(*value, filled))
        text.refuse(key, "must be the ", exact_digits(filled), " that the class of ", model.architecture,
                    " fills in, got ", exact_digits(*value), "; for another ", instead);
    };
    agrees("rope_theta", defaults.filled.base);
    agrees("partial_rotary_factor", defaults.filled.factor);
    maker.add(full, nullptr, text.path(),
              {.base = maker.assumed(full, defaults.filled.base), .factor = defaults.filled.factor});
    maker.add(other, nullptr, text.path(),
              {.base = maker.assumed(other, defaults.local_base), .factor = defaults.filled.other_factor});
  }

  /// MiMo-V2: rope_theta, swa_rope_theta and partial_rotary_factor replace absent keys of a dictionary, and
  /// rope_scaling is the dictionary of layers that attend fully.
  ///
  /// Source:  Hugging Face transformers, models/mimo_v2_flash
  void add_by_swa_keys() {
    const J *given = text.object("rope_parameters"), *scaling = scaling_dictionary();
    if (given && !is_nested(*given)) refuse_flat_dictionary();
    if (given && scaling)
      text.refuse("rope_scaling",
                  "must not be next to rope_parameters; put its keys into full_attention there");
    json_reader<J> types(given, text.path() + "rope_parameters.");
    const auto add = [&](std::string_view type, const char* base_key, const J* otherwise, double base,
                         double factor) {
      const std::string name(type);
      const J* one = given ? types.object(name) : otherwise;
      group_terms terms{
          .base = text.number(base_key, range::above_one), .factor = factor, .base_key = base_key};
      if (!terms.base && !(one && one->contains("rope_theta"))) terms.base = maker.assumed(name, base);
      maker.add(name, one, given ? types.path() + name + "." : text.path() + "rope_scaling.", terms);
    };
    add(defaults.full_type, "rope_theta", scaling, defaults.filled.base, defaults.filled.factor);
    add(defaults.other_type, "swa_rope_theta", nullptr, defaults.local_base, defaults.filled.other_factor);
    note_beside(types.path(), types.unasked());
  }

  /// Warns about keys that stand next to the dictionaries of layer types and have no effect.
  void note_beside(const std::string& path, const std::vector<std::string>& keys) {
    for (const std::string& key : keys)
      model.warn(path + key + " is next to the layer types and has no effect");
  }

  /// A number for all layers, or one for each of them.
  std::optional<std::vector<double>> number_or_list(const char* key, const number_rule& rule) {
    const hugging_face_layers<J> layers{text, defaults, to_index(model.types.size())};
    if (text.is_list(key)) return layers.fitting(key, text.numbers(key, rule));
    const auto one = text.number(key, rule);
    if (!one) return {};
    return std::vector<double>(model.types.size(), *one);
  }

  /// Step 3.5: lists have a base and a share of channels per layer. All layers of a type use the values of
  /// the last layer of that type.
  void add_from_lists() {
    if (model.types.empty()) text.missing("num_hidden_layers", "rope_theta may be a list of so many");
    if (add_given_types()) {
      if (text.is_list("rope_theta"))
        model.warn(text.path() + "rope_theta is overruled by " + text.path() + "rope_parameters");
      return;
    }
    const auto bases = number_or_list("rope_theta", range::above_one),
               factors = number_or_list("partial_rotary_factors", range::fraction);
    const auto beside = text.number("partial_rotary_factor", range::fraction);
    for (const double factor : factors.value_or(std::vector<double>{}))
      if (beside && !detail::equal(*beside, factor))
        text.refuse("partial_rotary_factor", "must be that of every layer in partial_rotary_factors, ",
                    exact_digits(factor), ", got ", exact_digits(*beside));
    const J* scaling = scaling_dictionary();
    const std::string path = text.path() + "rope_scaling.", full(defaults.full_type);
    const auto types = layers_by(model.types.size(), [&](std::size_t layer) { return model.types[layer]; });
    for (const auto& [type, layers] : types) {
      check_name(type, text.path() + "layer_types");
      const auto last = static_cast<std::size_t>(layers.back());
      group_terms terms;
      if (bases) terms.base = (*bases)[last];
      if (factors) terms.factor = (*factors)[last];
      maker.add(type, type == full ? scaling : nullptr, path, terms);
    }
    const auto scaled = text.texts("yarn_only_types");
    if (scaling && !contains(model.types, full)) {
      note_unused(*scaling, path, "no layer has type " + full);
    } else if (scaling && (scaled ? *scaled != std::vector<std::string>{full} : types.size() > 1)) {
      model.warn(text.path() + "yarn_only_types is not " + full +
                 " alone: rope_scaling holds for those layers, as in transformers; mlx-lm and vLLM scale the "
                 "types that it lists, or all");
    } else if (!scaling && scaled) {
      model.warn(text.path() + "yarn_only_types has no effect without rope_scaling");
    }
  }

  /// DeepSeek V4: the dictionary has either `main` and `compress`, or directly the keys of `compress`.
  void add_compressed(const J* given, const std::string& path) {
    json_reader<J> both(given, path);
    group_terms terms;
    if (const auto rotated = text.index("qk_rope_head_dim")) {
      terms.factor_key = "qk_rope_head_dim";
      terms.factor = static_cast<double>(*rotated) /
                     static_cast<double>(text.index("head_dim").value_or(defaults.head_dim));
    }
    constexpr const char* base_key = "compress_rope_theta";
    const auto stretched = text.number(base_key, range::above_one);
    const bool two = given && given->contains("main") && given->contains("compress");
    const J* const compress = two ? both.object("compress") : given;
    maker.add("sliding_attention", two ? both.object("main") : nullptr, path + "main.", terms);
    const bool has_base = two && compress && compress->contains("rope_theta");
    terms.base = stretched;
    terms.base_key = base_key;
    if (!stretched && !has_base) terms.base = maker.assumed(base_key, defaults.filled.base);
    if (!two) terms.overruling_base = terms.base;
    maker.add("compressed_sparse_attention", compress, two ? path + "compress." : path, terms);
    maker.add_again("heavily_compressed_attention");
    if (two) note_beside(both.path(), both.unasked());
  }

  /// Makes a group for each pair of layer type and base, from layer_rope_theta.
  bool add_groups_of_bases(const J* given, const std::string& path) {
    std::vector<std::string>& layers = model.types;
    const auto count = layers.empty() ? std::nullopt : std::optional(to_index(layers.size()));
    const auto bases = hugging_face_layers<J>{text, defaults, count}.bases();
    if (!bases) return false;
    if (std::all_of(bases->begin(), bases->end(), is_zero))
      text.refuse("layer_rope_theta", "must not be 0 for every layer: then none rotates");
    if (defaults.one_base) {
      add_group_of_one_base(given, path, *bases);
      return true;
    }
    layers.resize(bases->size());
    auto kinds = layers_by(layers.size(), [&](std::size_t i) { return layer_kind{layers[i], (*bases)[i]}; });
    std::erase_if(kinds, [](const auto& one) { return detail::equal(one.first.base, 0); });
    const double first = kinds.front().first.base;
    if (std::all_of(kinds.begin(), kinds.end(),
                    [&](const auto& one) { return detail::equal(one.first.base, first); })) {
      maker.add("", given, path, {.overruling_base = first});
      return true;
    }
    for (const auto& [kind, own] : kinds) {
      if (!kind.type.empty()) check_name(kind.type, text.path() + "layer_types");
      const std::string name = name_of_kind(kind, kinds);
      maker.add(name, given, path, {.overruling_base = kind.base});
      for (const Index layer : own) layers[static_cast<std::size_t>(layer)] = name;
    }
    return true;
  }

  /// Makes the group of a class with one rotary embedding for all layers (Muse Glimmer). If the file has no
  /// rope_theta, the base is the common base in its list.
  void add_group_of_one_base(const J* given, const std::string& path, const std::vector<double>& bases) {
    std::vector<double> distinct = bases;
    std::erase_if(distinct, is_zero);
    sort_distinct(distinct);
    const bool in_file = text.has("rope_theta") || (given && given->contains("rope_theta"));
    const bool by_list = !in_file && distinct.size() == 1;
    maker.add("", given, path, {.overruling_base = by_list ? std::optional(distinct[0]) : std::nullopt});
    const double base = model.groups.front().base;
    if (distinct.size() > 1 || !detail::equal(distinct[0], base))
      model.warn(text.path() + "layer_rope_theta has bases other than " + exact_digits(base) +
                 "; rope_theta holds, as the class has one rotary embedding for all layers");
  }

  /// Throws unless the name is allowed for a group.
  ///
  /// \param where  the key that contains the type
  static void check_name(const std::string& type, const std::string& where) {
    if (type.empty() || type.size() > longest_layer_type)
      throw_invalid("import_hugging_face", "a layer type in ", where, " must have a name of 1 to ",
                    longest_layer_type, " characters, got ", type.size());
  }

  /// Whether a rope dictionary contains one dictionary per layer type. This is so if some key is the name of
  /// a type. In an unknown architecture, it is also so if the values of all keys are dictionaries.
  ///
  /// Source:  Hugging Face transformers of 2026-08, nested_rope_parameter_keys
  bool is_nested(const J& given) const {
    bool named = false, dictionaries = false, others = false;
    for (const auto& item : given.items()) {
      const bool dictionary = item.value().is_object();
      named = named || (dictionary && is_type(item.key()));
      dictionaries = dictionaries || dictionary;
      others = others || (!dictionary && !item.value().is_null());
    }
    return named || (defaults.names.empty() && dictionaries && !others);
  }
  bool is_type(const std::string& key) const {
    const bool two_kinds = defaults.local_base > 0 || defaults.form == dictionary_form::base_by_type;
    return contains(model.types, key) || ((model.types.empty() || two_kinds) && is_usual_type(key));
  }
  bool is_usual_type(const std::string& key) const {
    return key == defaults.full_type || key == defaults.other_type;
  }

  /// Makes groups from rope_parameters with one dictionary per layer type. A type with null does not rotate.
  bool add_nested_groups(const J& given, const std::string& path) {
    if (!is_nested(given)) return false;
    bool named = false;
    for (const auto& item : given.items()) named = named || (item.value().is_object() && is_type(item.key()));
    std::vector<std::string> beside, unrotated;
    for (const auto& item : given.items()) {
      const std::string key = item.key();
      if (!item.value().is_object() || (named && !is_type(key) && !is_usual_type(key))) {
        (item.value().is_null() ? unrotated : beside).push_back(key);
        continue;
      }
      check_name(key, path.substr(0, path.size() - 1));
      const bool has_base = defaults.form == dictionary_form::per_type;
      group_terms terms = has_base ? group_terms{} : terms_of(key, item.value());
      terms.by_type = true;
      maker.add(key, &item.value(), path + key + ".", terms);
    }
    if (defaults.form == dictionary_form::base_per_layer && text.has("layer_rope_theta"))
      text.refuse("layer_rope_theta", "must not be next to a dictionary for each type of layers");
    add_layers_where(model.without_rope, model.types,
                     [&](const std::string& type) { return contains(unrotated, type); });
    sort_distinct(model.without_rope);
    note_beside(path, beside);
    return true;
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_GROUPS_HPP
