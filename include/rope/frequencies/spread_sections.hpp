// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_SPREAD_SECTIONS_HPP
#define ROPE_FREQUENCIES_SPREAD_SECTIONS_HPP

#include <cstddef>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>

/// The axes of openPangu's vision models.

namespace rope {
inline namespace ROPE_ABI {

/// Every axis has its pairs spread over the whole schedule. Pairs are dealt out from the fastest to the
/// slowest. Each goes to the axis that has received the smallest fraction of its section so far, the first of
/// several such axes; no axis receives two pairs in a row unless the others have all of theirs.
///
///     spread_sections({3, 2, 2})    0 1 2 0 1 2 0
///     spread_sections({4, 8})       0 1 0 1 0 1 0 1 1 1 1 1
///
/// Two sections are (height, width). Three are (time, height, width): the slowest pair then is one of time,
/// which is set aside first and counts in no fraction.
///
///     const axis_assignment axes = spread_sections({24, 20, 20});
///
/// Throws:  as contiguous_sections; std::invalid_argument unless there are two or three sections, of three
///          the first at least 1
/// Source:  vLLM, MRotaryEmbeddingInterleaved (Huawei, openPangu)
inline axis_assignment spread_sections(const std::vector<Index>& sections) {
  const Index pairs = detail::sum_of_sections("spread_sections", sections);
  const std::size_t axes = sections.size();
  const bool time_ends = axes == 3;
  if (axes < 2 || axes > 3 || (time_ends && sections[0] == 0))
    ROPE_THROW(std::invalid_argument,
               detail::message("spread_sections: sections must be (time, height, width), time at least 1, or "
                               "(height, width), got ",
                               axes, " of them", axes > 0 ? " and " : "", axes > 0 ? sections[0] : Index{0}));
  axis_assignment assignment{{}, static_cast<Index>(axes)};
  std::vector<Index> all = sections, placed(axes, 0);
  if (time_ends) --all[0];
  std::size_t last = axes;  // the axis of the pair before: none yet
  const auto left = [&](std::size_t axis) { return all[axis] > placed[axis]; };
  while (static_cast<Index>(assignment.axis_of_pair.size()) < pairs - (time_ends ? 1 : 0)) {
    std::size_t next = axes;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (!left(axis) || axis == last) continue;
      // compares the fractions placed / all without dividing
      if (next == axes || placed[axis] * all[next] < placed[next] * all[axis]) next = axis;
    }
    if (next == axes) next = last;
    ++placed[next];
    assignment.axis_of_pair.push_back(static_cast<Index>(next));
    last = next;
  }
  if (time_ends) assignment.axis_of_pair.push_back(0);
  return assignment;
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_FREQUENCIES_SPREAD_SECTIONS_HPP
