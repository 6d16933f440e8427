// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_VISION_AXES_HPP
#define ROPE_FREQUENCIES_VISION_AXES_HPP

#include <algorithm>  // std::max
#include <cmath>
#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/axes_variants.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>

/// The two-axis frequencies of released vision models. In every function, axis 0 is the height (row) of a
/// patch and axis 1 its width (column), whatever the order in the model itself. So grid_positions({height,
/// width}) fits all of them.
///
/// Every function also throws std::invalid_argument if an inv_freq is not below 2^64, or if it uses the
/// original schedule of `frequencies` for more than 65536 channels.
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
///     Gemma 4          frequencies(head_dim / 2,     half_split    two halves of the head: the first by
///                      100)                                        columns of patches, the second by rows
///
/// `build_rope_2d` of llama.cpp is qwen_vl_vision_frequencies, or pixtral_frequencies with `interleave_freq`,
/// for NORMAL pairs (interleaved). Its NEOX pairs are within each half of the head, as in Gemma 4. Rotate
/// these two ranges of channels one after another, by tables of one axis.
///
///     rotate<half_split>(queries.channels(0, half), by_column);
///     rotate<half_split>(queries.channels(half, half), by_row);
///
/// Source of Gemma 4: Gemma4VisionRotaryEmbedding and apply_multidimensional_rope of transformers
///
/// The frequencies of released models that generate videos and images. Axes are (time, height, width), and
/// tokens are in the order of grid_positions({frames, height, width}).
///
///     model           frequencies                             layout        coordinates
///     Wan 2.1, 2.2    wan_frequencies(128)                    interleaved   grid_positions
///     HunyuanVideo    axial_blocks({16, 56, 56}, 256)         interleaved   grid_positions; also for 1.5
///     Flux            axial_blocks({16, 56, 56})              interleaved   the ids of the model
///     Flux 2          axial_blocks({32, 32, 32, 32}, 2000)    interleaved   (time, height, width, text)
///     Qwen-Image      axial_blocks({16, 56, 56})              interleaved   grid_positions, centered_first
///     CogVideoX       cogvideox_frequencies(64)               interleaved   cogvideox_positions
///     Cosmos          cosmos_frequencies(128)                 half_split    time is frame / fps * 24
///     Ideogram 4      on_axes, interleaved_sections           half_split    grid_positions from 65536 on
///     LTX-Video       ltx_frequencies(2048)                   interleaved   2 * fraction - 1
///     LTX-2           frequencies_of_heads, ltx_frequencies   half_split    the same, rotate_heads
///     Mochi           frequencies::custom, one per head       interleaved   cell_centers, rotate_heads
///     VideoRoPE       on_axes, height_width_then_time         half_split    video_rope_positions
///     Allegro         a table per axis, a range of channels   half_split    grid_positions
///
/// Kandinsky 5 and Lumina are axial with a linear_scaling or ntk_scaling per block. The text of Qwen-Image
/// follows its image at max(height / 2, width / 2) on every axis. The text of HunyuanVideo does not rotate.
///
/// Flux 2: a patch is at (0, row, column, 0), text token l at (0, 0, 0, l), and the patches of the n-th
/// reference image at time 10 n. Source: Flux2PosEmbed and pipeline_flux2.py of Hugging Face diffusers.
///
/// Ideogram 4: its sections (24, 20, 20) cover 64 of 128 pairs. The other 64 pairs also rotate by time. Text
/// is at (n, n, n), and the patches of the image are at (0, row, column) + 65536 on every axis. At such
/// positions, float angles have errors of up to 4.6e-3. Source: Ideogram4MRoPE and pipeline_ideogram4.py of
/// Hugging Face diffusers.
///
///     const frequencies f = on_axes(frequencies(256, 5e6), interleaved_sections({24 + 64, 20, 20}));
///     const frequency_table table(f, grid_positions({1, height, width}, {65536, 65536, 65536}));

namespace rope::inline ROPE_ABI {
namespace detail {

/// Rejects a head_dim that does not give each of two axes an even number of channels.
///
/// Throws:  std::invalid_argument
inline void require_two_axes_fit(const char* function, Index head_dim) {
  if (head_dim <= 0 || head_dim % 4 != 0)
    throw_invalid(function, "head_dim must be positive and a multiple of 4, got ", head_dim);
}

/// Periods first * ratio^(k / denominator) as frequencies, k = 0 .. count - 1.
inline frequencies geometric_periods(Index count, double first, wide_real ratio, Index denominator) {
  number_array<double> inv_freq(count, 1);
  const auto powers = inverse_powers(ratio, (std::max)(denominator, Index{1}));
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

/// video_widths for another function, whose axes need a head_dim of at least `least`.
inline std::vector<Index> checked_widths(const char* function, Index head_dim, Index least = 6) {
  if (head_dim < least || head_dim % 2 != 0)
    throw_invalid(function, "head_dim must be even and at least ", least, ", got ", head_dim);
  const Index space = 2 * (head_dim / 6);
  return {head_dim - 2 * space, space, space};
}

}  // namespace detail

/// Pixtral: one schedule over the whole head. Its even frequencies are for the height, and its odd ones for
/// the width.
///
///     f_j = base^(-2 j / head_dim)
///     pair i: f_2i by the height,   pair head_dim / 4 + i: f_(2i + 1) by the width
///
/// \param head_dim  positive, a multiple of 4. All channels rotate
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

/// The vision tower of Llama 4: as Qwen-VL, but the first half rotates by the width. Coordinates start at 1:
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

/// rope-vit, mixed: the initial values of the learned frequencies of one head. Each frequency occurs twice,
/// along two perpendicular directions, and every head has its own `angle`.
///
///     f_j = base^(-4 j / head_dim),  j < head_dim / 4
///     pair j: f_j along `angle` from the width axis,  pair head_dim / 4 + j: f_j along angle + pi / 2
///
/// For trained frequencies, pass [fy, fx] of each head to frequencies::custom. rotate_heads rotates every
/// head by its own table.
///
/// \param angle  of the head [rad], random in [0, 2 pi) in training
///
/// Throws:  as pixtral_frequencies; std::invalid_argument unless angle is finite
/// Source:  Heo et al. 2024, arXiv:2403.13298; naver-ai/rope-vit, `init_random_2d_freqs`
inline frequencies rope_vit_mixed_frequencies(Index head_dim, double angle, double base = 10.0) {
  detail::require_two_axes_fit("rope_vit_mixed_frequencies", head_dim);
  detail::check_finite("rope_vit_mixed_frequencies", true, "angle must be finite", angle);
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

/// DINOv3, by a base: wavelengths from 1, which is half the image in coordinates of [-1, 1], to almost
/// `base`.
///
///     inv_freq_k = 2 pi / base^(4 k / head_dim),  k < head_dim / 4;  height first
///
/// Throws:  as pixtral_frequencies
/// Source:  Simeoni et al. 2025, DINOv3, arXiv:2508.10104; facebookresearch/dinov3, RopePositionEmbedding
inline frequencies dino_v3_frequencies(Index head_dim, double base = 100.0) {
  detail::require_two_axes_fit("dino_v3_frequencies", head_dim);
  detail::check_finite("dino_v3_frequencies", base > 1, "base must be finite and greater than 1", base);
  return axial(detail::geometric_periods(head_dim / 4, 1, wide_real(base), head_dim / 4), 2);
}

/// DINOv3, by wavelengths: a geometric series from min_period to max_period.
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

/// The spacing of the bands of timm_pixel_frequencies.
enum class pixel_bands { octaves, evenly_spaced };

/// EVA, and timm with pixel frequencies: bands for coordinates in [-1, 1].
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
  detail::check_finite("timm_pixel_frequencies", max_freq >= 2, "max_freq must be finite and at least 2",
                       max_freq);
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

/// The channels of each axis in Wan and Cosmos: height and width have 2 floor(head_dim / 6) channels each,
/// and time has the others.
///
///     128 -> 44 42 42,  96 -> 32 32 32,  64 -> 24 20 20
///
/// Throws:  std::invalid_argument unless head_dim is even and at least 6
inline std::vector<Index> video_widths(Index head_dim) {
  return detail::checked_widths("video_widths", head_dim);
}

/// Wan 2.1 and 2.2: video_widths, one schedule of the same base per axis.
///
/// Throws:  std::invalid_argument unless head_dim is even and at least 6, and base finite and greater than 1
/// Source:  Wan-Video/Wan2.1, `rope_params` and `rope_apply`
inline frequencies wan_frequencies(Index head_dim, double base = 10000.0) {
  return axial_blocks(detail::checked_widths("wan_frequencies", head_dim), base);
}

/// CogVideoX: a quarter of the head is for the time, and three eighths are for each side of the image.
///
/// \param head_dim  positive, a multiple of 16
///
/// Throws:  std::invalid_argument unless head_dim is positive and a multiple of 16, and base finite and
///          greater than 1
/// Source:  `get_3d_rotary_pos_embed` of Hugging Face diffusers
inline frequencies cogvideox_frequencies(Index head_dim, double base = 10000.0) {
  if (head_dim <= 0 || head_dim % 16 != 0)
    detail::throw_invalid("cogvideox_frequencies", "head_dim must be positive and a multiple of 16, got ",
                          head_dim);
  return axial_blocks({head_dim / 4, 3 * (head_dim / 8), 3 * (head_dim / 8)}, base);
}

/// The factor of Cosmos for each axis (`rope_scale`): the slowest pair of an axis rotates slower by this
/// factor, as with ntk_scaling.
///
///     Cosmos 1       7B                {2, 1, 1}
///                    14B               {2, 2, 2}
///     Cosmos 2       Text2Image        {1, 4, 4}
///                    2B Video2World    {1, 3, 3}
///                    14B Video2World   {20.0 / 24, 2, 2}
///     Cosmos 2.5                       {1, 3, 3}
///
///     const frequencies f = cosmos_frequencies(128, {.time = 1, .height = 4, .width = 4});
///
/// Source:  convert_cosmos_to_diffusers.py of Hugging Face diffusers
struct cosmos_stretch {
  double time = 2;    // positive
  double height = 1;  // positive
  double width = 1;   // positive
};

namespace detail {

/// One axis of Cosmos: ntk_scaling, with error messages of cosmos_frequencies.
struct cosmos_axis_scaling {
  double stretch;

  void apply(schedule& axis) const {
    require_positive("cosmos_frequencies: a stretch", stretch);
    stretch_base(axis, stretch, "cosmos_frequencies", "cosmos_frequencies: a stretch");
  }
};

}  // namespace detail

/// Cosmos: video_widths, with a scaled base for each axis. The layout is half_split over the whole head.
///
///     base_a = base stretch_a^(width_a / (width_a - 2))
///
/// \param head_dim  even and at least 12, so that every axis has two pairs
///
/// Throws:  std::invalid_argument unless head_dim is even and at least 12, base finite and greater than 1,
///          and every stretch finite, positive and not so small that it leaves a base of 1 or less
/// Source:  CosmosRotaryPosEmbed of Hugging Face diffusers, `rope_scale`
inline frequencies cosmos_frequencies(Index head_dim, const cosmos_stretch& stretch = {},
                                      double base = 10000.0) {
  const std::vector<Index> widths = detail::checked_widths("cosmos_frequencies", head_dim, 12);
  const frequencies blocks[] = {{widths[0], base, detail::cosmos_axis_scaling{stretch.time}},
                                {widths[1], base, detail::cosmos_axis_scaling{stretch.height}},
                                {widths[2], base, detail::cosmos_axis_scaling{stretch.width}}};
  return detail::axial_of(blocks, 3, 1);
}

/// LTX-Video: one list of increasing frequencies, each of which is used for time, then height, then width.
/// The list covers the channels of all heads. So rotate all heads as one head of inner_dim channels, before
/// they are split.
///
///     n = floor(inner_dim / (2 axes)),  g_k = pi / 2 base^(k / (n - 1))
///     pairs: first the rest, which does not rotate, then g_0 time, g_0 height, g_0 width, g_1 time, ...
///
/// A coordinate is 2 x - 1, where x is the time as a fraction of 20 s, or a pixel coordinate as a fraction of
/// 2048. Audio of LTX-2 has only the axis of time.
///
/// \param inner_dim  even and at least 2 * axes. The first inner_dim % (2 * axes) channels do not rotate
/// \param axes       positive
///
/// Throws:  std::invalid_argument unless axes is positive, inner_dim is even and at least 2 * axes, and base
///          is finite and greater than 1; std::length_error if the entries exceed the address space
/// Source:  LTXVideoRotaryPosEmbed and LTX2AudioVideoRotaryPosEmbed of Hugging Face diffusers
inline frequencies ltx_frequencies(Index inner_dim, double base = 10000.0, Index axes = 3) {
  if (axes <= 0) detail::throw_invalid("ltx_frequencies", "axes must be positive, got ", axes);
  if (inner_dim / 2 < axes || inner_dim % 2 != 0)
    detail::throw_invalid("ltx_frequencies", "inner_dim must be even and at least 2 for each of ", axes,
                          " axes, got ", inner_dim);
  detail::check_finite("ltx_frequencies", base > 1, "base must be finite and greater than 1", base);
  const Index count = inner_dim / 2 / axes, rest = inner_dim / 2 % axes;
  number_array<double> inv_freq(inner_dim / 2, axes, 0.0);
  const auto powers = detail::inverse_powers(base, (std::max)(count - 1, Index{1}));
  for (Index k = 0; k < count; ++k) {
    const wide_real power = k == 0 ? 1 : base * powers(count - 1 - k);
    for (Index axis = 0; axis < axes; ++axis)
      inv_freq(rest + axes * k + axis, axis) = static_cast<double>(wide_real::pi() * power / 2);
  }
  return frequencies::custom(std::move(inv_freq));
}

/// The frequencies of each head, from a list for the channels of all heads. This is the `split` form of
/// LTX-2, in which each pair is within a head.
///
///     const auto of_heads = frequencies_of_heads(ltx_frequencies(4096), 32);
///     std::vector<frequency_table<>> tables;
///     for (const frequencies& f : of_heads) tables.emplace_back(f, coordinates);
///     rotate_heads<half_split>(queries, tables);
///
/// Throws:  std::invalid_argument unless heads is positive and divides the pairs of `all`
/// Source:  LTX2AudioVideoRotaryPosEmbed and apply_split_rotary_emb of Hugging Face diffusers; released
///          weights are of this form (scripts/convert_ltx2_to_diffusers.py)
template <class Frequencies = frequencies>
std::vector<Frequencies> frequencies_of_heads(const frequencies& all, Index heads) {
  if (heads <= 0 || all.pairs() % heads != 0)
    detail::throw_invalid("frequencies_of_heads", "heads must be positive and divide ", all.pairs(),
                          " pairs, got ", heads);
  const Index pairs = all.pairs() / heads;
  std::vector<Frequencies> result;
  for (Index h = 0; h < heads; ++h) {
    number_array<double> inv_freq(pairs, all.axes());
    for (Index a = 0; a < all.axes(); ++a)
      for (Index i = 0; i < pairs; ++i) inv_freq(i, a) = all.inv_freq(h * pairs + i, a);
    result.push_back(frequencies::custom(std::move(inv_freq), all.attention_factor()));
  }
  return result;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_VISION_AXES_HPP
