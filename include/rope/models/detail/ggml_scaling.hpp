// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_DETAIL_GGML_SCALING_HPP
#define ROPE_MODELS_DETAIL_GGML_SCALING_HPP

#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>
#include <rope/frequencies/scaling_variants.hpp>
#include <rope/models/detail/derive.hpp>

/// The scalings of ggml that are not quite those of frequencies/scaling.hpp.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// YaRN with the weight that ggml gives to the original frequencies: f_i / s + (yarn_i - f_i / s) ext_factor.
struct weighted_yarn {
  yarn_scaling yarn;
  double ext_factor;

  void apply(schedule& axis) const {
    const number_array<long double> original = axis.inv_freq;
    yarn.apply(axis);
    if (equal(ext_factor, 1)) return;
    for (Index i = 0; i < original.size(); ++i) {
      const long double linear = original(i) / widened(yarn.factor);
      axis.inv_freq(i) = linear + (axis.inv_freq(i) - linear) * widened(ext_factor);
    }
  }
};

void record(auto& numbers, const weighted_yarn& rule, const schedule& original) {
  record(numbers, rule.yarn, original);
  numbers.push_back({"ext_factor", rule.ext_factor});
}

/// Linear scaling in the manner of ggml: any positive factor, and a magnitude.
struct magnified_linear {
  double factor, magnitude;

  void apply(schedule& axis) const {
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= widened(factor);
    axis.attention_factor *= magnitude;
  }
};

void record(auto& numbers, const magnified_linear& rule, const schedule&) {
  if (!equal(rule.factor, 1)) numbers.push_back({"factor", rule.factor});
}

/// The divisors of a GGUF file. Its format has no infinity, so converters write 1e30 for a pair that does not
/// turn (Gemma 4).
struct ggml_pair_factors {
  pair_factor_scaling divisors;

  void apply(schedule& axis) const {
    divisors.apply(axis);
    for (Index i = 0; i < axis.inv_freq.size(); ++i)
      if (divisors.factors[static_cast<std::size_t>(i)] >= 0.999e30) axis.inv_freq(i) = 0;
  }
};

void record(auto&, const ggml_pair_factors&, const schedule&) {}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_MODELS_DETAIL_GGML_SCALING_HPP
