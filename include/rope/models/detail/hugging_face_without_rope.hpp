// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_WITHOUT_ROPE_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_WITHOUT_ROPE_HPP

#include <optional>
#include <string>

#include <rope/config.hpp>
#include <rope/models/detail/architectures.hpp>
#include <rope/models/detail/hugging_face_record.hpp>
#include <rope/models/detail/hugging_face_records.hpp>
#include <rope/models/detail/hugging_face_refused.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/number_rule.hpp>
#include <rope/models/detail/unrotated_model.hpp>

/// Which config.json are of models of which no layer rotates: of some architectures all, of others those with
/// a certain value.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether the key of record.turns_if says that layers turn.
template <class J>
bool says_that_layers_turn(json_reader<J>& text, const hugging_face_record& record) {
  const J* value = text.find(std::string(record.turns_if).c_str());
  if (!value) return false;
  if (value->is_boolean()) return value->template get<bool>();
  if (value->is_string()) return value->template get<std::string>() == record.turns_word;
  return value->is_object() && json_reader<J>(value, "").has("rope_theta");
}

/// Throws where a file says of an architecture in which nothing rotates that something does.
///
/// Source:  Hugging Face transformers, models/kimi_linear and models/glm5_next; mlx-lm, models/kimi_linear.py
template <class J>
void check_that_nothing_rotates(json_reader<J>& text, const std::string& name,
                                const std::string& architecture) {
  if (!text.boolean("mla_use_nope").value_or(true))
    text.refuse("mla_use_nope",
                "is false, but nothing rotates in the code of " + architecture +
                    " that is known; remove the key to describe the model as that code has it");
  const auto rotated = name == "glm5next" ? text.index("qk_rope_head_dim", range::whole) : std::nullopt;
  if (rotated.value_or(0) > 0)
    text.refuse("qk_rope_head_dim", "must be 0, for nothing rotates in the code of " + architecture +
                                        " that is known, got " + std::to_string(*rotated));
}

template <class J>
unrotated_model unrotated_model_of(json_reader<J>& text, const std::string& architecture) {
  const std::string name = plain_architecture(architecture);
  if (const refused_architecture* refused = refused_architecture_of(name);
      refused && refused->kind == refusal::no_turn) {
    check_that_nothing_rotates(text, name, architecture);
    return {
        std::string(refused->reason), "model_type",
        "is one in which nothing rotates: it has " + std::string(refused->reason) + ", got " + architecture};
  }
  const hugging_face_record* known = hugging_face_record_of(name);
  const hugging_face_record record = known ? *known : hugging_face_record{};
  if (!record.turns_if.empty() && !says_that_layers_turn(text, record))
    return {std::string(record.instead), std::string(record.turns_if),
            "does not say that layers turn, and without it no layer of " + architecture +
                " does: it must be true, \"" + std::string(record.turns_word) +
                "\" or a dictionary with rope_theta"};
  if (record.needs_window && text.is_null("sliding_window"))
    return {"no positions", "sliding_window",
            "is null: then no layer of " + architecture + " slides, and the others do not turn"};
  if (!known && text.boolean("mla_use_nope").value_or(false))
    return {"no positions", "mla_use_nope", "is true: nothing rotates in " + architecture};
  if (text.index("qk_rope_head_dim", range::whole) == 0 && (!known || known->latent || known->last_channels))
    return {"no positions", "qk_rope_head_dim", "is 0, so no channel of a head turns"};
  if (text.boolean("alibi").value_or(false))
    return {"ALiBi biases", "alibi", "is true: this model has ALiBi biases in place of rotary embeddings"};
  if (record.alibi_layers > 0 && text.index("num_hidden_layers") == record.alibi_layers)
    return {"ALiBi biases", "num_hidden_layers",
            "is " + std::to_string(record.alibi_layers) + ": a model of " + architecture +
                " of so many layers has ALiBi biases in place of rotary embeddings"};
  return {};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_WITHOUT_ROPE_HPP
