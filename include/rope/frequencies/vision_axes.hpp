// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_VISION_AXES_HPP
#define ROPE_FREQUENCIES_VISION_AXES_HPP

#include <utility>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/frequencies.hpp>

/// The two-axis frequencies of released vision models. Axis 0 is the height (row) and axis 1 the width
/// (column) of a patch in every function here, whatever order the model itself writes them in, so that
/// grid_positions({height, width}) fits all of them.
///
///     model            frequencies                   layout        coordinates
///     Pixtral          pixtral_frequencies           half_split    grid_positions, grid_ids
///     Qwen-VL          qwen_vl_vision_frequencies    half_split    spatial_merge_order
///     Llama 4          llama4_vision_frequencies     interleaved   from (1, 1), class token last
///     DINOv3           dino_v3_frequencies           half_split    patch_centers, class token first
///     rope-vit axial   rope_vit_axial_frequencies    interleaved   grid_positions, class token first
///     rope-vit mixed   rope_vit_mixed_frequencies    interleaved   the same, a table per head
///     timm, EVA        timm_pixel_frequencies        interleaved   evenly_spaced on both axes
///     timm by base     qwen_vl_vision_frequencies    interleaved   grid_positions
///     Gemma 4          frequencies(head_dim / 2,     half_split    two windows of the head: the first by
///                      100)                                        columns of patches, the second by rows
///
/// `build_rope_2d` of llama.cpp is qwen_vl_vision_frequencies, or pixtral_frequencies with `interleave_freq`,
/// for NORMAL pairs (interleaved). Its NEOX pairs lie within each half of the head, as in Gemma 4: there,
/// rotate the two windows of channels one after the other, by tables of one axis.
///
///     rotate<half_split>(queries.channels(0, half), by_column);
///     rotate<half_split>(queries.channels(half, half), by_row);
///
/// Source of Gemma 4: Gemma4VisionRotaryEmbedding and apply_multidimensional_rope of transformers

namespace rope::inline ROPE_ABI {
namespace detail {

/// Refuses a head_dim that does not give each of two axes an even number of channels.
///
/// Throws:  std::invalid_argument
inline void require_two_axes_fit(const char* function, Index head_dim) {
  if (head_dim <= 0 || head_dim % 4 != 0)
    throw_invalid(function, "head_dim must be positive and a multiple of 4, got ", head_dim);
}

/// Periods first * ratio^(k / denominator) as frequencies, k = 0 .. count - 1.
inline frequencies geometric_periods(Index count, double first, wide_real ratio, Index denominator) {
  number_array<double> inv_freq(count, 1);
  const inverse_powers powers(ratio, (std::max)(denominator, Index{1}));
  for (Index k = 0; k < count; ++k)
    inv_freq(k, 0) = static_cast<double>(2 * wide_real::pi() / wide_real(first) * powers(k));
  return frequencies::custom(std::move(inv_freq));
}

/// Frequencies of two axial halves with their axes exchanged: the width rotates the first half of the pairs.
inline frequencies width_first(const frequencies& height_first) {
  const Index axes = height_first.axes();
  number_array<double> inv_freq(height_first.pairs(), axes);
  for (Index a = 0; a < axes; ++a)
    for (Index i = 0; i < inv_freq.rows(); ++i) inv_freq(i, a) = height_first.inv_freq(i, axes - 1 - a);
  return frequencies::custom(std::move(inv_freq), height_first.attention_factor());
}

}  // namespace detail

/// Pixtral: one schedule over the whole head; the height has its even frequencies, the width its odd ones.
///
///     f_j = base^(-2 j / head_dim)
///     pair i: f_2i by the height,   pair head_dim / 4 + i: f_(2i + 1) by the width
///
/// \param head_dim  positive, a multiple of 4; all of it rotates
///
/// Throws:  std::invalid_argument unless head_dim is positive and a multiple of 4, and base finite and
///          greater than 1
/// Source:  PixtralRotaryEmbedding of Hugging Face transformers
inline frequencies pixtral_frequencies(Index head_dim, double base = 10000.0) {
  detail::require_two_axes_fit("pixtral_frequencies", head_dim);
  const frequencies schedule(head_dim, base);
  const frequencies sides[] = {every_pair(schedule, 0, 2), every_pair(schedule, 1, 2)};
  return detail::axial_of(sides, 2, 1);
}

/// The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: the first half of the pairs rotates by the height,
/// the second by the width, each with the same schedule.
///
///     f_j = base^(-2 j / (head_dim / 2)),  j < head_dim / 4
///
/// Throws:  as pixtral_frequencies
/// Source:  Qwen2VisionRotaryEmbedding of Hugging Face transformers; ggml VISION
inline frequencies qwen_vl_vision_frequencies(Index head_dim, double base = 10000.0) {
  detail::require_two_axes_fit("qwen_vl_vision_frequencies", head_dim);
  return axial(frequencies(head_dim / 2, base), 2);
}

/// Llama 4, its vision tower: as Qwen-VL, but the first half rotates by the width. Coordinates start at 1:
///
///     const auto positions = with_unrotated_tokens(grid_positions({side, side}, {1, 1}), 0, 1);
///
/// with the class token last.
///
/// Throws:  as pixtral_frequencies
/// Source:  Llama4VisionRotaryEmbedding of Hugging Face transformers
inline frequencies llama4_vision_frequencies(Index head_dim, double base = 10000.0) {
  detail::require_two_axes_fit("llama4_vision_frequencies", head_dim);
  return detail::width_first(axial(frequencies(head_dim / 2, base), 2));
}

/// rope-vit, axial: the first half rotates by the width, the second by the height. The base fits small grids.
///
///     f_j = base^(-4 j / head_dim),  j < head_dim / 4
///
/// Throws:  as pixtral_frequencies
/// Source:  Heo et al. 2024, arXiv:2403.13298; naver-ai/rope-vit
inline frequencies rope_vit_axial_frequencies(Index head_dim, double base = 100.0) {
  detail::require_two_axes_fit("rope_vit_axial_frequencies", head_dim);
  return detail::width_first(axial(frequencies(head_dim / 2, base), 2));
}

/// rope-vit, mixed: what the learned frequencies of one head start from. Each speed comes twice, along two
/// directions at a right angle, and every head has its own `angle`.
///
///     f_j = base^(-4 j / head_dim),  j < head_dim / 4
///     pair j: f_j along `angle` from the width axis,  pair head_dim / 4 + j: f_j along angle + pi / 2
///
/// Trained ones are frequencies::custom of [fy, fx] per head; rotate_heads rotates every head by its own.
///
/// \param angle  of the head [rad], random in [0, 2 pi) in training
///
/// Throws:  as pixtral_frequencies; std::invalid_argument unless angle is finite
/// Source:  Heo et al. 2024, arXiv:2403.13298; naver-ai/rope-vit, `init_random_2d_freqs`
inline frequencies rope_vit_mixed_frequencies(Index head_dim, double angle, double base = 10.0) {
  detail::require_two_axes_fit("rope_vit_mixed_frequencies", head_dim);
  const frequencies half(head_dim / 2, base);
  const Index quarter = head_dim / 4;
  number_array<double> inv_freq(2 * quarter, 2);
  const double across = std::cos(angle), down = std::sin(angle);
  for (Index j = 0; j < quarter; ++j) {
    const double f = half.inv_freq(j, 0);
    inv_freq(j, 0) = f * down;
    inv_freq(j, 1) = f * across;
    inv_freq(quarter + j, 0) = f * across;
    inv_freq(quarter + j, 1) = f * -down;
  }
  return frequencies::custom(std::move(inv_freq));
}

/// DINOv3, by a base: wavelengths from 1, which is half the image in coordinates of [-1, 1], up to almost
/// `base`.
///
///     inv_freq_k = 2 pi / base^(4 k / head_dim),  k < head_dim / 4;  height first
///
/// Throws:  as pixtral_frequencies
/// Source:  Simeoni et al. 2025, DINOv3, arXiv:2508.10104; facebookresearch/dinov3, RopePositionEmbedding
inline frequencies dino_v3_frequencies(Index head_dim, double base = 100.0) {
  detail::require_two_axes_fit("dino_v3_frequencies", head_dim);
  if (!detail::is_finite(base) || base <= 1)
    detail::throw_invalid("dino_v3_frequencies", "base must be finite and greater than 1, got ", base);
  return axial(detail::geometric_periods(head_dim / 4, 1, wide_real(base), head_dim / 4), 2);
}

/// DINOv3, by its wavelengths: a geometric series from min_period to max_period.
///
///     inv_freq_k = 2 pi / (min_period (max_period / min_period)^(k / (head_dim / 4 - 1)));  height first
///
/// Throws:  std::invalid_argument unless head_dim is positive and a multiple of 4, and 0 < min_period <=
///          max_period, both finite
/// Source:  as above, `min_period` and `max_period`
inline frequencies dino_v3_frequencies(Index head_dim, double min_period, double max_period) {
  detail::require_two_axes_fit("dino_v3_frequencies", head_dim);
  if (!detail::is_finite(min_period) || !detail::is_finite(max_period) || min_period <= 0 ||
      max_period < min_period)
    detail::throw_invalid("dino_v3_frequencies", "periods must be finite, 0 < min_period <= max_period, got ",
                          min_period, " and ", max_period);
  return axial(detail::geometric_periods(head_dim / 4, min_period,
                                         wide_real(max_period) / wide_real(min_period), head_dim / 4 - 1),
               2);
}

/// How the bands of timm_pixel_frequencies are spread over the frequencies.
enum class pixel_bands { octaves, evenly_spaced };

/// timm in pixels, and EVA: bands for coordinates of [-1, 1].
///
///     octaves:        inv_freq_k = pi 2^(k (log2(max_freq) - 1) / (bands - 1)),  bands = head_dim / 4,
///                     height first
///     evenly_spaced:  frequencies::pixel(head_dim / 2, max_freq)
///
/// The tables of timm itself are [sin, cos], in this order, with each entry twice.
///
/// \param max_freq  `max_res` of timm, at least 2
///
/// Throws:  std::invalid_argument unless head_dim is positive and a multiple of 4, and max_freq finite and at
///          least 2
/// Source:  huggingface/pytorch-image-models, RotaryEmbeddingCat, `pixel_freq_bands`; octaves are its
///          `linear_bands=False`
inline frequencies timm_pixel_frequencies(Index head_dim, double max_freq = 224,
                                          pixel_bands spread = pixel_bands::octaves) {
  detail::require_two_axes_fit("timm_pixel_frequencies", head_dim);
  if (!detail::is_finite(max_freq) || max_freq < 2)
    detail::throw_invalid("timm_pixel_frequencies", "max_freq must be finite and at least 2, got ", max_freq);
  if (spread == pixel_bands::evenly_spaced) return axial(frequencies::pixel(head_dim / 2, max_freq), 2);
  const Index bands = head_dim / 4;
  const wide_real octaves = log(wide_real(max_freq) / 2);
  number_array<double> inv_freq(bands, 1);
  for (Index k = 0; k < bands; ++k) {
    const wide_real exponent = k == 0 ? 0 : octaves * k / (bands - 1);
    inv_freq(k, 0) = static_cast<double>(wide_real::pi() * exp(exponent));
  }
  return axial(frequencies::custom(std::move(inv_freq)), 2);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_VISION_AXES_HPP
