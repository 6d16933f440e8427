// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_SCALING_HPP
#define ROPE_FREQUENCIES_SCALING_HPP

#include <algorithm>  // std::clamp, std::min, std::max
#include <cstddef>
#include <optional>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Schedules of released models for contexts longer than in training: one struct per rule, passed to
/// `frequencies(rotary_dim, base, rule)`. Below, f_i is the inv_freq of pair i before the rule, d is
/// rotary_dim, b the base, s the factor and L0 original_max_position. Every rule throws std::invalid_argument
/// for a field outside its range.
///
/// Every factor is positive. A factor above 1 divides frequencies, so that a pair makes as many full turns
/// over the longer context as before over the original one. A factor below 1 multiplies frequencies by 1 / s
/// with the same formula. The angle between neighbours is then larger than in training, as if a shorter
/// context were stretched over the original one. transformers (with a warning), ggml and MLX accept such
/// factors too.

namespace rope::inline ROPE_ABI {
namespace detail {

// The pairs at which a rule changes from one schedule to another. Each is given by its number of full turns
// over the L0 positions of training. d is rotary_dim.

/// The pair, as a real number, that makes `rotations` full turns over L0 positions.
inline wide_real pair_of_rotations(double rotations, const schedule& axis, wide_real original_max_position) {
  return wide_real(axis.rotary_dim) *
         log(original_max_position / (wide_real(rotations) * 2 * wide_real::pi())) / (2 * log(axis.base));
}

/// The first and the last pair of a blend.
struct blend_bounds {
  wide_real low;
  wide_real high;
};

/// The pairs with `fast` and `slow` full turns, rounded outwards if `truncate`. low is at least 0, and high
/// at most d - 1. If they are equal, high is 0.001 above low, as in Hugging Face transformers. If no pair of
/// [0, d - 1] is between them, low > high.
inline blend_bounds blend_between(double fast, double slow, bool truncate, const schedule& axis,
                                  wide_real original_max_position) {
  wide_real low = pair_of_rotations(fast, axis, original_max_position);
  wide_real high = pair_of_rotations(slow, axis, original_max_position);
  if (truncate) {
    low = floor(low);
    high = ceil(high);
  }
  low = (std::max)(low, wide_real(0));
  high = (std::min)(high, wide_real(axis.rotary_dim - 1));
  if (low == high) high += 0.001;
  return {low, high};
}

/// The share of a pair that is interpolated: 0 below `low`, 1 above `high`, and linear between them.
inline wide_real ramp(Index pair, const blend_bounds& of) {
  return std::clamp((pair - of.low) / (of.high - of.low), wide_real(0), wide_real(1));
}

/// \param field  the names of the rule and of its field, for the message
inline void require_positive(const char* field, double value) {
  if (!is_finite(value) || value <= 0) throw_invalid({field, " must be positive and finite, got ", value});
}

/// Checks that a list has one positive number per pair.
///
/// \param list  what messages call the list
inline void check_factors(const char* rule, const char* list, const std::vector<double>& factors,
                          const schedule& axis) {
  if (static_cast<Index>(factors.size()) != axis.inv_freq.size())
    throw_invalid(rule, list, " must have one value per pair, ", axis.inv_freq.size(), ", got ",
                  factors.size());
  for (const double factor : factors)
    check_finite(rule, factor > 0, "a factor must be positive and finite", factor);
}

/// Multiplies the base by multiplier. The product must be above 1.
///
/// \param field  the names of the rule and of the field whose `value` gave the multiplier, for the message
inline void multiply_base(schedule& axis, wide_real multiplier, const char* field, wide_real value) {
  if (axis.base * multiplier <= 1)
    throw_invalid({field, " must leave a base greater than 1, got ", static_cast<double>(value)});
  axis.multiply_base(multiplier);
}

/// Multiplies the base by factor^(d / (d - 2)): the slowest pair then rotates `factor` times slower, and pair
/// 0 keeps its frequency.
///
/// \param rule   for the messages
/// \param field  the names of the rule and of its factor
inline void stretch_base(schedule& axis, wide_real factor, const char* rule, const char* field) {
  if (axis.rotary_dim <= 2) throw_invalid(rule, "rotary_dim must be at least 4, got ", axis.rotary_dim);
  const auto d = wide_real(axis.rotary_dim);
  multiply_base(axis, pow(factor, d / (d - 2)), field, factor);
}

}  // namespace detail

/// Position interpolation: f_i / s.
///
///     const frequencies f(128, 10000.0, linear_scaling{.factor = 4});
///
/// Source: Chen et al. 2023, arXiv:2306.15595; `rope_type: linear` of Hugging Face transformers.
struct linear_scaling {
  double factor;  // s > 0

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive
  void apply(schedule& axis) const {
    detail::require_positive("linear_scaling: factor", factor);
    axis.inv_freq /= factor;
  }
};

/// f_i / factors[i]: the `rope_freqs`, `rope_factors_long` and `rope_factors_short` tensors of GGUF files,
/// which have the divisors of a finished schedule (Llama 3.1: between 1 and 8; Gemma 4: 1, then 1e30).
///
///     const frequencies f(128, 500000.0, pair_factor_scaling{rope_freqs});
///
/// Source: ggml, `freq_factors` of ggml_rope_ext.
struct pair_factor_scaling {
  std::vector<double> factors;  // [pairs], positive

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless there is one factor per pair, each finite and positive
  void apply(schedule& axis) const {
    detail::check_factors("pair_factor_scaling", "factors", factors, axis);
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= factors[static_cast<std::size_t>(i)];
  }
};

/// NTK-aware scaling: the schedule of base b * s^(d / (d - 2)). Hunyuan's `alpha` is this factor.
///
///     const frequencies f(128, 10000.0, ntk_scaling{.factor = 8});
///
/// Source: bloc97 2023; lucidrains/rotary-embedding-torch, `theta_rescale_factor`.
struct ntk_scaling {
  double factor;  // s > 0

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite, positive and so large that b s^(d / (d - 2)) is
  ///          above 1, and rotary_dim at least 4
  void apply(schedule& axis) const {
    detail::require_positive("ntk_scaling: factor", factor);
    detail::stretch_base(axis, factor, "ntk_scaling", "ntk_scaling: factor");
  }
};

/// Dynamic NTK: ntk_scaling by s * L / max_position - (s - 1), L = max(length, max_position). The result
/// depends on `length`, so keys rotated for one length do not fit queries rotated for another.
///
///     const dynamic_ntk_scaling rule = {.factor = 2, .max_position = 4096, .length = prompt_length};
///     const frequencies f(128, 10000.0, rule);
///
/// Source: emozilla 2023; `rope_type: dynamic` of Hugging Face transformers.
struct dynamic_ntk_scaling {
  double factor;        // s > 0
  double max_position;  // positive
  double length;        // tokens in the sequence, not negative

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive, max_position finite and positive,
  ///          length finite and not negative, and, if length > max_position, rotary_dim at least 4
  void apply(schedule& axis) const {
    detail::require_positive("dynamic_ntk_scaling: factor", factor);
    detail::require_positive("dynamic_ntk_scaling: max_position", max_position);
    detail::check_finite("dynamic_ntk_scaling", length >= 0, "length must be finite and not negative",
                         length);
    if (length > max_position) {
      // 1 + s (L - max_position) / max_position, which has no cancellation.
      const wide_real limit = wide_real(max_position);
      const wide_real grown = wide_real(factor) * (wide_real(length) - limit) / limit;
      detail::stretch_base(axis, 1 + grown, "dynamic_ntk_scaling", "dynamic_ntk_scaling: factor");
    }
  }
};

/// YaRN: pairs with more than beta_fast full turns over L0 positions keep their frequency, pairs with fewer
/// than beta_slow are interpolated, and pairs between are blended.
///
///     c(r)      = d ln(L0 / (2 pi r)) / (2 ln b)
///     low, high = c(beta_fast), c(beta_slow), rounded outwards if truncate, kept in [0, d - 1]
///     f_i       = f_i ((1 - ramp_i) + ramp_i / s),   ramp_i = clamp((i - low) / (high - low), 0, 1)
///     m         = attention_factor if given; else g(mscale) / g(mscale_all_dim) if both are given and not 0;
///                 else g(1)
///     g(k)      = 0.1 k ln s + 1, and 1 for s < 1
///
/// A given attention_factor is m itself. The softmax scale of DeepSeek is separate, see
/// yarn_softmax_multiplier.
///
///     const frequencies f(128, 1e6, yarn_scaling{.factor = 4, .original_max_position = 32768});  // Qwen 2.5
///
/// Source: Peng et al. 2023, arXiv:2309.00071; `rope_type: yarn` of Hugging Face transformers. As there,
///         bounds are clamped at d - 1 (not d / 2 - 1), high is raised by 0.001 if low == high, and g(k) = 1
///         for s < 1. In ggml, m is below 1 for s < 1, see ggml_frequencies
struct yarn_scaling {
  double factor;                                // s > 0
  double original_max_position;                 // L0 > 0
  double beta_fast = 32;                        // full turns over L0 positions, at least beta_slow
  double beta_slow = 1;                         // full turns over L0 positions, positive
  bool truncate = true;                         // round low and high outwards
  std::optional<double> attention_factor = {};  // m itself, positive
  std::optional<double> mscale = {};            // not negative
  std::optional<double> mscale_all_dim = {};    // not negative

  /// The range of pairs of the blend, as real numbers.
  using blend_bounds = detail::blend_bounds;
  /// `low` and `high` of the formula above.
  ///
  /// Requires:  original_max_position, beta_fast and beta_slow finite and positive
  /// Throws:    std::invalid_argument if low > high, which means that no pair is between them
  blend_bounds bounds(const schedule& axis) const {
    const auto of = detail::blend_between(beta_fast, beta_slow, truncate, axis, original_max_position);
    if (of.low > of.high)
      detail::throw_invalid("yarn_scaling", "no pair lies between beta_fast and beta_slow, got low ",
                            static_cast<double>(of.low), " above high ", static_cast<double>(of.high));
    return of;
  }

  /// g(k) of the formula above.  Requires: factor finite and positive
  double growth(double k) const { return static_cast<double>(wide_growth(k)); }

  /// m of the formula above.  Requires: factor finite and positive
  double magnitude() const {
    if (attention_factor) return *attention_factor;
    if (!detail::equal(mscale.value_or(0), 0) && !detail::equal(mscale_all_dim.value_or(0), 0))
      return static_cast<double>(wide_growth(*mscale) / wide_growth(*mscale_all_dim));
    return growth(1);
  }

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive, original_max_position finite and
  ///          positive, 0 < beta_slow <= beta_fast, both finite, and those of the last three fields that are
  ///          given are finite and not negative; or as bounds(). `frequencies` rejects an m of 0
  void apply(schedule& axis) const {
    detail::require_positive("yarn_scaling: factor", factor);
    detail::require_positive("yarn_scaling: original_max_position", original_max_position);
    detail::require_positive("yarn_scaling: beta_slow", beta_slow);
    detail::check_finite("yarn_scaling", beta_fast >= beta_slow,
                         "beta_fast must be finite and at least beta_slow", beta_fast);
    for (const auto& field : {attention_factor, mscale, mscale_all_dim})
      detail::check_finite("yarn_scaling", field.value_or(0) >= 0,
                           "attention_factor, mscale and mscale_all_dim must be finite and not negative",
                           field.value_or(0));
    const blend_bounds of = bounds(axis);
    for (Index i = 0; i < axis.inv_freq.size(); ++i) {
      const wide_real interpolated = detail::ramp(i, of);
      axis.inv_freq(i) *= (1 - interpolated) + interpolated / factor;
    }
    axis.attention_factor *= magnitude();
  }

 private:
  wide_real wide_growth(double k) const { return factor < 1 ? 1 : k * log(wide_real(factor)) / 10 + 1; }
};

/// Llama 3.1: frequencies with wavelengths w_i = 2 pi / f_i above L0 / low_freq_factor are interpolated,
/// those with wavelengths below L0 / high_freq_factor are kept, and those between are blended.
///
///     f_i = (1 - z) f_i / s + z f_i
///     z   = (L0 / w_i - low_freq_factor) / (high_freq_factor - low_freq_factor)
///
/// If low_freq_factor == high_freq_factor, there is no blend, and a wavelength of exactly L0 /
/// low_freq_factor is kept.
///
///     const frequencies f(128, 500000.0, llama3_scaling{.factor = 8});  // Llama 3.1
///
/// Source: meta-llama/llama-models, `apply_scaling`; `rope_type: llama3` of Hugging Face transformers.
struct llama3_scaling {
  double factor;                        // s > 0
  double low_freq_factor = 1;           // positive
  double high_freq_factor = 4;          // at least low_freq_factor
  double original_max_position = 8192;  // L0 > 0

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive, 0 < low_freq_factor <=
  ///          high_freq_factor, both finite, and original_max_position finite and positive
  void apply(schedule& axis) const {
    detail::require_positive("llama3_scaling: factor", factor);
    detail::require_positive("llama3_scaling: low_freq_factor", low_freq_factor);
    detail::check_finite("llama3_scaling", high_freq_factor >= low_freq_factor,
                         "high_freq_factor must be finite and at least low_freq_factor", high_freq_factor);
    detail::require_positive("llama3_scaling: original_max_position", original_max_position);
    const wide_real width = wide_real(high_freq_factor) - low_freq_factor;
    for (wide_real& f : axis.inv_freq) {
      const wide_real turns = wide_real(original_max_position) * f / (2 * wide_real::pi());  // L0 / w_i
      const wide_real kept = width == 0
                                 ? wide_real(turns >= low_freq_factor ? 1 : 0)
                                 : std::clamp((turns - low_freq_factor) / width, wide_real(0), wide_real(1));
      f *= (1 - kept) / factor + kept;
    }
  }
};

/// p-RoPE: the frequencies of the fastest pairs are divided by s, and the other pairs are not rotated. In
/// contrast to partial rotation, the pairs extend over the whole rotary_dim.
///
///     f_i = f_i / s for i < floor(partial_rotary_factor d / 2), else 0
///
///     const frequencies f(512, 1e6, proportional_scaling{.partial_rotary_factor = 0.25});  // Gemma 4
///
/// Source: Barbero et al. 2024, arXiv:2410.06205; `rope_type: proportional` of transformers (Gemma 4).
struct proportional_scaling {
  double partial_rotary_factor;  // in (0, 1]
  double factor = 1;             // s > 0

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless partial_rotary_factor is in (0, 1], and factor finite and
  ///          positive
  void apply(schedule& axis) const {
    detail::check_finite("proportional_scaling", partial_rotary_factor > 0 && partial_rotary_factor <= 1,
                         "partial_rotary_factor must be in (0, 1]", partial_rotary_factor);
    detail::require_positive("proportional_scaling: factor", factor);
    const auto rotating =
        static_cast<Index>(partial_rotary_factor * static_cast<double>(axis.rotary_dim) / 2);
    for (Index i = 0; i < axis.inv_freq.size(); ++i)
      axis.inv_freq(i) = i < rotating ? axis.inv_freq(i) / factor : 0;
  }
};

/// LongRoPE: f_i / e_i, where e is the long list if `length` > L0, and the short list otherwise.
///
///     m = attention_factor if given; else sqrt(1 + ln s / ln L0) for s > 1, and 1 otherwise
///     s = factor if given; else max_position / L0
///
/// m is the same for both lists. If a cached sequence grows beyond L0, it must keep its first list.
///
///     const longrope_scaling rule = {.short_factor = short_factor, .long_factor = long_factor,
///                                    .original_max_position = 4096, .max_position = 131072,
///                                    .length = prompt_length};
///     const frequencies f(96, 10000.0, rule);  // Phi-3
///
/// Source: Ding et al. 2024, arXiv:2402.13753; `rope_type: longrope` of Hugging Face transformers (Phi-3).
struct longrope_scaling {
  std::vector<double> short_factor;             // e [pairs] for length <= L0, positive
  std::vector<double> long_factor;              // e [pairs] for length > L0, positive
  double original_max_position;                 // L0 > 1
  double max_position;                          // of the extended context, positive
  double length;                                // tokens in the sequence, not negative
  std::optional<double> factor = {};            // s, positive
  std::optional<double> attention_factor = {};  // m itself, positive

  /// Whether the long list is used.
  bool uses_long() const { return length > original_max_position; }

  /// m of the formula above.  Requires: fields in their ranges
  double magnitude() const {
    if (attention_factor) return *attention_factor;
    const double s = factor.value_or(max_position / original_max_position);
    if (s <= 1) return 1;
    return static_cast<double>(pow(1 + log(wide_real(s)) / log(wide_real(original_max_position)), 0.5));
  }

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless both lists have one finite and positive value per pair, and the
  ///          other fields are finite and in the ranges above
  void apply(schedule& axis) const {
    detail::check_finite("longrope_scaling", original_max_position > 1,
                         "original_max_position must be finite and above 1", original_max_position);
    detail::require_positive("longrope_scaling: max_position", max_position);
    detail::check_finite("longrope_scaling", length >= 0, "length must be finite and not negative", length);
    detail::require_positive("longrope_scaling: factor", factor.value_or(1));
    detail::require_positive("longrope_scaling: attention_factor", attention_factor.value_or(1));
    detail::check_factors("longrope_scaling", "short_factor", short_factor, axis);
    detail::check_factors("longrope_scaling", "long_factor", long_factor, axis);
    const std::vector<double>& list = uses_long() ? long_factor : short_factor;
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= list[static_cast<std::size_t>(i)];
    axis.attention_factor *= magnitude();
  }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_SCALING_HPP
