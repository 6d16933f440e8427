// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_VIDEO_AXES_HPP
#define ROPE_FREQUENCIES_VIDEO_AXES_HPP

#include <utility>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/axes.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/frequencies/scaling.hpp>

/// The frequencies of released models that generate videos and images. Axes are (time, height, width), tokens
/// in the order of grid_positions({frames, height, width}).
///
///     model           frequencies                             layout        coordinates
///     Wan 2.1, 2.2    wan_frequencies(128)                    interleaved   grid_positions
///     HunyuanVideo    axial_blocks({16, 56, 56}, 256)         interleaved   grid_positions; 1.5 the same
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
///     Allegro         a table per axis, a window of channels  half_split    grid_positions
///
/// Kandinsky 5 and Lumina are axial with a linear_scaling or ntk_scaling per block. The text of Qwen-Image
/// follows its image at max(height / 2, width / 2) on every axis; that of HunyuanVideo does not rotate.
///
/// Flux 2: a patch is at (0, row, column, 0), text token l at (0, 0, 0, l), and the patches of the n-th
/// reference image at time 10 n. Source: Flux2PosEmbed and pipeline_flux2.py of Hugging Face diffusers.
///
/// Ideogram 4: sections (24, 20, 20) of 128 pairs, whose other 64 pairs follow time as well. Text is at
/// (n, n, n), the patches of the image at (0, row, column) + 65536 on every axis. Float angles are off by up
/// to 4.6e-3 there. Source: Ideogram4MRoPE and pipeline_ideogram4.py of Hugging Face diffusers.
///
///     const frequencies f = on_axes(frequencies(256, 5e6), interleaved_sections({24 + 64, 20, 20}));
///     const frequency_table table(f, grid_positions({1, height, width}, {65536, 65536, 65536}));

namespace rope::inline ROPE_ABI {

/// How Wan and Cosmos split a head: height and width 2 floor(head_dim / 6) channels each, time the rest.
///
///     128 -> 44 42 42,  96 -> 32 32 32,  64 -> 24 20 20
///
/// Throws:  std::invalid_argument unless head_dim is even and at least 6
inline std::vector<Index> video_widths(Index head_dim) {
  if (head_dim < 6 || head_dim % 2 != 0)
    detail::throw_invalid("video_widths", "head_dim must be even and at least 6, got ", head_dim);
  const Index space = 2 * (head_dim / 6);
  return {head_dim - 2 * space, space, space};
}

/// Wan 2.1 and 2.2: video_widths, one schedule of the same base per axis.
///
/// Throws:  std::invalid_argument unless head_dim is even and at least 6, and base finite and greater than 1
/// Source:  Wan-Video/Wan2.1, `rope_params` and `rope_apply`
inline frequencies wan_frequencies(Index head_dim, double base = 10000.0) {
  return axial_blocks(video_widths(head_dim), base);
}

/// CogVideoX: a quarter of the head for the time, three eighths for each side of the image.
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

/// The factor by which Cosmos stretches each axis (`rope_scale`): the slowest pair of an axis rotates
/// that many times slower, as with ntk_scaling.
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

/// One axis of Cosmos: ntk_scaling, with errors in the words of cosmos_frequencies.
struct cosmos_axis_scaling {
  double stretch;

  void apply(schedule& axis) const {
    require_field(is_finite(stretch) && stretch > 0, "cosmos_frequencies: a stretch must be positive",
                  stretch);
    stretch_base(axis, stretch, "cosmos_frequencies", "cosmos_frequencies: a stretch");
  }
};

}  // namespace detail

/// Cosmos: video_widths, the base of each axis stretched; half_split over the whole head.
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
  const std::vector<Index> widths = video_widths(head_dim);
  const frequencies blocks[] = {{widths[0], base, detail::cosmos_axis_scaling{stretch.time}},
                                {widths[1], base, detail::cosmos_axis_scaling{stretch.height}},
                                {widths[2], base, detail::cosmos_axis_scaling{stretch.width}}};
  return detail::axial_of(blocks, 3, 1);
}

/// LTX-Video: one growing list of frequencies, each of them for time, then height, then width. The list
/// spans the channels of all heads: rotate them as one head of inner_dim channels, before they are split.
///
///     n = floor(inner_dim / (2 axes)),  g_k = pi / 2 base^(k / (n - 1))
///     pairs: those that are left do not rotate, then g_0 time, g_0 height, g_0 width, g_1 time, ...
///
/// A coordinate is 2 x - 1, where x is the time as a fraction of 20 s, or the place as a fraction of 2048
/// pixels. Audio of LTX-2 has the axis of time alone.
///
/// \param inner_dim  even and at least 2 axes; the first inner_dim % (2 axes) channels do not rotate
/// \param axes       positive
///
/// Throws:  std::invalid_argument unless axes is positive, inner_dim even and at least 2 axes, and base
///          finite and greater than 1
/// Source:  LTXVideoRotaryPosEmbed and LTX2AudioVideoRotaryPosEmbed of Hugging Face diffusers
inline frequencies ltx_frequencies(Index inner_dim, double base = 10000.0, Index axes = 3) {
  if (axes <= 0) detail::throw_invalid("ltx_frequencies", "axes must be positive, got ", axes);
  if (inner_dim / 2 < axes || inner_dim % 2 != 0)
    detail::throw_invalid("ltx_frequencies", "inner_dim must be even and at least ", "2 for each of ", axes,
                          " axes, got ", inner_dim);
  if (!detail::is_finite(base) || base <= 1)
    detail::throw_invalid("ltx_frequencies", "base must be finite and greater than 1, got ", base);
  const Index count = inner_dim / 2 / axes, rest = inner_dim / 2 % axes;
  number_array<double> inv_freq(inner_dim / 2, axes, 0.0);
  const detail::inverse_powers powers(base, (std::max)(count - 1, Index{1}));
  for (Index k = 0; k < count; ++k) {
    const wide_real power = k == 0 ? 1 : base * powers(count - 1 - k);
    for (Index axis = 0; axis < axes; ++axis)
      inv_freq(rest + axes * k + axis, axis) = static_cast<double>(wide_real::pi() / 2 * power);
  }
  return frequencies::custom(std::move(inv_freq));
}

/// The frequencies of each head, from a list that spans the channels of all heads: the `split` form of LTX-2,
/// whose pairs lie within a head.
///
///     const auto of_heads = frequencies_of_heads(ltx_frequencies(4096), 32);
///     std::vector<frequency_table<>> tables;
///     for (const frequencies& f : of_heads) tables.emplace_back(f, coordinates);
///     rotate_heads<half_split>(queries, tables);
///
/// Throws:  std::invalid_argument unless heads is positive and divides the pairs of `all`
/// Source:  LTX2AudioVideoRotaryPosEmbed and apply_split_rotary_emb of Hugging Face diffusers; released
///          weights are of this form (scripts/convert_ltx2_to_diffusers.py)
inline std::vector<frequencies> frequencies_of_heads(const frequencies& all, Index heads) {
  if (heads <= 0 || all.pairs() % heads != 0)
    detail::throw_invalid("frequencies_of_heads", "heads must be positive and divide ", all.pairs(),
                          " pairs, got ", heads);
  const Index pairs = all.pairs() / heads;
  std::vector<frequencies> result;
  for (Index h = 0; h < heads; ++h) {
    number_array<double> inv_freq(pairs, all.axes());
    for (Index a = 0; a < all.axes(); ++a)
      for (Index i = 0; i < pairs; ++i) inv_freq(i, a) = all.inv_freq(h * pairs + i, a);
    result.push_back(frequencies::custom(std::move(inv_freq), all.attention_factor()));
  }
  return result;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_FREQUENCIES_VIDEO_AXES_HPP
