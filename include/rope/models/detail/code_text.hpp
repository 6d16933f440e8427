// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_CODE_TEXT_HPP
#define ROPE_MODELS_DETAIL_CODE_TEXT_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/rule_numbers.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>

/// Writes C++ that makes the result of an import, for a program that does not have the model file. The
/// statements compile anywhere after #include <rope/rope.hpp>. Names and comments take only numbers and
/// letters from the file. Comments are /* */, so that lines can be broken anywhere.

namespace rope::inline ROPE_ABI::detail {

/// "{.factor = 8, .length = 4096}"
template <class Rule>
std::string fields(const Rule& rule) {
  std::string text;
  each_number(rule, [&](const char* name, double value) {
    text += (text.empty() ? "{." : ", .") + std::string(name) + " = " + exact_digits(value);
  });
  return text + "}";
}

/// Finds a rule whose numbers give the frequencies of a group bit for bit. There is none if the caller has
/// changed the description, or if the rule has a list of factors.
template <class Group>
class frequencies_code {
 public:
  /// \param name  the name of the frequencies in the program
  frequencies_code(const Group& group, std::string name) : group_(group), name_(std::move(name)) {}

  std::string text() {
    if (group_.frequencies.axes() != 1)
      return "/* " + name_ + ": frequencies of " + std::to_string(group_.frequencies.axes()) +
             " axes, frequencies::custom makes them */\n";
    try_rules();
    return found_.empty() ? listed() : "const rope::frequencies " + name_ + found_ + ";\n";
  }

 private:
  double number(const char* name) const { return group_.number(name, 0); }
  static bool positive(double value) { return is_finite(value) && value > 0; }

  /// Gives a rule the numbers of the group. False if one of them is missing or invalid.
  template <class Rule>
  bool fill(Rule& rule) const {
    bool valid = true;
    each_number(rule, [&](const char* name, double& value) {
      value = number(name);
      valid = valid && (positive(value) || (value >= 0 && std::string_view(name) == "length"));
    });
    return valid;
  }

  void try_rules() {
    if (!is_finite(group_.base) || group_.base <= 1) return;
    keep(frequencies(group_.rotary_dim(), group_.base), "");
    const std::string& rule = group_.rule;
    if (!found_.empty()) return;
    const bool stretches = group_.rotary_dim() > 2;
    if (rule == "linear") take(linear_scaling{}, "linear_scaling");
    if (rule == "dynamic" && stretches) take(dynamic_ntk_scaling{}, "dynamic_ntk_scaling");
    if (rule == "dynamic with alpha" && stretches && number("new_base") > 1)
      take(alpha_scaling{}, "alpha_scaling");
    if (rule == "yarn" && equal(group_.number("ext_factor", 1), 1)) try_yarn();
    if (rule == "llama3" && number("high_freq_factor") >= number("low_freq_factor"))
      take(llama3_scaling{}, "llama3_scaling");
    if (rule == "proportional" && number("partial_rotary_factor") <= 1)
      take(proportional_scaling{}, "proportional_scaling");
    if (rule == "ntk") {
      mixed_ntk_scaling mixed{};
      if (positive(number("mixed_b"))) mixed.mixed_b = 0;  // present, so `take` gives it the number
      if (mixed.mixed_b || group_.base * number("factor") > 1) take(mixed, "mixed_ntk_scaling");
    }
  }

  void try_yarn() {
    yarn_scaling yarn{};
    if (!fill(yarn) || yarn.beta_fast < yarn.beta_slow) return;
    schedule original{.rotary_dim = group_.rotary_dim(), .base = group_.base, .inv_freq = {}};
    for (const bool truncate : {true, false}) {
      const auto [low, high] =
          blend_between(yarn.beta_fast, yarn.beta_slow, truncate, original, yarn.original_max_position);
      if (low > high || !found_.empty()) continue;
      yarn.truncate = truncate;
      yarn.attention_factor.reset();
      std::string text = fields(yarn);
      text.pop_back();
      if (!truncate) text += ", .truncate = false";
      const double m = group_.frequencies.attention_factor();
      if (!equal(yarn.magnitude(), m)) {
        yarn.attention_factor = m;
        text += ", .attention_factor = " + exact_digits(m);
      }
      take(yarn, "yarn_scaling", text + "}");
    }
  }

  /// Tries a rule with the numbers of the group.
  template <class Rule>
  void take(Rule rule, const char* type) {
    if (fill(rule)) take(rule, type, fields(rule));
  }
  template <class Rule>
  void take(const Rule& rule, const char* type, const std::string& values) {
    keep(frequencies(group_.rotary_dim(), group_.base, rule), ", rope::" + (type + values));
  }

  /// Keeps a rule that gives the frequencies of the group. If only the sign or the magnitude differs,
  /// frequencies::custom applies it.
  void keep(const frequencies& made, const std::string& rest) {
    const bool same = same_inv_freq(group_.frequencies, made);
    if (!same && !same_inv_freq(group_.frequencies, made, -1)) return;
    const double m = group_.frequencies.attention_factor();
    found_ = "(" + std::to_string(group_.rotary_dim()) + ", " + exact_digits(group_.base) + rest + ")";
    if (same && equal(made.attention_factor(), m)) return;
    found_ = " = rope::frequencies::custom(" + std::string(same ? "" : "-") + "rope::frequencies" + found_ +
             ".inv_freq()" + (equal(m, 1) ? "" : ", " + exact_digits(m)) + ")";
  }

  /// A list of every inv_freq with all its digits.
  std::string listed() const {
    const std::string array = name_ + "_list", count = std::to_string(group_.frequencies.pairs());
    std::string text = "const double " + array + "[] = {";
    for (Index i = 0; i < group_.frequencies.pairs(); ++i) {
      text += i == 0 ? "" : i % 4 == 0 ? ",\n      " : ", ";
      text += exact_digits(group_.frequencies.inv_freq(i, 0));
    }
    const double m = group_.frequencies.attention_factor();
    return text + "};\nconst rope::frequencies " + name_ +
           " = rope::frequencies::custom(Eigen::Map<const Eigen::Array<double, " + count + ", 1>>(" + array +
           ")" + (equal(m, 1) ? "" : ", " + exact_digits(m)) + ");\n";
  }

  const Group& group_;
  std::string name_, found_ = {};
};

/// Makes the beginning of a name from a layer type: letters, digits and single underscores.
inline std::string name_in_code(const std::string& layer_type) {
  const std::string digits = "0123456789", letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string name;
  for (const char c : layer_type) {
    const bool word = (digits + letters).find(c) != std::string::npos;
    if (word || (!name.empty() && name.back() != '_')) name += word ? c : '_';
  }
  while (!name.empty() && name.back() == '_') name.pop_back();
  if (name.empty() || digits.find(name.front()) != std::string::npos) name = "layers" + name;
  return layer_type.empty() ? "model" : name;
}

/// Attention options of the layers, one statement for each different window. A layer of -1 means every layer,
/// if their number is unknown.
template <class Model, class Group, class Layers>
std::string options_code(const Model& model, const Group& group, const std::string& name,
                         const Layers& layers) {
  auto windows = layers_by(layers.size(), [&](std::size_t i) {  // each with places of its layers in the list
    return window_in(model.windows, std::max<Index>(layers[i], 0));
  });
  std::string text;
  if (layers.empty()) {
    const bool unused = !model.layers().empty();
    if (unused && model.keys_are_values) return "/* " + name + ": no layer of this model has this type */\n";
    if (!contains(model.attention_types(), group.layer_type))
      return "/* " + name + ": the window is not known from this file, set attention_options yourself */\n";
    text = unused ? "/* no layer of this model has this type */\n"
                  : "/* it is not known from this file which layers these are */\n";
    windows.push_back({model.attention_of_group(group.layer_type).window, {}});
  }
  for (const auto& [window, places] : windows) {
    Layers own;
    for (const Index place : places)
      if (const Index layer = layers[static_cast<std::size_t>(place)]; layer >= 0) own.push_back(layer);
    const std::string which = own.empty() ? "every layer" : named_layers(own);
    const Index chunk = own.empty() ? 0 : model.chunk_of_layer(own.front());
    if (window == not_known_window && chunk == 0) {
      text += "/* " + which + ": the window is not known from this file, set attention_options yourself */\n";
      continue;
    }
    const std::string tokens = window == 0 ? "_without_window" : "_window_" + std::to_string(window);
    if (chunk > 0)
      text += "/* " + which +
              " attend in chunks: before a call, set key_ranges of these options to the result "
              "of rope::chunk_ranges(" +
              std::to_string(chunk) + ", {.queries = queries, .keys = keys}) */\n" +
              "rope::attention_options " + name + "_in_chunks";
    else if (windows.size() > 1)
      text += "/* " + which + " */\nconst rope::attention_options " + name + tokens;
    else
      text += "const rope::attention_options " + name;
    text += " = {";
    std::string set;
    const auto add = [&](const std::string& field) { set += (set.empty() ? "" : ", ") + field; };
    if (!equal(group.scale, 0)) add(".scale = " + exact_digits(group.scale));
    if (!model.causal) add(".causal = false");
    if (window > 0) add(".window = " + std::to_string(window));
    if (group.softcap > 0) add(".softcap = " + exact_digits(group.softcap));
    text += set + "};\n";
  }
  return text;
}

/// The sections of M-RoPE as a call of frequencies/axes.hpp.
template <class Group>
std::string axes_code(const Group& group, const std::string& name) {
  const auto& sections = group.mrope_sections;
  if (sections.empty()) return "";
  const bool time_last = group.section_order == mrope_order::time_last;
  const std::string arguments =
      time_last ? std::to_string(sections.back()) + ", " + std::to_string(sections.front())
                : "{" + joined(sections) + "}";
  return "/* for prompts with images, as text rotates by one axis: */\nconst rope::frequencies " + name +
         "_on_axes = rope::on_axes(" + name + ", rope::" + order_of_axes(group).function + "(" + arguments +
         "));\n";
}

/// The rule that multiplies queries.
template <class Model>
std::string query_scaling_code(const Model& model) {
  if (model.scaled == scaled_queries::none) return "";
  if (model.scaled == scaled_queries::not_known)
    return "/* by what queries are multiplied is not known from this file */\n";
  std::string text = model.scaled == scaled_queries::every_layer
                         ? "/* every layer: scale_queries(q, query_scaling, start) */\n"
                         : "/* layers without rotation: scale_queries(q, query_scaling, start) */\n";
  if (const auto* log_n = std::get_if<log_n_query_scaling>(&model.query_rule.rule))
    text += "const rope::log_n_query_scaling query_scaling = " + fields(*log_n) + ";\n";
  if (const auto* llama4 = std::get_if<llama4_query_scaling>(&model.query_rule.rule))
    text += "const rope::llama4_query_scaling query_scaling = " + fields(*llama4) + ";\n";
  return text;
}

/// All statements for a model in which some layer rotates, indented by two.
template <class Model>
std::string code_text(const Model& model) {
  std::string text;
  std::vector<std::string> names;
  const Index count = model.layer_count();
  for (const auto& group : model.groups()) {
    const std::string plain = name_in_code(group.layer_type);
    std::string name = plain;
    for (std::size_t i = names.size(); contains(names, name); ++i) name = plain + "_" + std::to_string(i);
    names.push_back(name);
    std::vector<Index> layers;
    if (count == 0 && model.groups().size() == 1) layers.push_back(-1);
    for (Index layer = 0; layer < count; ++layer)
      if (model.rotation_of_layer(layer) == layer_rotation::in_group &&
          (model.groups().size() == 1 ||
           model.group(model.layers()[static_cast<std::size_t>(layer)]) == &group))
        layers.push_back(layer);
    text += "using " + name + "_layout = rope::" + name_of(group.layout) + ";\n";
    text += frequencies_code<std::remove_cvref_t<decltype(group)>>(group, name + "_frequencies").text();
    text += axes_code(group, name + "_frequencies");
    text += options_code(model, group, name + "_options", layers);
    text += "/* rope::frequency_table table(" + name + "_frequencies, length);\nrope::rotate<" + name +
            "_layout>(q, k, table" +
            (group.first_channel > 0 ? ".at_channel(" + std::to_string(group.first_channel) + ")" : "") +
            ", start); */\n";
  }
  if (const auto& unrotated = model.layers_without_rope(); !unrotated.empty()) {
    text += "/* layers " + layers_text(unrotated) + " do not rotate */\n";
    text += alike_in_scores(model.groups())
                ? options_code(model, model.groups().front(), "unrotated_options", unrotated)
                : "/* attention_of_layer has their options */\n";
  }
  if (model.sink_logits) text += "/* sink_logits of attention_options are weights of the checkpoint */\n";
  if (model.keys_are_values) text += "/* keys are values: unrotate the output of attention */\n";
  text += query_scaling_code(model);
  std::string indented = "  ";
  for (std::size_t i = 0; i < text.size(); ++i) {
    indented += text[i];
    if (text[i] == '\n' && i + 1 < text.size()) indented += "  ";
  }
  return indented;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_CODE_TEXT_HPP
