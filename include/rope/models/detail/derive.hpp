// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_DERIVE_HPP
#define ROPE_MODELS_DETAIL_DERIVE_HPP

#include <initializer_list>
#include <string>
#include <vector>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/longrope.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/model_rope.hpp>

/// Frequencies together with the numbers that led to them.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

struct derived {
  rope::frequencies frequencies;
  std::string rule;
  double base;
  std::vector<named_number> numbers;
  double softmax_multiplier = 1;
};

/// Adds to a list of named_number. It and what follows are templates, so that a program that derives nothing
/// does not compile them.
void add_numbers(auto& numbers, std::initializer_list<named_number> added) {
  for (const named_number& number : added) numbers.push_back(number);
}

void record(auto& numbers, const linear_scaling& rule, const schedule&) {
  add_numbers(numbers, {{"factor", rule.factor}});
}

void record(auto& numbers, const alpha_scaling& rule, const schedule& original) {
  auto stretched = original;
  rule.apply(stretched);
  add_numbers(numbers, {{"alpha", rule.alpha}, {"new_base", static_cast<double>(stretched.base)}});
}

void record(auto& numbers, const dynamic_ntk_scaling& rule, const schedule& original) {
  auto stretched = original;
  rule.apply(stretched);
  add_numbers(numbers, {{"factor", rule.factor},
                        {"max_position", rule.max_position},
                        {"length", rule.length},
                        {"new_base", static_cast<double>(stretched.base)}});
}

void record(auto& numbers, const mixed_ntk_scaling& rule, const schedule&) {
  add_numbers(numbers, {{"factor", rule.factor}});
  if (rule.mixed_b) add_numbers(numbers, {{"mixed_b", *rule.mixed_b}});
}

void record(auto& numbers, const yarn_scaling& rule, const schedule& original) {
  const auto [low, high] = rule.bounds(original);
  add_numbers(numbers, {{"factor", rule.factor},
                        {"original_max_position", rule.original_max_position},
                        {"beta_fast", rule.beta_fast},
                        {"beta_slow", rule.beta_slow},
                        {"low", static_cast<double>(low)},
                        {"high", static_cast<double>(high)}});
}

void record(auto& numbers, const longrope_scaling& rule, const schedule&) {
  add_numbers(numbers, {{"original_max_position", rule.original_max_position},
                        {"max_position", rule.max_position},
                        {"length", rule.length},
                        {"uses_long_factor", rule.uses_long() ? 1.0 : 0.0}});
}

void record(auto& numbers, const llama3_scaling& rule, const schedule&) {
  add_numbers(numbers, {{"factor", rule.factor},
                        {"low_freq_factor", rule.low_freq_factor},
                        {"high_freq_factor", rule.high_freq_factor},
                        {"original_max_position", rule.original_max_position},
                        {"kept_below_wavelength", rule.original_max_position / rule.high_freq_factor},
                        {"slowed_above_wavelength", rule.original_max_position / rule.low_freq_factor}});
}

void record(auto& numbers, const proportional_scaling& rule, const schedule&) {
  add_numbers(numbers, {{"partial_rotary_factor", rule.partial_rotary_factor}, {"factor", rule.factor}});
}

void record(auto&, const pair_factor_scaling&, const schedule&) {}

/// frequencies(rotary_dim, base, rules...), and what describe() tells about them.
template <class... Rules>
derived derive(const char* name, Index rotary_dim, double base, const Rules&... rules) {
  derived result{
      .frequencies = frequencies(rotary_dim, base, rules...), .rule = name, .base = base, .numbers = {}};
  [[maybe_unused]] schedule original{.rotary_dim = rotary_dim, .base = widened(base), .inv_freq = {}};
  original.restart(widened(base));
  (record(result.numbers, rules, original), ...);
  return result;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_DERIVE_HPP
