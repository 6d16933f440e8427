// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>

/// Which layer of a config.json is of which type, and which of them do not turn.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The values of a list that has one per layer.
template <class J, class T>
std::optional<std::vector<T>> fitting_list(json_reader<J>& text, const hugging_face_record& defaults,
                                           const char* key, std::optional<Index> layers,
                                           std::optional<std::vector<T>> list) {
  if (!list) return list;
  if (defaults.more_in_lists && layers && static_cast<Index>(list->size()) > *layers)
    list->resize(static_cast<std::size_t>(*layers));
  const std::string broken =
      broken_rule_of_layer_list(list->size(), layers.value_or(0), "num_hidden_layers values");
  if (!broken.empty()) text.refuse(key, broken);
  return list;
}

/// The types of layers by a list that has 1 for one that slides.
template <class J>
std::optional<std::vector<std::string>> types_by_pattern(json_reader<J>& text,
                                                         const hugging_face_record& defaults,
                                                         std::optional<Index> layers) {
  constexpr const char* key = "hybrid_layer_pattern";
  if (!defaults.swa_keys) return {};
  const auto slides = fitting_list(text, defaults, key, layers, text.numbers(key, range::zero_or_one));
  if (!slides) return {};
  std::vector<std::string> types;
  for (const double one : *slides)
    types.emplace_back(equal(one, 1) ? defaults.other_type : defaults.full_type);
  return types;
}

/// Whether layers of that type attend to all tokens. Where the others do not attend, files have two names for
/// it. Qwen 4 has another one for those that attend to the keys that an indexer chooses.
///
/// Source: Hugging Face transformers, remap_legacy_layer_types; models/qwen4_exp
inline bool is_full(const hugging_face_record& defaults, const std::string& type) {
  return type == defaults.full_type || (!defaults.others_attend && defaults.full_type == "full_attention" &&
                                        (type == "attention" || type == "qwen_sparse_attention"));
}

/// The types of layers of a file that has the numbers of those that attend.
inline std::vector<std::string> listed_layer_types(const hugging_face_record& defaults, Index layers,
                                                   const std::vector<double>& attending) {
  std::vector<std::string> types(static_cast<std::size_t>(layers), std::string(defaults.other_type));
  for (const double layer : attending)
    if (layer < static_cast<double>(layers)) types[static_cast<std::size_t>(layer)] = defaults.full_type;
  return types;
}

/// How many layers at the start are dense, in models that say so.
template <class J>
Index dense_layers_of(json_reader<J>& text, const hugging_face_record& defaults) {
  return defaults.dense_first ? text.index("first_k_dense_replace", range::whole).value_or(0) : 0;
}

/// The types of layers of DeepSeek V4: by how many tokens share a key.
template <class J>
std::vector<std::string> compressed_layer_types(json_reader<J>& text, const hugging_face_record& defaults,
                                                std::optional<Index> layers) {
  constexpr const char* key = "compress_ratios";
  const auto ratios = fitting_list(text, defaults, key, layers, text.numbers(key, range::whole));
  if (!ratios) text.missing("layer_types", "so is compress_ratios, and layers turn by two schedules");
  std::vector<std::string> types;
  for (const double ratio : *ratios) {
    if (!equal(ratio, 0) && !equal(ratio, 4) && !equal(ratio, 128))
      text.refuse(key, "must be 0, 4 or 128, got " + exact_digits(ratio));
    types.emplace_back(equal(ratio, 0)   ? "sliding_attention"
                       : equal(ratio, 4) ? "compressed_sparse_attention"
                                         : "heavily_compressed_attention");
  }
  return types;
}

/// The type of every layer: given, or by the pattern of the architecture, or empty.
///
/// \param slides  whether there is a window for layers to slide
template <class J>
std::vector<std::string> layer_types_of(json_reader<J>& text, const hugging_face_record& defaults,
                                        std::optional<Index> layers, bool slides) {
  auto by_pattern = types_by_pattern(text, defaults, layers);
  if (auto given = fitting_list(text, defaults, "layer_types", layers, text.texts("layer_types")))
    return *std::move(given);
  if (by_pattern) return *std::move(by_pattern);
  if (defaults.form == dictionary_form::compressed) return compressed_layer_types(text, defaults, layers);
  if (!defaults.others_attend) {
    constexpr const char* older = "layers_block_type";
    if (auto given = fitting_list(text, defaults, older, layers, text.texts(older))) return *std::move(given);
    const std::string list(defaults.full_list);
    if (list.empty() && defaults.full_every == 0)
      text.missing("layer_types", "only some layers attend at all");
    const auto attending = list.empty() ? std::nullopt : text.numbers(list.c_str(), range::whole);
    if (layers && (attending || defaults.full_every == 0))
      return listed_layer_types(defaults, *layers, attending.value_or(std::vector<double>{}));
  }
  if (!layers || defaults.full_every == 0 || !slides) return {};
  std::vector<std::string> types;
  const auto add = [&](bool full) { types.emplace_back(full ? defaults.full_type : defaults.other_type); };
  if (text.is_text("sliding_window_pattern")) {  // EXAONE: "LLLG", local and global
    const std::string letters = *text.text("sliding_window_pattern");
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
      text.refuse("sliding_window_pattern", "must be a number or made of L and G, got " + letters);
    for (Index i = 0; i < *layers; ++i) add(letters[static_cast<std::size_t>(i) % letters.size()] == 'G');
    return types;
  }
  auto every = text.index("sliding_window_pattern");
  if (!every) every = text.index("_sliding_window_pattern");
  if (!every) every = text.index("global_attn_every_n_layers");
  if (!every && !defaults.others_attend) every = text.index("full_attention_interval");
  const Index period = every.value_or(defaults.full_every);
  const Index full = defaults.full_offset == 0 ? 0 : period - 1;
  const Index dense = dense_layers_of(text, defaults),
              of_dense = text.index("prefix_dense_sliding_window_pattern").value_or(1);
  for (Index i = 0; i < *layers; ++i) {
    const Index at = defaults.from_end ? *layers - 1 - i : i - dense;
    add(i < dense ? i % of_dense == of_dense - 1 : at % period == full || (i == 0 && defaults.first_full));
  }
  if (defaults.last_full && !contains(types, defaults.full_type)) types.back() = defaults.full_type;
  return types;
}

/// Whether a layer is dense and turns for that, however far it looks (Cohere 2 MoE).
template <class J>
std::vector<bool> dense_layers_that_turn(json_reader<J>& text, const hugging_face_record& defaults,
                                         std::size_t layers) {
  std::vector<bool> turn(layers, false);
  if (!defaults.dense_first || text.index("prefix_dense_sliding_window_pattern").value_or(1) != 1)
    return turn;
  const auto count = static_cast<Index>(layers);
  const auto kinds = fitting_list(text, defaults, "mlp_layer_types", count, text.texts("mlp_layer_types"));
  const Index dense = dense_layers_of(text, defaults);
  for (std::size_t i = 0; i < layers; ++i)
    turn[i] = kinds ? (*kinds)[i] == "dense" : static_cast<Index>(i) < dense;
  return turn;
}

/// The base of every layer, where a file gives them one by one; 0: the layer does not turn.
template <class J>
std::optional<std::vector<double>> layer_bases_of(json_reader<J>& text, const hugging_face_record& defaults,
                                                  std::optional<Index> layers) {
  if (defaults.form != dictionary_form::base_per_layer) return {};
  constexpr const char* key = "layer_rope_theta";
  return fitting_list(text, defaults, key, layers, text.numbers(key, range::zero_or_above_one));
}

/// The layers that `no_rope_layers` names, which holds 1 for a layer that rotates and 0 for one that does
/// not, or every so many.
///
/// \param types  how many layers have a type, or 0
template <class J>
std::vector<Index> named_without_rope(json_reader<J>& text, const hugging_face_record& defaults,
                                      std::optional<Index> layers, std::size_t types) {
  std::vector<Index> without;
  if (const auto bases = layer_bases_of(text, defaults, layers)) {
    for (std::size_t i = 0; i < bases->size(); ++i)
      if (equal((*bases)[i], 0)) without.push_back(static_cast<Index>(i));
    return without;
  }
  const auto given = text.numbers("no_rope_layers", range::zero_or_one);
  if (given && !given->empty()) {
    const std::vector<double> rotates = *fitting_list(text, defaults, "no_rope_layers", layers, given);
    if (types > 0 && rotates.size() != types)
      text.refuse("no_rope_layers", "must have as many values as layer_types, " + std::to_string(types) +
                                        ", got " + std::to_string(rotates.size()));
    for (std::size_t i = 0; i < rotates.size(); ++i)
      if (equal(rotates[i], 0)) without.push_back(static_cast<Index>(i));
    return without;
  }
  const Index period = text.index("no_rope_layer_interval").value_or(defaults.no_rope_every);
  if (period == 0) return without;
  if (!layers) text.missing("num_hidden_layers", "every no_rope_layer_interval-th layer does not rotate");
  for (Index i = defaults.from_end ? (*layers - 1) % period : period - 1; i < *layers; i += period)
    without.push_back(i);
  return without;
}

/// The layers that do not rotate, in increasing order.
///
/// \param types   of the layers, or empty
/// \param slides  as in layer_types_of
template <class J>
std::vector<Index> layers_without_rope_of(json_reader<J>& text, const hugging_face_record& defaults,
                                          std::optional<Index> layers, const std::vector<std::string>& types,
                                          bool slides) {
  std::vector<Index> without = named_without_rope(text, defaults, layers, types.size());
  if (defaults.crosses)
    for (const double layer : text.numbers("cross_attention_layers", range::whole)
                                  .value_or(std::vector<double>{3, 8, 13, 18, 23, 28, 33, 38}))
      if (layer < static_cast<double>(types.empty() ? layers.value_or(max_layers) : to_index(types.size())))
        without.push_back(static_cast<Index>(layer));
  const std::vector<bool> dense = dense_layers_that_turn(text, defaults, types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool full = is_full(defaults, types[i]);
    if ((full && !defaults.full_rotate && slides && !dense[i]) || (!full && !defaults.others_attend))
      without.push_back(static_cast<Index>(i));
  }
  // Both rules may have named a layer.
  sort_distinct(without);
  return without;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
