// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP

#include <algorithm>  // std::binary_search
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// The type and the attention window of each layer of a config.json, the layers that do not rotate, and the
/// class defaults used for them. A layer slides if it attends to a sliding window of tokens. A layer that
/// attends fully sees all tokens up to the query.

namespace rope::inline ROPE_ABI::detail {

/// Whether layers of this type attend to all tokens, or to tokens that an indexer chooses among all. In
/// architectures whose other layers do not attend, files use two names for this type.
///
/// Source: Hugging Face transformers, remap_legacy_layer_types; models/qwen4_exp, models/deepseek_v32,
///         models/hy_v4
inline bool is_full(const hugging_face_record& defaults, const std::string& type) {
  const bool chosen =
      defaults.indexer != indexer_kind::no_indexer &&
      (type == "qwen_sparse_attention" || type == "deepseek_sparse_attention" || type == "indexed_attention");
  return type == defaults.full_type || chosen ||
         (!others_attend(defaults) && defaults.full_type == "full_attention" && type == "attention");
}

/// Whether the first of each run of the pattern attends fully.
constexpr bool full_comes_first(const hugging_face_record& defaults) {
  const auto& [every, full, key] = defaults.pattern;
  return full == full_layers::first || full == full_layers::first_from_end || (every == 1 && key.empty());
}

/// Whether runs of layers are counted back from the last layer.
constexpr bool counts_back(const hugging_face_record& defaults) {
  return defaults.pattern.full == full_layers::first_from_end;
}

/// "the last of every 4 layers"
inline std::string one_of_every(Index period, bool first, bool from_end) {
  return std::string(first ? "the first" : "the last") + " of every " + std::to_string(period) + " layers" +
         (from_end ? ", counted from the end," : "");
}

/// Reads the type and the window of each layer.
template <class J>
struct hugging_face_layers {
  json_reader<J>& text;
  const hugging_face_record& defaults;
  std::optional<Index> count = {};  // of layers, or nothing if unknown

  // The type of each layer, and the layers that do not rotate.

  /// The values of a list with one value per layer.
  template <class T>
  std::optional<std::vector<T>> fitting(std::string_view key, std::optional<std::vector<T>> list) const {
    if (!list) return list;
    if (defaults.more_in_lists && count && to_index(list->size()) > *count)
      list->resize(static_cast<std::size_t>(*count));
    check_layer_list(list->size(), count.value_or(0), "num_hidden_layers values",
                     [&](const std::string& rule) { text.refuse(key, rule); });
    return list;
  }

  /// The types of layers according to the list of type_ones.
  std::optional<std::vector<std::string>> types_by_pattern() const {
    const std::string_view key = defaults.type_ones;
    if (key.empty()) return {};
    const auto given = fitting(key, text.numbers(key, range::zero_or_one));
    if (!given) return {};
    std::vector<std::string> types;
    for (const double one : *given)
      types.emplace_back(equal(one, 1) == others_attend(defaults) ? defaults.other_type : defaults.full_type);
    return types;
  }

  /// The number of dense layers at the start, if the model has such layers.
  Index dense() const {
    return defaults.dense_first ? text.index("first_k_dense_replace", range::whole).value_or(0) : 0;
  }

  /// The layer types of DeepSeek V4, from the number of tokens that each layer compresses into a key.
  std::vector<std::string> types_by_compression() const {
    constexpr const char* key = "compress_ratios";
    const auto ratios = fitting(key, text.numbers(key, range::whole));
    if (!ratios) text.missing("layer_types", "so is compress_ratios, and layers rotate by two schedules");
    return compressed_types(*ratios, [&](const std::string& rule) { text.refuse(key, rule); });
  }

  /// The type of every layer, from the file or from the pattern of the architecture. Empty if unknown or all
  /// alike.
  ///
  /// \param slides  whether there is a sliding window
  std::vector<std::string> types(bool slides) const {
    auto by_pattern = types_by_pattern();
    if (auto given = fitting("layer_types", text.texts("layer_types"))) return *std::move(given);
    if (by_pattern) return *std::move(by_pattern);
    if (defaults.form == dictionary_form::compressed) return types_by_compression();
    if (!others_attend(defaults)) {
      constexpr const char* older = "layers_block_type";
      if (auto given = fitting(older, text.texts(older))) return *std::move(given);
      const std::string_view list = defaults.full_list;
      if (list.empty() && defaults.pattern.every == 0)
        text.missing("layer_types", "only some layers attend at all");
      const auto attending = list.empty() ? std::nullopt : text.numbers(list, range::whole);
      if (count && (attending || defaults.pattern.every == 0)) {
        std::vector<std::string> types(static_cast<std::size_t>(*count), std::string(defaults.other_type));
        for (const double layer : attending.value_or(std::vector<double>{}))
          if (layer < static_cast<double>(*count))
            types[static_cast<std::size_t>(layer)] = defaults.full_type;
        return types;
      }
    }
    if (!count || defaults.pattern.every == 0 || !slides) return {};
    std::vector<std::string> types;
    const auto add = [&](bool full) { types.emplace_back(full ? defaults.full_type : defaults.other_type); };
    if (text.is_text("sliding_window_pattern")) {  // EXAONE: "LLLG", local and global
      const std::string letters = *text.text("sliding_window_pattern");
      if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos)
        text.refuse("sliding_window_pattern", "must be a number or made of L and G, got ", letters);
      for (Index i = 0; i < *count; ++i) add(letters[static_cast<std::size_t>(i) % letters.size()] == 'G');
      return types;
    }
    auto every = text.index("sliding_window_pattern");
    if (!every) every = text.index("_sliding_window_pattern");
    if (!every) every = text.index("global_attn_every_n_layers");
    if (!every && !defaults.pattern.key.empty()) every = text.index(defaults.pattern.key);
    const Index period = every.value_or(defaults.pattern.every);
    const Index full = defaults.pattern.key == "mamba_step" ? period / 2
                       : full_comes_first(defaults)         ? 0
                                                            : period - 1;
    const Index rest =
        defaults.pattern.full == full_layers::last_and_rest ? *count / period * period : *count;
    const Index first_dense = dense(),
                of_dense = text.index("prefix_dense_sliding_window_pattern").value_or(1);
    for (Index i = 0; i < *count; ++i) {
      const Index at = counts_back(defaults) ? *count - 1 - i : i - first_dense;
      add(i < first_dense ? i % of_dense == of_dense - 1
                          : at % period == full || i >= rest ||
                                (i == 0 && defaults.pattern.full == full_layers::last_and_first));
    }
    if (defaults.pattern.full == full_layers::last_if_none && !contains(types, defaults.full_type))
      types.back() = defaults.full_type;
    return types;
  }

  /// For each layer, whether it is a dense layer that rotates whatever its window is (Cohere 2 MoE).
  std::vector<bool> dense_that_rotate(std::size_t layers) const {
    std::vector<bool> rotates(layers, false);
    if (!defaults.dense_first || text.index("prefix_dense_sliding_window_pattern").value_or(1) != 1)
      return rotates;
    constexpr const char* key = "mlp_layer_types";
    const auto kinds = hugging_face_layers{text, defaults, to_index(layers)}.fitting(key, text.texts(key));
    for (std::size_t i = 0; i < layers; ++i)
      rotates[i] = kinds ? (*kinds)[i] == "dense" : to_index(i) < dense();
    return rotates;
  }

  /// The base of each layer, if a file lists bases. 0: the layer does not rotate.
  std::optional<std::vector<double>> bases() const {
    if (defaults.form != dictionary_form::base_per_layer) return {};
    constexpr const char* key = "layer_rope_theta";
    return fitting(key, text.numbers(key, range::zero_or_above_one));
  }

  /// The layers that do not rotate, from `layer_rope_theta` (bases), or from `no_rope_layers`: a
  /// list with 1 for a rotated layer and 0 for others, or a period.
  ///
  /// \param typed  the number of layers that have a type, or 0
  std::vector<Index> named_without_rope(std::size_t typed) const {
    std::vector<Index> without;
    if (const auto listed = bases()) {
      add_layers_where(without, *listed, is_zero);
      return without;
    }
    const std::string_view key = list_of_rotated(defaults);
    const auto given = text.numbers(key, range::zero_or_one);
    if (given && !given->empty()) {
      const std::vector<double> rotates = *fitting(key, given);
      if (typed > 0 && rotates.size() != typed)
        text.refuse(key, "must have as many values as layer_types, ", typed, ", got ", rotates.size());
      add_layers_where(without, rotates, is_zero);
      return without;
    }
    const Index period = text.index("no_rope_layer_interval").value_or(defaults.no_rope_every);
    if (period == 0) return without;
    if (!count) text.missing("num_hidden_layers", "every no_rope_layer_interval-th layer does not rotate");
    for (Index i = counts_back(defaults) ? (*count - 1) % period : period - 1; i < *count; i += period)
      without.push_back(i);
    return without;
  }

  /// The layers that do not rotate, in increasing order.
  ///
  /// \param types   of the layers, or empty
  /// \param slides  as in types
  std::vector<Index> without_rope(const std::vector<std::string>& types, bool slides) const {
    std::vector<Index> without = named_without_rope(types.size());
    if (defaults.crosses)
      for (const double layer : text.numbers("cross_attention_layers", range::whole)
                                    .value_or(std::vector<double>{3, 8, 13, 18, 23, 28, 33, 38}))
        if (layer < static_cast<double>(types.empty() ? count.value_or(max_layers) : to_index(types.size())))
          without.push_back(static_cast<Index>(layer));
    const std::vector<bool> dense_rotates = dense_that_rotate(types.size());
    for (std::size_t i = 0; i < types.size(); ++i) {
      const bool full = is_full(defaults, types[i]);
      if ((full && !defaults.full_rotate && slides && !dense_rotates[i]) ||
          (!full && !others_attend(defaults)))
        without.push_back(static_cast<Index>(i));
    }
    // Both rules may name the same layer.
    sort_distinct(without);
    return without;
  }

  // The attention window of each layer.

  /// The key with the window of sliding layers.
  const char* window_key() const {
    for (const char* other : {"sliding_window_size", "window_size"})
      if (!defaults.names.empty() && !text.has("sliding_window") && text.has(other)) return other;
    return "sliding_window";
  }

  /// Whether is_causal makes the masks of every class of transformers reach to both sides.
  ///
  /// Source: Hugging Face transformers, create_causal_mask of masking_utils.py
  bool asks_both_ways() const { return !text.boolean("is_causal").value_or(true); }

  /// Whether a token attends only to earlier tokens. Gemma 4 also has "all", which means true, and "vision",
  /// with which text tokens remain causal.
  bool is_causal() const {
    const char* const key = "use_bidirectional_attention";
    const bool causal = defaults.causal && !asks_both_ways();
    if (!text.is_text(key)) return !text.boolean(key).value_or(false) && causal;
    const std::string both_ways = text.text(key).value_or("");
    if (both_ways != "all" && both_ways != "vision")
      text.refuse(key, "must be true, false, \"all\" or \"vision\", got ", both_ways);
    return causal && both_ways == "vision";
  }

  /// attention_options::window of sliding layers. 0 if no layer slides, or not_known_window.
  ///
  /// In encoders, tokens on both sides are visible. In ModernBERT, local_attention / 2 or sliding_window
  /// tokens are visible on each side. In Gemma 3 and 4 with use_bidirectional_attention, half of
  /// sliding_window is visible on each side. With is_causal: false, transformers shows sliding_window tokens
  /// on each side (sliding_window_bidirectional_overlay). A window of attention_options also counts the token
  /// itself.
  ///
  /// \param typed  whether the file has the type (sliding or not) of every layer
  Index window_of_sliding(bool typed = false) const {
    const auto [which, if_asked] = defaults.slides;
    const bool by_type = typed && which == which_slide::without_rope;  // for any use_sliding_window
    const bool asked = text.boolean("use_sliding_window").value_or(!if_asked) || by_type;
    const char* const key = window_key();
    if (text.hides(key)) return 0;
    const auto window = text.index(key, range::window), both_sides = text.index("local_attention");
    if (!asked || text.is_null(key) || window == Index{0}) return 0;
    const auto assumed = static_cast<Index>((std::abs)(defaults.window.tokens));
    const window_span span = defaults.window.span;
    if (span == window_span::both_sides || (both_sides && !defaults.causal))
      return window ? *window + 1 : both_sides.value_or(assumed) / 2 + 1;
    if (span == window_span::each_side) return window.value_or(assumed) + 1;
    if (both_sides && !window) return *both_sides / 2;
    if (!is_causal()) {
      const bool each_side = asks_both_ways(), both = span == window_span::both_sides_if_asked,
                 known = each_side ? !both && has_class_not_in("", defaults.names) : both;
      const Index tokens = window.value_or(assumed);
      return known && tokens > 0 ? (each_side ? tokens : tokens / 2) + 1 : not_known_window;
    }
    if (window) return *window;
    if (assumed > 0) return assumed;
    const bool none = which == which_slide::every || which == which_slide::without_rope;
    return none ? 0 : not_known_window;
  }

  /// model_rope::windows.
  ///
  /// \param types    of the layers, or empty
  /// \param without  the layers that do not rotate, in increasing order
  std::vector<Index> windows(const std::vector<std::string>& types, const std::vector<Index>& without) const {
    const Index window = window_of_sliding(!types.empty());
    const which_slide which = defaults.slides.which;
    if (!types.empty() && !types_slide(defaults) && which != which_slide::by_type)
      return {which == which_slide::every || window == 0 ? window : not_known_window};
    const bool from = which == which_slide::from_max_window_layers,
               even = which == which_slide::even_below_max_window_layers,
               bare = which == which_slide::without_rope;
    // The layer at which sliding begins or ends.
    Index first = defaults.max_window_layers;
    if (from || even) first = text.index("max_window_layers", range::whole).value_or(first);
    const bool chunks = defaults.window.span == window_span::chunks;
    if (chunks && text.is_null("attention_chunk_size")) return {0};  // no chunk mask
    std::vector<Index> windows;
    const bool all_that_attend = which == which_slide::every && !others_attend(defaults);  // MiniMax
    const Index of_full = all_that_attend ? window : 0;
    const Index of_type = types_slide(defaults) || window == 0 ? window : not_known_window;
    for (const std::string& type : types)
      windows.push_back(is_full(defaults, type)                                  ? of_full
                        : type == defaults.other_type && others_attend(defaults) ? of_type
                                                                                 : not_known_window);
    if (!windows.empty()) return windows;
    // Whether the file has a key for a window.
    const bool given = text.has(window_key()) || text.has("local_attention");
    const auto of_layers = [&](const auto& window_of) {
      for (Index i = 0; i < *count; ++i)
        windows.push_back(window_of(i, std::binary_search(without.begin(), without.end(), i)));
      return windows;
    };
    if (chunks || defaults.crosses) {
      if (given || !count) return {not_known_window};
      return of_layers([&](Index, bool unrotated) { return unrotated == chunks ? 0 : not_known_window; });
    }
    if (window == 0 || (which == which_slide::every && others_attend(defaults))) return {window};
    if (count && (bare || from || even))
      return of_layers([&](Index i, bool unrotated) {
        const bool slides = bare ? unrotated : even ? i % 2 == 0 && i < first : i >= first;
        return slides ? window : 0;
      });
    const bool pattern = window > 0 && defaults.pattern.every > 1;
    return {given || pattern || which != which_slide::by_type ? not_known_window : 0};
  }

  // Warnings about class defaults that differ from layer to layer.

  /// The pattern of layer types in the record, in words. Empty if the pattern was not used.
  std::string assumed_pattern(const model_draft& model) const {
    const bool other_keys = defaults.form == dictionary_form::compressed || text.has("layer_types") ||
                            (!others_attend(defaults) && text.has("layers_block_type"));
    if (model.types.empty() || other_keys) return {};
    const std::string does = others_attend(defaults) ? " attends fully" : " attends, and no other";
    if (text.has(defaults.full_list)) return {};
    if (defaults.pattern.every == 0) return others_attend(defaults) ? "" : "no layer attends";
    for (const std::string_view key :
         {std::string_view("sliding_window_pattern"), std::string_view("_sliding_window_pattern"),
          std::string_view("global_attn_every_n_layers"), defaults.type_ones, defaults.pattern.key})
      if (text.has(key)) return {};
    if (defaults.pattern.every == 1) return "every layer attends fully";
    return one_of_every(defaults.pattern.every, full_comes_first(defaults) != counts_back(defaults),
                        counts_back(defaults)) +
           does + (defaults.pattern.full == full_layers::last_and_first ? ", and so does the first" : "");
  }

  /// Warns about the class defaults in use that differ from layer to layer.
  void name_assumed(model_draft& model) const {
    const auto name = [&](const char* key, const std::string& what) {
      model.warn_assumed(text.path() + key, what);
    };
    if (const std::string pattern = assumed_pattern(model); !pattern.empty())
      name("layer_types", "that " + pattern);
    const bool by_base = defaults.form == dictionary_form::base_per_layer;
    if (defaults.no_rope_every > 0 && !model.without_rope.empty() && !text.has("no_rope_layers") &&
        !text.has("no_rope_layer_interval") && !(by_base && text.has("layer_rope_theta")))
      name(by_base ? "layer_rope_theta" : "no_rope_layers",
           "that " + one_of_every(defaults.no_rope_every, false, counts_back(defaults)) + " does not rotate");
    if (defaults.crosses && !text.has("cross_attention_layers") && !model.without_rope.empty())
      name("cross_attention_layers", joined(model.without_rope));
    const bool from = defaults.slides.which == which_slide::from_max_window_layers,
               even = defaults.slides.which == which_slide::even_below_max_window_layers;
    if ((from || even) && count && model.types.empty() && !text.has("max_window_layers") &&
        window_of_sliding() > 0)
      name("max_window_layers", std::to_string(defaults.max_window_layers));
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_LAYERS_HPP
