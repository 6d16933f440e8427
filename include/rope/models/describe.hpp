// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DESCRIBE_HPP
#define ROPE_MODELS_DESCRIBE_HPP

#include <algorithm>  // std::all_of, std::count, std::find, std::max, std::min, std::replace
#include <cmath>
#include <concepts>  // std::derived_from
#include <numbers>
#include <string>
#include <type_traits>  // std::type_identity_t
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/detail/code_text.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// Reports about the rotary embedding of a model: every derived number, and the differences between two
/// descriptions. These are templates, so programs that do not call them do not compile them.

namespace rope::inline ROPE_ABI {

/// The effect of a rule on a pair.
enum class pair_change {
  kept,          // as in the original schedule
  blended,       // changed, but not interpolated
  interpolated,  // slowed by the largest divisor, if two or more pairs share this divisor
  stopped        // its frequency is 0
};

/// The effect of a rule on each pair, compared with the original schedule of the same base.
///
///     const pair_census census = pair_census_of(model.groups()[0]);
///     std::cout << census.kept << " pairs kept, " << census.interpolated << " interpolated\n";
struct pair_census {
  std::vector<pair_change> changes = {};  // [pairs]
  Index kept = 0;                         // how many pairs are kept
  Index blended = 0;                      // how many are blended
  Index interpolated = 0;                 // how many are interpolated
  Index stopped = 0;                      // how many are stopped
  double largest_divisor = 1;             // original frequency / frequency, over pairs that rotate
  double shortest_wavelength = 0;         // tokens per full turn, over pairs that rotate; 0: none
  double longest_wavelength = 0;          // tokens per full turn, as above
  double smallest_divisor = 1;            // the smallest quotient; below 1 if a factor raised frequencies
};

/// Compares the frequency of every pair of a group with base^(-2 i / rotary_dim), its frequency without a
/// rule.
template <class Census = pair_census>
Census pair_census_of(const layer_group& group) {
  constexpr double same = 1e-6;  // relative, because the divisors in GGUF files are floats
  const frequencies original(group.rotary_dim(), group.base);
  const auto inv_freq = [&](Index i, Index a) { return group.frequencies.inv_freq(i, a); };
  const auto divisor = [&](Index i) { return original.inv_freq(i, 0) / (std::abs)(inv_freq(i, 0)); };
  Census result;
  bool first = true;
  for (Index i = 0; i < group.frequencies.pairs(); ++i) {
    if (detail::equal(inv_freq(i, 0), 0)) continue;
    const double wavelength = 2 * std::numbers::pi / (std::abs)(inv_freq(i, 0));
    result.largest_divisor = first ? divisor(i) : (std::max)(result.largest_divisor, divisor(i));
    result.smallest_divisor = first ? divisor(i) : (std::min)(result.smallest_divisor, divisor(i));
    result.shortest_wavelength = first ? wavelength : (std::min)(result.shortest_wavelength, wavelength);
    result.longest_wavelength = first ? wavelength : (std::max)(result.longest_wavelength, wavelength);
    first = false;
  }
  for (Index i = 0; i < group.frequencies.pairs(); ++i)
    result.changes.push_back(detail::equal(inv_freq(i, 0), 0)     ? pair_change::stopped
                             : (std::abs)(divisor(i) - 1) <= same ? pair_change::kept
                             : (std::abs)(divisor(i) / result.largest_divisor - 1) <= same
                                 ? pair_change::interpolated
                                 : pair_change::blended);
  const auto count = [&](pair_change change) {
    return detail::to_index(std::count(result.changes.begin(), result.changes.end(), change));
  };
  if (count(pair_change::interpolated) == 1 && group.frequencies.pairs() > 1)
    std::replace(result.changes.begin(), result.changes.end(), pair_change::interpolated,
                 pair_change::blended);
  result.kept = count(pair_change::kept);
  result.blended = count(pair_change::blended);
  result.interpolated = count(pair_change::interpolated);
  result.stopped = count(pair_change::stopped);
  return result;
}

namespace detail {

/// For example "29 kept: 0 to 28". The range is left out if other pairs are inside it.
template <class Census>
std::string pairs_of(const Census& pairs, pair_change change, Index count, const std::string& what) {
  const auto first = std::find(pairs.changes.begin(), pairs.changes.end(), change);
  std::string text = std::to_string(count) + " " + what;
  if (!std::all_of(first, first + count, [&](pair_change c) { return c == change; })) return text;
  const auto begin = first - pairs.changes.begin();
  return text + ": " + (count == 1 ? "" : std::to_string(begin) + " to ") + std::to_string(begin + count - 1);
}

template <class Census>
std::string pairs_text(const Census& pairs) {
  std::string slowed = "(slowed by " + std::string(pairs.interpolated > 0 ? "" : "up to ") +
                       digits(pairs.largest_divisor) + ")";
  if (pairs.smallest_divisor < 1 - 1e-6)
    slowed = "(frequencies divided by " + digits(pairs.smallest_divisor) +
             (pairs.interpolated > 0 ? "" : " to " + digits(pairs.largest_divisor)) + ")";
  std::string text;
  const auto add = [&](pair_change change, Index count, const std::string& what) {
    if (count > 0) text += (text.empty() ? "" : "; ") + pairs_of(pairs, change, count, what);
  };
  add(pair_change::kept, pairs.kept, "kept");
  add(pair_change::blended, pairs.blended, pairs.interpolated > 0 ? "blended" : "changed " + slowed);
  add(pair_change::interpolated, pairs.interpolated, "interpolated " + slowed);
  add(pair_change::stopped, pairs.stopped, "do not rotate");
  return text;
}

/// Names the context that YaRN extends a model to, if its file declares less.
template <class Model>
std::string extended_context_text(const Model& model) {
  for (const layer_group& group : model.groups()) {
    const double context = group.number("factor", 0) * group.number("original_max_position", 0);
    if (group.rule == "yarn" && context > model.max_position)
      return " by the file, " + digits(context) + " by its YaRN factor";
  }
  return "";
}

template <class Group, class Census>
std::string wavelengths_text(const Group& group, const Census& pairs) {
  if (detail::equal(pairs.longest_wavelength, 0)) return "no pair rotates";
  std::string text =
      digits(pairs.shortest_wavelength) + " to " + digits(pairs.longest_wavelength) + " tokens";
  if (group.frequencies.pairs() > pairs.kept) {
    const frequencies original(group.rotary_dim(), group.base);
    text += " (by the base alone: to " +
            digits(2 * std::numbers::pi / original.inv_freq(original.pairs() - 1, 0)) + ")";
  }
  return text;
}

/// \param tokens, limit  the largest distance of a visible token, or 0 if unknown, and the name of this limit
template <class Group>
std::string describe_group(const Group& group, double tokens, const char* limit) {
  const Index last = group.first_channel + group.rotary_dim() - 1;
  const auto pairs = pair_census_of(group);
  std::string text;
  text += line("layout", name_of(group.layout));
  text += line("rotated channels", std::to_string(group.first_channel) + " to " + std::to_string(last) +
                                       " of " + std::to_string(group.head_dim) + " (" +
                                       std::to_string(group.frequencies.pairs()) + " pairs)");
  text += line("schedule", group.rule);
  text += line("base", digits(group.base));
  for (const named_number& number : group.numbers) text += line(number.name, digits(number.value));
  text += line("pairs", pairs_text(pairs));
  text += line("wavelengths", wavelengths_text(group, pairs));
  if ((group.frequencies.inv_freq() < 0).any()) text += line("direction", "by minus the position");
  if (tokens > 0) {
    const double slowest = 2 * std::numbers::pi / tokens;
    Index complete = 0;
    for (Index i = 0; i < group.frequencies.pairs(); ++i)
      if ((std::abs)(group.frequencies.inv_freq(i, 0)) >= slowest) ++complete;
    text += line("full turns", std::to_string(complete) + " of " + std::to_string(group.frequencies.pairs()) +
                                   " pairs make one within " + limit);
  }
  text += line("attention factor", digits(group.frequencies.attention_factor()) + " (in cos and sin)");
  std::string multiplier = digits(group.softmax_multiplier);
  if (!detail::equal(group.softmax_multiplier, 1))
    multiplier += ", so the softmax scale is " + multiplier + " / sqrt(" + std::to_string(group.head_dim) +
                  ") = " + digits(group.softmax_multiplier / std::sqrt(static_cast<double>(group.head_dim)));
  text += line("softmax multiplier", multiplier);
  text += line("score scale", digits(group.scale));
  if (group.softcap > 0) text += line("softcap", digits(group.softcap));
  if (!group.mrope_sections.empty())
    text += line("M-RoPE sections", joined(group.mrope_sections) + " (" + order_of_axes(group).words + ")" +
                                        "; text rotates as with one axis");
  const std::string channels = group.first_channel == 0 ? ""
                                                        : ".channels(" + std::to_string(group.first_channel) +
                                                              ", " + std::to_string(group.rotary_dim()) + ")";
  text += line("to rotate heads",
               std::string("rotate<") + name_of(group.layout) + ">(heads" + channels + ", table)");
  if (group.indexer) text += line("indexer", text_of(*group.indexer));
  return text;
}

}  // namespace detail

/// Reports every number that made the group, and every number derived from them, one per line.
template <std::derived_from<layer_group> Group>
std::string describe(const Group& group) {
  return detail::describe_group(group, 0, "");
}

/// Reports the whole model: facts about all layers, how each layer attends, each group, and the warnings. The
/// report ends with C++ that makes the same frequencies, layouts and options without the file. If no layer
/// rotates, it ends with what the model has instead, and has no warnings and no C++.
template <std::derived_from<model_rope> Model>
std::string describe(const Model& model) {
  using detail::digits, detail::line;
  std::string text = model.architecture + " (" + model.source + ")\n";
  if (model.max_position > 0)
    text += line("longest context",
                 digits(model.max_position) + " tokens" + detail::extended_context_text(model));
  if (model.sliding_window > 0) text += line("sliding window", digits(model.sliding_window) + " tokens");
  if (model.query_heads > 0)
    text += line("heads", std::to_string(model.query_heads) + " for queries, " +
                              std::to_string(model.key_heads) + " for keys");
  if (!model.instead_of_rope().empty())
    return text + line("rotation", "none in any layer: this model has " + model.instead_of_rope());
  text += line("attention", model.causal ? "causal" : "both ways: a token sees those after it, too");
  for (const std::string& window : detail::windows_texts(model.windows)) text += line("window", window);
  if (model.attention_chunk > 0)
    text +=
        line("chunks", std::to_string(model.attention_chunk) + " tokens, in layers that rotate: key_ranges");
  if (model.sink_logits)
    text += line("sink logits", "in the checkpoint: attention_options::sink_logits" +
                                    (model.layers_without_sinks.empty()
                                         ? ""
                                         : "; none in layers " + detail::joined(model.layers_without_sinks)));
  if (model.scaled != scaled_queries::none) text += line("query scaling", detail::query_scaling_text(model));
  if (!model.layers_without_rope().empty())
    text += line("layers without rotation", detail::joined(model.layers_without_rope()));
  if (!model.layers_not_known().empty())
    text += line("rotation not known", "layers " + detail::joined(model.layers_not_known()));
  for (const layer_group& group : model.groups()) {
    text += "\n" + (group.layer_type.empty() ? "all layers" : group.layer_type);
    const auto count = std::count(model.layers().begin(), model.layers().end(), group.layer_type);
    if (count > 0)
      text += " (" + std::to_string(count) + " of " + std::to_string(model.layers().size()) + " layers)";
    const bool slides = group.layer_type.starts_with("sliding") && model.sliding_window > 0;
    text += "\n" + detail::describe_group(group, slides ? model.sliding_window : model.max_position,
                                          slides ? "the sliding window" : "the longest context");
  }
  if (!model.warnings.empty()) text += "\nnotes\n";
  for (const std::string& warning : model.warnings) text += "  - " + warning + "\n";
  return text + "\nC++ after #include <rope/rope.hpp>\n" + detail::code_text(model);
}

/// The differences between two descriptions of one model, such as its config.json and its GGUF file: one
/// sentence per difference, with both numbers. The list is empty if the models rotate and attend alike.
/// Windows that are unknown on one side are not compared.
///
/// \param tolerance  the largest relative difference of numbers that count as equal. GGUF stores floats
template <class Model = model_rope>
std::vector<std::string> compare_models(const std::type_identity_t<Model>& a,
                                        const std::type_identity_t<Model>& b, double tolerance = 1e-6) {
  detail::model_comparison<Model> comparison{a, b, tolerance};
  if (a.groups().empty() || b.groups().empty()) {  // then nothing else is known about that model
    const auto what = [](const Model& model) {
      return "by " + (model.groups().empty() ? model.instead_of_rope() : "rotation");
    };
    if (a.instead_of_rope() != b.instead_of_rope())
      comparison.differ("positions are encoded", what(a), what(b));
    return comparison.found;
  }
  comparison.layers();
  for (const layer_group& x : a.groups())
    for (const layer_group& y : b.groups())
      if (x.layer_type == y.layer_type || x.layer_type.empty() || y.layer_type.empty())
        comparison.groups(x, y);
  return comparison.found;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_DESCRIBE_HPP
