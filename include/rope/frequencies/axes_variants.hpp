// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_AXES_VARIANTS_HPP
#define ROPE_FREQUENCIES_AXES_VARIANTS_HPP

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Rarer ways to assign one schedule to several axes, used like the functions of axes.hpp.

namespace rope::inline ROPE_ABI {

/// Interleaved sections (time, height, width, extra) as in ggml. Like interleaved_sections, but the remaining
/// pairs go to the extra axis, whose position is 0 for text. The two functions differ if there are remaining
/// pairs. For [24, 20, 20, 0], pairs 61 and 62 rotate by time in Hugging Face transformers, and do not rotate
/// in ggml. ggml_frequencies also takes sections that do not add up to the pairs.
///
/// \param sections  exactly four; the pairs of an axis may be fewer than its section
///
/// Throws:  as contiguous_sections; std::invalid_argument unless there are four sections
/// Source:  ggml, GGML_ROPE_TYPE_IMROPE
inline axis_assignment ggml_interleaved_sections(const std::vector<Index>& sections) {
  const Index pairs = detail::sum_of_sections("ggml_interleaved_sections", sections);
  if (sections.size() != 4)
    detail::throw_invalid("ggml_interleaved_sections", "sections must be (time, height, width, extra), got ",
                          sections.size(), " of them");
  axis_assignment assignment{std::vector<Index>(static_cast<std::size_t>(pairs), 3), 4};
  for (Index i = 0; i < pairs; ++i)
    if (i < std::int64_t{3} * sections[static_cast<std::size_t>(i % 3)])
      assignment.axis_of_pair[static_cast<std::size_t>(i)] = i % 3;
  return assignment;
}

/// Spreads the pairs of each axis over the whole schedule. Pairs are assigned from the fastest to the
/// slowest. Each goes to the axis that has received the smallest fraction of its section so far, or to the
/// first of several such axes. No axis receives two pairs in a row unless the others have all of theirs.
///
///     spread_sections({3, 2, 2})    0 1 2 0 1 2 0
///     spread_sections({4, 8})       0 1 0 1 0 1 0 1 1 1 1 1
///
/// Two sections are (height, width). Three are (time, height, width): the slowest pair then belongs to time.
/// It is assigned first and not counted in fractions.
///
///     const axis_assignment axes = spread_sections({24, 20, 20});
///
/// Throws:  as contiguous_sections; std::invalid_argument unless there are two or three sections, or if the
///          first of three is 0
/// Source:  vLLM, MRotaryEmbeddingInterleaved (Huawei, openPangu)
inline axis_assignment spread_sections(const std::vector<Index>& sections) {
  const Index pairs = detail::sum_of_sections("spread_sections", sections);
  const std::size_t axes = sections.size();
  const bool time_ends = axes == 3;
  if (axes < 2 || axes > 3 || (time_ends && sections[0] == 0))
    detail::throw_invalid("spread_sections",
                          "sections must be (time, height, width), time at least 1, or (height, width), got ",
                          axes, " of them", axes > 0 ? " and " : "", axes > 0 ? sections[0] : Index{0});
  axis_assignment assignment{std::vector<Index>(static_cast<std::size_t>(pairs), 0),
                             static_cast<Index>(axes)};
  std::vector<Index> all = sections, placed(axes, 0);
  if (time_ends) --all[0];
  std::size_t last = axes;  // the axis of the previous pair; initially none
  const auto left = [&](std::size_t axis) { return all[axis] > placed[axis]; };
  for (Index pair = 0; pair < pairs - (time_ends ? 1 : 0); ++pair) {
    std::size_t next = axes;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (!left(axis) || axis == last) continue;
      // compares the fractions placed / all without dividing
      if (next == axes || std::int64_t{placed[axis]} * all[next] < std::int64_t{placed[next]} * all[axis])
        next = axis;
    }
    if (next == axes) next = last;
    ++placed[next];
    assignment.axis_of_pair[static_cast<std::size_t>(pair)] = static_cast<Index>(next);
    last = next;
  }
  return assignment;
}

/// One schedule in which each pair rotates along its own direction in the space of coordinates.
///
///     inv_freq(i, a) = f_i * directions(i, a)
///
/// \param directions  [pairs, axes], float or double. Directions of length 1 keep the frequencies of the
///                    schedule
///
/// Throws:  std::invalid_argument if the schedule has more than one axis, directions do not have one row per
///          pair, or a product is not finite and below 2^64 in magnitude
/// Source:  RoPE-Mixed, Heo et al. 2024, arXiv:2403.13298 (directions learned per head)
template <class Derived>
frequencies along_directions(const frequencies& schedule, const Eigen::DenseBase<Derived>& directions) {
  static_assert(detail::is_real<Derived>, "along_directions: directions are float or double");
  detail::require_one_axis_schedule("along_directions", schedule);
  if (directions.rows() != schedule.pairs())
    detail::throw_invalid("along_directions", "directions must be [", schedule.pairs(), ", axes], got [",
                          directions.rows(), ", ", directions.cols(), "]");
  number_array<double> inv_freq = directions.derived().template cast<double>();
  for (Index a = 0; a < inv_freq.cols(); ++a)
    for (Index i = 0; i < inv_freq.rows(); ++i) inv_freq(i, a) *= schedule.inv_freq(i, 0);
  return frequencies::custom(std::move(inv_freq), schedule.attention_factor());
}

/// Pairs first, first + step, first + 2 step, ... of a schedule: its even or odd frequencies, or a band.
///
/// Throws:  std::invalid_argument unless first is a pair of the schedule and step positive
inline frequencies every_pair(const frequencies& schedule, Index first, Index step) {
  if (first < 0 || first >= schedule.pairs() || step <= 0)
    detail::throw_invalid("every_pair", "first must be in [0, ", schedule.pairs(),
                          ") and step positive, got ", first, " and ", step);
  number_array<double> inv_freq((schedule.pairs() - first - 1) / step + 1, schedule.axes());
  for (Index a = 0; a < inv_freq.cols(); ++a)
    for (Index i = 0; i < inv_freq.rows(); ++i) inv_freq(i, a) = schedule.inv_freq(first + i * step, a);
  return frequencies::custom(std::move(inv_freq), schedule.attention_factor());
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_AXES_VARIANTS_HPP
