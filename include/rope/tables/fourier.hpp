// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_FOURIER_HPP
#define ROPE_TABLES_FOURIER_HPP

#include <concepts>  // std::integral
#include <cstdint>
#include <numbers>
#include <utility>  // std::move

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_arguments.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/given_table.hpp>
#include <rope/tables/table.hpp>

/// FoPE, Fourier position embeddings. Layers before attention mix the frequencies of a channel, so a single
/// angle per pair is not enough. FoPE gives every pair a learned mixture of all frequencies instead. It drops
/// frequencies that made no full turn in training. Pairs of dropped frequencies do not rotate.
///
/// Source: Hua et al. 2024, Fourier Position Embedding, arXiv:2412.17739; `FourierRotaryEmbedding` of vLLM

namespace rope::inline ROPE_ABI {

/// The frequencies that complete a full turn within `max_position` tokens: inv_freq(i) > 2 pi / max_position.
/// For a fixed number of frequencies (vLLM's num_inv_freq) use
/// frequencies::custom(schedule.inv_freq().topRows(count)).
///
/// Throws:  std::invalid_argument unless schedule has one axis, max_position is finite and positive, and at
///          least one frequency is kept
inline frequencies fourier_frequencies(const frequencies& schedule, double max_position) {
  if (schedule.axes() != 1)
    detail::throw_invalid("fourier_frequencies", "frequencies must have one axis, got ", schedule.axes());
  detail::check_finite("fourier_frequencies", max_position > 0, "max_position must be finite and positive",
                       max_position);
  const auto is_kept = [&](Index i) { return schedule.inv_freq(i, 0) > 2 * std::numbers::pi / max_position; };
  Index count = 0;
  for (Index i = 0; i < schedule.pairs(); ++i) count += is_kept(i) ? 1 : 0;
  if (count == 0)
    detail::throw_invalid("fourier_frequencies",
                          "no pair completes a full turn within max_position = ", max_position);
  number_array<double> inv_freq(count, 1);
  for (Index i = 0, next = 0; i < schedule.pairs(); ++i)
    if (is_kept(i)) inv_freq(next++, 0) = schedule.inv_freq(i, 0);
  return frequencies::custom(std::move(inv_freq), schedule.attention_factor());
}

/// The table of one head's mixture, for positions first .. last - 1.
///
///     cos(p)[d] = m sum_j cos(p f_j) cos_mix(j, d)
///     sin(p)[d] = m sum_j sin(p f_j) sin_mix(j, d)        d < cos_mix.cols()
///     cos(p)[d] = m,  sin(p)[d] = 0                       cos_mix.cols() <= d < pairs
///
///     const frequency_table<> table = fourier_table(kept, cos_coef, sin_coef, head_dim / 2, 0, 8192);
///
/// With identity matrices as both mixtures this is RoPE with the dropped frequencies set to 0. Every key head
/// of a model has its own mixtures. Make one table per key head, and rotate `head_range`s: each key head, and
/// the query heads of its group, with the table of this key head. `unrotate` divides every pair by its own
/// cos^2 + sin^2.
///
/// \param kept              the kept frequencies f, [kept], on one axis, and m
/// \param cos_mix, sin_mix  Eigen expressions [kept, mixed], float or double (`cos_coef`, `sin_coef` of vLLM)
/// \param pairs             pairs of the table, at least mixed: half of head_dim in vLLM
///
/// Throws:    std::invalid_argument if last < first, the frequencies have more than one axis, a shape does
///            not fit, an entry of a mixture is not finite, m is not in the normal range of S, or a pair of a
///            row is mixed to (almost) nothing, so that it has no inverse; std::length_error if the positions
///            or entries exceed the address space
/// Accuracy:  the sums, computed in double, have errors of at most (kept + 2) 2^-53 sum_j |mix(j, d)|. They
///            are rounded once to S
/// Source:    vLLM, which pads sin with 0; the first published code pads it with 1, so that a pair beyond the
///            mixture becomes (u - v, v + u)
template <class S = float, class CosMix, class SinMix, std::integral First, std::integral Last>
frequency_table<S> fourier_table(const frequencies& kept, const Eigen::DenseBase<CosMix>& cos_mix,
                                 const Eigen::DenseBase<SinMix>& sin_mix, Index pairs, First first,
                                 Last last) {
  static_assert(detail::is_real<CosMix> && detail::is_real<SinMix>,
                "fourier_table: mixtures are float or double");
  const number_array<double> to_cos = cos_mix.derived().template cast<double>(),
                             to_sin = sin_mix.derived().template cast<double>();
  const Index count = kept.pairs(), mixed = to_cos.cols();
  detail::check_same_shape("fourier_table", to_cos, to_sin);
  if (kept.axes() != 1 || to_cos.rows() != count || mixed == 0 || mixed > pairs)
    detail::throw_invalid("fourier_table", "mixtures must be [kept, mixed] = [", count,
                          ", 1 .. pairs] for frequencies of one axis and ", pairs, " pairs, got ",
                          detail::shape_text({to_cos.rows(), mixed}), " and ", kept.axes(), " axes");
  detail::checked_pairs("fourier_table", "cos_mix", to_cos, table_form::half_width);
  detail::checked_pairs("fourier_table", "sin_mix", to_sin, table_form::half_width);
  const std::int64_t start = detail::checked_position("fourier_table", first);
  const Index rows = detail::checked_rows("fourier_table", first, last);
  const double m = kept.attention_factor();
  const detail::row_angles angles(kept);
  number_array<double> cos(count), sin(count);
  const auto write = [&](Index r, S* cos_row, S* sin_row) {
    detail::write_row(
        angles, [&](Index) { return start + r; }, 1, cos.data(), sin.data());
    for (Index d = 0; d < pairs; ++d) {
      double cos_sum = 0, sin_sum = 0;
      for (Index j = 0; j < count && d < mixed; ++j) {
        cos_sum += cos(j) * to_cos(j, d);
        sin_sum += sin(j) * to_sin(j, d);
      }
      cos_row[d] = detail::saturated_to<S>(d < mixed ? m * cos_sum : m);
      sin_row[d] = detail::saturated_to<S>(m * sin_sum);
    }
  };
  return detail::given_entries::table<S>("fourier_table", pairs, m, start, rows, write);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_FOURIER_HPP
