// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP
#define ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP

#include <algorithm>  // std::equal, std::find_if, std::max, std::max_element, std::min, std::sort
#include <cmath>
#include <cstddef>
#include <cstdio>  // std::snprintf
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/detail/rule_numbers.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>
#include <rope/rotation/layout.hpp>

/// Sentences about a model, its groups and its layers, and about the differences of two models.

namespace rope::inline ROPE_ABI::detail {

// The lines of a description.

/// A label, and a text in a column that all lines share.
template <class Text>
std::string line(const std::string& label, const Text& text) {
  std::string padded = "  " + label;
  padded.resize((std::max)(padded.size() + 1, std::size_t{26}), ' ');
  return padded + text + "\n";
}

/// Ten significant digits, because %.17g would show the rounding of decimal fractions.
inline std::string digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

/// "3, 7, 11": the numbers of a list.
template <class List>
std::string joined(const List& list) {
  std::string text;
  for (const auto& value : list) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

/// The text of a list, or "none" for that of an empty one.
inline std::string list_text(const std::string& list) { return list.empty() ? "none" : list; }

/// How pairs are assigned to the axes of M-RoPE: in words, and the function of frequencies/axes.hpp.
struct axis_order {
  const char *words, *function;
};

inline axis_order order_of_axes(const layer_group& group) {
  static constexpr axis_order orders[] = {
      {"in blocks", "contiguous_sections"},
      {"alternating", "interleaved_sections"},
      {"time last, the others alternating", "height_width_then_time"},
      {"spread by their shares, the first axis last", "spread_sections"},
  };
  return orders[static_cast<std::size_t>(group.section_order)];
}

// Sentences about how the layers of a model attend.

/// "0 to 4, 6 to 10, 12", or "5, 11, ..., 29" if all steps are equal.
///
/// \param layers  in increasing order
template <class Layers>
std::string layers_text(const Layers& layers) {
  const std::size_t count = layers.size();
  const Index step = count > 1 ? layers[1] - layers[0] : 1;
  bool even = step > 1 && count > 3;
  for (std::size_t i = 2; i < count; ++i) even = even && layers[i] - layers[i - 1] == step;
  if (even)
    return std::to_string(layers[0]) + ", " + std::to_string(layers[1]) + ", ..., " +
           std::to_string(layers.back());
  std::string text;
  for (std::size_t first = 0, last = 0; first < count; first = ++last) {
    while (last + 1 < count && layers[last + 1] == layers[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(layers[first]);
    if (last > first) text += (last > first + 1 ? " to " : ", ") + std::to_string(layers[last]);
  }
  return text;
}

inline std::string window_text(Index window) {
  return window == not_known_window ? "not known from this file"
         : window == 0              ? "none"
                                    : std::to_string(window) + " tokens";
}

/// The results of key_of for the layers 0 .. count - 1, each with its layers, in the order of their first
/// layers.
template <class KeyOf>
auto layers_by(std::size_t count, const KeyOf& key_of) {
  std::vector<std::pair<decltype(key_of(count)), std::vector<Index>>> all;
  for (std::size_t layer = 0; layer < count; ++layer) {
    const auto key = key_of(layer);
    auto same = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == key; });
    if (same == all.end()) same = all.insert(all.end(), {key, {}});
    same->second.push_back(static_cast<Index>(layer));
  }
  return all;
}

/// "layer 3", or "layers 0 to 2".
template <class Layers>
std::string named_layers(const Layers& layers) {
  return (layers.size() == 1 ? "layer " : "layers ") + layers_text(layers);
}

/// One sentence for each different window, the most frequent one last.
template <class Windows>
std::vector<std::string> windows_texts(const Windows& windows) {
  auto all = layers_by(windows.size(), [&](std::size_t layer) { return windows[layer]; });
  if (all.empty()) return {window_text(not_known_window)};
  if (all.size() == 1) return {window_text(all[0].first) + ", every layer"};
  // By the number of layers, then by the first layer. std::stable_sort would use deprecated functions.
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), a.second[0]) < std::pair(b.second.size(), b.second[0]);
  });
  std::vector<std::string> texts;
  for (const auto& [window, layers] : all)
    texts.push_back(window_text(window) + ", " +
                    (window == all.back().first ? "the other " + std::to_string(layers.size()) + " layers"
                                                : named_layers(layers)));
  return texts;
}

// Sentences about the factors on the queries of a model.

/// The rule as a formula of the position p.
template <class Scaling>
std::string formula_of(const Scaling& scaling) {
  if (const auto* log_n = std::get_if<log_n_query_scaling>(&scaling.rule))
    return "max(1, ln(p + 1) / ln(" + digits(log_n->train_length) + "))";
  if (const auto* llama4 = std::get_if<llama4_query_scaling>(&scaling.rule)) {
    const std::string p = equal(llama4->offset, 0) ? "p" : "(p + " + digits(llama4->offset) + ")";
    return "1 + " + digits(llama4->attention_scale) + " ln(1 + floor(" + p + " / " +
           digits(llama4->floor_scale) + "))";
  }
  return "1";
}

/// The rule and its layers.
template <class Model>
std::string query_scaling_text(const Model& model) {
  if (model.scaled == scaled_queries::none) return "none";
  if (model.scaled == scaled_queries::not_known) return "not known from this file";
  return "by " + formula_of(model.query_rule) + " at position p, " +
         (model.scaled == scaled_queries::every_layer ? "every layer" : "the layers without rotation");
}

// Sentences about the differences of two models.

/// Whether two numbers differ by at most the tolerance, relative to the larger one.
inline bool are_close(double x, double y, double tolerance) {
  return (std::abs)(x - y) <= tolerance * (std::max)((std::abs)(x), (std::abs)(y));
}

/// Collects the differences of two models, each with both values.
template <class Model>
struct model_comparison {
  const Model &a, &b;
  double tolerance;
  std::string where = {};  // before each sentence: empty, or the type of a group
  std::vector<std::string> found = {};

  void say(const std::string& text) { found.push_back(where + text); }

  /// Says "what x in A and y in B", and more.
  void differ(const std::string& what, const std::string& x, const std::string& y,
              const std::string& more = {}) {
    say(what + " " + x + " in " + a.source + " and " + y + " in " + b.source + more);
  }

  /// If something is true of one model only, says so in two parts: `before` the source of this model, and
  /// `between` both sources.
  void only(bool of_a, bool of_b, const char* before, const char* between) {
    if (of_a != of_b) say(before + (of_a ? a : b).source + between + (of_a ? b : a).source);
  }

  template <class Number>
  void number(const char* name, Number x, Number y) {
    const auto p = static_cast<double>(x), q = static_cast<double>(y);
    if (!are_close(p, q, tolerance)) differ(std::string(name) + " is", digits(p), digits(q));
  }

  void layouts(layout_kind x, layout_kind y) {
    if (x == y) return;
    // A converter permutes the rows of q and k from half_split in Hugging Face files to interleaved in GGUF.
    // For GLM-4V it permutes from interleaved to half_split, because the M-RoPE of ggml is half_split.
    const auto permuted = [](const Model& from, layout_kind of_from, const Model& to) {
      return from.source == "Hugging Face" && to.source == "GGUF" &&
             (of_from == layout_kind::half_split || to.architecture == "glm4");
    };
    const bool expected = permuted(a, x, b) || permuted(b, y, a);
    differ("layout is", name_of(x), name_of(y),
           expected
               ? ", as expected: the converter to GGUF permutes the weights of q and k for this architecture"
               : ", so one of them has the wrong weights");
  }

  /// Returns whether the frequencies agree.
  bool inv_freqs(const frequencies& x, const frequencies& y) {
    if (x.pairs() != y.pairs()) return false;  // the line about rotary_dim reports it
    const auto difference = [&](Index i) {
      const double f = x.inv_freq(i, 0), g = y.inv_freq(i, 0);
      return (std::abs)(f - g) / (std::max)((std::abs)(f), (std::abs)(g));
    };
    std::vector<Index> differing;
    for (Index i = 0; i < x.pairs(); ++i)
      if (!are_close(x.inv_freq(i, 0), y.inv_freq(i, 0), tolerance)) differing.push_back(i);
    if (differing.empty()) return true;
    const Index worst = *std::max_element(differing.begin(), differing.end(),
                                          [&](Index i, Index j) { return difference(i) < difference(j); });
    const double f = x.inv_freq(worst, 0), g = y.inv_freq(worst, 0);
    differ("inv_freq differs for " + std::to_string(differing.size()) + " of " + std::to_string(x.pairs()) +
               " pairs, within " + std::to_string(differing.front()) + " to " +
               std::to_string(differing.back()) + "; most at pair " + std::to_string(worst) + ":",
           digits(f), digits(g), equal(f, 0) ? "" : " (" + digits(100 * (g / f - 1)) + " %)");
    return false;
  }

  /// One sentence for each pair of different windows. Windows that are unknown on either side are skipped.
  ///
  /// \return  whether there is such a pair
  bool windows() {
    if (a.windows.empty() || b.windows.empty()) return false;
    const bool alone = a.windows.size() == 1 && b.windows.size() == 1;
    const std::size_t count = a.windows.size() == 1   ? b.windows.size()
                              : b.windows.size() == 1 ? a.windows.size()
                                                      : (std::min)(a.windows.size(), b.windows.size());
    bool any = false;
    for (const auto& [both, layers] : layers_by(count, [&](std::size_t layer) {
           return std::pair(window_in(a.windows, to_index(layer)), window_in(b.windows, to_index(layer)));
         })) {
      const auto [x, y] = both;
      if (x == y || x == not_known_window || y == not_known_window) continue;
      any = true;
      differ("the window is", window_text(x), window_text(y),
             ": " + (alone || layers.size() == count ? "every layer" : named_layers(layers)));
    }
    return any;
  }

  /// The differences in windows, causality, learned sinks, and whether keys are also values.
  void attention() {
    const bool both_slide = a.window_of_sliding > 0 && b.window_of_sliding > 0;
    if (!windows() && both_slide && a.window_of_sliding != b.window_of_sliding)
      differ("layers that slide have the window", window_text(a.window_of_sliding),
             window_text(b.window_of_sliding));
    if (a.attention_chunk > 0 && b.attention_chunk > 0 && a.attention_chunk != b.attention_chunk)
      differ("layers attend in chunks", "of " + std::to_string(a.attention_chunk) + " tokens",
             "of " + std::to_string(b.attention_chunk));
    only(a.causal, b.causal, "attention is causal in ", " and both ways in ");
    only(a.sink_logits, b.sink_logits, "sink logits are in the checkpoint of ", " and not in that of ");
    if (a.sink_logits == b.sink_logits && a.layers_without_sinks != b.layers_without_sinks &&
        a.layer_count() > 0 && b.layer_count() > 0)
      differ("layers without sink logits are", list_text(layers_text(a.layers_without_sinks)),
             list_text(layers_text(b.layers_without_sinks)));
    only(a.keys_are_values, b.keys_are_values, "keys are values too in ", " and not in ");
  }

  /// The differences in the layers that rotate, their factors on queries, and the types of layers.
  void layers() {
    const auto missing = [&](const Model& one, const Model& other) {
      for (const layer_group& group : one.groups())
        if (!group.layer_type.empty() && !other.group(group.layer_type))
          say(group.layer_type + " layers exist in " + one.source + " only");
    };
    missing(a, b);
    missing(b, a);
    if (a.layers_without_rope() != b.layers_without_rope())
      differ("layers without rotation are", list_text(joined(a.layers_without_rope())),
             list_text(joined(b.layers_without_rope())));
    if (!same_query_scaling())
      say("queries are scaled: " + query_scaling_text(a) + " in " + a.source + "; " + query_scaling_text(b) +
          " in " + b.source);
    attention();
    for (std::size_t i = 0; i < (std::min)(a.layers().size(), b.layers().size()); ++i)
      if (a.groups().size() > 1 && a.layers()[i] != b.layers()[i])
        return differ("layer " + std::to_string(i) + " is of type", a.layers()[i], b.layers()[i]);
  }

  /// The differences of a group of `a` and a group of `b`.
  void groups(const layer_group& x, const layer_group& y) {
    const std::string& type = x.layer_type.empty() ? y.layer_type : x.layer_type;
    where = type.empty() ? "" : type + ": ";
    layouts(x.layout, y.layout);
    number("head_dim", x.head_dim, y.head_dim);
    number("first rotated channel", x.first_channel, y.first_channel);
    number("rotary_dim", x.rotary_dim(), y.rotary_dim());
    const bool same = inv_freqs(x.frequencies, y.frequencies);
    if (!same || x.rule == y.rule) number("base", x.base, y.base);  // alpha: part of the base in GGUF
    for (const char* name : {"low", "high"})
      if (!same && x.number(name, -1) >= 0 && y.number(name, -1) >= 0)
        number(name, x.number(name, -1), y.number(name, -1));
    number("attention factor", x.frequencies.attention_factor(), y.frequencies.attention_factor());
    number("softmax multiplier", x.softmax_multiplier, y.softmax_multiplier);
    number("score scale", x.scale, y.scale);
    number("softcap", x.softcap, y.softcap);
    if (x.indexer && y.indexer && text_of(*x.indexer) != text_of(*y.indexer))
      differ("the indexer is rotated", "by " + text_of(*x.indexer), "by " + text_of(*y.indexer));
    if (!x.mrope_sections.empty() && !y.mrope_sections.empty() && x.section_order != y.section_order)
      differ("the axes of M-RoPE lie", order_of_axes(x).words, order_of_axes(y).words);
    if (x.mrope_sections != y.mrope_sections)
      differ("M-RoPE sections are", "[" + joined(x.mrope_sections) + "]",
             "[" + joined(y.mrope_sections) + "]");
  }

  /// True if both models multiply the queries of the same layers by the same factors.
  bool same_query_scaling() const {
    if (a.scaled != b.scaled) return false;
    if (a.scaled == scaled_queries::none || a.scaled == scaled_queries::not_known) return true;
    const auto numbers = [](const auto& scaling) {
      std::vector<double> all;
      const auto add = [&](const char*, double number) { all.push_back(number); };
      std::visit([&](const auto& rule) { each_number(rule, add); }, scaling.rule);
      return all;
    };
    const auto x = numbers(a.query_rule), y = numbers(b.query_rule);
    return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                      [&](double p, double q) { return are_close(p, q, tolerance); });
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP
