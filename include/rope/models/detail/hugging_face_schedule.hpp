// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP
#define ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/longrope.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/derive.hpp>
#include <rope/models/detail/json_reader.hpp>
#include <rope/models/detail/number_rule.hpp>

/// The frequencies that one rope dictionary of a Hugging Face config.json stands for. `config` holds the keys
/// beside the dictionary, `rope` those inside.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The rope types of Hugging Face transformers, `ntk` of vLLM, and the YaRN of TeleChat 3.
inline constexpr const char* rope_types[] = {
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "ntk", "telechat3-yarn"};

/// Types under another name, and the present one.
inline constexpr struct {
  const char *name, *present;
} renamed_rope_types[] = {{"su", "longrope"},    {"mrope", "default"},    {"deepseek_yarn", "yarn"},
                          {"xdrope", "dynamic"}, {"ernie_3d", "default"}, {"openpangu", "default"}};

/// The present name of the type that was given.
template <class J>
std::string present_rope_type(json_reader<J>& rope, const std::string& given) {
  std::string type = given;
  for (const auto& renamed : renamed_rope_types)
    if (given == renamed.name) type = renamed.present;
  return type == "yarn" && rope.has("short_factor") && rope.has("long_factor") ? "longrope" : type;
}

/// The rope type under its present name. Older names are noted, unknown ones throw.
template <class J>
std::string rope_type_of(json_reader<J>& rope, std::vector<std::string>& warnings) {
  const auto new_key = rope.text("rope_type"), old_key = rope.text("type");
  const char* key = new_key ? "rope_type" : "type";
  const std::string given = new_key.value_or(old_key.value_or("default"));
  std::string type = present_rope_type(rope, given);
  if (type != given)
    warnings.push_back(rope.path() + key + " " + given + " is another name of " + type);
  else if (!new_key && old_key)
    warnings.push_back(rope.path() +
                       "type is the older name of rope_type, which the classes of transformers 5 with a rule "
                       "for each type of layers do not read");
  if (new_key && old_key && *new_key != *old_key && !(*old_key == "mrope" && type == "default"))
    warnings.push_back(rope.path() + "type " + *old_key + " is overruled by rope_type " + *new_key);
  std::string known;
  for (const char* one : rope_types) {
    if (type == one) return type;
    known += known.empty() ? one : std::string(", ") + one;
  }
  rope.refuse(key, "is not a known rope type, got " + given + "; known are " + known);
  return type;
}

/// The key beside the dictionary wins over the one inside; without either, the model was trained at its full
/// length.
template <class J>
double original_max_position(json_reader<J>& config, json_reader<J>& rope, const std::string& needed) {
  const auto inside = rope.number("original_max_position_embeddings", range::above_one);
  const auto beside = config.number("original_max_position_embeddings", range::above_one);
  if (beside) return *beside;
  if (inside) return *inside;
  return config.required_number("max_position_embeddings", range::above_one,
                                needed + " where original_max_position_embeddings is not given");
}

template <class J>
yarn_scaling yarn_of(json_reader<J>& config, json_reader<J>& rope, const std::string& type,
                     bool unit_magnitude, const std::string& needed) {
  // 0 means the default, as in transformers: `beta_fast or 32`.
  const auto or_default = [](double x, double otherwise) { return equal(x, 0) ? otherwise : x; };
  const double original = original_max_position(config, rope, needed);
  // A factor of null is that of the two lengths.
  const double factor =
      rope.is_null("factor")
          ? checked(config.required_number("max_position_embeddings", range::positive, needed) / original,
                    range::at_least_one, "import_hugging_face",
                    "max_position_embeddings / original_max_position_embeddings")
          : rope.required_number("factor", range::at_least_one, needed);
  yarn_scaling yarn{.factor = factor, .original_max_position = original};
  yarn.beta_fast = or_default(rope.number("beta_fast", range::not_negative).value_or(0), yarn.beta_fast);
  yarn.beta_slow = or_default(rope.number("beta_slow", range::not_negative).value_or(0), yarn.beta_slow);
  yarn.truncate = rope.boolean("truncate").value_or(true);
  yarn.attention_factor = rope.number("attention_factor", range::positive);
  if (unit_magnitude && !yarn.attention_factor) yarn.attention_factor = 1;
  if (type == "telechat3-yarn") {  // m = 0.07 ln s + 1: vLLM, patch_legacy_rope_type
    if (!yarn.attention_factor) yarn.attention_factor = 0.07 * std::log(factor) + 1;
    return yarn;
  }
  yarn.mscale = rope.number("mscale", range::not_negative);
  yarn.mscale_all_dim = rope.number("mscale_all_dim", range::not_negative);
  return yarn;
}

template <class J>
longrope_scaling longrope_of(json_reader<J>& config, json_reader<J>& rope, Index pairs, double length,
                             const std::string& needed) {
  longrope_scaling longrope{
      .short_factor = rope.required_numbers("short_factor", range::positive, needed),
      .long_factor = rope.required_numbers("long_factor", range::positive, needed),
      .original_max_position = original_max_position(config, rope, needed),
      .max_position = config.required_number("max_position_embeddings", range::positive, needed),
      .length = length};
  for (const auto* list : {&longrope.short_factor, &longrope.long_factor})
    if (static_cast<Index>(list->size()) != pairs)
      rope.refuse(
          list == &longrope.short_factor ? "short_factor" : "long_factor",
          "must have one value per pair, " + std::to_string(pairs) + ", got " + std::to_string(list->size()));
  longrope.factor = rope.number("factor", range::at_least_one);
  // Phi-3.5-MoE gives the magnitude of each list.
  const auto short_mscale = rope.number("short_mscale", range::positive),
             long_mscale = rope.number("long_mscale", range::positive);
  longrope.attention_factor = rope.number("attention_factor", range::positive);
  if (!longrope.attention_factor)
    longrope.attention_factor = longrope.uses_long() ? long_mscale : short_mscale;
  return longrope;
}

/// alpha in base alpha^(d / (d - 2)) where it grows with each doubling of seq_length: 1, 3, 7, 15.
///
/// Source: get_ntk_alpha of Qwen's modeling_qwen.py
template <class J>
double alpha_of_doublings(json_reader<J>& config, double length) {
  const double trained =
      config.required_number("seq_length", range::above_one, "use_dynamic_ntk, true by default, needs it");
  return length <= trained ? 1 : std::exp2(std::ceil(std::log2(length / trained) + 1)) - 1;
}

/// \param length          tokens of the sequence, for the rules that depend on it
/// \param unit_magnitude  YaRN has m = 1 where the dictionary has no attention_factor
template <class J>
derived derive_hugging_face(json_reader<J>& config, json_reader<J>& rope, const std::string& type,
                            Index rotary_dim, double base, double length, bool unit_magnitude = false) {
  const std::string needed = "rope type " + type + " needs it";
  if (type == "linear")
    return derive("linear", rotary_dim, base,
                  linear_scaling{.factor = rope.required_number("factor", range::at_least_one, needed)});
  if (type == "dynamic") {
    if (const auto alpha = rope.number("alpha", range::at_least_one))
      return derive("dynamic with alpha", rotary_dim, base, alpha_scaling{.alpha = *alpha});
    return derive("dynamic", rotary_dim, base,
                  dynamic_ntk_scaling{.factor = rope.required_number("factor", range::at_least_one, needed),
                                      .max_position = config.required_number("max_position_embeddings",
                                                                             range::positive, needed),
                                      .length = length});
  }
  if (type == "yarn" || type == "telechat3-yarn") {
    const yarn_scaling yarn = yarn_of(config, rope, type, unit_magnitude, needed);
    if (yarn.beta_fast < yarn.beta_slow)
      rope.refuse("beta_fast", "must be at least beta_slow, got " + exact_digits(yarn.beta_fast) + " and " +
                                   exact_digits(yarn.beta_slow));
    derived result = derive("yarn", rotary_dim, base, yarn);
    result.softmax_multiplier = checked(yarn_softmax_multiplier(yarn), range::positive, "import_hugging_face",
                                        "the softmax multiplier of " + rope.path() + "mscale_all_dim");
    return result;
  }
  if (type == "longrope")
    return derive("longrope", rotary_dim, base, longrope_of(config, rope, rotary_dim / 2, length, needed));
  if (type == "llama3") {
    const llama3_scaling llama3{
        .factor = rope.required_number("factor", range::at_least_one, needed),
        .low_freq_factor = rope.required_number("low_freq_factor", range::positive, needed),
        .high_freq_factor = rope.required_number("high_freq_factor", range::positive, needed),
        .original_max_position = original_max_position(config, rope, needed)};
    if (llama3.high_freq_factor < llama3.low_freq_factor)
      rope.refuse("high_freq_factor", "must be at least low_freq_factor, got " +
                                          exact_digits(llama3.high_freq_factor) + " and " +
                                          exact_digits(llama3.low_freq_factor));
    return derive("llama3", rotary_dim, base, llama3);
  }
  if (type == "proportional") {
    auto partial = rope.number("partial_rotary_factor", range::fraction);
    if (!partial) partial = config.number("partial_rotary_factor", range::fraction);
    return derive("proportional", rotary_dim, base,
                  proportional_scaling{.partial_rotary_factor = partial.value_or(1),
                                       .factor = rope.number("factor", range::at_least_one).value_or(1)});
  }
  if (type == "ntk")
    return derive("ntk", rotary_dim, base,
                  mixed_ntk_scaling{.factor = rope.required_number("factor", range::at_least_one, needed),
                                    .mixed_b = rope.number("mixed_b", range::positive)});
  return derive("default", rotary_dim, base);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_HUGGING_FACE_SCHEDULE_HPP
