// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_ASSUMPTIONS_HPP
#define ROPE_MODELS_DETAIL_GGUF_ASSUMPTIONS_HPP

#include <algorithm>  // std::any_of
#include <string>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_record.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>

/// What a GGUF file leaves to llama.cpp and says nothing of.

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

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_ASSUMPTIONS_HPP
