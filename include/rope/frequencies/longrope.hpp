// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_LONGROPE_HPP
#define ROPE_FREQUENCIES_LONGROPE_HPP

#include <optional>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>

/// The frequency rule whose factors were found by a search, one for each pair; used like those of
/// scaling.hpp.

namespace rope::inline ROPE_ABI {

/// LongRoPE: f_i / e_i, with the long list when `length` > L0 and the short one otherwise.
///
///     m = attention_factor if given; else sqrt(1 + ln s / ln L0) for s > 1, and 1 otherwise
///     s = factor if given; else max_position / L0
///
/// m does not depend on the list. A sequence that grows over L0 while it is cached must keep the list it
/// began with.
///
///     const longrope_scaling rule = {.short_factor = short_factor, .long_factor = long_factor,
///                                    .original_max_position = 4096, .max_position = 131072,
///                                    .length = prompt_length};
///     const frequencies f(96, 10000.0, rule);  // Phi-3
///
/// Source: Ding et al. 2024, arXiv:2402.13753; `rope_type: longrope` of Hugging Face transformers (Phi-3).
struct longrope_scaling {
  std::vector<double> short_factor;             // e [pairs] for length <= L0, positive
  std::vector<double> long_factor;              // e [pairs] for longer ones, positive
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
    detail::require_field(detail::is_finite(original_max_position) && original_max_position > 1,
                          "longrope_scaling: original_max_position must be above 1", original_max_position);
    detail::require_field(detail::is_finite(max_position) && max_position > 0,
                          "longrope_scaling: max_position must be positive", max_position);
    detail::require_field(detail::is_finite(length) && length >= 0,
                          "longrope_scaling: length must not be negative", length);
    detail::require_field(detail::is_finite(factor.value_or(1)) && factor.value_or(1) > 0,
                          "longrope_scaling: factor must be positive", factor.value_or(1));
    detail::require_field(detail::is_finite(attention_factor.value_or(1)) && attention_factor.value_or(1) > 0,
                          "longrope_scaling: attention_factor must be positive",
                          attention_factor.value_or(1));
    for (const auto* list : {&short_factor, &long_factor}) {
      if (static_cast<Index>(list->size()) != axis.inv_freq.size())
        detail::throw_invalid("longrope_scaling", "", list == &short_factor ? "short_factor" : "long_factor",
                              " must have one value per pair, ", axis.inv_freq.size(), ", got ",
                              list->size());
      for (const double value : *list)
        detail::require_field(detail::is_finite(value) && value > 0,
                              "longrope_scaling: a factor must be positive", value);
    }
    const std::vector<double>& list = uses_long() ? long_factor : short_factor;
    for (Index i = 0; i < axis.inv_freq.size(); ++i) axis.inv_freq(i) /= list[static_cast<std::size_t>(i)];
    axis.attention_factor *= magnitude();
  }
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_LONGROPE_HPP
