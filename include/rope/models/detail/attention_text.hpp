// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_ATTENTION_TEXT_HPP
#define ROPE_MODELS_DETAIL_ATTENTION_TEXT_HPP

#include <algorithm>  // std::find_if, std::sort
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/model_rope.hpp>

/// Sentences about how the layers of a model attend.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// "0 to 4, 6 to 10, 12", or "5, 11, ..., 29" where the same step leads from each to the next.
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

/// One sentence for each window that there is, the most frequent last.
template <class Windows>
std::vector<std::string> windows_texts(const Windows& windows) {
  struct alike {
    Index window;
    std::vector<Index> layers;
  };
  std::vector<alike> all;
  for (std::size_t layer = 0; layer < windows.size(); ++layer) {
    auto same =
        std::find_if(all.begin(), all.end(), [&](const alike& a) { return a.window == windows[layer]; });
    if (same == all.end()) same = all.insert(all.end(), {windows[layer], {}});
    same->layers.push_back(static_cast<Index>(layer));
  }
  if (all.empty()) return {window_text(not_known_window)};
  if (all.size() == 1) return {window_text(all[0].window) + ", every layer"};
  std::vector<std::pair<typename Windows::value_type, Index>> order;  // layers, and where they stand in `all`
  for (const alike& a : all)
    order.emplace_back(static_cast<Index>(a.layers.size()), static_cast<Index>(order.size()));
  std::sort(order.data(), order.data() + order.size());
  std::vector<std::string> texts;
  for (const auto& [layers, place] : order) {
    const alike& a = all[static_cast<std::size_t>(place)];
    const std::string count = std::to_string(layers);
    texts.push_back(window_text(a.window) + ", " +
                    (place == order.back().second
                         ? "the other " + count + " layers"
                         : (a.layers.size() == 1 ? "layer " : "layers ") + layers_text(a.layers)));
  }
  return texts;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_ATTENTION_TEXT_HPP
