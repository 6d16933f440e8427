// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP
#define ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP

#include <algorithm>  // std::find_if, std::max, std::min, std::sort
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
#include <rope/models/detail/rule_numbers.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

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

// Sentences about the differences of two groups of layers.

/// What gives a model the positions of its tokens, and the kind of file with this information.
template <class Model>
std::string place_text(const Model& model) {
  return (model.groups().empty() ? model.instead_of_rope() : "rotation") + " in " + model.source;
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

/// How pairs are assigned to the axes of M-RoPE, in words.
inline const char* order_of_axes(const layer_group& group) {
  switch (group.section_order) {
    case mrope_order::alternating:
      return "alternating";
    case mrope_order::time_last:
      return "time last, the others alternating";
    case mrope_order::spread:
      return "spread by their shares, the first axis last";
    case mrope_order::blocks:
      break;
  }
  return "in blocks";
}

/// Collects the differences between the two models in one group, each with both numbers.
template <class Model>
struct group_comparison {
  const Model &a, &b;
  std::string where;
  double tolerance;
  std::vector<std::string>& found;

  void say(const std::string& text) const { found.push_back(where + text); }

  void number(const char* name, double x, double y) const {
    if ((std::abs)(x - y) > tolerance * (std::max)((std::abs)(x), (std::abs)(y)))
      say(std::string(name) + " is " + digits(x) + " in " + a.source + " and " + digits(y) + " in " +
          b.source);
  }

  void layouts(layout_kind x, layout_kind y) const {
    if (x == y) return;
    // A converter permutes the rows of q and k from half_split in Hugging Face files to interleaved in GGUF.
    // For GLM-4V it permutes from interleaved to half_split, because the M-RoPE of ggml is half_split.
    const auto permuted = [](const Model& from, layout_kind of_from, const Model& to) {
      return from.source == "Hugging Face" && to.source == "GGUF" &&
             (of_from == layout_kind::half_split || to.architecture == "glm4");
    };
    const bool expected = permuted(a, x, b) || permuted(b, y, a);
    say(std::string("layout is ") + name_of(x) + " in " + a.source + " and " + name_of(y) + " in " +
        b.source +
        (expected
             ? ", as expected: the converter to GGUF permutes the weights of q and k for this architecture"
             : ", so one of them has the wrong weights"));
  }

  /// Returns whether the frequencies agree.
  bool inv_freqs(const frequencies& x, const frequencies& y) const {
    if (x.pairs() != y.pairs()) return false;  // the line about rotary_dim reports it
    Index differing = 0, first = 0, last = 0, worst = 0;
    double most = 0;
    for (Index i = 0; i < x.pairs(); ++i) {
      const double f = x.inv_freq(i, 0), g = y.inv_freq(i, 0);
      const double larger = (std::max)((std::abs)(f), (std::abs)(g));
      if ((std::abs)(f - g) <= tolerance * larger) continue;
      if (differing++ == 0) first = i;
      last = i;
      if ((std::abs)(f - g) / larger > most) {
        most = (std::abs)(f - g) / larger;
        worst = i;
      }
    }
    if (differing == 0) return true;
    const double f = x.inv_freq(worst, 0), g = y.inv_freq(worst, 0);
    say("inv_freq differs for " + std::to_string(differing) + " of " + std::to_string(x.pairs()) +
        " pairs, within " + std::to_string(first) + " to " + std::to_string(last) + "; most at pair " +
        std::to_string(worst) + ": " + digits(f) + " in " + a.source + " and " + digits(g) + " in " +
        b.source + (equal(f, 0) ? "" : " (" + digits(100 * (g / f - 1)) + " %)"));
    return false;
  }
};

/// True if some pair rotates by minus the position.
inline bool any_rotates_back(const frequencies& of) {
  for (Index a = 0; a < of.axes(); ++a)
    for (Index i = 0; i < of.pairs(); ++i)
      if (of.inv_freq(i, a) < 0) return true;
  return false;
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

// Sentences about differences in the visible keys of two models.

/// One sentence for each pair of different windows. Windows that are unknown on either side are skipped.
template <class Model>
std::vector<std::string> window_differences(const Model& a, const Model& b) {
  if (a.windows.empty() || b.windows.empty()) return {};
  // A list with one window holds for every layer.
  const bool alone = a.windows.size() == 1 && b.windows.size() == 1;
  const std::size_t count = a.windows.size() == 1   ? b.windows.size()
                            : b.windows.size() == 1 ? a.windows.size()
                                                    : (std::min)(a.windows.size(), b.windows.size());
  const auto at = [](const std::vector<Index>& windows, std::size_t layer) {
    return windows.size() == 1 ? windows.front() : windows[layer];
  };
  std::vector<std::string> texts;
  for (const auto& [both, layers] : layers_by(
           count, [&](std::size_t layer) { return std::pair(at(a.windows, layer), at(b.windows, layer)); })) {
    const auto [x, y] = both;
    if (x == y || x == not_known_window || y == not_known_window) continue;
    texts.push_back("the window is " + window_text(x) + " in " + a.source + " and " + window_text(y) +
                    " in " + b.source + ": " +
                    (alone || layers.size() == count ? "every layer" : named_layers(layers)));
  }
  return texts;
}

/// The differences in windows, causality, learned sinks, and whether keys are also values.
template <class Model>
std::vector<std::string> attention_differences(const Model& a, const Model& b) {
  auto texts = window_differences(a, b);
  const bool both_slide = a.window_of_sliding > 0 && b.window_of_sliding > 0;
  if (texts.empty() && both_slide && a.window_of_sliding != b.window_of_sliding)
    texts.push_back("layers that slide have the window " + window_text(a.window_of_sliding) + " in " +
                    a.source + " and " + window_text(b.window_of_sliding) + " in " + b.source);
  if (a.attention_chunk > 0 && b.attention_chunk > 0 && a.attention_chunk != b.attention_chunk)
    texts.push_back("layers attend in chunks of " + std::to_string(a.attention_chunk) + " tokens in " +
                    a.source + " and of " + std::to_string(b.attention_chunk) + " in " + b.source);
  if (a.causal != b.causal) {
    const Model &causal = a.causal ? a : b, &other = a.causal ? b : a;
    texts.push_back("attention is causal in " + causal.source + " and both ways in " + other.source);
  }
  if (a.sink_logits != b.sink_logits) {
    const Model &with = a.sink_logits ? a : b, &without = a.sink_logits ? b : a;
    texts.push_back("sink logits are in the checkpoint of " + with.source + " and not in that of " +
                    without.source);
  } else if (a.layers_without_sinks != b.layers_without_sinks && a.layer_count() > 0 && b.layer_count() > 0) {
    const auto layers_of = [](const Model& model) {
      return model.layers_without_sinks.empty() ? "none" : layers_text(model.layers_without_sinks);
    };
    texts.push_back("layers without sink logits are " + layers_of(a) + " in " + a.source + " and " +
                    layers_of(b) + " in " + b.source);
  }
  if (a.keys_are_values != b.keys_are_values) {
    const Model &with = a.keys_are_values ? a : b, &without = a.keys_are_values ? b : a;
    texts.push_back("keys are values too in " + with.source + " and not in " + without.source);
  }
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
  switch (model.scaled) {
    case scaled_queries::none:
      break;
    case scaled_queries::every_layer:
      return "by " + formula_of(model.query_rule) + " at position p, every layer";
    case scaled_queries::layers_without_rope:
      return "by " + formula_of(model.query_rule) + " at position p, the layers without rotation";
    case scaled_queries::not_known:
      return "not known from this file";
  }
  return "none";
}

/// True if both models multiply the queries of the same layers by the same factors.
template <class Model>
bool same_query_scaling(const Model& a, const Model& b, double tolerance) {
  if (a.scaled != b.scaled) return false;
  if (a.scaled == scaled_queries::none || a.scaled == scaled_queries::not_known) return true;
  const auto numbers = [](const auto& scaling) {
    std::vector<double> all;
    const auto add = [&](const char*, double number) { all.push_back(number); };
    std::visit([&](const auto& rule) { each_number(rule, add); }, scaling.rule);
    return all;
  };
  const auto x = numbers(a.query_rule), y = numbers(b.query_rule);
  bool same = x.size() == y.size();
  for (std::size_t i = 0; same && i < x.size(); ++i)
    same = (std::abs)(x[i] - y[i]) <= tolerance * (std::max)((std::abs)(x[i]), (std::abs)(y[i]));
  return same;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_DESCRIPTION_TEXT_HPP
