// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_GRID_POSITIONS_HPP
#define ROPE_POSITIONS_GRID_POSITIONS_HPP

#include <cmath>  // std::nearbyint
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>  // std::type_identity_t
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>

/// Coordinates [rows, axes] of the patches of images and videos, for a frequency_table: integers or doubles,
/// one row per token, axes in the order (height, width) or (time, height, width).
///
///     frequency_table table(axial(frequencies::pixel(16, 256), 3),
///                           grid_coordinates(evenly_spaced(8), evenly_spaced(64), evenly_spaced(32)));
///
/// The functions return Eigen arrays (base/owned_array.hpp). Shifts and scales, such as the random ones in
/// DINOv3's training, are therefore Eigen expressions: `coordinates.col(axis) += shift`.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The number of cells of a grid.
///
/// Throws:  std::invalid_argument if there is no axis or an extent is negative; std::length_error if the
///          coordinates of all cells exceed the address space
inline Index cells(const char* function, const std::vector<Index>& extents) {
  if (extents.empty()) throw_invalid(function, "give one extent per axis, got none");
  for (const Index extent : extents)
    if (extent < 0) throw_invalid(function, "an extent must not be negative, got ", extent);
  const Index most =
      (std::numeric_limits<Index>::max)() / static_cast<Index>(sizeof(double) * extents.size());
  if (contains(extents, 0)) return 0;
  Index count = 1;
  for (const Index extent : extents) {
    if (!product_fits({count, extent}, most))
      throw_length(function, "the grid exceeds the address space, got ",
                   shape_text(extents.data(), extents.size()));
    count *= extent;
  }
  return count;
}

}  // namespace detail

/// Integer coordinates [rows, axes].
using integer_coordinates = owned_array<std::int64_t>;

namespace detail {

/// The coordinates [cells, axes] of a grid in row-major order, the last axis fastest. Coordinate a of cell
/// (i_0, i_1, ...) is at(a, i_a).
template <class Scalar, class At>
number_array<Scalar> walk_grid(const char* function, const std::vector<Index>& extents, const At& at) {
  const Index rows = cells(function, extents);
  number_array<Scalar> grid(rows, static_cast<Index>(extents.size()));
  Index repeat = rows;  // consecutive rows with the same coordinate
  for (std::size_t a = 0; a < extents.size() && rows > 0; ++a) {
    repeat /= extents[a];
    for (Index r = 0; r < rows; ++r) grid(r, static_cast<Index>(a)) = at(a, r / repeat % extents[a]);
  }
  return grid;
}

inline void require_count(const char* function, Index count) {
  if (count < 0) throw_invalid(function, "count must not be negative, got ", count);
}

}  // namespace detail

/// The integer coordinates of a grid in row-major order, the last axis fastest.
///
///     row (i_0 extents[1] + i_1) extents[2] + i_2  =  (first[0] + i_0, first[1] + i_1, first[2] + i_2)
///
/// \param extents  cells per axis, not negative: {height, width} or {time, height, width}
/// \param first    coordinate of the first cell on each axis; empty: all 0
///
/// Requires:  Integer can hold every coordinate
/// Throws:    std::invalid_argument if there is no extent, one is negative, or first is neither empty nor one
///            per axis; std::length_error if the grid exceeds the address space; std::out_of_range if a
///            coordinate exceeds 64 bits
template <class Integer = std::int64_t>
owned_array<Integer> grid_positions(const std::vector<Index>& extents,
                                    const std::vector<std::int64_t>& first = {}) {
  if (!first.empty() && first.size() != extents.size())
    detail::throw_invalid("grid_positions", "first must be empty or one per axis, ", extents.size(), ", got ",
                          first.size());
  if (detail::cells("grid_positions", extents) > 0)
    for (std::size_t a = 0; a < first.size(); ++a)
      detail::position_sum("grid_positions", first[a], extents[a] - 1);
  return detail::walk_grid<Integer>("grid_positions", extents, [&](std::size_t a, Index i) {
    return static_cast<Integer>((first.empty() ? 0 : first[a]) + i);
  });
}

/// The grid with the coordinates of argument a on axis a, in row-major order, the last axis fastest
/// (`meshgrid` with indexing 'ij').
///
/// \param axes  one Eigen vector per axis, such as evenly_spaced(...) below
///
/// Throws:  std::length_error if the grid exceeds the address space
template <class Real = double, class... Axes>
owned_array<Real> grid_coordinates(const Eigen::DenseBase<Axes>&... axes) {
  static_assert(sizeof...(Axes) > 0, "grid_coordinates: give one vector of coordinates per axis");
  static_assert((bool(Axes::IsVectorAtCompileTime) && ...), "grid_coordinates: an axis is an Eigen vector");
  const number_array<double> lists[] = {axes.derived().template cast<double>()...};
  return detail::walk_grid<Real>("grid_coordinates", {axes.size()...},
                                 [&](std::size_t a, Index i) { return lists[a](i); });
}

/// The rows that the cells of a grid have in the table of a larger grid with the same origin. One table per
/// model then serves images of every size.
///
///     id(i_0, i_1) = i_0 * table_extents[1] + i_1
///
///     rotate<half_split>(patches, table, grid_ids({height, width}, {64, 64}));
///
/// Throws:  std::invalid_argument if there is no axis, the grids differ in the number of axes, or an extent
///          is negative; std::out_of_range if an axis of the table is too short; std::length_error if a grid
///          exceeds the address space
/// Source:  `position_ids_in_meshgrid` of Hugging Face transformers (Pixtral)
inline std::vector<std::int64_t> grid_ids(const std::vector<Index>& extents,
                                          const std::vector<Index>& table_extents) {
  detail::check_equal("grid_ids", "both grids", "axes", static_cast<Index>(extents.size()),
                      static_cast<Index>(table_extents.size()));
  for (std::size_t a = 0; a < extents.size(); ++a)
    if (extents[a] > table_extents[a])
      detail::throw_out_of_range("grid_ids", "axis ", a, " of the table has ", table_extents[a],
                                 " cells, got ", extents[a]);
  detail::cells("grid_ids", table_extents);
  const number_array<std::int64_t> grid = detail::walk_grid<std::int64_t>(
      "grid_ids", extents, [](std::size_t /*axis*/, Index i) { return std::int64_t{i}; });
  std::vector<std::int64_t> ids(static_cast<std::size_t>(grid.rows()), 0);
  for (Index r = 0; r < grid.rows(); ++r)
    for (std::size_t a = 0; a < extents.size(); ++a) {
      std::int64_t& id = ids[static_cast<std::size_t>(r)];
      id = id * table_extents[a] + grid(r, static_cast<Index>(a));
    }
  return ids;
}

/// `count` coordinates from `first` to `last`, both included; a single coordinate is `first`. Each half is
/// computed from its own end, so for first = -last the halves are exact negatives of each other.
///
/// Requires:  (last - first) * count is finite
/// Throws:    std::invalid_argument if count is negative; std::length_error if it exceeds the address space
/// Source:    `torch.linspace`; pixel coordinates of lucidrains/rotary-embedding-torch and timm are [-1, 1]
template <class Real = double>
owned_array<Real, 1> evenly_spaced(Index count, std::type_identity_t<Real> first = -1,
                                   std::type_identity_t<Real> last = 1) {
  detail::require_count("evenly_spaced", count);
  owned_array<Real, 1> axis(count);
  // The sums add quotients. A compiler may fuse the sum of a product, and then the middle is not exact.
  const auto part = [&](Index i) {
    if (i == 0 || 2 * i == count - 1) return i == 0 ? Real(0) : (last - first) / 2;  // exactly half
    return (last - first) * static_cast<Real>(i) / static_cast<Real>(count - 1);
  };
  for (Index i = 0; i < count; ++i) axis(i) = 2 * i < count ? first + part(i) : last - part(count - 1 - i);
  return axis;
}

/// `count` coordinates from `first` up to, but not including, `end`: first + (end - first) i / count.
///
/// Requires:  (end - first) * count is finite
/// Throws:    as evenly_spaced
/// Source:    with (0, reference_extent), timm's `ref_feat_shape`
template <class Real = double>
owned_array<Real, 1> evenly_spaced_before(Index count, std::type_identity_t<Real> first,
                                          std::type_identity_t<Real> end) {
  detail::require_count("evenly_spaced_before", count);
  owned_array<Real, 1> axis(count);
  for (Index i = 0; i < count; ++i)
    axis(i) = first + (end - first) * static_cast<Real>(i) / static_cast<Real>(count);
  return axis;
}

/// The coordinates that diffusers assigns to `count` cells over the part [first, end) of an axis of a base
/// grid.
///
///     first + (end (count - 1) / count - first) i / (count - 1)
///
/// For first = 0 they are those of evenly_spaced_before. Otherwise the last one is smaller by first / count.
///
/// Requires:  (end - first) * count is finite
/// Throws:    as evenly_spaced
/// Accuracy:  in double; diffusers rounds every coordinate to float
/// Source:    `grid_type` linspace of get_3d_rotary_pos_embed and get_2d_rotary_pos_embed of Hugging Face
///            diffusers (CogVideoX, ConsisID, EasyAnimate, Hunyuan-DiT)
template <class Real = double>
owned_array<Real, 1> evenly_spaced_in_crop(Index count, std::type_identity_t<Real> first,
                                           std::type_identity_t<Real> end) {
  detail::require_count("evenly_spaced_in_crop", count);
  if (count == 0) return {};
  return evenly_spaced<Real>(count, first, end * static_cast<Real>(count - 1) / static_cast<Real>(count));
}

/// The patches of a video, and the base grid that its model was trained on.
///
///     const auto at = cogvideox_positions({.frames = 13, .height = 30, .width = 45});
struct cogvideox_grid {
  Index frames;            // of the video
  Index height;            // of a frame
  Index width;             // of a frame
  Index base_height = 30;  // of the base grid: sample_height / patch_size of the model
  Index base_width = 45;   // of the base grid: sample_width / patch_size
};

/// The positions of CogVideoX 1.0, (time, height, width) of frames * height * width tokens, row-major.
///
///     time = frame;  height and width by evenly_spaced_in_crop over the part that the video covers
///
/// The video covers the largest centered part of the base grid with the proportions of the video. CogVideoX
/// 1.5 counts cells instead: use grid_positions.
///
/// Throws:  std::invalid_argument if frames, height or width is negative, or the video has tokens and the
///          base grid is not positive; std::length_error if the grid exceeds the address space
/// Source:  get_resize_crop_region_for_grid of Hugging Face diffusers, which rounds halves to even
template <class Real = double>
owned_array<Real> cogvideox_positions(const cogvideox_grid& grid) {
  const auto [frames, height, width, base_height, base_width] = grid;
  if (detail::cells("cogvideox_positions", {frames, height, width}) == 0) return owned_array<Real>(0, 3);
  detail::check_rule("cogvideox_positions", base_height > 0 && base_width > 0,
                     "the base grid must be positive", base_height, base_width);
  const auto h = static_cast<double>(height), w = static_cast<double>(width),
             max_h = static_cast<double>(base_height), max_w = static_cast<double>(base_width);
  const bool tall = h / w > max_h / max_w;
  const double covered_h = tall ? max_h : std::nearbyint(max_w / w * h),
               covered_w = tall ? std::nearbyint(max_h / h * w) : max_w;
  const double top = std::nearbyint((max_h - covered_h) / 2), left = std::nearbyint((max_w - covered_w) / 2);
  const owned_array<Real, 1> rows = evenly_spaced_in_crop<Real>(height, top, top + covered_h),
                             columns = evenly_spaced_in_crop<Real>(width, left, left + covered_w);
  return detail::walk_grid<Real>("cogvideox_positions", {frames, height, width},
                                 [&](std::size_t axis, Index i) {
                                   return axis == 0 ? static_cast<Real>(i) : axis == 1 ? rows(i) : columns(i);
                                 });
}

/// The centers of `count` equal cells that tile [low, high]: low + (high - low) (i + 1/2) / count.
///
/// Requires:  2 * (high - low) * count is finite
/// Throws:    as evenly_spaced
/// Source:    Mochi, over [-extent * s / 2, extent * s / 2] with s = sqrt(192 * 192 / (height * width))
template <class Real = double>
owned_array<Real, 1> cell_centers(Index count, std::type_identity_t<Real> low,
                                  std::type_identity_t<Real> high) {
  detail::require_count("cell_centers", count);
  owned_array<Real, 1> axis(count);
  for (Index i = 0; i < count; ++i)
    axis(i) = low + (high - low) * static_cast<Real>(2 * i + 1) / static_cast<Real>(2 * count);
  return axis;
}

/// The first of `count` integer coordinates around zero, for grid_positions: -(count - floor(count / 2)).
///
/// Throws:  std::invalid_argument if count is negative
/// Source:  `scale_rope` of Qwen-Image: 4 cells are at -2 .. 1, 5 at -3 .. 1
inline std::int64_t centered_first(Index count) {
  detail::require_count("centered_first", count);
  const std::int64_t before = count - count / 2;
  return -before;
}

/// The extent that patch centers are divided by before they are mapped to [-1, 1].
enum class patch_normalisation {
  separate,  // height by height, width by width: the image fills the square
  largest,   // both by the larger extent: keeps proportions, the longer side fills [-1, 1]
  smallest   // both by the smaller extent
};

/// The centers of patches, [height * width, 2], row-major.
///
///     coordinate = 2 (i + 1/2) / extent - 1,  extent by `normalisation`
///
/// Throws:  std::invalid_argument if height or width is negative; std::length_error if the grid exceeds the
///          address space
/// Source:  Simeoni et al. 2025, DINOv3, arXiv:2508.10104; `normalize_coords` "separate", "max" and "min"
template <class Real = double>
owned_array<Real> patch_centers(Index height, Index width, patch_normalisation normalisation) {
  const std::vector<Index> extents = {height, width};
  const Index larger = height > width ? height : width, smaller = height > width ? width : height;
  return detail::walk_grid<Real>("patch_centers", extents, [&](std::size_t a, Index i) {
    const Index extent = normalisation == patch_normalisation::separate  ? extents[a]
                         : normalisation == patch_normalisation::largest ? larger
                                                                         : smaller;
    return static_cast<Real>(2 * i + 1) / static_cast<Real>(extent) - 1;
  });
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_GRID_POSITIONS_HPP
