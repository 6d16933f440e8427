// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_GROUP_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_GROUP_HPP

#include <cmath>  // std::pow, std::sqrt
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_architecture.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_schedule.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// Makes one group of layers from a rope dictionary and the keys next to it.

namespace rope::inline ROPE_ABI::detail {

// The factors on queries in layers of a config.json.

/// Whether a key says that queries are multiplied by a factor of their position. Used for unknown
/// architectures.
inline bool speaks_of_query_scaling(std::string_view key) {
  return is_listed("attn_temperature_tuning use_logn_attn llama_4_scaling_beta llama_4_scaling", key);
}

/// Reads the rules whose keys are next to the rope dictionary: the rule of Llama 4, and log-n.
template <class J>
void add_query_scaling(json_reader<J>& text, const hugging_face_record& defaults, model_draft& model) {
  if (defaults.queries == query_growth::temperature) {
    const J* tuning = text.find("attn_temperature_tuning");  // the first files have 4 for true
    const bool tuned = !tuning || (tuning->is_number()
                                       ? !equal(*text.number("attn_temperature_tuning", range::any_number), 0)
                                       : *text.boolean("attn_temperature_tuning"));
    const llama4_query_scaling rule{
        .floor_scale = text.number("floor_scale", range::positive).value_or(8192),
        .attention_scale = text.number("attn_scale", range::not_negative).value_or(0.1)};
    if (!tuned) return;
    model.query_rule.rule = rule;
    model.scaled = scaled_queries::layers_without_rope;
  }
  if (defaults.queries == query_growth::log_n) {
    if (!text.boolean("use_logn_attn").value_or(true)) return;
    model.query_rule.rule = log_n_query_scaling{
        .train_length = text.required_number("seq_length", range::above_one, "use_logn_attn needs it")};
    model.scaled = scaled_queries::every_layer;
  }
}

/// Numbers of a group from outside its rope dictionary.
struct group_terms {
  std::optional<double> base = {}, factor = {};  // for a dictionary without a base or partial_rotary_factor
  const char *base_key = "", *factor_key = "";   // the keys of base and factor, or empty
  std::optional<double> overruling_base = {};    // used instead of a base in the dictionary
  bool by_type = false;  // the class reads one dictionary per layer type, and this is one of them
};

/// Adds groups to the model.
template <class J>
struct hugging_face_group_maker {
  json_reader<J>& text;  // the keys next to the rope dictionaries
  const hugging_face_record& defaults;
  double length;  // as in import_options
  model_draft& model;
  head_shape usual_head = head_shape_of(text, defaults, model);

  /// \param given  the rope dictionary. nullptr means one without keys
  /// \param path   the prefix of its keys in messages
  void add(const std::string& layer_type, const J* given, const std::string& path,
           const group_terms& terms = {}) {
    rope_dictionary<J> rope{{given, path}, text, defaults, model, terms.by_type};
    const head_shape head = head_shape_of_type(text, usual_head, defaults, layer_type, model);
    const std::string type = rope.type();
    double base = base_of(rope.keys, terms, layer_type);
    const keyed_number share =
        rotated_share_of(text, rope.keys, terms.factor.value_or(defaults.partial_rotary_factor), model);
    if (*terms.factor_key && !share.key.empty() && !detail::equal(*share.value, *terms.factor))
      model.warn_once(text.path() + terms.factor_key + " is overruled by " + share.key);
    const Index rotary_dim =
        type == "proportional" ? head.max_rotary_dim : rotary_dim_of(text, head, share, model);
    if (model.groups.empty()) name_assumed(share, type, terms);
    model.check_room("import_hugging_face",
                     given ? path.substr(0, path.size() - 1) : text.path() + "head_dim", rotary_dim / 2);
    layer_group group = rope.derive_as(type, rotary_dim, base, length);
    if (head.latent && type != "default" && type != "yarn")
      group.softmax_multiplier = rope.softmax_multiplier();
    if (const Index first = first_pairs_of(rotary_dim, type); first < rotary_dim) {
      const Index count = rotary_dim / first;
      const auto heads = static_cast<double>(count);
      base = std::pow(base, heads);  // (base^heads)^(-2i / rotary_dim) is base^(-2i / first)
      if (!is_finite(base)) text.refuse(defaults.first_pairs, "is too small for the base");
      group =
          derive("proportional", rotary_dim, base, proportional_scaling{.partial_rotary_factor = 1 / heads});
    }
    if ((group.rule == "dynamic" || type == "longrope") && detail::equal(length, 0))
      model.warn(
          path + "rope_type " + type +
          " depends on the length of the sequence; these frequencies are for a short one; for a longer one "
          "set options.length");
    if (type == "default" && defaults.stretches && text.boolean("use_dynamic_ntk").value_or(true)) {
      const double alpha = rope.alpha_of_doublings(length);
      if (alpha > 1) group = derive("dynamic with alpha", rotary_dim, base, alpha_scaling{.alpha = alpha});
      if (detail::equal(length, 0))
        model.warn(text.path() +
                   "use_dynamic_ntk makes the base depend on the length of the sequence; these " +
                   "frequencies are for a short one; for a longer one set options.length");
    }
    if (defaults.backwards)
      group.frequencies =
          frequencies::custom(-group.frequencies.inv_freq(), group.frequencies.attention_factor());
    group.layer_type = layer_type;
    group.layout = defaults.layout;
    group.head_dim = head.head_dim;
    group.first_channel = defaults.last_channels ? head.head_dim - rotary_dim : head.first_channel;
    group.scale = scale_of(head, group.softmax_multiplier);
    group.softcap = softcap_of();
    if (!head.latent) group.softmax_multiplier = 1;
    rope.add_sections(group);
    add_indexer(group);
    add_query_scaling_of(rope);
    rope.keys.each_unasked([&](const std::string& key, const J& value) {
      if (defaults.names.empty() && speaks_of_query_scaling(key)) model.scaled = scaled_queries::not_known;
      std::vector<std::string> keys = {path + key};
      add_inner_keys(value, path + key + ".", speaks_of_rope, keys);
      for (const std::string& one : keys) model.warn(one + " is not used by rope type " + type);
    });
    model.groups.push_back(std::move(group));
  }

  /// Adds a copy of the last group without its indexer, for layers of another type.
  void add_again(const std::string& layer_type) {
    layer_group group = model.groups.back();
    group.indexer = {};
    model.check_room("import_hugging_face", text.path() + "rope_parameters", group.frequencies.pairs());
    group.layer_type = layer_type;
    model.groups.push_back(std::move(group));
  }

  /// Returns the default of the class, with a warning. Throws for a base of 0, which means unknown.
  double assumed(const std::string& what, double value) {
    if (detail::equal(value, 0))
      text.missing(what, "no default of ", model.architecture, " is known; give the base");
    const std::string path = what == "rope_theta" ? text.path() : "";
    model.warn_assumed(path + what + " base", exact_digits(value));
    return value;
  }

  /// The channels of the first pairs of a head that rotate: rotary_dim unless a key gives fewer.
  Index first_pairs_of(Index rotary_dim, const std::string& type) {
    const std::string key(defaults.first_pairs);
    const auto given = key.empty() ? std::nullopt : text.index(key);
    if (!given || *given == rotary_dim) return rotary_dim;
    if (*given > rotary_dim || *given % 2 != 0 || rotary_dim % *given != 0)
      text.refuse(key, "must be an even divisor of head_dim, got ", *given);
    if (type != "default")
      text.refuse(key, "is less than head_dim, for which the class has no rope type ", type);
    model.warn_once(text.path() + key + " gives the channels of the first pairs of a head, and only they " +
                    "rotate: the base is raised to the power " + std::to_string(rotary_dim / *given) +
                    " for a whole head");
    return *given;
  }

  /// Reads the rule whose keys are inside the rope dictionary: the rule of Ministral 3 and Mistral 4.
  void add_query_scaling_of(rope_dictionary<J>& rope) {
    constexpr const char* key = "llama_4_scaling_beta";
    if (defaults.queries != query_growth::beta) return;
    const auto beta = rope.keys.number(key, range::not_negative);
    if (!beta) return;
    rope.needed = rope.keys.path() + key + " needs it";
    model.query_rule.rule = llama4_query_scaling{
        .floor_scale = rope.original_max_position(), .attention_scale = *beta, .offset = 0};
    model.scaled = scaled_queries::every_layer;
  }

  /// Warns about the class defaults that were used for a group, except its head and its base.
  void name_assumed(const keyed_number& share, const std::string& type, const group_terms& terms) {
    const auto name = [&](const std::string& key, double value) {
      model.warn_assumed(text.path() + key, exact_digits(value));
    };
    const bool partial = !usual_head.latent && type != "proportional" && !terms.factor &&
                         !detail::equal(defaults.partial_rotary_factor, 1);
    if (partial && !text.has("rotary_dim") && share.key.empty())
      name("partial_rotary_factor", defaults.partial_rotary_factor);
    if (type == "default" && !usual_head.latent && !text.has("rotary_dim") && !share.key.empty() &&
        !detail::equal(*share.value, 1) && has_class_not_in(partial_by_default, defaults.names))
      model.warn(share.key + " holds, as in transformers 4; the class of " + model.architecture +
                 " in transformers 5 rotates whole heads under the default rule");
    const auto& [scale, number] = defaults.scale;
    if (!usual_head.latent && !scale.empty() && number > 0 && !text.has(scale))
      name(std::string(scale), number);
    if (defaults.softcap > 0 && !text.is_null("attn_logit_softcapping") &&
        !text.has("attn_logit_softcapping") && !text.has("max_attn_value"))
      name("attn_logit_softcapping", defaults.softcap);
  }

  /// The factor on q . k.
  double scale_of(const head_shape& head, double latent_multiplier) {
    const double root = 1 / std::sqrt(static_cast<double>(head.head_dim));
    if (head.latent) return latent_multiplier * root;
    if (defaults.double_head) return 1 / std::sqrt(static_cast<double>(head.head_dim) / 2);
    const auto& [key, otherwise] = defaults.scale;
    const double number = key.empty() ? otherwise : text.number(key, range::positive).value_or(otherwise);
    if (detail::equal(number, 0)) return root;
    if (key == "query_pre_attn_scalar") return 1 / std::sqrt(number);
    return key == "key_multiplier" || key == "qk_scale_factor" ? root * number : number;
  }
  double softcap_of() {
    constexpr const char *key = "attn_logit_softcapping", *of_grok = "max_attn_value";
    if (text.is_null(key)) return 0;
    auto given = text.number(key, range::positive);
    if (!given && defaults.softcap > 0) given = text.number(of_grok, range::positive);
    return given.value_or(defaults.softcap);
  }

  /// The base next to the dictionary, and the path of its key. A list of bases (Step 3.5) is skipped here,
  /// because group_terms has them.
  keyed_number base_beside() {
    const bool list = defaults.form == dictionary_form::base_by_type && text.is_list("rope_theta");
    keyed_number found;
    if (const J* attention = text.object("attn_config")) {  // DBRX
      json_reader<J> reader(attention, text.path() + "attn_config.");
      find_number(found, reader, "rope_theta", range::above_one, model);
    }
    for (const char* key :
         {"rotary_base", "rope_theta", "rotary_emb_base", "rope_freq_constant", "rope_base"})
      if (key != std::string("rope_theta") || (!defaults.theta_unread && !list))
        find_number(found, text, key, range::above_one, model);
    return found;
  }

  /// The base of a group: terms.overruling_base, otherwise the base in the dictionary, otherwise the base of
  /// the layer type, otherwise rope_ratio times the base next to the dictionary or the default of the class.
  double base_of(json_reader<J>& rope, const group_terms& terms, const std::string& layer_type) {
    const auto [beside, key] = base_beside();
    const auto inside = rope.number("rope_theta", range::above_one);
    if (terms.overruling_base) {
      // In DeepSeek V4, the base next to the dictionary is that of the sliding layers.
      const bool compressed = defaults.form == dictionary_form::compressed;
      const std::string by = text.path() + (compressed ? "compress_rope_theta" : "layer_rope_theta");
      const auto differs = [&](const std::optional<double>& base) {
        return base && !detail::equal(*base, *terms.overruling_base);
      };
      if (differs(inside)) model.warn(rope.path() + "rope_theta is overruled by " + by);
      if (!compressed && differs(beside)) model.warn(key + " is overruled by " + by);
      return *terms.overruling_base;
    }
    if (inside) {
      // Sliding layers with their own base never use the base next to the dictionary.
      const bool own = layer_type == defaults.other_type && defaults.local_base > 0;
      const std::string by = " is overruled by " + rope.path() + "rope_theta";
      if (beside && !own && !detail::equal(*beside, *inside)) model.warn(key + by);
      if (terms.base && *terms.base_key && text.path() + terms.base_key != key &&
          !detail::equal(*terms.base, *inside))
        model.warn(text.path() + terms.base_key + by);
      return *inside;
    }
    if (terms.base) return *terms.base;
    const auto ratio = text.number("rope_ratio", range::positive);
    const double base = beside ? *beside : assumed("rope_theta", defaults.base);
    return checked(base * ratio.value_or(1), range::above_one, "import_hugging_face",
                   text.path() + "rope_theta * rope_ratio");
  }

  void add_indexer(layer_group& group) {
    if (defaults.indexer == indexer_kind::no_indexer) {
      for (const char* name : {"index_head_dim", "indexer_head_dim"})
        if (text.index(name))
          model.warn_once(text.path() + name + " is that of an indexer; what it rotates is not known");
      return;
    }
    const std::string key(defaults.indexer_key);
    const auto given = text.index(key);
    const auto interleave = text.boolean("indexer_rope_interleave");
    if (defaults.form == dictionary_form::compressed && group.layer_type != "compressed_sparse_attention")
      return;
    constexpr Index by_default = 128;  // in all classes with an indexer
    group.indexer = indexer_of(defaults.indexer, given.value_or(by_default), group.rotary_dim(),
                               [&](const std::string& rule) { text.refuse(key, rule); });
    if (interleave) group.indexer->layout = *interleave ? layout_kind::interleaved : layout_kind::half_split;
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_GROUP_HPP
