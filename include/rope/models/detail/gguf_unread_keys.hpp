// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_UNREAD_KEYS_HPP
#define ROPE_MODELS_DETAIL_GGUF_UNREAD_KEYS_HPP

#include <algorithm>  // std::any_of
#include <string>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/gguf_layers.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_record.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_rope.hpp>

/// The keys of a GGUF file that llama.cpp does not read for an architecture, and those that are absent.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Names what llama.cpp takes for keys that are absent, where it was used. All channels of a head and YaRN's
/// own bounds are common to all architectures, and not named.
///
/// \param sliding  as gguf_sliding_layers returns it
/// \param model    with its groups
template <class L>
void name_assumed(const gguf_reader<L>& reader, const gguf_record& record, const std::vector<bool>& sliding,
                  model_draft& model) {
  const auto has = [&](const char* name) {
    return reader.number(name, range::any_number) || reader.numbers(name, range::any_number);
  };
  const auto name = [&](const char* key, const std::string& what) {
    if (!has(key))
      model.warnings.push_back(reader.key(key) + " is not given; assumed " + what + ", as llama.cpp does");
  };
  const bool by_layer = has("rope.freq_base_per_layer");
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
  if (record.attends_every > 0 && !has("attention.recurrent_layers") && !model.layers_without_rope.empty())
    name("full_attention_interval", std::to_string(record.attends_every));
  if (record.softcap > 0) name("attn_logit_softcapping", exact_digits(record.softcap));
  if (record.scale == gguf_scale::output_key) name("attention.output_scale", "1 / sqrt(128)");
}

/// Names the keys of positions, windows and scores that llama.cpp does not read, where their values differ
/// from those that it uses.
///
/// \param base    of the layers that do not slide
/// \param layers  as gguf_layer_count returns it
/// \param model   with its groups
template <class L>
void note_unread_keys(const gguf_reader<L>& reader, const gguf_record& record, double base, Index layers,
                      model_draft& model) {
  const auto say = [&](const char* name, const std::string& what) {
    model.warnings.push_back(reader.key(name) + what);
  };
  const auto note = [&](const char* name, double taken, bool read) {
    const auto given = reader.number(name, range::any_number);
    if (!read && given && !equal(*given, taken))
      say(name, " is not read for " + reader.architecture() + "; it is taken as " + exact_digits(taken));
  };
  const layer_group& group = model.groups.front();
  note("rope.scaling.yarn_beta_fast", record.beta_fast, record.yarn != yarn_keys::none);
  note("rope.scaling.yarn_beta_slow", 1, record.yarn != yarn_keys::none);
  note("rope.scaling.yarn_attn_factor", 1, record.yarn == yarn_keys::all);
  note("rope.scaling.yarn_ext_factor", 1, record.yarn == yarn_keys::all);
  note("rope.scaling.yarn_log_multiplier", 0, record.multiplier != log_multiplier::ignored);
  note("rope.scaling.alpha", 0, record.alpha);
  note("rope.scaling.factor", 1, !record.unscaled);
  note("rope.scaling.attn_factor", 1, !record.unscaled && !record.compressed);
  note("rope.freq_base", record.fixed_base, equal(record.fixed_base, 0));
  note("rope.dimension_count", static_cast<double>(group.head_dim), !record.whole_head);
  if (none_slides(reader, record, layers)) {
    const auto has_no_effect = [&](const char* name, double as_if_absent) {
      if (!equal(reader.number(name, range::any_number).value_or(as_if_absent), as_if_absent))
        say(name, " has no effect for " + reader.architecture() + ": no layer slides");
    };
    has_no_effect("attention.sliding_window", 0);
    has_no_effect("rope.freq_base_swa", base);
    has_no_effect("rope.dimension_count_swa", static_cast<double>(group.rotary_dim()));
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
  if (!record.rope_pattern && reader.numbers("attention.rope_pattern", range::any_number))
    say("attention.rope_pattern", " is not read for " + reader.architecture() + "");
  if (!record.finetuned && reader.number("rope.scaling.finetuned", range::zero_or_one))
    say("rope.scaling.finetuned", " says how the model was trained, and has no effect");
  if (!record.compressed && reader.number("attention.compress_rope_freq_base", range::any_number))
    say("attention.compress_rope_freq_base", " is not used");
  const auto factor = reader.number("rope.scaling.factor", range::not_negative),
             older = reader.number("rope.scale_linear", range::not_negative);
  if (factor && older && !equal(*factor, *older))
    say("rope.scale_linear", " is overruled by " + reader.key("rope.scaling.factor"));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_UNREAD_KEYS_HPP
