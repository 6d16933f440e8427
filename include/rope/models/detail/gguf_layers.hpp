// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP
#define ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>

/// Which layers of a GGUF model slide and which do not rotate: partly metadata, partly fixed in llama.cpp for
/// an architecture. Source: llama.cpp, load_hparams of each architecture.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Every so many layers the last one attends fully and the others slide; 0: not fixed.
inline Index gguf_full_every(std::string_view architecture, Index layers) {
  if (architecture == "gemma3") return 6;
  if (architecture == "gemma3n") return 5;
  if (architecture == "cohere2" || architecture == "llama4") return 4;
  if (architecture == "exaone4" && layers == 64) return 4;  // the smaller model has no sliding layers
  return 0;
}

/// One entry per layer, whether it slides; empty if that is not known, or if none does.
template <class L>
std::vector<bool> gguf_sliding_layers(const gguf_reader<L>& reader, Index layers) {
  constexpr const char* name = "attention.sliding_window_pattern";
  std::vector<bool> sliding;
  if (const auto given = reader.numbers(name, range::zero_or_one)) {
    const std::string broken = broken_rule_of_layer_list(given->size(), layers, "block_count values");
    if (!broken.empty()) reader.refuse(reader.key(name), broken);
    for (const double slides : *given) sliding.push_back(!equal(slides, 0));
    return sliding;
  }
  const auto every = reader.number(name, range::count);
  const Index period = every ? static_cast<Index>(*every) : gguf_full_every(reader.architecture(), layers);
  if (period == 0 || reader.number("attention.sliding_window", range::not_negative) == 0.0) return sliding;
  for (Index i = 0; i < layers; ++i) sliding.push_back(i % period < period - 1);
  return sliding;
}

/// The layers that do not rotate, in increasing order.
template <class L>
std::vector<Index> gguf_layers_without_rope(const gguf_reader<L>& reader, Index layers,
                                            const std::vector<bool>& sliding) {
  const std::string_view architecture = reader.architecture();
  std::vector<Index> without;
  if (architecture == "smollm3")
    for (Index i = 3; i < layers; i += 4) without.push_back(i);
  if (architecture == "llama4" || architecture == "cohere2" || architecture == "exaone4")
    for (std::size_t i = 0; i < sliding.size(); ++i)
      if (!sliding[i]) without.push_back(static_cast<Index>(i));
  return without;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP
