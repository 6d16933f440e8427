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

/// Windows, causality and learned sinks.
template <class Model>
std::vector<std::string> attention_differences(const Model& a, const Model& b) {
  auto texts = window_differences(a, b);
  if (a.causal != b.causal) {
    const Model &causal = a.causal ? a : b, &other = a.causal ? b : a;
    texts.push_back("attention is causal in " + causal.source + " and both ways in " + other.source);
  }
  if (a.sink_logits != b.sink_logits) {
    const Model &with = a.sink_logits ? a : b, &without = a.sink_logits ? b : a;
    texts.push_back("sink logits are in the checkpoint of " + with.source + " and not in that of " +
                    without.source);
  }
  return texts;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ATTENTION_COMPARISON_HPP
