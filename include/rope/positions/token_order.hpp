// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_TOKEN_ORDER_HPP
#define ROPE_POSITIONS_TOKEN_ORDER_HPP

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/positions/grid_positions.hpp>

/// Orders of tokens that differ from the order of their grid: patches that are merged later, class tokens,
/// several images in one batch, a sequence split across devices. Each function selects rows of coordinates or
/// positions.

namespace rope::inline ROPE_ABI {
namespace detail {

/// rows + more.  Requires: neither is negative
///
/// Throws:  std::length_error if the sum does not fit an Index
inline Index added_rows(const char* function, Index rows, Index more) {
  if (more > (std::numeric_limits<Index>::max)() - rows)
    throw_length(function, rows, " + ", more, " rows exceed the address space");
  return rows + more;
}

}  // namespace detail

/// Reorders, repeats or drops rows of coordinates: row r of the result is row order[r].
///
/// Throws:  std::out_of_range if a row does not exist
template <class Derived>
auto rows_in_order(const Eigen::DenseBase<Derived>& coordinates, const std::vector<std::int64_t>& order) {
  owned_array<typename Derived::Scalar> rows(static_cast<Index>(order.size()), coordinates.cols());
  for (std::size_t r = 0; r < order.size(); ++r) {
    if (order[r] < 0 || order[r] >= coordinates.rows())
      detail::throw_out_of_range("rows_in_order", "a row must be in [0, ", coordinates.rows(), "), got ",
                                 order[r]);
    rows.row(static_cast<Index>(r)) = coordinates.derived().row(static_cast<Index>(order[r]));
  }
  return rows;
}

/// The rows of a row-major grid [frames, height, width] in spatial-merge order: the merge x merge patches
/// that a later layer merges into one token are adjacent. Blocks are in row-major order, and so are the
/// patches of a block.
///
///     const auto order = spatial_merge_order(1, height, width, 2);
///     const auto positions = rows_in_order(grid_positions({height, width}), order);
///
///     4 x 4: (0,0) (0,1) (1,0) (1,1)  (0,2) (0,3) (1,2) (1,3)  (2,0) ...
///
/// \param merge  patches per block and axis (`spatial_merge_size`); divides height and width
///
/// Throws:  std::invalid_argument if an extent is negative, or merge is not positive or does not divide
///          height and width; std::length_error if the grid exceeds the address space
/// Source:  `rot_pos_emb` of Hugging Face transformers (Qwen2-VL and later)
inline std::vector<std::int64_t> spatial_merge_order(Index frames, Index height, Index width, Index merge) {
  const Index cells = detail::cells("spatial_merge_order", {frames, height, width});
  if (merge <= 0 || height % merge != 0 || width % merge != 0)
    detail::throw_invalid("spatial_merge_order", "merge must be positive and divide height and width, got ",
                          merge, " for ", height, " and ", width);
  std::vector<std::int64_t> order(static_cast<std::size_t>(cells), 0);
  if (cells == 0) return order;
  std::size_t next = 0;
  for (Index t = 0; t < frames; ++t)
    for (Index block_row = 0; block_row < height; block_row += merge)
      for (Index block_column = 0; block_column < width; block_column += merge)
        for (Index row = block_row; row < block_row + merge; ++row)
          for (Index column = block_column; column < block_column + merge; ++column)
            order[next++] = (t * height + row) * width + column;
  return order;
}

/// Adds tokens without rotation before and after the coordinates: class and register tokens in front or, as
/// in Llama 4, at the end. Their coordinates are 0 on every axis. A table with attention_factor 1 leaves all
/// bits of such tokens unchanged.
///
/// Throws:  std::invalid_argument if a count is negative; std::length_error if the rows exceed the address
///          space
/// Source:  DINOv3, rope-vit and timm (class and registers first), Llama 4 (class last)
template <class Derived>
auto with_unrotated_tokens(const Eigen::DenseBase<Derived>& coordinates, Index before, Index after = 0) {
  detail::check_rule("with_unrotated_tokens", before >= 0 && after >= 0, "counts must not be negative",
                     before, after);
  using scalar = typename Derived::Scalar;
  const char* const name = "with_unrotated_tokens";
  const Index count = detail::added_rows(name, detail::added_rows(name, before, coordinates.rows()), after);
  owned_array<scalar> rows = owned_array<scalar>::Zero(count, coordinates.cols());
  if (coordinates.size() > 0) rows.middleRows(before, coordinates.rows()) = coordinates.derived();
  return rows;
}

/// Concatenates the rows of several coordinates: images of different sizes in one sequence, each from its own
/// origin.
///
/// \param parts  of one type: results of grid_positions.hpp, or other Eigen arrays
///
/// Throws:  std::invalid_argument if there are no parts or their axes differ; std::length_error if the rows
///          exceed the address space
template <class Part>
owned_array<typename Part::Scalar> stacked_rows(const std::vector<Part>& parts) {
  if (parts.empty()) detail::throw_invalid("stacked_rows", "give coordinates, got none");
  Index rows = 0;
  for (const auto& part : parts) {
    detail::check_equal("stacked_rows", "all parts", "axes", parts.front().cols(), part.cols());
    rows = detail::added_rows("stacked_rows", rows, part.rows());
  }
  owned_array<typename Part::Scalar> all(rows, parts.front().cols());
  rows = 0;
  for (const auto& part : parts) {
    if (part.size() > 0) all.middleRows(rows, part.rows()) = part;
    rows += part.rows();
  }
  return all;
}

/// The positions of one rank in context parallelism. The sequence is split into 2 * ranks equal chunks, and a
/// rank gets chunk `rank` from the front and chunk `rank` from the end. Under a causal mask every rank then
/// has the same work.
///
///     16 tokens, 4 ranks:  (0 1 14 15)  (2 3 12 13)  (4 5 10 11)  (6 7 8 9)
///
///     rotate<half_split>(queries_of_this_rank, table, context_parallel_ids(length, ranks, rank));
///
/// Throws:  std::invalid_argument unless 0 <= rank < ranks and 2 * ranks divides the length
/// Source:  NVIDIA Transformer Engine, `get_pos_emb_on_this_cp_rank`
inline std::vector<std::int64_t> context_parallel_ids(Index length, Index ranks, Index rank) {
  if (ranks <= 0 || rank < 0 || rank >= ranks)
    detail::throw_invalid("context_parallel_ids", "rank must be in [0, ranks), got ", rank, " of ", ranks);
  if (length < 0 || length % 2 != 0 || length / 2 % ranks != 0)
    detail::throw_invalid("context_parallel_ids", "the length must be a multiple of 2 * ranks, got ", length,
                          " for ", ranks, " ranks");
  const Index chunk = length / 2 / ranks, mirror = length - (rank + 1) * chunk;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(2 * chunk), 0);
  for (Index i = 0; i < chunk; ++i) {
    ids[static_cast<std::size_t>(i)] = rank * chunk + i;
    ids[static_cast<std::size_t>(chunk + i)] = mirror + i;
  }
  return ids;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_TOKEN_ORDER_HPP
