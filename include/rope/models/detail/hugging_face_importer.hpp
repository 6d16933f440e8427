// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP

#include <algorithm>  // std::binary_search, std::min, std::none_of
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
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/hugging_face_architecture.hpp>
#include <rope/models/detail/hugging_face_config.hpp>
#include <rope/models/detail/hugging_face_group.hpp>
#include <rope/models/detail/hugging_face_groups.hpp>
#include <rope/models/detail/hugging_face_keys.hpp>
#include <rope/models/detail/hugging_face_layers.hpp>
#include <rope/models/detail/hugging_face_schedule.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/record_fields.hpp>
#include <rope/models/model_rope.hpp>

/// Makes the description of a model from its config.json.

namespace rope::inline ROPE_ABI::detail {

template <class J>
class hugging_face_importer {
 public:
  hugging_face_importer(const J& config, const import_options& options)
      : options_(options), parts_(config), outer_(parts_.outer()), text_(parts_.text()) {}

  model_rope result() {
    model_.source = "Hugging Face";
    model_.architecture = architecture();
    const std::string plain = plain_architecture(model_.architecture);
    const auto known = hugging_face_record_of(plain);
    if (known) {
      json_reader<J>(text_).number("sliding_window", range::window);  // throws, even if it has no effect
      text_.hide(keys_not_read(*known));
      if (known->rotary_dim > 0) text_.assume("rotary_dim", static_cast<double>(known->rotary_dim));
      if (is_listed(sizes_in_block_config, plain)) read_block_config(text_, model_);
    }
    if (!outer_.empty()) {
      const std::string whole = name_of_part(outer_.back());
      assume_sizes(text_, text_sizes_of_whole(plain_architecture(whole)), whole);
      assume_sizes(text_, class_sizes_of(plain));
    }
    if (plain == "dbrx") text_.assume("max_seq_len", 2048);  // models/dbrx/configuration_dbrx.py
    if (const auto none = unrotated_model_of(text_, known, model_.architecture); none.is_so())
      return without_rope(none);
    if ((known || !is_known_architecture(model_.architecture)) && parts_.is_bare() &&
        !parts_.hint(known.has_value()).empty())
      text_.refuse("model_type", "is of a model of several parts, got ", model_.architecture,
                   parts_.hint(known.has_value()));
    defaults_ = record_of(text_, known, model_.architecture, options_.layout, parts_.hint());
    read_outer_sections();
    add_layers();
    if (const auto none = unrotated_by_layers(text_, defaults_, model_, layers_.count); none.is_so())
      return without_rope(none);
    add_windows();
    add_query_scaling(text_, defaults_, model_);
    hugging_face_groups<J>{text_, defaults_, options_.length, model_}.add();
    layers_.name_assumed(model_);
    model_.name_types_by_window();
    note_unknown_types();
    refuse_unknown_scaling();
    if (!defaults_.note.empty()) model_.warn(std::string(defaults_.note));
    if (!outer_.empty() && plain_architecture(name_of_part(outer_.front())).ends_with("assistant"))
      model_.warn("queries of an assistant attend to keys and values of the model that it assists");
    note_keys(" is not understood and has no effect");
    return std::move(model_).finished();
  }

 private:
  /// The name of the text model. If it has none, the name in the nearest dictionary around it.
  std::string architecture() {
    std::string name = name_of_part(text_);
    for (std::size_t i = outer_.size(); name.empty() && i > 0; --i) {
      name = name_of_part(outer_[i - 1]);
      std::string by_default = default_text_architecture(name);
      if (by_default.empty()) continue;
      model_.warn_assumed(text_.path() + "model_type", by_default, name);
      return by_default;
    }
    if (name.empty()) text_.missing("model_type", "it decides the layout");
    // In Isaac, a text model of this name has other axes of M-RoPE.
    if (name == "qwen3" && !outer_.empty() && name_of_part(outer_.front()) == "isaac") return "isaac_text";
    name = architecture_by_keys(text_, name);
    if (plain_architecture(name) != "deepseekv2" || text_.boolean("use_mla").value_or(true)) return name;
    // The code of DeepSeek-VL2 and DeepSeek-OCR then uses the attention class of Llama.
    model_.warn(text_.path() + "use_mla is false: heads rotate whole, as those of deepseek_ocr2_text");
    return "deepseek_ocr2_text";
  }

  /// Ling 3 VL has mrope_section next to text_config.
  ///
  /// Source:  vLLM, BailingMoeV3VLConfig
  void read_outer_sections() {
    constexpr const char* key = "mrope_section";
    if (outer_.empty() || plain_architecture(name_of_part(outer_.back())) != "bailingmoev3vl") return;
    const auto given = outer_.back().numbers(key, range::whole);
    model_.sections = given.value_or(std::vector<double>{12, 10, 10});
    if (!given) model_.warn_assumed(outer_.back().path() + key, "[12, 10, 10]", "Ling 3 VL");
  }

  /// Warns about each key about positions that has no effect, and about each size that was assumed.
  ///
  /// \param because  why a key of the text model has no effect
  void note_keys(const std::string& because) {
    for (const std::string& key : text_.unasked()) {
      if (defaults_.names.empty() && speaks_of_query_scaling(key)) model_.scaled = scaled_queries::not_known;
      if (names_key(defaults_.note, key)) continue;
      if (text_.hides(key))
        model_.warn(text_.path() + key + " is not read by the class of " + model_.architecture +
                    " and has no effect");
      else if (speaks_of_rope(key))
        note_text_key(key, because);
    }
    for (std::size_t i = 0; i < outer_.size(); ++i)
      for (const std::string& key : outer_[i].unasked())
        if (speaks_of_rope(key))
          model_.warn(outer_[i].path() + key + " is next to " + parts_.keys()[i] + " and has no effect");
    note_inner_keys(because);
    text_.each_assumed([&](const std::string& key, double value, const std::string& of) {
      model_.warn_assumed(text_.path() + key, exact_digits(value), of);
    });
  }

  /// Warns about a key of the text model that was not read. A list with a value for every layer overrules a
  /// key with a period.
  void note_text_key(const std::string& key, const std::string& because) {
    constexpr std::string_view periods =
        " _sliding_window_pattern full_attention_interval global_attn_every_n_layers sliding_window_pattern ";
    std::string by;
    if ((is_listed(periods, key) || key == defaults_.full_list) && text_.has("layer_types"))
      by = "layer_types";
    if (key == "no_rope_layer_interval" && text_.has("no_rope_layers")) by = "no_rope_layers";
    if (by == "no_rope_layers" && is_interval_of_unrotated(key)) return;
    model_.warn(text_.path() + key + (by.empty() ? because : " is overruled by " + text_.path() + by));
  }

  /// Whether the value n of the key gives the layers that do not rotate: the last of every n layers.
  bool is_interval_of_unrotated(const std::string& key) {
    const Index period = text_.index(key).value_or(0);
    std::vector<Index> without;
    for (Index i = period - 1; period > 0 && i < layers_.count.value_or(0); i += period) without.push_back(i);
    return without == model_.without_rope;
  }

  /// Warns about keys without effect in all dictionaries except rope dictionaries. Each other part of the
  /// model gets one warning. Scales in quantization_config are scales of weights, and get no warning.
  void note_inner_keys(const std::string& because) {
    std::vector<std::string> keys;
    const auto add_part = [&](const char* name, const std::string& read) {
      const auto speaks = [&](const std::string& key) { return key != read && speaks_of_rope(key); };
      if (const J* part = text_.object(name)) add_inner_keys(*part, text_.path() + name + ".", speaks, keys);
    };
    add_part("attn_config", "rope_theta");
    if (is_listed(sizes_in_block_config, defaults_.names)) add_part("block_config", "sliding_window");
    if (const J* layers = text_.object("per_layer_config"))
      for (const auto& layer : layers->items()) {
        const std::string path = text_.path() + "per_layer_config";
        if (speaks_of_rope(layer.key()))
          keys.push_back(path + "." + layer.key());
        else
          add_inner_keys(layer.value(), path + ": ", speaks_of_rope, keys);
      }
    const auto add = [&](const json_reader<J>& reader, bool is_text) {
      reader.each_unasked([&](const std::string& key, const J& part) {
        // A warning already names such a key, but a note of the record says nothing of the keys inside.
        if (speaks_of_rope(key) && !names_key(defaults_.note, key)) return;
        const std::string path = reader.path() + key;
        if (key == "quantization_config")
          add_inner_keys(part, path + ".", speaks_of_positions, keys);
        else if (part.is_object() && (!is_text || key == "vision_config" || key == "audio_config" ||
                                      part.contains(std::string("model_type"))))
          note_part(path, part);
        else
          add_inner_keys(part, path + ".", speaks_of_rope, keys);
      });
    };
    add(text_, true);
    for (const json_reader<J>& reader : outer_) add(reader, false);
    sort_distinct(keys);
    for (const std::string& key : keys) model_.warn(key + because);
  }

  /// Warns about a part of the model that is not read, if it has keys about positions.
  void note_part(const std::string& path, const J& part) {
    std::vector<std::string> keys;
    add_inner_keys(part, "", speaks_of_rope, keys);
    if (keys.empty()) return;
    sort_distinct(keys);
    std::string names;
    for (const std::string& key : keys) names += (names.empty() ? "" : ", ") + key;
    model_.warn(path + " is not read: it describes another part of the model, with " + names);
  }

  std::optional<Index> count_of_layers() {
    return text_.index_of({"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                           "decoder_num_hidden_layers", "num_transformer_layers", "depth", "dit_depth"},
                          range::layers);
  }

  /// Reads the number of heads and the longest context.
  void add_sizes() {
    model_.query_heads =
        heads_of(text_, model_,
                 {"num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads", "num_heads",
                  "num_query_heads", "dit_heads", "num_attention_heads_per_layer"})
            .value_or(0);
    auto key_heads = heads_of(text_, model_,
                              {"num_key_value_heads", "multi_query_group_num", "num_attention_groups",
                               "decoder_num_key_value_heads", "n_kv_heads", "num_query_groups",
                               "num_kv_heads", "num_key_value_heads_per_layer", "n_head_kv"});
    if (const J* attention = text_.object("attn_config"); attention && !key_heads)  // DBRX
      key_heads = json_reader<J>(attention, text_.path() + "attn_config.").index("kv_n_heads");
    const std::string plain = plain_architecture(model_.architecture);
    if (plain == "nemotronnas" && !key_heads) key_heads = key_heads_of_blocks(text_, model_);
    if (plain == "falcon" || (plain == "refinedweb" && !key_heads)) {  // Falcon, FalconAttention
      const bool several = text_.boolean("new_decoder_architecture").value_or(false) ||
                           !text_.boolean("multi_query").value_or(true);
      key_heads = several ? key_heads.value_or(model_.query_heads) : Index{1};
    }
    model_.key_heads = key_heads.value_or(model_.query_heads);
    keyed_number context;
    for (const char* key : context_keys) find_number(context, text_, key, range::positive, model_);
    model_.max_position = context.value.value_or(0);
  }

  /// The description of a model in which no layer rotates.
  model_rope without_rope(const unrotated_model& none) {
    if (options_.without_rope == model_without_rope::refuse) text_.refuse(none.key, none.refusal());
    add_sizes();
    model_.types.clear();
    model_.without_rope.clear();
    if (!layers_.count) layers_.count = count_of_layers();
    model_.windows.resize(static_cast<std::size_t>(layers_.count.value_or(1)), not_known_window);
    model_.instead_of_rope = none.instead;
    constexpr const char* because = " is not described, because nothing rotates";
    text_.find(none.key);
    const std::vector<std::string> unasked = text_.unasked();
    std::vector<std::string> keys;  // in the dictionaries that were read before
    for (const std::string& key : {none.key, std::string("rope_parameters"), std::string("rope_scaling")})
      if (const J* read = text_.peek(key); read && !contains(unasked, key))
        add_inner_keys(*read, text_.path() + key + ".", speaks_of_rope, keys);
    for (const std::string& key : keys) model_.warn_once(key + because);
    note_keys(because);
    return std::move(model_).finished();
  }

  void add_layers() {
    layers_.count = count_of_layers();
    if (!layers_.count && !text_.peek("layer_types"))
      if (const auto list = text_.numbers(list_of_rotated(defaults_), range::any_number);
          list && !list->empty())
        layers_.count = to_index(list->size());
    const char* const key = layers_.window_key();
    const auto window = text_.number(key, range::window);
    const bool slides = defaults_.full_rotate || defaults_.window.tokens < 0 ||  // else no layer slides
                        (!text_.is_null(key) && window.value_or(defaults_.window.tokens) > 0);
    model_.types = layers_.types(slides);
    if (const auto by_pattern = layers_.types_by_pattern(); by_pattern && *by_pattern != model_.types)
      model_.warn(text_.path() + std::string(defaults_.type_ones) + " is overruled by " + text_.path() +
                  "layer_types");
    end_with_full_layer();
    const bool all = others_attend(defaults_)
                         ? defaults_.full_rotate || !slides || defaults_.pattern.every < 2
                         : defaults_.pattern.every == 1;
    if (!all && !layers_.count && model_.types.empty())
      model_.warn(text_.path() +
                  "num_hidden_layers is not given, so the layers that do not rotate are not listed");
    model_.without_rope = layers_.without_rope(model_.types, slides);
  }

  void add_windows() {
    const auto window = text_.number(layers_.window_key(), range::window),
               local = text_.number("local_attention", range::positive);
    model_.windows = layers_.windows(model_.types, model_.without_rope);
    model_.window_of_sliding = layers_.window_of_sliding(!model_.types.empty());
    model_.causal = layers_.is_causal();
    if (const J* causal = text_.peek("causal"); causal && causal->is_boolean())
      if (causal->template get<bool>() == model_.causal) text_.find("causal");  // agrees: no warning
    model_.sink_logits = defaults_.sink_logits;
    if (defaults_.swa_keys) read_swa_keys();
    model_.keys_are_values = defaults_.form == dictionary_form::compressed;
    if (contains(model_.windows, not_known_window)) model_.no_window_because = reason_of_no_window();
    add_sizes();
    if (text_.boolean("use_sliding_window").value_or(true))
      model_.sliding_window = window.value_or(local.value_or(0));
    note_assumed_window();
    note_unread_types();
    if (defaults_.window.span == window_span::chunks) read_chunk();
  }

  /// Reads the length of the chunks in which rotated layers attend. If the key is null, the class has no
  /// chunk mask.
  ///
  /// Source:  Hugging Face transformers, Llama4TextConfig, attention_chunk_size
  void read_chunk() {
    constexpr const char* key = "attention_chunk_size";
    constexpr Index by_default = 8192;
    const auto chunk = text_.index(key);
    model_.attention_chunk = chunk.value_or(text_.is_null(key) ? 0 : by_default);
    if (chunk)
      model_.warn(
          text_.path() + key + " is " + std::to_string(*chunk) +
          ": layers that rotate attend within chunks of so many tokens, which no window says; rotate_layer "
          "gives the key_ranges of a chunk");
  }

  /// Why the window of an attending layer is unknown.
  std::string reason_of_no_window() {
    if (defaults_.window.span == window_span::chunks)
      return "layers that rotate attend in chunks, which no window says";
    if (model_.keys_are_values) return "a window cannot express which compressed keys a layer sees";
    const std::string key = text_.path() + layers_.window_key();
    if (!layers_.count && model_.types.empty()) return text_.path() + "num_hidden_layers is not given";
    if (!text_.has(layers_.window_key())) return key + " is not given";
    return model_.causal ? "which layers slide is not known of this architecture"
                         : "how far a token sees to either side is not known from " + key;
  }

  /// Reads the layers of MiMo-V2 with sink logits, and warns about keys that contradict the keys used.
  ///
  /// Source:  Hugging Face transformers, models/mimo_v2_flash; mlx-lm, mimo_v2_flash.py
  void read_swa_keys() {
    const bool of_sliding = text_.boolean("add_swa_attention_sink_bias").value_or(true),
               of_full = text_.boolean("add_full_attention_sink_bias").value_or(false);
    model_.sink_logits = of_sliding || of_full;
    if (of_sliding != of_full && model_.types.empty())
      model_.warn(text_.path() + "num_hidden_layers is not given: only layers that " +
                  (of_sliding ? "slide" : "attend fully") + " have sink logits");
    if (of_sliding != of_full)
      add_layers_where(model_.layers_without_sinks, model_.types,
                       [&](const std::string& type) { return (type == defaults_.full_type) != of_full; });
    keyed_number window;
    for (const char* key : {"sliding_window", "sliding_window_size"})
      find_number(window, text_, key, range::window, model_);
  }

  /// Warns if layer_types lists sliding layers and the class does not use it.
  void note_unread_types() {
    if (types_slide(defaults_) || !text_.has("layer_types")) return;
    const bool all = defaults_.slides.which != which_slide::by_type;
    const std::string type(all ? defaults_.full_type : defaults_.other_type);
    if (contains(model_.types, type))
      model_.warn(text_.path() + "layer_types is not read by the class of " + model_.architecture +
                  " where layers slide: " + (all ? "all do, or none" : "none does"));
  }

  /// In some classes the last layer attends fully, whatever its type in the file.
  void end_with_full_layer() {
    if (defaults_.pattern.full != full_layers::last_and_end || model_.types.empty() ||
        model_.types.back() == defaults_.full_type)
      return;
    model_.types.back() = defaults_.full_type;
    if (text_.has("layer_types"))
      model_.warn(text_.path() + "layer_types: the class of " + model_.architecture +
                  " takes the last layer for one of " + model_.types.back());
  }

  /// Warns if layers slide by the window of the class because the file has none.
  void note_assumed_window() {
    const double assumed = (std::abs)(defaults_.window.tokens);
    if (detail::equal(assumed, 0) || text_.has(layers_.window_key()) || text_.has("local_attention") ||
        std::none_of(model_.windows.begin(), model_.windows.end(), [](Index window) { return window > 0; }))
      return;
    const bool both_sides = defaults_.window.span == window_span::both_sides;
    model_.warn_assumed(text_.path() + (both_sides ? "local_attention" : "sliding_window"),
                        exact_digits(assumed));
  }

  /// Warns about types of rotated layers that have no group. The rotation of these layers is unknown if there
  /// are several groups. If there is one group, they are assumed to belong to it.
  void note_unknown_types() {
    const std::vector<Index>& without = model_.without_rope;
    std::vector<std::string> types;
    for (std::size_t i = 0; i < model_.types.size(); ++i) {
      const auto layer = static_cast<Index>(i);
      if (std::binary_search(without.begin(), without.end(), layer) || model_.group(model_.types[i]))
        continue;
      types.push_back(model_.types[i]);
      if (model_.groups.size() > 1) model_.not_known.push_back(layer);
    }
    sort_distinct(types);
    constexpr std::size_t most = 4;  // largest number of names in the warning
    std::string names;
    for (std::size_t i = 0; i < (std::min)(most, types.size()); ++i)
      names += (i > 0 ? ", " : "") + types[i].substr(0, longest_layer_type);
    if (types.empty()) return;
    if (types.size() > most) names += " and " + std::to_string(types.size() - most) + " more";
    model_.warn("layers of type " + names + " have no rope dictionary; " +
                (model_.groups.size() > 1
                     ? "their rotation is unknown"
                     : "they are taken to rotate like " + model_.groups.front().layer_type));
  }

  /// Throws for an unknown architecture with sliding layers and scaling, because architectures differ in
  /// whether sliding layers are scaled.
  void refuse_unknown_scaling() const {
    if (!defaults_.names.empty() || model_.groups.size() > 1) return;
    if (model_.sliding_window > 0 && model_.groups.front().rule != "default")
      text_.refuse(
          "model_type",
          "is no known architecture, and this one both slides and scales: give rope_parameters for each "
          "layer type, got ",
          model_.architecture);
  }

  const import_options& options_;
  parts_of_config<J> parts_;
  std::vector<json_reader<J>> outer_;  // the dictionaries around the text model, the whole file first
  json_reader<J> text_;
  hugging_face_record defaults_ = {};
  hugging_face_layers<J> layers_ = {text_, defaults_};
  model_draft model_ = {};
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_IMPORTER_HPP
