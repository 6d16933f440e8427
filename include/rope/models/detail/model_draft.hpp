// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP
#define ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/rule_numbers.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>

/// A model during import: limits for the size of a file, frequencies with the numbers that made them, and the
/// parts of a model_rope.

namespace rope::inline ROPE_ABI::detail {

/// Limits for one model file. Without limits, a few hundred bytes could name a million layers, or groups of a
/// million pairs each. Within these limits, which are far above those of any model, an import takes a
/// fraction of a second and a few megabytes.
constexpr Index max_layers = 16384, max_groups = 1024, max_pairs_of_groups = 32768, max_sections = 8;
constexpr std::size_t longest_layer_type = 128;  // characters

namespace range {

inline constexpr number_rule layers{
    [](double x) { return count.holds(x) && x <= static_cast<double>(max_layers); },
    "must be a positive whole number up to 16384"};

}  // namespace range

/// Checks the length of a list that has one value per layer.
///
/// \param layers  the number of layers of the model. 0: unknown, so any length up to max_layers is accepted
/// \param what    "num_hidden_layers values", the name of `layers` values in the rule
/// \param refuse  throws, with the broken rule in the message
template <class Refuse>
void check_layer_list(std::size_t length, Index layers, const char* what, const Refuse& refuse) {
  const std::string got = ", got " + std::to_string(length);
  if (layers > 0 && length != static_cast<std::size_t>(layers))
    refuse(std::string("must have ") + what + ", " + std::to_string(layers) + got);
  if (length > static_cast<std::size_t>(max_layers))
    refuse("must have one value per layer, at most " + std::to_string(max_layers) + got);
}

inline bool is_zero(double x) { return equal(x, 0); }

/// Adds the numbers of the layers whose value in the list holds.
template <class List, class Holds>
void add_layers_where(std::vector<Index>& layers, const List& list, const Holds& holds) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (holds(list[i])) layers.push_back(static_cast<Index>(i));
}

/// The layer types of DeepSeek V4, from the number of tokens that each layer compresses into a key.
///
/// \param refuse  throws, with the broken rule in the message
template <class Refuse>
std::vector<std::string> compressed_types(const std::vector<double>& ratios, const Refuse& refuse) {
  std::vector<std::string> types;
  for (const double ratio : ratios) {
    if (!equal(ratio, 0) && !equal(ratio, 4) && !equal(ratio, 128))
      refuse("must be 0, 4 or 128, got " + exact_digits(ratio));
    types.emplace_back(equal(ratio, 0)   ? "sliding_attention"
                       : equal(ratio, 4) ? "compressed_sparse_attention"
                                         : "heavily_compressed_attention");
  }
  return types;
}

/// The broken rule if the sections of a group do not add up to its pairs or, while axes alternate, the pairs
/// of an axis go beyond the last pair, otherwise empty. See interleaved_sections.
inline std::string broken_rule_of_sections(const layer_group& group) {
  const std::vector<Index>& sections = group.mrope_sections;
  const Index pairs = group.frequencies.pairs(), axes = to_index(sections.size());
  Index left = pairs;
  for (const Index count : sections) left -= (std::min)(count, left + 1);
  if (left != 0)
    return "must add up to the number of pairs, " + std::to_string(pairs) + ", got [" + joined(sections) +
           "]";
  for (Index axis = 1; axis < axes && group.section_order == mrope_order::alternating; ++axis)
    if (const Index last = axis + axes * (sections[static_cast<std::size_t>(axis)] - 1); last >= pairs)
      return "must fit axes that alternate, so the last pair of axis " + std::to_string(axis) +
             " must be below " + std::to_string(pairs) + ", got " + std::to_string(last);
  return {};
}

/// Layers that rotate alike, in a file with bases or numbers of rotated channels per layer.
struct layer_kind {
  std::string type;
  double base;
  Index rotary_dim = 0;
  const char* rotary_dim_key = "";  // named in messages, and not compared

  bool operator==(const layer_kind& other) const {
    return type == other.type && equal(base, other.base) && rotary_dim == other.rotary_dim;
  }
};

/// The name of a group: its type, and the numbers in which kinds of this type differ.
///
/// \param kinds  pairs of a kind and its layers
template <class Kinds>
std::string name_of_kind(const layer_kind& own, const Kinds& kinds) {
  std::string name = own.type;
  const auto add = [&](auto number, const std::string& text) {
    for (const auto& one : kinds)
      if (one.first.type == own.type && !equal(one.first.*number, own.*number)) {
        name += (name.empty() ? "" : ", ") + text;
        return;
      }
  };
  add(&layer_kind::base, "base " + exact_digits(own.base));
  add(&layer_kind::rotary_dim, std::to_string(own.rotary_dim) + " channels");
  return name;
}

/// Appends the numbers of a rule, then numbers derived from them, to a list of named_number. This and derive
/// are templates, so that programs without derived numbers do not compile them.
template <class Rule>
void record(auto& numbers, const Rule& rule, const schedule& original) {
  const auto add = [&](const char* name, double value) { numbers.push_back({name, value}); };
  each_number(rule, add);
  if constexpr (std::is_same_v<Rule, alpha_scaling> || std::is_same_v<Rule, dynamic_ntk_scaling>) {
    auto stretched = original;
    rule.apply(stretched);
    add("new_base", static_cast<double>(stretched.base));
  }
  if constexpr (std::is_base_of_v<yarn_scaling, Rule>) {
    const auto [low, high] = rule.bounds(original);
    add("low", static_cast<double>(low));
    add("high", static_cast<double>(high));
  }
  if constexpr (requires { rule.ext_factor; }) add("ext_factor", rule.ext_factor);
  if constexpr (std::is_same_v<Rule, longrope_scaling>) add("uses_long_factor", rule.uses_long() ? 1 : 0);
  if constexpr (std::is_same_v<Rule, llama3_scaling>) {
    add("kept_below_wavelength", rule.original_max_position / rule.high_freq_factor);
    add("slowed_above_wavelength", rule.original_max_position / rule.low_freq_factor);
  }
}

/// Makes a group with frequencies(rotary_dim, base, rules...) and the list of their numbers for describe().
/// Its heads have rotary_dim channels, half_split.
template <class... Rules>
layer_group derive(const char* name, Index rotary_dim, double base, const Rules&... rules) {
  layer_group result{.layer_type = "",
                     .layout = layout_kind::half_split,
                     .head_dim = rotary_dim,
                     .first_channel = 0,
                     .frequencies = frequencies(rotary_dim, base, rules...),
                     .rule = name,
                     .base = base};
  [[maybe_unused]] schedule original{.rotary_dim = rotary_dim, .base = base, .inv_freq = {}};
  original.restart(base);
  (record(result.numbers, rules, original), ...);
  return result;
}

/// The parts of a model_rope. They need not fit together before all are complete.
struct model_draft : model_facts, model_layers {
  std::vector<layer_group> groups = {};
  std::vector<double> sections = {};  // mrope_section next to text_config; empty: none

  void warn(std::string text) { warnings.push_back(std::move(text)); }
  void warn_once(std::string text) {
    if (!contains(warnings, text)) warn(std::move(text));
  }
  /// Warns that a default is used for a key of a config.json.
  ///
  /// \param of  the class with this default; empty: that of the architecture
  void warn_assumed(const std::string& key, const std::string& value, const std::string& of = {}) {
    warn(key + " is not given; assumed " + value + ", the default of " + (of.empty() ? architecture : of));
  }

  const layer_group* group(std::string_view layer_type) const { return group_in(groups, layer_type); }

  /// Throws:  std::invalid_argument if one more group with so many pairs exceeds the limits
  ///
  /// \param function, where  named in the message: the function, and the key with the pairs
  void check_room(const char* function, const std::string& where, Index pairs) const {
    const Index count = to_index(groups.size()) + 1;
    for (const layer_group& group : groups) pairs += group.frequencies.pairs();
    if (count > max_groups)
      throw_invalid(function, where, " must not make more than ", max_groups, " groups of layers, got ",
                    count);
    if (pairs > max_pairs_of_groups)
      throw_invalid(function, where, " must not bring the pairs of all groups of layers above ",
                    max_pairs_of_groups, ", got ", pairs);
  }

  /// If layers of one group without types have different windows (gpt-oss, Gemma 2), they get types that
  /// distinguish them.
  void name_types_by_window() {
    const bool slide = contains(windows, window_of_sliding) && window_of_sliding > 0;
    if (groups.size() != 1 || !types.empty() || windows.size() < 2 || !slide || !contains(windows, Index{0}))
      return;
    for (const Index window : windows)
      types.emplace_back(window == 0                   ? "full_attention"
                         : window == window_of_sliding ? "sliding_attention"
                                                       : "not_known");
  }

  /// Throws:  as the constructor of model_rope. The draft is lost even if this throws
  model_rope finished() && {
    name_types_by_window();
    return model_rope(static_cast<model_facts&&>(*this), std::move(groups),
                      static_cast<model_layers&&>(*this));
  }
};

/// The fact that no layer of a model rotates, and its reason.
struct unrotated_model {
  std::string instead = {};           // what the model has instead; empty: some layer rotates
  std::string key = {}, reason = {};  // the key that shows it, and the rest of the message

  bool is_so() const { return !instead.empty(); }
  /// The reason, and a way to proceed.
  std::string refusal() const {
    return reason + "; to import it as a model without groups, pass model_without_rope::describe";
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP
