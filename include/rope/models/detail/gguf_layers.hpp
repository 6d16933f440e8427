// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP
#define ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP

#include <algorithm>  // std::any_of
#include <cstddef>
#include <functional>  // std::logical_not, std::not_fn
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/file_readers.hpp>
#include <rope/models/detail/gguf_records.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/layer_group.hpp>
#include <rope/models/model_rope.hpp>

/// The layers of a GGUF model that slide, and the layers that do not rotate. A layer slides if it attends to
/// a sliding window of tokens. A layer that attends fully sees all tokens up to the query. Some of these
/// facts are metadata, others are fixed in llama.cpp for an architecture. The end of this header has warnings
/// about absent keys, and about keys that llama.cpp does not read.
///
/// Source: llama.cpp, load_hparams of each architecture

namespace rope::inline ROPE_ABI::detail {

/// Finds facts about the layers of a GGUF model in its metadata and its record.
template <class L>
struct gguf_layers {
  const gguf_reader<L>& reader;
  const gguf_record& record;
  model_draft& model;              // receives warnings
  Index count = 0;                 // the result of counted()
  std::vector<bool> sliding = {};  // the result of listed_as_sliding()

  /// The number of layers in block_count, otherwise in the list of sliding layers. 0: unknown.
  Index listed() const { return count > 0 ? count : to_index(sliding.size()); }

  /// Warns about a key.
  void say(const char* name, const std::string& what) const { model.warn(reader.key(name) + what); }

  /// The number of layers, without the layers for multi-token prediction, which come last. 0: unknown.
  Index counted() const {
    constexpr const char* name = "nextn_predict_layers";
    const Index all = reader.index("block_count", range::layers).value_or(0),
                more = reader.index(name, range::whole).value_or(0);
    if (all == 0 || more == 0) return all;
    if (more >= all) reader.refuse(reader.key(name), "must be below block_count, ", all, ", got ", more);
    say(name, ": the last layers, " + std::to_string(more) +
                  " of them, predict more tokens; they are not described");
    return all - more;
  }

  /// The values of a list with one value per layer, without layers for multi-token prediction.
  ///
  /// \param layers, what  as in check_layer_list
  std::vector<double> fitting(const char* name, Index layers, std::vector<double> list,
                              const char* what = "block_count values") const {
    const Index more = reader.index("nextn_predict_layers", range::whole).value_or(0);
    const auto size = static_cast<Index>(list.size());
    if (layers > 0 && size > layers && size <= layers + more) list.resize(static_cast<std::size_t>(layers));
    check_layer_list(list.size(), layers, more > 0 ? "block_count - nextn_predict_layers values" : what,
                     [&](const std::string& rule) { reader.refuse(reader.key(name), rule); });
    return list;
  }

  /// Whether layers of this architecture slide only in models with another number of layers.
  bool of_other_size() const {
    return record.period_layers > 0 && count > 0 && record.period_layers != count;
  }

  /// Whether no layer slides, whatever the file gives as pattern and base of sliding layers.
  bool none_slides() const {
    const auto window = reader.number("attention.sliding_window", range::window);
    const bool needs_window = record.needs_window || record.all_slide;
    return !may_slide(record) || of_other_size() || (needs_window && window.value_or(0) <= 0);
  }

  /// Warns about attention.sliding_window_pattern if no version of llama.cpp reads it, or only some versions
  /// do.
  ///
  /// Source: llama.cpp, get_key_or_arr in llama-model-loader.cpp; in later versions load_swa_pattern
  void note_sliding_pattern() const {
    constexpr const char* name = "attention.sliding_window_pattern";
    const bool list = reader.is_list(name);
    if (record.names.empty() || (!list && !reader.number(name, range::count))) return;
    const std::string of = " is not read for " + reader.architecture();
    if (of_other_size())
      say(name, of + " of " + std::to_string(count) + " layers; none slides");
    else if (record.all_slide || record.compressed || !may_slide(record))
      say(name, of + (may_slide(record) ? "" : "; no layer slides"));
    else if (record.pattern == pattern_form::number && list)
      say(name, " is a list, in whose place llama.cpp of August 2026 takes a period of " +
                    std::to_string(record.period) + " for " + reader.architecture() +
                    "; later versions take the list, as is done here");
  }

  /// One entry per layer, true if the layer slides. Empty if the sliding layers are unknown, if there are
  /// none (unless the file lists them), and for records with all_slide or compressed.
  std::vector<bool> listed_as_sliding() const {
    constexpr const char* name = "attention.sliding_window_pattern";
    const auto window = reader.number("attention.sliding_window", range::window);
    const auto given = reader.numbers_if_list(name, range::zero_or_one);
    const auto every = given ? std::nullopt : reader.index(name);
    if (record.needs_pattern && !given && !every)
      reader.refuse(reader.key(name), "is missing; it says which layers slide, and no default is known");
    if (record.pattern == pattern_form::list && every)
      reader.refuse(reader.key(name), "must be a list of one value per layer, got a number");
    std::vector<bool> slide;
    if (none_slides() || record.all_slide || record.compressed) return slide;
    if (given) {
      for (const double slides : fitting(name, count, *given)) slide.push_back(!equal(slides, 0));
      return slide;
    }
    const Index period = every.value_or(record.period);
    if (period == 0 || window == 0.0) return slide;
    for (Index i = 0; i < count; ++i) slide.push_back(i % period != (record.full_first ? 0 : period - 1));
    return slide;
  }

  /// The layer types of DeepSeek V4, from the number of tokens that each layer compresses into a key.
  std::vector<std::string> types_by_compression() const {
    const std::string key = reader.key("attention.compress_ratios");
    std::vector<double> ratios =
        reader.required(reader.numbers("attention.compress_ratios", range::whole), key);
    const auto size = count > 0 ? static_cast<std::size_t>(count) : ratios.size();
    if (ratios.size() > size) ratios.resize(size);  // layers for multi-token prediction
    const auto refuse = [&](const std::string& rule) { reader.refuse(key, rule); };
    check_layer_list(ratios.size(), count, "block_count values", refuse);
    return compressed_types(ratios, refuse);
  }

  /// The layers that do not attend: layers without key heads, and layers that are recurrent according to the
  /// file or the code of llama.cpp. Without block_count, the size of `sliding` is the number of layers.
  std::vector<Index> without_attention() const {
    constexpr const char *heads = "attention.head_count_kv", *recurrent = "attention.recurrent_layers";
    const char* what =
        count > 0 ? "block_count values" : "as many values as attention.sliding_window_pattern";
    std::vector<Index> without;
    if (const auto list = reader.numbers_if_list(heads, range::whole))
      add_layers_where(without, fitting(heads, listed(), *list, what), is_zero);
    if (const auto flags = reader.numbers(recurrent, range::zero_or_one)) {
      add_layers_where(without, fitting(recurrent, listed(), *flags, what), std::not_fn(is_zero));
    } else if (record.attends_every > 0) {
      const Index period = reader.index("full_attention_interval").value_or(record.attends_every);
      for (Index i = 0; i < listed(); ++i)
        if ((i + 1) % period != 0) without.push_back(i);
    }
    return without;
  }

  /// attention.sliding_window, or the default of llama.cpp for a file without this key. Nothing if unknown.
  std::optional<double> window() const {
    if (!may_slide(record)) return 0;
    const auto given = reader.number("attention.sliding_window", range::window);
    if (given && *given > 0 && record.fixed_window > 0) return static_cast<double>(record.fixed_window);
    if (!given && record.default_window > 0) return static_cast<double>(record.default_window);
    return given;
  }

  /// model_rope::window_of_sliding: attention_options::window of sliding layers, 0 if no layer slides.
  Index window_of_sliding() const {
    if (none_slides()) return 0;
    const auto given = window();
    if (!given || record.window == window_kind::chunks) return not_known_window;
    const auto tokens = static_cast<Index>(*given);
    return record.window == window_kind::both_sides && tokens > 0 ? tokens / 2 + 1 : tokens;
  }

  /// The window of every layer if the sliding layers are not listed.
  Index window_without_list() const {
    const auto given = window();
    if (none_slides() || given == 0.0) return 0;
    if (record.all_slide) return window_of_sliding();
    return given || record.period > 0 ? not_known_window : 0;
  }

  /// model_rope::windows.
  std::vector<Index> windows() const {
    const std::vector<Index> silent = without_attention();
    if (sliding.empty() && (silent.empty() || count == 0)) return {window_without_list()};
    std::vector<Index> windows;
    for (const bool slides : sliding) windows.push_back(slides ? window_of_sliding() : 0);
    if (windows.empty()) windows.assign(static_cast<std::size_t>(count), window_without_list());
    for (const Index layer : silent) windows[static_cast<std::size_t>(layer)] = not_known_window;
    return windows;
  }

  /// Finds the layers with sink logits. If the caller's lookup reads tensors, these are the layers with such
  /// a tensor. Otherwise they are the sliding layers, with a warning.
  ///
  /// Source: llama.cpp, src/models/mimo2.cpp, in which the tensor is optional in every layer
  void read_layers_with_sinks() const {
    std::vector<Index> with, without;
    for (Index i = 0; i < listed(); ++i)
      (reader.has_tensor("blk." + std::to_string(i) + ".attn_sinks.weight") ? with : without).push_back(i);
    if (!with.empty()) {
      model.layers_without_sinks = without;
      return;
    }
    add_layers_where(model.layers_without_sinks, sliding, std::logical_not<bool>());
    model.warn("sink logits are assumed in layers that slide, and in no others, as in the models of " +
               reader.architecture() +
               " that are known; a layer has them where the file has blk.N.attn_sinks.weight");
  }

  /// Warns if the window of an attending layer is unknown, with the reason, and records it in
  /// model.no_window_because.
  void note_unknown_windows() const {
    const std::vector<Index> silent = without_attention();
    bool known = true;
    for (std::size_t i = 0; i < model.windows.size(); ++i)
      known = known && (model.windows[i] != not_known_window || contains(silent, static_cast<Index>(i)));
    if (known) return;
    const auto because = [&](const char* name, const char* why) {
      model.no_window_because = reader.key(name) + why;
      say(name, why);
    };
    if (record.window == window_kind::chunks)
      because("attention.sliding_window",
              " is a length of chunks, in which layers attend; a window cannot express them, and "
              "rotate_layer gives the key_ranges of a chunk");
    else if (!window())
      because("attention.sliding_window", " is not given; the window of layers that slide is not known");
    else
      because(record.period > 0 ? "block_count" : "attention.sliding_window_pattern",
              " is not given; which layers slide is not known");
  }

  /// Whether attention is causal.
  bool is_causal() const {
    return record.causal && !equal(reader.number("attention.causal", range::zero_or_one).value_or(1), 0);
  }

  /// The layers that do not rotate, in increasing order. In llama.cpp they are every n-th layer, or the
  /// layers that do not slide. The two rules differ if a file has its own pattern.
  std::vector<Index> without_rope() const {
    std::vector<Index> without = without_attention();
    constexpr const char* name = "attention.rope_pattern";
    if (record.rope_pattern)
      if (const auto rotates = reader.numbers(name, range::zero_or_one))
        add_layers_where(without, fitting(name, count, *rotates), is_zero);
    const Index dense =
        record.dense_rotate ? reader.index("leading_dense_block_count", range::whole).value_or(0) : 0;
    // If no layer of Llama 4 or SmallThinker slides, llama.cpp sets the period of unrotated layers to the
    // number of layers. The last layer of Llama 4 then does not rotate. All layers of SmallThinker do.
    const bool chunks = record.window == window_kind::chunks;
    Index every = record.no_rope_every;
    if ((chunks || record.no_rope_first) && sliding.empty()) every = count;
    if (record.no_rope_first && every == count) every = 0;
    for (Index i = record.no_rope_first ? 0 : every - 1; every > 0 && i < count; i += every)
      without.push_back(i);
    if (!record.full_rotate)
      for (auto i = static_cast<std::size_t>(dense); i < sliding.size(); ++i)
        if (!sliding[i]) without.push_back(static_cast<Index>(i));
    sort_distinct(without);
    return without;
  }

  // Warnings about absent keys, and about keys that llama.cpp does not read for an architecture.

  /// Warns about the values that llama.cpp uses for absent keys of bases, windows, patterns, softcaps and
  /// output scales.
  void name_assumed() const {
    const auto name = [&](const char* key, const std::string& what) {
      if (!reader.has(key)) say(key, " is not given; assumed " + what + ", as llama.cpp does");
    };
    const bool by_layer = reader.has("rope.freq_base_per_layer");
    if (!by_layer && equal(record.fixed_base, 0)) name("rope.freq_base", "10000");
    const layer_group* slides = model.group("sliding_attention");
    if (!by_layer && record.sliding == sliding_rule::own_base && slides && !slides->layer_type.empty())
      name("rope.freq_base_swa", "10000");
    if (record.default_window > 0 &&
        std::any_of(model.windows.begin(), model.windows.end(), [](Index window) { return window != 0; }))
      name("attention.sliding_window", std::to_string(record.default_window));
    if (record.period > 0 && !sliding.empty())
      name("attention.sliding_window_pattern", std::string("that the ") +
                                                   (record.full_first ? "first" : "last") + " of every " +
                                                   std::to_string(record.period) + " layers attends fully");
    if (record.attends_every > 0 && !reader.has("attention.recurrent_layers") && !model.without_rope.empty())
      name("full_attention_interval", std::to_string(record.attends_every));
    if (record.softcap > 0) name("attn_logit_softcapping", exact_digits(record.softcap));
    if (record.scale == gguf_scale::output_key) name("attention.output_scale", "1 / sqrt(128)");
  }

  /// Warns about each key for positions, windows and scores that llama.cpp does not read, if its value
  /// differs from the one that llama.cpp uses.
  ///
  /// \param base  the RoPE base of the layers without a sliding window
  void note_unread_keys(double base) const {
    const auto note = [&](const char* name, double taken, bool read) {
      const auto given = reader.number(name, range::any_number);
      if (!read && given && !equal(*given, taken))
        say(name, " is not read for " + reader.architecture() + ", got " + exact_digits(*given) +
                      "; it is taken as " + exact_digits(taken));
    };
    const layer_group& group = model.groups.front();
    note("rope.scaling.yarn_beta_fast", record.beta_fast, record.yarn != yarn_keys::none);
    note("rope.scaling.yarn_beta_slow", 1, record.yarn != yarn_keys::none);
    note("rope.scaling.yarn_attn_factor", 1, record.yarn == yarn_keys::all);
    note("rope.scaling.yarn_ext_factor", 1, record.yarn == yarn_keys::all);
    note("rope.scaling.yarn_log_multiplier", 0, record.multiplier != log_multiplier::ignored);
    note("rope.scaling.alpha", 0, record.alpha);
    note("rope.scaling.factor", 1, !record.whole_head);
    note("rope.scaling.attn_factor", 1, !record.whole_head && !record.compressed);
    note("rope.freq_base", record.fixed_base, equal(record.fixed_base, 0));
    note("rope.dimension_count", static_cast<double>(group.head_dim), !record.whole_head);
    if (none_slides()) {
      const auto has_no_effect = [&](const char* name, double as_if_absent) {
        if (!equal(reader.number(name, range::any_number).value_or(as_if_absent), as_if_absent))
          say(name, " has no effect for " + reader.architecture() + ": no layer slides");
      };
      has_no_effect("attention.sliding_window", 0);
      has_no_effect("rope.freq_base_swa", base);
      has_no_effect("rope.dimension_count_swa", static_cast<double>(group.rotary_dim()));
      for (const char* name : {"attention.key_length_swa", "attention.key_length_mla_swa"})
        has_no_effect(name, static_cast<double>(group.head_dim));
    } else {
      if (record.window_varies && model.sliding_window > 0)
        say("attention.sliding_window", ": not every version of llama.cpp slides by it; it is used here");
      note("rope.freq_base_swa", base,
           record.sliding != sliding_rule::same && record.sliding != sliding_rule::unscaled &&
               record.sliding != sliding_rule::bare && !record.compressed);
      note("rope.dimension_count_swa", static_cast<double>(group.rotary_dim()), !record.all_slide);
      note("attention.sliding_window", static_cast<double>(record.fixed_window), record.fixed_window == 0);
    }
    note("attention.scale", group.scale, record.scale == gguf_scale::of_key);
    note("attention.output_scale", group.scale, record.scale == gguf_scale::output_key);
    note("attention.max_alibi_bias", 0, false);
    note("attn_logit_softcapping", 0, !equal(record.softcap, 0));
    const std::string not_read = " is not read for " + reader.architecture();
    if (!record.rope_pattern && reader.has("attention.rope_pattern")) say("attention.rope_pattern", not_read);
    constexpr const char* ratios = "attention.compress_ratios";
    if (!record.compressed && record.note.find(ratios) == std::string_view::npos && reader.has(ratios))
      say(ratios, not_read);
    if (record.attends_every == 0 && reader.number("full_attention_interval", range::any_number))
      say("full_attention_interval", not_read);
    if (!record.finetuned && reader.number("rope.scaling.finetuned", range::zero_or_one))
      say("rope.scaling.finetuned", " says how the model was trained, and has no effect");
    if (!record.compressed && reader.number("attention.compress_rope_freq_base", range::any_number))
      say("attention.compress_rope_freq_base", " is not used");
    const auto factor = reader.number("rope.scaling.factor", range::not_negative),
               older = reader.number("rope.scale_linear", range::not_negative);
    if (factor && older && !equal(*factor, *older))
      say("rope.scale_linear", " is overruled by " + reader.key("rope.scaling.factor"));
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_GGUF_LAYERS_HPP
