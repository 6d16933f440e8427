// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_GGML_FREQUENCIES_HPP
#define ROPE_FREQUENCIES_GGML_FREQUENCIES_HPP

#include <algorithm>  // std::max
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>

/// The frequencies of ggml_rope_ext and ggml_rope_multi from their arguments, without a model file.

namespace rope::inline ROPE_ABI {

/// The `mode` of ggml, such as GGML_ROPE_TYPE_NORMAL. The mode also determines the layout, which is not part
/// of the frequencies: `normal` is interleaved, and the others are half_split.
enum class ggml_rope_type {
  normal,  // one axis
  neox,    // one axis
  mrope,   // four axes, one section of pairs after another
  imrope,  // four axes that alternate from pair to pair
  vision   // four axes, the frequencies of every section start over; 2 * n_dims channels rotate
};

/// The arguments of ggml_rope_ext and ggml_rope_multi, with their names and in their order. Positions are
/// passed to the table instead. The defaults are those of ggml_rope.
///
///     const ggml_rope_parameters yarn = {.n_dims = 128,     .n_ctx_orig = 32768, .freq_base = 1e6,
///                                        .freq_scale = 0.25, .ext_factor = 1,     .beta_fast = 32,
///                                        .beta_slow = 1};
///     const frequency_table table(ggml_frequencies(yarn), 131072);
struct ggml_rope_parameters {
  Index n_dims;                                  // channels that rotate; vision: half of them
  std::array<Index, 4> sections = {};            // pairs of (time, height, width, extra)
  ggml_rope_type mode = ggml_rope_type::normal;  // normal and neox do not read sections
  Index n_ctx_orig = 0;                          // L0, positive; read if ext_factor is not 0
  double freq_base = 10000;                      // b, positive, may be 1 or less
  double freq_scale = 1;                         // 1 / s, not 0; positive if ext_factor is not 0
  double ext_factor = 0;                         // share of the unscaled frequencies, any number
  double attn_factor = 1;                        // positive
  double beta_fast = 0;                          // full turns over L0 positions; read if ext_factor is not 0
  double beta_slow = 0;                          // may be above beta_fast
  std::vector<double> freq_factors = {};         // a divisor per pair, not 0; empty: none
};

namespace detail {

/// For every pair of ggml_rope_multi, the coordinate that rotates it and its power of base^(-2 / n_dims),
/// [pairs, 2]. If there are more pairs than in all sections, the sections are repeated, and the last
/// repetition ends at the last pair.
///
/// The power of a pair is its index among all pairs. Only `vision` counts from 0 again where a section
/// begins. If several sections begin at one pair, because some are empty, only the first of them counts from
/// 0 again.
inline number_array<Index> ggml_pairs_of(const ggml_rope_parameters& p, Index pairs) {
  const auto& sections = p.sections;
  Index begins[4] = {}, powers[4] = {};
  for (std::size_t axis = 1; axis < 4; ++axis) begins[axis] = begins[axis - 1] + sections[axis - 1];
  const Index period = begins[3] + sections[3];
  number_array<Index> result(pairs, 2);
  for (Index i = 0; i < pairs; ++i) {
    const Index sector = i % period;
    if (p.mode == ggml_rope_type::vision)
      for (std::size_t axis = 0; axis < 4; ++axis)
        if (begins[axis] == sector) {
          powers[axis] = 0;
          break;
        }
    std::size_t axis = 3;
    if (p.mode == ggml_rope_type::imrope) {
      const auto third = static_cast<std::size_t>(sector % 3);
      if (sector < std::int64_t{3} * sections[third]) axis = third;
    } else {
      while (axis > 0 && sector < begins[axis]) --axis;
    }
    result(i, 0) = static_cast<Index>(axis);
    result(i, 1) = powers[axis];
    for (Index& power : powers) ++power;
  }
  return result;
}

inline void check_ggml_sections(const ggml_rope_parameters& p) {
  const auto& s = p.sections;
  const Index sum = sum_of_sections("ggml_frequencies", {s[0], s[1], s[2], s[3]});
  const bool one_axis = p.mode == ggml_rope_type::normal || p.mode == ggml_rope_type::neox;
  if (one_axis && sum != 0)
    throw_invalid("ggml_frequencies",
                  "the modes normal and neox have one axis and do not read sections; leave them out, or "
                  "write mrope, imrope or vision, got sections of ",
                  sum, " pairs");
  if (!one_axis && s[0] + s[1] + s[2] == 0)
    throw_invalid("ggml_frequencies",
                  "one of the first three sections must be positive (for one axis write the mode normal or "
                  "neox), got 0, 0, 0, ",
                  s[3]);
}

inline void check_ggml_parameters(const ggml_rope_parameters& p, Index pairs) {
  const auto demand = [](bool holds, const char* rule, double got) {
    check_finite("ggml_frequencies", holds, rule, got);
  };
  demand(p.freq_base > 0, "freq_base must be finite and positive", p.freq_base);
  demand(!equal(p.freq_scale, 0), "freq_scale must be finite and not 0; write 1 for no scaling",
         p.freq_scale);
  demand(true, "ext_factor must be finite", p.ext_factor);
  demand(p.attn_factor > 0, "attn_factor must be finite and positive", p.attn_factor);
  if (!equal(p.ext_factor, 0)) {
    demand(p.freq_scale > 0, "freq_scale must be positive if ext_factor is not 0", p.freq_scale);
    demand(p.n_ctx_orig > 0,
           "n_ctx_orig must be positive if ext_factor is not 0; write 1 for the 0 that ggml takes",
           static_cast<double>(p.n_ctx_orig));
    for (const double beta : {p.beta_fast, p.beta_slow})
      demand(beta > 0,
             "beta_fast and beta_slow must be finite and positive if ext_factor is not 0 (32 and 1 in "
             "llama.cpp)",
             beta);
  }
  if (!p.freq_factors.empty() && static_cast<Index>(p.freq_factors.size()) < pairs)
    throw_invalid("ggml_frequencies", "freq_factors must have a value for each of ", pairs,
                  " pairs or be empty, got ", p.freq_factors.size());
  for (std::size_t i = 0; i < p.freq_factors.size() && static_cast<Index>(i) < pairs; ++i)
    demand(!equal(p.freq_factors[i], 0),
           "a value of freq_factors must be finite and not 0; write 1e30 to stop a pair", p.freq_factors[i]);
}

}  // namespace detail

/// The frequencies of ggml_rope_ext, on one axis, or of ggml_rope_multi, on the four axes (time, height,
/// width, extra), and their magnitude.
///
///     f_i   = b^(-2 e_i / n_dims) / freq_factors[i]
///     f_i   = f_i (freq_scale (1 - w_i) + w_i)
///     w_i   = ext_factor (1 - clamp((i - low) / max(0.001, high - low), 0, 1))
///     low   = max(0, floor(c(beta_fast))),   high = min(n_dims - 1, ceil(c(beta_slow)))
///     c(r)  = n_dims ln(L0 / (2 pi r)) / (2 ln b)
///     m     = attn_factor if ext_factor is 0; else attn_factor (1 + 0.1 ln(1 / freq_scale))
///
/// e_i is i, or in the mode `vision` the index of the pair in its section. Sections are repeated until every
/// pair has an axis, and the last repetition is cut. A list longer than the pairs is cut too. If low is above
/// high, as for a beta_slow above beta_fast, pairs up to low keep f_i and the next ones are scaled. A base
/// below 1 reverses the order of the bounds.
///
///     const frequencies f = ggml_frequencies({.n_dims = 128,
///                                             .sections = {24, 20, 20, 0},
///                                             .mode = ggml_rope_type::imrope,
///                                             .freq_base = 5e6});
///     const frequency_table of_prompt(f, coordinates);  // [n_tokens, 4]
///
/// ggml multiplies from pair to pair in float, and rounds bounds that it computed in float. Its angles differ
/// by these roundings. If c(r) is that close to an integer, ggml may round it to the other side. A divisor of
/// 1e30, which converters write for infinity, gives a frequency of 0 here.
///
/// \param p  freq_factors may be longer than the pairs. The rest is not read
///
/// Throws:    std::invalid_argument unless n_dims is even, positive and below 2^31, every field is in the
///            range that its comment states, and m is positive; if sections are given for normal or neox; in
///            the other modes, if a section is negative or none of the first three is positive; or as
///            frequencies::custom. std::length_error if the entries exceed the address space
/// Accuracy:  0.51 ulp of the formula. With ext_factor below 0 or above 1, 0.51 ulp of the larger term,
///            because the two terms may cancel
/// Source:    ggml, ggml_rope_cache_init, ggml_mrope_cache_init, rope_yarn and ggml_rope_yarn_corr_dims
inline frequencies ggml_frequencies(const ggml_rope_parameters& p) {
  constexpr Index most = (std::numeric_limits<std::int32_t>::max)();
  if (p.n_dims <= 0 || p.n_dims % 2 != 0 || p.n_dims > most)
    detail::throw_invalid("ggml_frequencies", "n_dims must be even, positive and below 2^31, got ", p.n_dims);
  const Index pairs = p.mode == ggml_rope_type::vision ? p.n_dims : p.n_dims / 2;
  detail::check_ggml_parameters(p, pairs);
  detail::check_ggml_sections(p);

  const bool blends = !detail::equal(p.ext_factor, 0);
  const wide_real scale = wide_real(p.freq_scale);
  wide_real magnitude = wide_real(p.attn_factor);
  if (blends) magnitude *= 1 - log(scale) / 10;
  if (magnitude <= 0)
    detail::throw_invalid(
        "ggml_frequencies",
        "1 + 0.1 ln(1 / freq_scale) must be positive if ext_factor is not 0, got the freq_scale ",
        p.freq_scale);

  // The blend of YaRN, but at least 0.001 wide, even if low is above high. With a base of 1, all pairs make
  // the same number of turns, and both bounds may be infinite. `ramp` is then 0, because inf - inf is inf in
  // wide_real.
  detail::blend_bounds blend;
  if (blends) {
    const schedule axis{.rotary_dim = p.n_dims, .base = p.freq_base, .inv_freq = {}};
    blend = detail::blend_between(p.beta_fast, p.beta_slow, true, axis, p.n_ctx_orig);
    blend.high = (std::max)(blend.high, blend.low + 0.001);
  }

  const bool one_axis = p.mode == ggml_rope_type::normal || p.mode == ggml_rope_type::neox;
  const number_array<Index> places = one_axis ? number_array<Index>() : detail::ggml_pairs_of(p, pairs);
  number_array<double> inv_freq(pairs, one_axis ? 1 : 4, 0.0);
  const auto powers = detail::inverse_powers(p.freq_base, p.n_dims / 2);
  for (Index i = 0; i < pairs; ++i) {
    const double factor = p.freq_factors.empty() ? 1 : p.freq_factors[static_cast<std::size_t>(i)];
    if (factor >= 0.999e30) continue;
    const wide_real f = powers(one_axis ? i : places(i, 1)) / factor;
    const wide_real unscaled = blends ? p.ext_factor * (1 - detail::ramp(i, blend)) : 0;
    inv_freq(i, one_axis ? 0 : places(i, 0)) = static_cast<double>(f * (scale * (1 - unscaled) + unscaled));
  }
  return frequencies::custom(std::move(inv_freq), static_cast<double>(magnitude));
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_GGML_FREQUENCIES_HPP
