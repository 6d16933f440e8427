// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_AXES_HPP
#define ROPE_FREQUENCIES_AXES_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Frequencies with more than one axis: (height, width) of an image, (time, height, width) of a video.
///
/// Every multi-axis embedding is one matrix inv_freq [pairs, axes]. A table of coordinates [rows, axes]
/// rotates pair i of row r by
///
///     angle(r, i) = sum_a coordinates(r, a) inv_freq(i, a)
///
/// and the functions here differ only in the entries that are not 0. For three pairs on two axes:
///
///     axial                 on_axes               along_directions
///     one block per axis,   one schedule, dealt   one schedule, each pair
///     each its own f, g     out to the axes       along its own direction
///       f0  .                 f0  .                 f0 u00  f0 u01
///       f1  .                 .   f1                f1 u10  f1 u11
///       .   g0                f2  .                 f2 u20  f2 u21
///
/// For any other scheme, frequencies::custom(inv_freq) is enough. axes_variants.hpp has along_directions and
/// rarer assignments, and vision_axes.hpp the schemes of released models.

namespace rope::inline ROPE_ABI {
namespace detail {

inline void require_one_axis_schedule(const char* function, const frequencies& schedule) {
  if (schedule.axes() != 1) throw_invalid(function, "the schedule must have one axis, got ", schedule.axes());
}

/// The sum of the sections. Throws if there is none, one is negative, or the sum is not below 2^31.
inline Index sum_of_sections(const char* function, const std::vector<Index>& sections) {
  if (sections.empty()) throw_invalid(function, "give one section per axis, got none");
  constexpr Index most = (std::numeric_limits<std::int32_t>::max)();
  Index sum = 0;
  for (const Index pairs : sections) {
    if (pairs < 0 || pairs > most) throw_invalid(function, "a section must be in [0, 2^31), got ", pairs);
    if (pairs > most - sum)
      throw_invalid(function, "sections must add up to less than 2^31, got ", sum, " + ", pairs);
    sum += pairs;
  }
  return sum;
}

/// `axial` of `count` blocks. Block b is blocks[b * step], so a step of 0 uses the first one for all axes.
inline frequencies axial_of(const frequencies* blocks, Index count, Index step) {
  if (count == 0) throw_invalid("axial", "give one block per axis, got none");
  const double factor = blocks->attention_factor();
  Index pairs = 0, axes = 0;
  for (Index b = 0; b < count; ++b) {
    const frequencies& block = blocks[b * step];
    if (!equal(block.attention_factor(), factor))
      throw_invalid("axial", "all blocks must have the same attention_factor, got ", factor, " and ",
                    block.attention_factor());
    pairs += block.pairs();
    axes += block.axes();
  }
  number_array<double> inv_freq(pairs, axes, 0.0);
  pairs = axes = 0;
  for (Index b = 0; b < count; ++b) {
    const frequencies& block = blocks[b * step];
    for (Index a = 0; a < block.axes(); ++a)
      for (Index i = 0; i < block.pairs(); ++i) inv_freq(pairs + i, axes + a) = block.inv_freq(i, a);
    pairs += block.pairs();
    axes += block.axes();
  }
  return frequencies::custom(std::move(inv_freq), factor);
}

}  // namespace detail

/// Joins blocks of pairs, each of which is rotated by its own axes: pairs 0 .. n - 1 by the axes of the first
/// block, the next pairs by the axes of the second block, ... A block is any `frequencies`, so every axis may
/// have its own width, base, scaling or unit.
///
///     const frequencies time(16, 256), height(56, 256), width(56, 256);
///     const frequencies f = axial({time, height, width});
///
/// \param blocks  usually of one axis each. The result has the pairs and axes of all blocks together
///
/// Throws:  std::invalid_argument if there is no block, or the attention_factors of blocks differ;
///          std::length_error if the entries exceed the address space
/// Source:  lucidrains/rotary-embedding-torch, `get_axial_freqs`; every model in vision_axes.hpp
inline frequencies axial(const std::vector<frequencies>& blocks) {
  return detail::axial_of(blocks.data(), static_cast<Index>(blocks.size()), 1);
}

/// The same block for each of `axes` axes. rotary_dim() is axes * block.rotary_dim().
///
///     const frequencies f = axial(frequencies::pixel(16, 256), 3);  // video in [-1, 1]; 48 channels rotate
///
/// Throws:  std::invalid_argument unless axes is positive and the number of entries fits an Index;
///          std::length_error as above
inline frequencies axial(const frequencies& block, Index axes) {
  if (axes <= 0 || !detail::product_fits({axes, block.pairs(), axes, block.axes()}))
    detail::throw_invalid("axial", "axes must be positive, and pairs * axes^2 an Index, got ", axes);
  return detail::axial_of(&block, axes, 0);
}

/// Axial blocks of the original schedule. The frequencies of axis a are base^(-2 i / widths[a]).
///
///     const frequencies f = axial_blocks({16, 56, 56}, 256);  // HunyuanVideo; Flux, Qwen-Image: base 10000
///
/// \param widths  channels per axis, each even and positive; their sum is rotary_dim
///
/// Throws:  std::invalid_argument unless there are widths, all even and positive, and base is above 1
inline frequencies axial_blocks(const std::vector<Index>& widths, double base = 10000.0) {
  if (widths.empty()) return detail::axial_of(nullptr, 0, 1);  // throws
  frequencies all(widths.front(), base);
  for (std::size_t axis = 1; axis < widths.size(); ++axis) {
    const frequencies both[] = {all, frequencies(widths[axis], base)};
    all = detail::axial_of(both, 2, 1);
  }
  return all;
}

/// The axis that rotates each pair. The functions below return such assignments, and you can write your own.
///
///     const axis_assignment alternating = {.axis_of_pair = {0, 1, 0, 1}, .axes = 2};
///     const frequencies f = on_axes(frequencies(8), alternating);
struct axis_assignment {
  std::vector<Index> axis_of_pair;  // [pairs], each in [0, axes)
  Index axes;                       // number of axes
};

/// Axis 0 for the first sections[0] pairs, axis 1 for the next sections[1], ...
///
///     const axis_assignment axes = contiguous_sections({16, 24, 24});  // time, height, width
///
/// Throws:  std::invalid_argument if there is no section, one is negative, or their sum is not below 2^31
/// Source:  Wang et al. 2024, Qwen2-VL, arXiv:2409.12191, section 2.1; `mrope_section` of Hugging Face
///          transformers; ggml MROPE; with four axes, XD-RoPE of Hunyuan
inline axis_assignment contiguous_sections(const std::vector<Index>& sections) {
  const Index pairs = detail::sum_of_sections("contiguous_sections", sections);
  axis_assignment assignment{std::vector<Index>(static_cast<std::size_t>(pairs), 0),
                             static_cast<Index>(sections.size())};
  std::size_t pair = 0;
  for (Index axis = 0; axis < assignment.axes; ++axis)
    for (Index i = 0; i < sections[static_cast<std::size_t>(axis)]; ++i)
      assignment.axis_of_pair[pair++] = axis;
  return assignment;
}

/// The axes alternate, 0 1 2 0 1 2 ... Once an axis has all its pairs, axis 0 gets those that would follow.
///
///     axis(i) = i mod axes if i < axes * sections[i mod axes], else 0
///
/// \param sections  pairs per axis, (time, height, width) in Qwen3-VL
///
/// Throws:  as contiguous_sections; std::invalid_argument if there are fewer pairs i = axis, axis + axes, ...
///          than the section of an axis other than 0 needs. Implementations that slice, for [16, 24, 24] for
///          example, silently give such an axis fewer pairs
/// Source:  `apply_interleaved_mrope` of Hugging Face transformers (Qwen3-VL, Qwen3.5)
inline axis_assignment interleaved_sections(const std::vector<Index>& sections) {
  const Index pairs = detail::sum_of_sections("interleaved_sections", sections);
  const auto axes = static_cast<Index>(sections.size());
  axis_assignment assignment{std::vector<Index>(static_cast<std::size_t>(pairs), 0), axes};
  for (Index axis = 1; axis < axes; ++axis) {
    const Index count = sections[static_cast<std::size_t>(axis)];
    if (count > 0 && (axis >= pairs || count - 1 > (pairs - 1 - axis) / axes))
      detail::throw_invalid("interleaved_sections", "axis ", axis, " must find its pairs at ", axis, ", ",
                            axis + axes, ", ... below ", pairs, ", got a section of ", count);
    for (Index k = 0; k < count; ++k)
      assignment.axis_of_pair[static_cast<std::size_t>(axis + axes * k)] = axis;
  }
  return assignment;
}

/// Axes (time, height, width): the fast pairs alternate, and the slow ones go to time: 1 2 1 2 ... 0 0.
///
///     const axis_assignment ernie = height_width_then_time(22, 20);
///     const axis_assignment video_rope = height_width_then_time(24, 16);
///
/// Ernie 4.5 VL's [22, 22, 20] is (height, width, time), VideoRoPE's [16, 24, 24] (time, height, width).
///
/// \param spatial_pairs  number of pairs of height, and also of width
/// \param time_pairs     number of pairs of time
///
/// Throws:  std::invalid_argument if one is negative, or 2 spatial_pairs + time_pairs is not below 2^31
/// Source:  Ernie4_5_VLRotaryEmbedding of Hugging Face transformers; Wei et al. 2025, VideoRoPE,
///          arXiv:2502.05173
inline axis_assignment height_width_then_time(Index spatial_pairs, Index time_pairs) {
  detail::sum_of_sections("height_width_then_time", {spatial_pairs, spatial_pairs, time_pairs});
  axis_assignment assignment{std::vector<Index>(static_cast<std::size_t>(2 * spatial_pairs + time_pairs), 0),
                             3};
  for (Index i = 0; i < 2 * spatial_pairs; ++i)
    assignment.axis_of_pair[static_cast<std::size_t>(i)] = 1 + i % 2;
  return assignment;
}

/// One schedule whose pairs are assigned to axes: pair i keeps its frequency and rotates by one axis.
///
///     inv_freq(i, axis_of_pair[i]) = f_i, and 0 on the other axes
///
///     const frequencies f = on_axes(frequencies(128, 1e6), contiguous_sections({16, 24, 24}));  // Qwen2-VL
///
/// If all coordinates of a token are equal, as for text, the rotation has the same bits as that of the
/// schedule itself (tests/frequencies/axes.test.cpp). So text after images can be decoded with one axis.
///
/// Throws:  std::invalid_argument if the schedule has more than one axis, the assignment does not have one
///          axis per pair ("sections do not add up"), or an axis is not in [0, axes);
///          std::length_error if the entries exceed the address space
inline frequencies on_axes(const frequencies& schedule, const axis_assignment& assignment) {
  detail::require_one_axis_schedule("on_axes", schedule);
  const auto& axis_of_pair = assignment.axis_of_pair;
  if (static_cast<Index>(axis_of_pair.size()) != schedule.pairs())
    detail::throw_invalid("on_axes", "the sections must add up to the ", schedule.pairs(),
                          " pairs of the schedule, got ", axis_of_pair.size());
  number_array<double> inv_freq(schedule.pairs(), (std::max)(assignment.axes, Index{0}), 0.0);
  for (Index i = 0; i < schedule.pairs(); ++i) {
    const Index axis = axis_of_pair[static_cast<std::size_t>(i)];
    if (axis < 0 || axis >= assignment.axes)
      detail::throw_invalid("on_axes", "an axis must be in [0, ", assignment.axes, "), got ", axis,
                            " for pair ", i);
    inv_freq(i, axis) = schedule.inv_freq(i, 0);
  }
  return frequencies::custom(std::move(inv_freq), schedule.attention_factor());
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_AXES_HPP
