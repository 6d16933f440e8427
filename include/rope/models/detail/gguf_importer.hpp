// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_IMPORTER_HPP
#define ROPE_MODELS_DETAIL_GGUF_IMPORTER_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/description_text.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/gguf_layers.hpp>
#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/gguf_schedule.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// Makes the description of a model from the metadata of its GGUF file.

namespace rope::inline ROPE_ABI::detail {

/// Architectures in which no layer rotates, and what they have instead.
struct gguf_unrotated {
  std::string_view names, instead;
};

/// The entry of an architecture in which no layer rotates, or nullptr.
template <class Record = gguf_unrotated>
const Record* gguf_unrotated_of(std::string_view architecture) {
  static constexpr Record records[] = {
      {.names = "arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7", .instead = "no attention"},
      {.names = "bert gpt2 starcoder", .instead = "learned positions"},
      {.names = "bloom jais jina-bert-v2 refact", .instead = "ALiBi biases"},
      {.names = "glm5-next glm5next jamba kimi-k3 kimi-linear nemotron_h nemotron_h_moe wavtokenizer-dec",
       .instead = "no positions"},
      {.names = "mpt", .instead = "ALiBi biases or learned positions"},
      {.names = "t5 t5encoder", .instead = "biases by distance"},
  };
  return record_in(records, architecture);
}

template <class L>
class gguf_importer {
 public:
  gguf_importer(const L& lookup, const import_options& options) : reader_(lookup), options_(options) {}

  model_rope result() {
    model_.source = "GGUF";
    model_.architecture = reader_.architecture();
    read_record();
    layers_.count = layers_.counted();
    if (const auto none = unrotated_by_record(); none.is_so()) return without_rope(none);
    layers_.sliding = layers_.listed_as_sliding();
    model_.without_rope = layers_.without_rope();
    if (layers_.listed() == 0 &&
        (record_.no_rope_every > 0 || record_.attends_every > 0 || !record_.full_rotate))
      layers_.say("block_count", " is not given, so the layers that do not rotate are not listed");
    if (const auto none = unrotated_by_layers(); none.is_so()) return without_rope(none);
    add_sizes();
    if (!layers_.none_slides()) model_.sliding_window = layers_.window().value_or(0);
    schedule_.factors = schedule_.read_pair_factors(options_.length);
    layers_.note_sliding_pattern();
    model_.windows = layers_.windows();
    model_.window_of_sliding = layers_.window_of_sliding();
    // Source: llama.cpp, llama4.cpp, which sets this length for every file.
    if (record_.window == window_kind::chunks && !layers_.sliding.empty()) model_.attention_chunk = 8192;
    if (!record_.compressed) layers_.note_unknown_windows();
    model_.causal = layers_.is_causal();
    model_.sink_logits = record_.sink_logits;
    if (record_.sinks_slide) layers_.read_layers_with_sinks();
    add_query_scaling();
    const auto bases = reader_.numbers_or_one("rope.freq_base_per_layer", range::above_one, layers_.count);
    const auto dimensions = reader_.numbers("rope.dimension_count_per_layer", range::whole);
    if (bases || dimensions)
      add_groups_of_layers(bases, dimensions);
    else if (record_.compressed)
      add_compressed();
    else
      add_groups_of_types();
    note_scaling();
    layers_.name_assumed();
    layers_.note_unread_keys(schedule_.base(false));
    if (!record_.note.empty()) model_.warn(std::string(record_.note));
    return std::move(model_).finished();
  }

 private:
  void read_record() {
    const gguf_record* known = gguf_record_of(reader_.architecture());
    const std::string_view refusal = gguf_refusal_of(reader_.architecture());
    if (!refusal.empty()) reader_.refuse("general.architecture", std::string(refusal));
    if (!known && !options_.layout && !gguf_unrotated_of(reader_.architecture()))
      reader_.refuse("general.architecture",
                     "is not an architecture whose layout is known; name the layout in the options, got ",
                     reader_.architecture(), "; for those that are known see include/rope/models/README.md");
    record_.sliding = sliding_rule::not_known;
    record_.multiplier = log_multiplier::as_given;
    record_.yarn = yarn_keys::all;
    if (known) record_ = *known;
    if (record_.half_split_sections && reader_.has("rope.dimension_sections"))
      record_.layout = layout_kind::half_split;
    record_.layout = options_.layout.value_or(record_.layout);
  }

  /// Whether no layer of a GGUF model rotates, and which key shows it.
  unrotated_model unrotated_by_record() const {
    const std::string &architecture = reader_.architecture(),
                      bare = "is one without rotary embeddings, got " + architecture;
    if (const auto* unrotated = gguf_unrotated_of(architecture)) {
      const std::string instead(unrotated->instead);
      return {instead, "general.architecture", bare + ", which has " + instead};
    }
    if (record_.alibi_layers > 0 && reader_.index("block_count", range::layers) == record_.alibi_layers)
      return {"ALiBi biases", "general.architecture",
              bare + " of " + std::to_string(record_.alibi_layers) + " layers, which has ALiBi biases"};
    const auto finetuned = reader_.number("rope.scaling.finetuned", range::zero_or_one);
    if (record_.finetuned && finetuned == 0.0)
      return {"no positions", reader_.key("rope.scaling.finetuned"),
              "is false, so for " + architecture + " no layer rotates"};
    return {};
  }

  /// Whether a key of a GGUF file leaves no layer that rotates.
  unrotated_model unrotated_by_layers() const {
    const Index layers = layers_.listed();
    if (layers == 0 || to_index(model_.without_rope.size()) < layers) return {};
    for (const auto& [name, reads] :
         {std::pair{"attention.rope_pattern", record_.rope_pattern},
          std::pair{"attention.recurrent_layers", true},
          std::pair{"attention.head_count_kv", reader_.is_list("attention.head_count_kv")},
          std::pair{"attention.sliding_window_pattern", !record_.full_rotate},
          std::pair{"full_attention_interval", record_.attends_every > 0}})
      if (reads && reader_.has(name))
        return {"no positions", reader_.key(name),
                "leaves no layer of " + reader_.architecture() + " that rotates"};
    return {};
  }

  /// Reads the number of heads and the longest context.
  void add_sizes() {
    model_.max_position = reader_.number("context_length", range::positive).value_or(0);
    constexpr const char* heads = "attention.head_count";
    model_.query_heads = reader_.heads(heads);
    if (const auto list = reader_.numbers_if_list(heads, range::whole))
      layers_.fitting(heads, layers_.count, *list);
    model_.key_heads = reader_.heads("attention.head_count_kv");
    if (model_.key_heads == 0) model_.key_heads = model_.query_heads;
  }

  /// The description of a model in which no layer rotates.
  model_rope without_rope(const unrotated_model& none) {
    if (options_.without_rope == model_without_rope::refuse) reader_.refuse(none.key, none.refusal());
    add_sizes();
    model_.without_rope.clear();
    model_.windows.resize(static_cast<std::size_t>((std::max)(layers_.count, Index{1})), not_known_window);
    model_.instead_of_rope = none.instead;
    return std::move(model_).finished();
  }

  /// Reads the factors that multiply queries by their position.
  ///
  /// Source: llama.cpp, llm_graph_input_attn_temp and load_hparams of each architecture
  void add_query_scaling() {
    constexpr const char *scale_key = "attention.temperature_scale",
                         *length_key = "attention.temperature_length";
    const auto scale = reader_.number(scale_key, range::not_negative),
               length = reader_.number(length_key, range::positive);
    const auto unused = [&](const char* key) {
      layers_.say(key, " is not used");
      if (record_.names.empty()) model_.scaled = scaled_queries::not_known;
    };
    const bool of_length = record_.temperature == gguf_temperature::of_length,
               of_context = record_.temperature == gguf_temperature::of_context;
    if (scale && !of_length && !of_context) unused(scale_key);
    if (length && !of_length) unused(length_key);
    if (record_.temperature == gguf_temperature::fixed) {
      // Without chunks, llama.cpp defines no factors for the one layer that does not rotate.
      const bool chunks = reader_.number("attention.sliding_window", range::window) != 0.0;
      model_.scaled = chunks ? scaled_queries::layers_without_rope : scaled_queries::not_known;
      model_.query_rule.rule = llama4_query_scaling{};
      return;
    }
    if (equal(scale.value_or(0), 0) || (!of_length && !of_context)) return;
    const double floor =
        of_length ? reader_.required_number(length_key, range::positive) : schedule_.original_max_position();
    if (equal(floor, 0)) reader_.required_number("context_length", range::positive);
    model_.scaled = scaled_queries::every_layer;
    model_.query_rule.rule =
        llama4_query_scaling{.floor_scale = floor, .attention_scale = *scale, .offset = 0};
  }

  /// One group for all layers, or two if sliding layers rotate differently.
  void add_groups_of_types() {
    const bool own_base = record_.sliding == sliding_rule::own_base,
               plain = record_.sliding == sliding_rule::plain, bare = record_.sliding == sliding_rule::bare,
               unscaled = plain || bare || record_.sliding == sliding_rule::unscaled;
    const bool any_scaling = reader_.number("rope.scaling.factor", range::not_negative) ||
                             reader_.number("rope.scale_linear", range::not_negative) ||
                             schedule_.factors.tensor != nullptr ||
                             ((bare || plain) && reader_.number("rope.scaling.attn_factor", range::positive));
    const bool two_types =
        (reader_.number("rope.freq_base_swa", range::above_one) && record_.sliding != sliding_rule::same) ||
        reader_.number("rope.dimension_count_swa", range::count) ||
        schedule_.head_dim(true) != schedule_.head_dim(false) || record_.needs_swa_base ||
        record_.half_of_full || (own_base && model_.sliding_window > 0) ||
        (unscaled && !layers_.sliding.empty() && any_scaling);
    if (!two_types || record_.all_slide || layers_.none_slides() || (plain && layers_.sliding.empty()))
      return add_group("", false, schedule_.base(false), schedule_.dimension(false));
    add_group("full_attention", false, schedule_.base(false), schedule_.dimension(false));
    add_group("sliding_attention", true, schedule_.base(true), schedule_.dimension(true));
    for (const bool slides : layers_.sliding)
      model_.types.push_back(slides ? "sliding_attention" : "full_attention");
  }

  /// DeepSeek V4 has sliding layers and two kinds of layers with compressed keys. These two kinds rotate
  /// alike.
  void add_compressed() {
    model_.types = layers_.types_by_compression();
    add_group("sliding_attention", true, schedule_.base(false), schedule_.dimension(true));
    const double base = reader_.required_number("attention.compress_rope_freq_base", range::above_one);
    for (const char* type : {"compressed_sparse_attention", "heavily_compressed_attention"})
      add_group(type, false, base, schedule_.dimension(false));
    model_.windows.clear();
    model_.keys_are_values = true;
    for (const std::string& type : model_.types)
      model_.windows.push_back(type == "sliding_attention" ? model_.window_of_sliding : not_known_window);
    if (model_.window_of_sliding == not_known_window)
      layers_.say("attention.sliding_window", " is not given; the window of layers that slide is not known");
    model_.no_window_because = reader_.key("attention.compress_ratios") +
                               ": a window cannot express which compressed keys a layer sees";
    model_.warn(model_.no_window_because);
    model_.warn("keys are values too: the output of attention is un-rotated by the position of its query");
  }

  /// Adds groups for files with bases or dimensions per layer. Layers with equal base, dimension and type
  /// (sliding or not) form one group.
  void add_groups_of_layers(std::optional<std::vector<double>> bases,
                            std::optional<std::vector<double>> dimensions) {
    constexpr const char *base_key = "rope.freq_base_per_layer",
                         *dimension_key = "rope.dimension_count_per_layer";
    const Index given = to_index(bases ? bases->size() : dimensions->size()),
                count = layers_.count > 0 ? layers_.count : (std::max)(Index{1}, given);
    const auto fit = [&](std::optional<std::vector<double>>& list, const char* key) {
      if (list) *list = layers_.fitting(key, count, *list, "one value per layer");
    };
    fit(bases, base_key);
    fit(dimensions, dimension_key);
    const auto kinds = layers_by(static_cast<std::size_t>(count), [&](std::size_t i) {
      const bool slides = i < layers_.sliding.size() && layers_.sliding[i];
      auto dimension = schedule_.dimension(slides);
      if (dimensions && (*dimensions)[i] > 0)
        dimension = {static_cast<Index>((*dimensions)[i]), dimension_key};
      const char* type = layers_.sliding.empty() ? "" : slides ? "sliding_attention" : "full_attention";
      return layer_kind{type, bases ? (*bases)[i] : schedule_.base(slides), dimension.count, dimension.key};
    });
    model_.types.resize(static_cast<std::size_t>(count));
    for (const auto& [kind, layers] : kinds) {
      const std::string name = name_of_kind(kind, kinds);
      add_group(name, kind.type == "sliding_attention", kind.base, {kind.rotary_dim, kind.rotary_dim_key});
      for (const Index layer : layers) model_.types[static_cast<std::size_t>(layer)] = name;
    }
    if (kinds.size() == 1 && layers_.sliding.empty()) model_.types.clear();  // one group without a name
  }

  /// In llama.cpp, the architecture decides whether sliding layers are scaled. Throws for an unknown
  /// architecture with sliding layers and scaling, and warns of scaling for layers of several groups that the
  /// record does not describe.
  void note_scaling() {
    if (record_.names.empty() && model_.sliding_window > 0 && model_.groups.front().rule != "default")
      reader_.refuse(
          "general.architecture",
          "is no known architecture, and this one both slides and scales: which layers are scaled is "
          "not known, got ",
          reader_.architecture(), "; make the model_rope yourself");
    const bool described = may_slide(record_) && record_.sliding != sliding_rule::not_known;
    if (model_.groups.size() < 2 || described) return;
    for (const layer_group& group : model_.groups)
      if (group.rule != "default") {
        const char* which = layers_.none_slides() ? " is applied to every layer"
                            : layers_.sliding.empty() && !model_.types.empty()
                                ? " is applied to every layer; which of them slide is not known"
                                : " is not applied to sliding layers; whether it should be is not known";
        return layers_.say("rope.scaling", which);
      }
  }

  void add_group(const std::string& layer_type, bool slides, double base, const rotated_channels& dimension) {
    const Index head = schedule_.head_dim(slides), rotary_dim = dimension.count;
    if (rotary_dim <= 0 || rotary_dim % 2 != 0 || rotary_dim > head)
      reader_.refuse(reader_.key(dimension.key), "must be even, positive and not above the head, ", head,
                     ", got ", rotary_dim);
    model_.check_room("import_gguf", reader_.key(dimension.key), rotary_dim / 2);
    const bool plain =
        record_.whole_head ||
        (slides && (record_.sliding == sliding_rule::plain || record_.sliding == sliding_rule::bare));
    const bool as_full = !record_.compressed &&
                         (record_.sliding == sliding_rule::as_full || record_.sliding == sliding_rule::same);
    layer_group group = schedule_.frequencies_of({.rotary_dim = rotary_dim,
                                                  .base = base,
                                                  .unscaled = plain || (slides && !as_full),
                                                  .unit_magnitude = plain || record_.compressed});
    group.layer_type = layer_type;
    group.layout = record_.layout;
    group.head_dim = head;
    group.first_channel = record_.last_channels ? head - rotary_dim : 0;
    group.scale = schedule_.scale_of(head, layers_.count, group.softmax_multiplier);
    group.softcap = schedule_.softcap();
    add_sections(group);
    add_indexer(group);
    model_.groups.push_back(std::move(group));
  }

  void add_indexer(layer_group& group) {
    constexpr const char* name = "attention.indexer.key_length";
    const auto head_dim = reader_.index(name);
    if (record_.compressed && group.layer_type != "compressed_sparse_attention") return;
    if (record_.indexer == indexer_kind::no_indexer || !head_dim) {
      if (head_dim)
        layers_.say(name, " is that of an indexer; what it rotates is not known");
      else if (record_.indexer != indexer_kind::no_indexer)
        layers_.say(name, " is missing, so the rotation of the indexer is unknown");
      return;
    }
    group.indexer = indexer_of(record_.indexer, *head_dim, group.rotary_dim(),
                               [&](const std::string& rule) { reader_.refuse(reader_.key(name), rule); });
  }

  void add_sections(layer_group& group) const {
    constexpr const char* name = "rope.dimension_sections";
    const auto sections = reader_.numbers_or_one(name, range::whole, 4);
    if (!sections) return;
    if (static_cast<Index>(sections->size()) > max_sections)
      reader_.refuse(reader_.key(name), "must have at most ", max_sections, " values, got ",
                     sections->size());
    for (const double count : *sections) group.mrope_sections.push_back(static_cast<Index>(count));
    while (!group.mrope_sections.empty() && group.mrope_sections.back() == 0)
      group.mrope_sections.pop_back();  // ggml pads with zeros
    if (record_.interleaved_sections) group.section_order = mrope_order::alternating;
    const std::string broken = broken_rule_of_sections(group);
    if (!broken.empty()) reader_.refuse(reader_.key(name), broken);
  }

  gguf_reader<L> reader_;
  const import_options& options_;
  gguf_record record_ = {};
  model_draft model_ = {};
  gguf_layers<L> layers_ = {reader_, record_, model_};
  gguf_schedule<L> schedule_ = {reader_, record_, model_};
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_GGUF_IMPORTER_HPP
