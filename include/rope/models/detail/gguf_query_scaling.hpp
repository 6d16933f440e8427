// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGUF_QUERY_SCALING_HPP
#define ROPE_MODELS_DETAIL_GGUF_QUERY_SCALING_HPP

#include <optional>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/gguf_reader.hpp>
#include <rope/models/detail/gguf_record.hpp>
#include <rope/models/detail/gguf_schedule.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// What the layers of a GGUF model multiply their queries by.
///
/// Source: llama.cpp, llm_graph_input_attn_temp and load_hparams of each architecture

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// \param model  whose max_position is known
template <class L>
void add_query_scaling(const gguf_reader<L>& reader, const gguf_record& record, model_draft& model) {
  constexpr const char *scale_key = "attention.temperature_scale",
                       *length_key = "attention.temperature_length";
  const auto scale = reader.number(scale_key, range::not_negative),
             length = reader.number(length_key, range::positive);
  const auto unused = [&](const char* key) {
    model.warnings.push_back(reader.key(key) + " is not used");
    if (record.architecture.empty()) model.scaled = scaled_queries::not_known;
  };
  const bool of_length = record.temperature == gguf_temperature::of_length,
             of_context = record.temperature == gguf_temperature::of_context;
  if (scale && !of_length && !of_context) unused(scale_key);
  if (length && !of_length) unused(length_key);
  if (record.temperature == gguf_temperature::fixed) {
    // Without chunks llama.cpp has no numbers for the one layer that does not rotate.
    const bool chunks = reader.number("attention.sliding_window", range::window) != 0.0;
    model.scaled = chunks ? scaled_queries::layers_without_rope : scaled_queries::not_known;
    model.query_rule.rule = llama4_query_scaling{};
    return;
  }
  if (equal(scale.value_or(0), 0) || (!of_length && !of_context)) return;
  const double floor = of_length ? reader.required_number(length_key, range::positive)
                                 : original_max_position_of(reader, model.max_position);
  if (equal(floor, 0)) reader.required_number("context_length", range::positive);
  model.scaled = scaled_queries::every_layer;
  model.query_rule.rule = llama4_query_scaling{.floor_scale = floor, .attention_scale = *scale, .offset = 0};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGUF_QUERY_SCALING_HPP
