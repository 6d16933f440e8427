// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_GGUF_HPP
#define ROPE_MODELS_GGUF_HPP

#include <algorithm>  // std::find_if, std::max
#include <concepts>   // std::convertible_to
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/derive.hpp>
#include <rope/models/detail/gguf_layers.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/gguf_schedule.hpp>
#include <rope/models/detail/model_bounds.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// The rotary embedding of a model, from the metadata of its GGUF file and with the meaning llama.cpp gives
/// to it.

namespace rope {
inline namespace ROPE_ABI {

/// Access to a GGUF file, however the caller reads it; each member returns nothing for a key that is absent
/// or of another type.
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

/// What a GGUF file does not say.
///
///     const model_rope model = import_gguf(file, {.length = 32768, .layout = layout_kind::half_split});
struct gguf_options {
  /// Tokens of context of a sequence, which decide between rope_factors_short and rope_factors_long. 0 is a
  /// short one.
  double length = 0;
  /// The layout of the weights, where the architecture is not known.
  std::optional<layout_kind> layout = {};
};

namespace detail {

template <class L>
class gguf_importer {
 public:
  gguf_importer(const L& lookup, const gguf_options& options) : reader_(lookup), options_(options) {}

  model_rope result() {
    model_.source = "GGUF";
    model_.architecture = reader_.architecture();
    read_record();
    model_.max_position = reader_.number("context_length", range::positive).value_or(0);
    model_.sliding_window = reader_.number("attention.sliding_window", range::not_negative).value_or(0);
    model_.query_heads = reader_.heads("attention.head_count");
    model_.key_heads = reader_.heads("attention.head_count_kv");
    if (model_.key_heads == 0) model_.key_heads = model_.query_heads;
    layers_ = static_cast<Index>(reader_.number("block_count", range::layers).value_or(0));
    factors_ = read_pair_factors(reader_, model_.max_position, options_.length);
    sliding_ = gguf_sliding_layers(reader_, record_, layers_);
    model_.layers_without_rope = gguf_layers_without_rope(record_, layers_, sliding_);
    model_.windows = gguf_windows(reader_, record_, sliding_);
    model_.causal = gguf_is_causal(reader_, record_);
    model_.sink_logits = record_.sink_logits;
    const auto bases = reader_.numbers("rope.freq_base_per_layer", range::above_one);
    const auto dimensions = reader_.numbers("rope.dimension_count_per_layer", range::whole);
    if (bases || dimensions)
      add_groups_of_layers(bases, dimensions);
    else
      add_groups_of_types();
    note_scaling();
    if (reader_.number("attention.compress_rope_freq_base", range::any_number))
      model_.warnings.push_back(reader_.key("attention.compress_rope_freq_base") + " is not used");
    return std::move(model_);
  }

 private:
  void read_record() {
    const gguf_record* known = gguf_record_of(reader_.architecture());
    if (!known && !options_.layout)
      reader_.refuse("general.architecture",
                     "is not an architecture whose layout is known; name the layout in the options, got " +
                         reader_.architecture());
    if (known) record_ = *known;
    const bool large_baichuan =
        reader_.architecture() == "baichuan" && reader_.number("block_count", range::layers) == 40.0;
    if (!record_.rotates || large_baichuan)
      reader_.refuse("general.architecture",
                     "is one without rotary embeddings, got " + reader_.architecture() +
                         (large_baichuan ? " of 40 layers, which has ALiBi biases" : ""));
    if (record_.half_split_sections && reader_.numbers("rope.dimension_sections", range::whole))
      record_.layout = layout_kind::half_split;
    if (options_.layout) record_.layout = *options_.layout;
  }

  /// The first of these keys that is there; else the width of the model over its heads.
  Index head_dim(bool slides) const {
    for (const char* name :
         {"attention.key_length_mla", slides ? "attention.key_length_swa" : "attention.key_length",
          "attention.key_length"})
      if (const auto length = reader_.number(name, range::count)) return static_cast<Index>(*length);
    const double width = reader_.required_number("embedding_length", range::count);
    if (model_.query_heads == 0) reader_.required_number("attention.head_count", range::count);
    return static_cast<Index>(width) / model_.query_heads;
  }

  double base_of(bool slides) const {
    const double base = reader_.number("rope.freq_base", range::above_one).value_or(10000);
    if (!slides || record_.sliding == sliding_rule::unscaled) return base;
    return reader_.number("rope.freq_base_swa", range::above_one)
        .value_or(record_.sliding == sliding_rule::own_base ? 10000 : base);
  }

  /// The channels that rotate, and the key that says so.
  std::pair<Index, const char*> dimension_of(bool slides) const {
    for (const char* name :
         {slides ? "rope.dimension_count_swa" : "rope.dimension_count", "rope.dimension_count"})
      if (const auto dimension = reader_.number(name, range::count))
        return {static_cast<Index>(*dimension), name};
    return {head_dim(slides), "attention.key_length"};
  }

  /// Full and sliding layers, if they differ.
  void add_groups_of_types() {
    const bool two_types = reader_.number("rope.freq_base_swa", range::above_one) ||
                           reader_.number("rope.dimension_count_swa", range::count) ||
                           (record_.sliding == sliding_rule::own_base && model_.sliding_window > 0) ||
                           (record_.sliding == sliding_rule::unscaled && !sliding_.empty() &&
                            reader_.number("rope.scaling.factor", range::not_negative));
    if (!two_types) return add_group("", false, base_of(false), dimension_of(false));
    add_group("full_attention", false, base_of(false), dimension_of(false));
    add_group("sliding_attention", true, base_of(true), dimension_of(true));
    for (const bool slides : sliding_)
      model_.layers.push_back(slides ? "sliding_attention" : "full_attention");
  }

  /// Bases and dimensions that are given per layer: one group for all layers that agree in both, and in
  /// whether they slide.
  void add_groups_of_layers(const std::optional<std::vector<double>>& bases,
                            const std::optional<std::vector<double>>& dimensions) {
    constexpr const char *base_key = "rope.freq_base_per_layer",
                         *dimension_key = "rope.dimension_count_per_layer";
    const std::size_t count = bases ? bases->size() : dimensions->size();
    const Index expected = layers_ > 0 ? layers_ : (std::max)(Index{1}, static_cast<Index>(count));
    for (const auto& [list, name] : {std::pair(&bases, base_key), std::pair(&dimensions, dimension_key)})
      if (*list) {
        const std::string broken =
            broken_rule_of_layer_list((*list)->size(), expected, "one value per layer");
        if (!broken.empty()) reader_.refuse(reader_.key(name), broken);
      }
    struct kind {
      double base;
      Index rotary_dim;
      bool slides;
    };
    std::vector<kind> kinds;  // of model_.groups
    for (std::size_t i = 0; i < count; ++i) {
      const bool slides = i < sliding_.size() && sliding_[i];
      const double base = bases ? (*bases)[i] : base_of(slides);
      auto dimension = dimension_of(slides);
      if (dimensions && (*dimensions)[i] > 0)
        dimension = {static_cast<Index>((*dimensions)[i]), dimension_key};
      const auto alike = std::find_if(kinds.begin(), kinds.end(), [&](const kind& k) {
        return detail::equal(k.base, base) && k.rotary_dim == dimension.first && k.slides == slides;
      });
      const auto group = static_cast<std::size_t>(alike - kinds.begin());
      if (alike == kinds.end()) {
        std::string layer_type =
            "base " + exact_digits(base) + ", " + std::to_string(dimension.first) + " channels";
        if (!sliding_.empty())
          layer_type = (slides ? "sliding_attention, " : "full_attention, ") + layer_type;
        add_group(layer_type, slides, base, dimension);
        kinds.push_back({base, dimension.first, slides});
      }
      model_.layers.push_back(model_.groups[group].layer_type);
    }
    name_by_type();
  }

  /// Groups of which there is one for sliding layers and one for the others need no longer name.
  void name_by_type() {
    for (const std::string type : {"full_attention", "sliding_attention"}) {
      Index of_type = 0;
      for (const layer_group& group : model_.groups) of_type += group.layer_type.starts_with(type) ? 1 : 0;
      if (of_type != 1) continue;
      for (layer_group& group : model_.groups)
        if (group.layer_type.starts_with(type)) group.layer_type = type;
      for (std::string& layer : model_.layers)
        if (layer.starts_with(type)) layer = type;
    }
  }

  /// llama.cpp decides for each architecture whether sliding layers are scaled.
  void note_scaling() {
    if (record_.architecture.empty() && model_.sliding_window > 0 && model_.groups.front().rule != "default")
      reader_.refuse(
          "general.architecture",
          "is no known architecture, and this one both slides and scales: which layers are scaled is "
          "not known, got " +
              reader_.architecture());
    if (model_.groups.size() < 2 || record_.sliding != sliding_rule::not_known) return;
    for (const layer_group& group : model_.groups)
      if (group.rule != "default") {
        const char* which = sliding_.empty() && !model_.layers.empty()
                                ? " is applied to every layer; which of them slide is not known"
                                : " is not applied to sliding layers; whether it should be is not known";
        return model_.warnings.push_back(reader_.key("rope.scaling") + which);
      }
  }

  void add_group(const std::string& layer_type, bool slides, double base,
                 const std::pair<Index, const char*>& dimension) {
    const Index head = head_dim(slides), rotary_dim = dimension.first;
    if (rotary_dim <= 0 || rotary_dim % 2 != 0 || rotary_dim > head)
      reader_.refuse(reader_.key(dimension.second), "must be even, positive and not above the head, " +
                                                        std::to_string(head) + ", got " +
                                                        std::to_string(rotary_dim));
    allowance_.take("import_gguf", reader_.key(dimension.second), rotary_dim / 2);
    derived rule = derive_gguf(
        reader_, {rotary_dim, base, slides && record_.sliding != sliding_rule::as_full, model_.max_position},
        factors_);
    layer_group group{.layer_type = layer_type,
                      .layout = record_.layout,
                      .head_dim = head,
                      .first_channel = record_.last_channels ? head - rotary_dim : 0,
                      .frequencies = std::move(rule.frequencies),
                      .softmax_multiplier = rule.softmax_multiplier,
                      .scale = gguf_scale_of(reader_, record_, head, layers_, rule.softmax_multiplier),
                      .softcap = gguf_softcap_of(reader_, record_),
                      .rule = std::move(rule.rule),
                      .base = base,
                      .numbers = std::move(rule.numbers)};
    add_sections(group);
    model_.groups.push_back(std::move(group));
  }

  void add_sections(layer_group& group) const {
    constexpr const char* name = "rope.dimension_sections";
    const auto sections = reader_.numbers(name, range::whole);
    if (!sections) return;
    if (static_cast<Index>(sections->size()) > most_sections)
      reader_.refuse(reader_.key(name), "must have at most " + std::to_string(most_sections) +
                                            " values, got " + std::to_string(sections->size()));
    Index sum = 0;
    for (const double value : *sections) {
      const auto pairs = static_cast<Index>(value);
      sum += pairs;
      if (pairs > 0) group.mrope_sections.push_back(pairs);  // ggml fills up with zeros
    }
    if (sum != group.frequencies.pairs())
      reader_.refuse(reader_.key(name), "must add up to the number of pairs, " +
                                            std::to_string(group.frequencies.pairs()) + ", got " +
                                            std::to_string(sum));
    group.mrope_interleaved = record_.interleaved_sections;
  }

  gguf_reader<L> reader_;
  const gguf_options& options_;
  gguf_record record_ = {};
  Index layers_ = 0;           // 0: not known
  std::vector<bool> sliding_;  // per layer; empty: not known, or none slides
  std::optional<gguf_pair_factors> factors_ = {};
  group_allowance allowance_ = {};
  model_rope model_ = {};
};

}  // namespace detail

/// What an absent key means is what llama.cpp takes: no rope.scaling.type is linear, no factor or a factor of
/// 0 is 1, freq_base is 10000, dimension_count is the whole head. The bounds of YaRN are always rounded
/// outwards, so a model with `truncate: false` differs from its Hugging Face original; compare_models() shows
/// by how much.
///
/// A file may have up to 16384 layers, and groups of layers of up to 32768 pairs together.
///
/// Throws:  std::invalid_argument naming the key or tensor
/// Source:  llama.cpp, llama-model.cpp and llama-context.cpp; ggml, ggml_rope_ext
template <gguf_lookup L>
model_rope import_gguf(const L& lookup, const gguf_options& options = {}) {
  detail::checked(options.length, detail::range::not_negative, "import_gguf", "options.length");
  return detail::gguf_importer<L>(lookup, options).result();
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_GGUF_HPP
