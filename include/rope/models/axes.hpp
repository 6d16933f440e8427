// SPDX-License-Identifier: MIT
#ifndef ROPE_MODELS_AXES_HPP
#define ROPE_MODELS_AXES_HPP

#include <cstddef>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/models/model_rope.hpp>

/// Frequencies on several axes, from the M-RoPE sections of a layer group.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Height and width alternate from pair 0 on, and time has the last pairs.
///
/// \param sections  (time, height, width)
///
/// Throws:  std::invalid_argument unless there are three, with equal height and width
/// Source:  Hugging Face transformers, Ernie4_5_VLMoeTextRotaryEmbedding
inline axis_assignment sections_with_time_last(const std::vector<Index>& sections) {
  sum_of_sections("frequencies_on_axes", sections);
  if (sections.size() != 3 || sections[1] != sections[2])
    throw_invalid("frequencies_on_axes",
                  "with time last, the sections must be time, height and width, the latter two equal, got ",
                  sections.size(), " sections");
  return height_width_then_time(sections[1], sections[0]);
}

}  // namespace detail

/// The frequencies of a group on the axes of its positions: on_axes with its mrope_sections, or unchanged if
/// it has none. The axes are (time, height, width), except for Hunyuan VL.
///
///     const auto prompt = qwen_vl_positions(runs);
///     rotate<half_split>(queries, frequency_table(frequencies_on_axes(group), prompt.coordinates));
///
/// Interleaved sections have the meaning of Hugging Face transformers, also if they come from a GGUF file.
/// ggml_interleaved_sections describes how ggml differs.
///
/// Throws:  std::invalid_argument unless the sections are not negative, add up to the pairs of the group, and
///          fit the order of axes of the group
inline frequencies frequencies_on_axes(const layer_group& group) {
  if (group.mrope_sections.empty()) return group.frequencies;
  Index left = group.frequencies.pairs();  // checked before a list of so many axes is allocated
  for (const Index pairs : group.mrope_sections) {
    if (pairs < 0 || pairs > left)
      detail::throw_invalid("frequencies_on_axes", "the sections must be at least 0 and add up to the ",
                            group.frequencies.pairs(), " pairs, got ", pairs, " for the last ", left);
    left -= pairs;
  }
  const auto assignment = [&] {
    switch (group.section_order) {
      case mrope_order::alternating:
        return interleaved_sections(group.mrope_sections);
      case mrope_order::time_last:
        return detail::sections_with_time_last(group.mrope_sections);
      case mrope_order::spread:
        return spread_sections(group.mrope_sections);
      case mrope_order::blocks:
        break;
    }
    return contiguous_sections(group.mrope_sections);
  };
  return on_axes(group.frequencies, assignment());
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_MODELS_AXES_HPP
