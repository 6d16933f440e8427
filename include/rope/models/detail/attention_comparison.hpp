// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_ATTENTION_COMPARISON_HPP
#define ROPE_MODELS_DETAIL_ATTENTION_COMPARISON_HPP

#include <algorithm>  // std::find_if, std::min
#include <cstddef>
#include <string>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/attention_text.hpp>
#include <rope/models/model_rope.hpp>

/// Sentences about where two models differ in who sees whom.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One sentence for each pair of windows that differ. Those that either side does not know are passed over.
template <class Model>
std::vector<std::string> window_differences(const Model& a, const Model& b) {
  if (a.windows.empty() || b.windows.empty()) return {};
  // One window is that of every layer.
  const bool alone = a.windows.size() == 1 && b.windows.size() == 1;
  const std::size_t count = a.windows.size() == 1   ? b.windows.size()
                            : b.windows.size() == 1 ? a.windows.size()
                                                    : (std::min)(a.windows.size(), b.windows.size());
  const auto at = [](const std::vector<Index>& windows, std::size_t layer) {
    return windows.size() == 1 ? windows.front() : windows[layer];
  };
  struct difference {
    Index of_a, of_b;
    std::vector<Index> layers;
  };
  std::vector<difference> all;
  for (std::size_t layer = 0; layer < count; ++layer) {
    const Index x = at(a.windows, layer), y = at(b.windows, layer);
    if (x == y || x == not_known_window || y == not_known_window) continue;
    auto same =
        std::find_if(all.begin(), all.end(), [&](const difference& d) { return d.of_a == x && d.of_b == y; });
    if (same == all.end()) same = all.insert(all.end(), {x, y, {}});
    same->layers.push_back(static_cast<Index>(layer));
  }
  std::vector<std::string> texts;
  for (const difference& d : all)
    texts.push_back("the window is " + window_text(d.of_a) + " in " + a.source + " and " +
                    window_text(d.of_b) + " in " + b.source + ": " +
                    (alone || d.layers.size() == count
                         ? "every layer"
                         : (d.layers.size() == 1 ? "layer " : "layers ") + layers_text(d.layers)));
  return texts;
}

/// Windows, causality, learned sinks, and whether keys are values.
template <class Model>
std::vector<std::string> attention_differences(const Model& a, const Model& b) {
  auto texts = window_differences(a, b);
  const bool both_slide = a.window_of_sliding > 0 && b.window_of_sliding > 0;
  if (texts.empty() && both_slide && a.window_of_sliding != b.window_of_sliding)
    texts.push_back("layers that slide have the window " + window_text(a.window_of_sliding) + " in " +
                    a.source + " and " + window_text(b.window_of_sliding) + " in " + b.source);
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

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ATTENTION_COMPARISON_HPP
