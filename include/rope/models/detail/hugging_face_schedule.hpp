// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// The frequencies and the M-RoPE sections of one rope dictionary in a Hugging Face config.json.

namespace rope::inline ROPE_ABI::detail {

/// Sections for classes that assign pairs [1 : 3 height : 3] to height, [2 : 3 width : 3] to width, and the
/// others to time. Sections of height and width that go beyond the last pair are cut there. Time gets all
/// other pairs.
///
/// Source:  apply_interleaved_mrope of Hugging Face transformers
inline std::vector<Index> sliced_sections(const std::vector<Index>& sections, Index pairs) {
  std::vector<Index> cut = {pairs, 0, 0};
  for (const Index axis : {Index{1}, Index{2}}) {
    const Index most = (std::max)(Index{0}, pairs - axis + 2) / 3;  // count of axis, axis + 3, ... < pairs
    cut[static_cast<std::size_t>(axis)] = (std::min)(sections[static_cast<std::size_t>(axis)], most);
    cut[0] -= cut[static_cast<std::size_t>(axis)];
  }
  return cut;
}

/// The rope types of Hugging Face transformers, `ntk` of vLLM, and the YaRN of TeleChat 3.
inline constexpr const char* rope_types[] = {
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "ntk", "telechat3-yarn"};

/// Older names of rope types, with the present names.
inline constexpr struct {
  const char *name, *present;
} renamed_rope_types[] = {{"su", "longrope"},    {"mrope", "default"},    {"deepseek_yarn", "yarn"},
                          {"xdrope", "dynamic"}, {"ernie_3d", "default"}, {"openpangu", "default"}};

/// The config keys for the longest context.
inline constexpr const char* context_keys[] = {
    "max_position_embeddings", "n_positions",         "seq_length",        "max_seq_len",
    "max_position_embedding",  "max_sequence_length", "max_context_length"};

/// A rope dictionary in a Hugging Face config.json: its M-RoPE sections, and its frequencies.
template <class J>
struct rope_dictionary {
  json_reader<J> keys;   // inside the dictionary
  json_reader<J>& text;  // the keys next to the dictionary
  const hugging_face_record& defaults;
  model_draft& model;
  bool by_type;             // whether the dictionary is one of several, one per layer type
  std::string needed = {};  // why a key is required, for messages

  /// The numbers of mrope_section, or of its older name.
  std::optional<std::vector<double>> given_sections(const char*& key) {
    auto sections = keys.numbers(key, range::whole);
    if (!defaults.xdrope) return sections;
    constexpr const char* older = "xdrope_section";
    auto other = keys.numbers(older, range::whole);
    if (sections && other && *sections != *other) keys.refuse(older, "must agree with mrope_section");
    if (sections || !other) return sections;
    key = older;
    return other;
  }

  /// The sections of ERNIE 4.5 VL in files without mrope_section. Time has freq_allocation pairs, and height
  /// and width share the others.
  ///
  /// Source:  vLLM, Ernie4_5_VLMoeAttention; 20 is the default of both
  std::vector<Index> sections_of_allocation(Index pairs) {
    constexpr const char* key = "freq_allocation";
    json_reader<J>& reader = keys.has(key) ? keys : text;
    const auto given = reader.index(key, range::whole);
    if (!text.boolean("rope_3d").value_or(true)) return {};
    const Index time = given.value_or(20);
    if (time > pairs || (pairs - time) % 2 != 0) {
      if (!given) return {};  // the class has no rule for other head sizes
      reader.refuse(key, "must leave an even number of the ", pairs, " pairs, got ", time);
    }
    if (!given) model.warn_assumed("mrope_section", std::to_string(time) + " pairs of time");
    return {time, (pairs - time) / 2, (pairs - time) / 2};
  }

  /// Sets the sections of the group and the order of their axes.
  void add_sections(layer_group& group) {
    const char* key = "mrope_section";
    auto given = given_sections(key);
    if (given && !model.sections.empty() && *given != model.sections)
      keys.refuse(key, "must agree with mrope_section next to text_config");
    if (!given && !model.sections.empty()) given = model.sections;
    const bool of_class = defaults.mrope_side > 0, in_blocks = defaults.mrope == mrope_order::blocks,
               time_last = defaults.mrope == mrope_order::time_last,
               alternate = !in_blocks && keys.boolean("mrope_interleaved").value_or(of_class);
    const Index pairs = group.frequencies.pairs();
    std::vector<Index>& sections = group.mrope_sections;
    if (given && static_cast<Index>(given->size()) > max_sections)
      keys.refuse(key, "must have at most ", max_sections, " values, got ", given->size());
    if (given)
      for (const double count : *given) sections.push_back(static_cast<Index>(count));
    if (time_last && given) {
      if (sections.size() != 3 || sections[0] != sections[1])
        keys.refuse(key, "must be height, width and time, the first two equal, got [", joined(sections), "]");
      sections = {sections[2], sections[0], sections[1]};
    } else if (time_last) {
      sections = sections_of_allocation(pairs);
    }
    if (sections.empty() && (of_class || in_blocks)) {
      const Index quarter = pairs / 4, side = defaults.mrope_side;
      sections = in_blocks ? std::vector<Index>{pairs - 2 * quarter, quarter, quarter}
                           : sliced_sections({0, side, side}, pairs);
      model.warn_assumed("mrope_section", "[" + joined(sections) + "]");
    }
    if (sections.empty()) {
      if (keys.boolean("mrope_interleaved").value_or(false))
        model.warn(keys.path() + "mrope_interleaved has no effect without " + key);
      return;
    }
    if (alternate != of_class && !time_last && has_class_not_in("", defaults.names))
      model.warn_once(keys.path() + "mrope_interleaved is " + (alternate ? "true" : "false") +
                      ": vLLM follows it, as here, but the class of " + model.architecture +
                      " in transformers does not read it");
    const mrope_order order = alternate || time_last ? defaults.mrope : mrope_order::blocks;
    group.section_order = order;
    if (order == mrope_order::alternating && sections.size() == 3) {
      const std::vector<Index> cut = sliced_sections(sections, pairs);
      if (cut != sections)
        model.warn(keys.path() + key + " [" + joined(sections) + "] does not fit " + std::to_string(pairs) +
                   " alternating pairs; it is cut as the class slices it, to [" + joined(cut) + "]");
      sections = cut;
    }
    if (const std::string broken = broken_rule_of_sections(group); !broken.empty()) keys.refuse(key, broken);
    if (order == mrope_order::spread && (sections.size() < 2 || sections.size() > 3 || sections[0] == 0))
      keys.refuse(key, "must be time, height and width or height and width, the first not 0, got [",
                  joined(sections), "]");
  }

  /// The rope type under its present name. Warns about other names of types, and throws for unknown ones.
  std::string type() {
    const auto new_key = keys.text("rope_type"), old_key = keys.text("type");
    const char* key = new_key ? "rope_type" : "type";
    const std::string given = new_key.value_or(old_key.value_or("default"));
    std::string present = given;
    for (const auto& renamed : renamed_rope_types)
      if (given == renamed.name) present = renamed.present;
    if (present == "yarn" && keys.has("short_factor") && keys.has("long_factor")) present = "longrope";
    if (present != given) model.warn(keys.path() + key + " " + given + " is another name of " + present);
    if (new_key && old_key && *new_key != *old_key && !(*old_key == "mrope" && present == "default"))
      model.warn(keys.path() + "type " + *old_key + " is overruled by rope_type " + *new_key);
    refuse_axial(keys);
    for (const char* fope : {"fope_init_factor", "fope_sep_head", "num_inv_freq"})
      if (keys.has(fope))
        keys.refuse(fope, "is of FoPE: angles are learned sums, and fourier_table makes the tables of heads");
    std::string known;
    for (const char* one : rope_types) {
      if (present == one) return present;
      known += known.empty() ? one : std::string(", ") + one;
    }
    keys.refuse(key, "is not a known rope type, got ", given, "; known are ", known,
                "; for another rule see <rope/frequencies.hpp>");
  }

  /// The context length in training, before it was extended: the key next to the rope dictionary. If that is
  /// absent, the key inside, then the default of the class, then the longest context. No class with a
  /// dictionary per layer type reads the key next to the dictionaries. Warnings name assumed and overridden
  /// values.
  ///
  /// Source:  Hugging Face transformers, standardize_rope_params; models/phi3/configuration_phi3.py
  double original_max_position() {
    constexpr const char* key = "original_max_position_embeddings";
    const auto inside = keys.number(key, range::above_one), beside = text.number(key, range::above_one);
    const double by_class = defaults.original_max_position;
    const std::string path = keys.path() + key, path_beside = text.path() + key;
    if (beside && by_type && !inside)
      model.warn_once(path_beside + " is not read beside dictionaries for types of layers; write it into " +
                      keys.path().substr(0, keys.path().size() - 1));
    if (beside && inside && !equal(*inside, *beside))
      model.warn_once((by_type ? path_beside : path) + " is overruled by " + (by_type ? path : path_beside));
    if (beside && !by_type) return *beside;
    if (inside) {
      if (by_class > 0 && !equal(*inside, by_class))
        model.warn_once(path + " holds; the class of " + model.architecture +
                        " reads that key only next to the dictionary, and would take " +
                        exact_digits(by_class));
      return *inside;
    }
    const std::string assumed = (by_type ? path : path_beside) + " is not given; assumed ";
    if (by_class > 0) {
      model.warn_once(assumed + exact_digits(by_class) + ", the default of " + model.architecture);
      return by_class;
    }
    for (const char* context_key : context_keys)
      if (const auto context = text.number(context_key, range::above_one)) {
        model.warn_once(assumed + exact_digits(*context) + ", which is " + context_key);
        return *context;
      }
    text.missing("max_position_embeddings", needed, " where ", key, " is not given");
  }

  /// alpha in the base of Qwen, base alpha^(d / (d - 2)). alpha grows with each doubling of seq_length: 1, 3,
  /// 7, 15.
  ///
  /// Source: get_ntk_alpha of Qwen's modeling_qwen.py
  double alpha_of_doublings(double length) {
    const double trained =
        text.required_number("seq_length", range::above_one, "use_dynamic_ntk, true by default, needs it");
    double doubled = 1;
    while (doubled < length / trained) doubled *= 2;
    return length <= trained ? 1 : 2 * doubled - 1;
  }

  /// The softmax multiplier of a latent head with mscale_all_dim, for any rope type but default.
  ///
  /// Source: Hugging Face transformers, yarn_apply_mscale
  double softmax_multiplier(const yarn_scaling& rule) const {
    return checked(yarn_softmax_multiplier(rule), range::positive, "import_hugging_face",
                   "the softmax multiplier of " + keys.path() + "mscale_all_dim");
  }
  double softmax_multiplier() {
    return softmax_multiplier({.factor = keys.number("factor", range::positive).value_or(1),
                               .original_max_position = 1,
                               .mscale_all_dim = keys.number("mscale_all_dim", range::not_negative)});
  }

  /// \param type    the present name of the rope type
  /// \param length  tokens of the sequence, for the rules that depend on it
  layer_group derive_as(const std::string& type, Index rotary_dim, double base, double length) {
    needed = "rope type " + type + " needs it";
    if (type == "linear") return derive("linear", rotary_dim, base, linear_scaling{.factor = factor()});
    if (type == "dynamic") {
      if (const auto alpha = keys.number("alpha", range::positive))
        return derive("dynamic with alpha", rotary_dim, base, alpha_scaling{.alpha = *alpha});
      return derive("dynamic", rotary_dim, base,
                    dynamic_ntk_scaling{.factor = factor(), .max_position = context(), .length = length});
    }
    if (type == "yarn" || type == "telechat3-yarn") {
      const yarn_scaling rule = yarn(type);
      layer_group result = derive("yarn", rotary_dim, base, rule);
      result.softmax_multiplier = softmax_multiplier(rule);
      return result;
    }
    if (type == "longrope") return derive("longrope", rotary_dim, base, longrope(rotary_dim / 2, length));
    if (type == "llama3") return derive("llama3", rotary_dim, base, llama3());
    if (type == "proportional") {
      auto partial = keys.number("partial_rotary_factor", range::fraction);
      if (!partial) partial = text.number("partial_rotary_factor", range::fraction);
      return derive("proportional", rotary_dim, base,
                    proportional_scaling{.partial_rotary_factor = partial.value_or(1),
                                         .factor = keys.number("factor", range::positive).value_or(1)});
    }
    if (type == "ntk")
      return derive(
          "ntk", rotary_dim, base,
          mixed_ntk_scaling{.factor = factor(), .mixed_b = keys.number("mixed_b", range::positive)});
    return derive("default", rotary_dim, base);
  }

  double factor() { return noted(keys.required_number("factor", range::positive, needed)); }
  double noted(double factor) {
    if (factor < 1)
      model.warn_once(keys.path() + "factor is " + exact_digits(factor) +
                      ", below 1, and raises frequencies; transformers warns of it and computes the same");
    return factor;
  }
  double context() {
    for (const char* key : context_keys)
      if (const auto context = text.number(key, range::positive)) return *context;
    text.missing("max_position_embeddings", needed);
  }

  yarn_scaling yarn(const std::string& type) {
    // 0 means the default, as in transformers: `beta_fast or 32`.
    const auto or_default = [](double x, double otherwise) { return equal(x, 0) ? otherwise : x; };
    yarn_scaling yarn{.factor = 1, .original_max_position = original_max_position()};
    // A null factor means the quotient of the two context lengths.
    yarn.factor =
        keys.is_null("factor")
            ? noted(checked(context() / yarn.original_max_position, range::positive, "import_hugging_face",
                            "max_position_embeddings / original_max_position_embeddings"))
            : factor();
    yarn.beta_fast = or_default(keys.number("beta_fast", range::not_negative).value_or(0), yarn.beta_fast);
    yarn.beta_slow = or_default(keys.number("beta_slow", range::not_negative).value_or(0), yarn.beta_slow);
    if (yarn.beta_fast < yarn.beta_slow)
      keys.refuse("beta_fast", "must be at least beta_slow, got ", exact_digits(yarn.beta_fast), " and ",
                  exact_digits(yarn.beta_slow));
    yarn.truncate = keys.boolean("truncate").value_or(true);
    yarn.attention_factor = keys.number("attention_factor", range::positive);
    if (!yarn.attention_factor && defaults.form == dictionary_form::compressed) yarn.attention_factor = 1;
    if (type == "telechat3-yarn") {  // m = 0.07 ln s + 1: vLLM, patch_legacy_rope_type
      if (!yarn.attention_factor)
        yarn.attention_factor = static_cast<double>(7 * log(wide_real(yarn.factor)) / 100 + 1);
      return yarn;
    }
    yarn.mscale = keys.number("mscale", range::not_negative);
    yarn.mscale_all_dim = keys.number("mscale_all_dim", range::not_negative);
    return yarn;
  }

  longrope_scaling longrope(Index pairs, double length) {
    longrope_scaling longrope{.short_factor = keys.required_numbers("short_factor", range::positive, needed),
                              .long_factor = keys.required_numbers("long_factor", range::positive, needed),
                              .original_max_position = original_max_position(),
                              .max_position = context(),
                              .length = length};
    for (const auto* list : {&longrope.short_factor, &longrope.long_factor})
      if (static_cast<Index>(list->size()) != pairs)
        keys.refuse(list == &longrope.short_factor ? "short_factor" : "long_factor",
                    "must have one value per pair, ", pairs, ", got ", list->size());
    longrope.factor = keys.number("factor", range::positive);
    // In Phi-3.5-MoE, the short and the long list each have their own magnitude.
    const auto short_mscale = keys.number("short_mscale", range::positive),
               long_mscale = keys.number("long_mscale", range::positive);
    longrope.attention_factor = keys.number("attention_factor", range::positive);
    if (!longrope.attention_factor)
      longrope.attention_factor = longrope.uses_long() ? long_mscale : short_mscale;
    return longrope;
  }

  llama3_scaling llama3() {
    const llama3_scaling llama3{
        .factor = factor(),
        .low_freq_factor = keys.required_number("low_freq_factor", range::positive, needed),
        .high_freq_factor = keys.required_number("high_freq_factor", range::positive, needed),
        .original_max_position = original_max_position()};
    if (llama3.high_freq_factor < llama3.low_freq_factor)
      keys.refuse("high_freq_factor", "must be at least low_freq_factor, got ",
                  exact_digits(llama3.high_freq_factor), " and ", exact_digits(llama3.low_freq_factor));
    return llama3;
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP
