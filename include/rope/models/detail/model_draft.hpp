// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP
#define ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/config.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>

/// A model while it is imported.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The parts of a model_rope, which may not fit together before the last of them is there.
struct model_draft : model_facts {
  std::vector<layer_group> groups = {};
  std::vector<std::string> layers = {};
  std::vector<Index> layers_without_rope = {}, layers_not_known = {};
  std::string instead_of_rope = {};

  void warn_once(std::string text) {
    if (!contains(warnings, text)) warnings.push_back(std::move(text));
  }

  const layer_group* group(std::string_view layer_type) const {
    for (const layer_group& one : groups)
      if (one.layer_type == layer_type || one.layer_type.empty()) return &one;
    return nullptr;
  }

  /// Throws:  as the constructor of model_rope; the draft is gone then
  model_rope finished() && {
    name_types_by_window();
    return model_rope(static_cast<model_facts&&>(*this), std::move(groups),
                      {.types = std::move(layers),
                       .without_rope = std::move(layers_without_rope),
                       .not_known = std::move(layers_not_known),
                       .instead_of_rope = std::move(instead_of_rope)});
  }

 private:
  /// Layers of one group without types that have windows or none (gpt-oss, Gemma 2) get the types that tell
  /// them apart.
  void name_types_by_window() {
    const bool slide = contains(windows, window_of_sliding) && window_of_sliding > 0;
    if (groups.size() != 1 || !layers.empty() || windows.size() < 2 || !slide || !contains(windows, Index{0}))
      return;
    for (const Index window : windows)
      layers.emplace_back(window == 0                   ? "full_attention"
                          : window == window_of_sliding ? "sliding_attention"
                                                        : "not_known");
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_MODEL_DRAFT_HPP
