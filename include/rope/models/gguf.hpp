// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_GGUF_HPP
#define ROPE_MODELS_GGUF_HPP

#include <concepts>  // std::convertible_to
#include <optional>
#include <string>
#include <vector>

#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/gguf_importer.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// Imports the rotary embedding of a model from the metadata of its GGUF file. Keys have their meaning in
/// llama.cpp.

namespace rope::inline ROPE_ABI {

/// Access to a GGUF file, for any reader. Each member returns nothing if the key is absent or its value has
/// another type.
///
///     number(key)   a metadata value: integer, float or bool
///     text(key)     a metadata value: string
///     numbers(key)  a metadata value: array; or the tensor of that name, such as "rope_freqs.weight"
template <class L>
concept gguf_lookup = requires(const L& lookup, const std::string& key) {
  { lookup.number(key) } -> std::convertible_to<std::optional<double>>;
  { lookup.text(key) } -> std::convertible_to<std::optional<std::string>>;
  { lookup.numbers(key) } -> std::convertible_to<std::optional<std::vector<double>>>;
};

/// Information that a GGUF file lacks. Its length decides between rope_factors_short and rope_factors_long.
///
///     const model_rope model = import_gguf(file, {.length = 32768, .layout = layout_kind::half_split});
using gguf_options = import_options;

/// Reads the rotary embedding of a model from the metadata of its GGUF file.
///
/// Absent keys get the values of llama.cpp. Without rope.scaling.type the rule is linear. A factor that is
/// absent or 0 counts as 1. Without freq_base the base is 10000, and without dimension_count the whole head
/// rotates. The bounds of YaRN are always rounded outwards, so a model with `truncate: false` differs from
/// its Hugging Face original. compare_models() reports the difference.
///
/// Layers have a sliding window only in architectures whose graphs in llama.cpp have one. In all other
/// architectures the window is 0, and warnings name the keys without effect.
///
/// A file may have up to 16384 layers, and up to 1024 groups of layers with 32768 pairs together.
///
/// \param lookup   reads the file
/// \param options  information that the file lacks
///
/// Throws:  std::invalid_argument, whose message names the key or tensor, if a value is wrong or missing, the
///          architecture is not known and no layout is named, or no layer rotates and options.without_rope
///          does not request the description of such a model. If valid values do not fit together, the
///          message may be that of the rule, such as yarn_scaling
/// Source:  llama.cpp, llama-model.cpp and llama-context.cpp; ggml, ggml_rope_ext
template <class L>
model_rope import_gguf(const L& lookup, const gguf_options& options = {}) {
  static_assert(
      gguf_lookup<L>,
      "import_gguf: lookup is an object that reads the file, not its path: a class with number(key), "
      "text(key) and numbers(key), such as that of examples/gguf_file.hpp");
  if constexpr (gguf_lookup<L>) {
    detail::checked(options.length, detail::range::not_negative, "import_gguf", "options.length");
    return detail::gguf_importer<L>(lookup, options).result();
  }
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_GGUF_HPP
