// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_QUERY_SCALING_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_QUERY_SCALING_HPP

#include <string>
#include <string_view>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/hugging_face_schedule.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/model_draft.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/model_facts.hpp>
#include <rope/models/model_rope.hpp>

/// What the layers of a config.json multiply their queries by.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether a key is there that makes queries grow, for architectures of which nothing is known.
inline bool speaks_of_query_scaling(std::string_view key) {
  for (const std::string_view one :
       {"attn_temperature_tuning", "use_logn_attn", "llama_4_scaling_beta", "llama_4_scaling"})
    if (key == one) return true;
  return false;
}

/// The rule of the keys beside the rope dictionary: Llama 4's and log-n.
template <class J>
void add_query_scaling(json_reader<J>& text, const hugging_face_record& defaults, model_draft& model) {
  if (defaults.queries == query_growth::temperature) {
    const J* tuning = text.find("attn_temperature_tuning");  // 4 is true, in files as old as the model
    const bool tuned = !tuning || (tuning->is_number()
                                       ? !equal(*text.number("attn_temperature_tuning", range::any_number), 0)
                                       : *text.boolean("attn_temperature_tuning"));
    const llama4_query_scaling rule{
        .floor_scale = text.number("floor_scale", range::positive).value_or(8192),
        .attention_scale = text.number("attn_scale", range::not_negative).value_or(0.1)};
    if (!tuned) return;
    model.query_rule.rule = rule;
    model.scaled = scaled_queries::layers_without_rope;
  }
  if (defaults.queries == query_growth::log_n) {
    if (!text.boolean("use_logn_attn").value_or(true)) return;
    model.query_rule.rule = log_n_query_scaling{
        .train_length = text.required_number("seq_length", range::above_one, "use_logn_attn needs it")};
    model.scaled = scaled_queries::every_layer;
  }
}

/// The rule inside the rope dictionary: that of Ministral 3 and Mistral 4.
template <class J>
void add_query_scaling_of_dictionary(json_reader<J>& text, json_reader<J>& rope,
                                     const hugging_face_record& defaults, model_draft& model) {
  if (defaults.queries != query_growth::beta) return;
  constexpr const char* key = "llama_4_scaling_beta";
  const auto beta = rope.number(key, range::not_negative);
  if (!beta) return;
  const double original = original_max_position(text, rope, defaults, model, rope.path() + key + " needs it");
  model.query_rule.rule =
      llama4_query_scaling{.floor_scale = original, .attention_scale = *beta, .offset = 0};
  model.scaled = scaled_queries::every_layer;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_QUERY_SCALING_HPP
