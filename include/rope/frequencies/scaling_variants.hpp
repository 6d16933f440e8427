// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_SCALING_VARIANTS_HPP
#define ROPE_FREQUENCIES_SCALING_VARIANTS_HPP

#include <algorithm>  // std::min
#include <optional>

#include <rope/base/message.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>

/// The rarer frequency rules, used like the rules of scaling.hpp. Some, such as resonance_scaling, are
/// applied after another rule.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The integer nearest to x, with ties to even.
inline wide_real nearest_integer(wide_real x) {
  const wide_real below = floor(x), rest = x - below;
  const bool odd = floor(below / 2) * 2 != below;
  return rest > 0.5 || (rest == wide_real(0.5) && odd) ? below + 1 : below;
}

/// sin x by Taylor's series.  Requires: x in [0, pi / 2]
inline wide_real sine(wide_real x) {
  wide_real sum = 0, term = x;
  for (int n = 1; n < 44; n += 2) {
    sum += term;
    term *= -(x * x) / ((n + 1) * (n + 2));
  }
  return sum;
}

}  // namespace detail

/// The factor of DeepSeek's models on the softmax scale 1 / sqrt(head_dim), in addition to YaRN:
///
///     g(mscale_all_dim)^2 with the g of yarn_scaling, and 1 without mscale_all_dim
///
/// It is never part of a table. Source: DeepSeek-V2 and V3, modeling_deepseek.py.
inline double yarn_softmax_multiplier(const yarn_scaling& scaling) {
  const double g = scaling.growth(scaling.mscale_all_dim.value_or(0));
  return g * g;
}

/// Hunyuan's `alpha`: the schedule of base b * alpha^(d / (d - 2)).
///
///     const frequencies f(128, 10000.0, alpha_scaling{.alpha = 1000});
///
/// Source: Tencent Hunyuan, `rope_scaling: {type: dynamic, alpha}`; vLLM DynamicNTKAlphaRotaryEmbedding.
struct alpha_scaling {
  double alpha;  // positive

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless alpha is finite, positive and so large that the base stays above
  ///          1, and rotary_dim at least 4
  void apply(schedule& axis) const {
    detail::require_positive("alpha_scaling: alpha", alpha);
    detail::stretch_base(axis, alpha, "alpha_scaling", "alpha_scaling: alpha");
  }
};

/// The `ntk` rule of vLLM: every pair is slower, the last one by exactly s.
///
///     without mixed_b:  f_i = (b s)^(-2 i / d) / s^(2 / d)
///     with mixed_b:     f_i = f_i / exp(a (i + 1)^mixed_b),  a = ln(s) / (d / 2)^mixed_b
///
///     const frequencies f(128, 10000.0, mixed_ntk_scaling{.factor = 8, .mixed_b = 0.625});
///
/// Source: Su Jianlin 2023 (NTK-RoPE mixed); vLLM NTKScalingRotaryEmbedding.
struct mixed_ntk_scaling {
  double factor;                       // s > 0
  std::optional<double> mixed_b = {};  // positive

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive and, without mixed_b, leaves a base
  ///          above 1, and mixed_b, if given, is finite and positive
  void apply(schedule& axis) const {
    detail::require_positive("mixed_ntk_scaling: factor", factor);
    const wide_real s = wide_real(factor), pairs = wide_real(axis.inv_freq.size());
    if (!mixed_b) {
      detail::multiply_base(axis, s, "mixed_ntk_scaling: factor", s);
      axis.inv_freq /= pow(s, 1 / pairs);
      return;
    }
    detail::require_positive("mixed_ntk_scaling: mixed_b", *mixed_b);
    const wide_real b = wide_real(*mixed_b), log_s = log(s);
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= exp(log_s * pow((i + 1) / pairs, b));
  }
};

/// NTK-by-parts: blends linear with NTK between c(1.25) and c(0.75), and the result with the original
/// schedule between c(16) and c(2). yarn_scaling defines c. m stays 1.
///
///     g_i = l_i + (n_i - l_i) (1 - ramp_i(c(1.25), c(0.75))) ntk_factor,   l_i = f_i / s,  n_i = NTK with s
///     f_i = g_i + (f_i - g_i) (1 - ramp_i(c(16), c(2))) extrapolation_factor
///
///     const frequencies f(128, 10000.0, ntk_by_parts_scaling{.factor = 8, .original_max_position = 2048});
///
/// Source: jquesnelle/yarn, LlamaPartNTKScaledRotaryEmbedding.
struct ntk_by_parts_scaling {
  double factor;                    // s > 0
  double original_max_position;     // L0 > 0
  double ntk_factor = 1;            // weight of NTK, in [0, 1]
  double extrapolation_factor = 1;  // weight of the original frequencies, in [0, 1]

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless factor is finite and positive and leaves a base above 1 for NTK,
  ///          original_max_position is finite and positive, both weights are in [0, 1], rotary_dim is at
  ///          least 4, and both blends contain a pair
  void apply(schedule& axis) const {
    detail::require_positive("ntk_by_parts_scaling: factor", factor);
    detail::require_positive("ntk_by_parts_scaling: original_max_position", original_max_position);
    for (const double weight : {ntk_factor, extrapolation_factor})
      detail::check_finite("ntk_by_parts_scaling", weight >= 0 && weight <= 1,
                           "ntk_factor and extrapolation_factor must be in [0, 1]", weight);
    auto stretched = axis;
    detail::stretch_base(stretched, factor, "ntk_by_parts_scaling", "ntk_by_parts_scaling: factor");
    const detail::blend_bounds of_ntk = bounds(1.25, 0.75, axis), of_original = bounds(16, 2, axis);
    for (Index i = 0; i < axis.inv_freq.size(); ++i) {
      const wide_real original = axis.inv_freq(i), linear = original / factor;
      const wide_real ntk_share = (1 - detail::ramp(i, of_ntk)) * ntk_factor;
      const wide_real original_share = (1 - detail::ramp(i, of_original)) * extrapolation_factor;
      const wide_real blended = linear * (1 - ntk_share) + stretched.inv_freq(i) * ntk_share;
      axis.inv_freq(i) = blended * (1 - original_share) + original * original_share;
    }
  }

 private:
  detail::blend_bounds bounds(double fast, double slow, const schedule& axis) const {
    const auto of = detail::blend_between(fast, slow, true, axis, original_max_position);
    detail::check_finite("ntk_by_parts_scaling", of.low < of.high,
                         "original_max_position leaves no pair to blend", original_max_position);
    return of;
  }
};

/// Resonance: every wavelength is rounded to a whole number of tokens (half to even), so that a pair repeats
/// exactly.
///
///     f_i = 2 pi / round(2 pi / f_i)
///
///     const yarn_scaling yarn = {.factor = 4, .original_max_position = 4096};
///     const frequencies f(128, 10000.0, yarn, resonance_scaling{});
///
/// Source: Wang et al. 2024, Resonance RoPE, arXiv:2403.00071.
struct resonance_scaling {
  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument unless every inv_freq is positive and below 4 pi, that is, every
  ///          wavelength is above half a token
  void apply(schedule& axis) const {
    constexpr wide_real turn = 2 * wide_real::pi();
    for (wide_real& f : axis.inv_freq) {
      detail::check_finite("resonance_scaling", f > 0 && f < 2 * turn,
                           "every inv_freq must be positive and below 4 pi, a wavelength above half a token",
                           static_cast<double>(f));
      f = turn / detail::nearest_integer(turn / f);
    }
  }
};

/// The form of the slowest pairs in clipped_scaling.
enum class clipping {
  soft,  // fading out
  hard   // at once
};

/// CoPE, clipped RoPE: the frequencies of the slowest n = min(low_count, pairs) pairs decrease along half a
/// cosine to 0.
///
///     f_(pairs - n + j) *= (1 + cos(pi j / (n - 1))) / 2,   j = 0 .. n - 1
///
/// For n = 1, the pair stops. `clipping::hard` stops all n of them instead.
///
///     const frequencies f(128, 10000.0, clipped_scaling{.low_count = 20});
///
/// Source: hrlics/CoPE, and its HardClip baseline.
struct clipped_scaling {
  Index low_count = 20;            // pairs that fade out, not negative
  clipping form = clipping::soft;  // whether they fade out or stop

  /// Applies the rule.
  ///
  /// Throws:  std::invalid_argument if low_count is negative
  void apply(schedule& axis) const {
    detail::check_finite("clipped_scaling", low_count >= 0, "low_count must not be negative",
                         static_cast<double>(low_count));
    const Index n = (std::min)(low_count, axis.inv_freq.size());
    for (Index j = 0; j < n; ++j) {
      // (1 + cos x) / 2 = sin((pi - x) / 2)^2, which keeps its digits where the cosine cancels.
      const wide_real left = n > 1 ? wide_real(n - 1 - j) / (n - 1) : 0;
      const wide_real sine = detail::sine(wide_real::pi() * left / 2);
      const wide_real kept = form == clipping::hard ? 0 : sine * sine;
      axis.inv_freq(axis.inv_freq.size() - n + j) *= kept;
    }
  }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_SCALING_VARIANTS_HPP
