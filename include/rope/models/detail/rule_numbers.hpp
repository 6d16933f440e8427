// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_RULE_NUMBERS_HPP
#define ROPE_MODELS_DETAIL_RULE_NUMBERS_HPP

#include <rope/config.hpp>

/// The numbers of a rule of scaling, by the names of its members.

namespace rope::inline ROPE_ABI::detail {

/// Calls with(name, number) for each number of a rule that an import may choose, in the order of its members.
/// Optional numbers that only change the magnitude are left out.
template <class Rule, class With>
void each_number(Rule& rule, const With& with) {
  if constexpr (requires { rule.alpha; }) with("alpha", rule.alpha);
  if constexpr (requires { rule.partial_rotary_factor; })
    with("partial_rotary_factor", rule.partial_rotary_factor);
  if constexpr (requires { rule.factor + 1; }) with("factor", rule.factor);  // not an optional one
  if constexpr (requires { *rule.mixed_b; })
    if (rule.mixed_b) with("mixed_b", *rule.mixed_b);
  if constexpr (requires { rule.low_freq_factor; }) with("low_freq_factor", rule.low_freq_factor);
  if constexpr (requires { rule.high_freq_factor; }) with("high_freq_factor", rule.high_freq_factor);
  if constexpr (requires { rule.original_max_position; })
    with("original_max_position", rule.original_max_position);
  if constexpr (requires { rule.beta_fast; }) with("beta_fast", rule.beta_fast);
  if constexpr (requires { rule.beta_slow; }) with("beta_slow", rule.beta_slow);
  if constexpr (requires { rule.max_position; }) with("max_position", rule.max_position);
  if constexpr (requires { rule.length; }) with("length", rule.length);
  if constexpr (requires { rule.train_length; }) with("train_length", rule.train_length);
  if constexpr (requires { rule.floor_scale; }) with("floor_scale", rule.floor_scale);
  if constexpr (requires { rule.attention_scale; }) with("attention_scale", rule.attention_scale);
  if constexpr (requires { rule.offset; }) with("offset", rule.offset);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_MODELS_DETAIL_RULE_NUMBERS_HPP
