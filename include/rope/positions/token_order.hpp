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

/// Orders of tokens other than that of their grid: patches that are merged later, class tokens, several
/// images in one batch, a sequence that is cut between devices. Each is a choice of rows of coordinates.

namespace rope::inline ROPE_ABI {
namespace detail {

/// rows + more, neither of them negative.
///
/// Throws:  std::length_error if an Index does not hold the sum
inline Index added_rows(const char* function, Index rows, Index more) {
  if (more > (std::numeric_limits<Index>::max)() - rows)
    throw_length(function, rows, " + ", more, " rows exceed the address space");
  return rows + more;
}

}  // namespace detail

/// Rows of coordinates in another order, repeated or left out: row r of the result is row order[r].
///
/// Throws:  std::out_of_range if there is no such row
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
/// that a later layer fuses into one token lie together, blocks in row-major order, patches of a block in
/// row-major order.
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
  if (frames < 0 || height < 0 || width < 0)
    detail::throw_invalid("spatial_merge_order", "an extent must not be negative, got ",
                          detail::shape_text({frames, height, width}));
  if (merge <= 0 || height % merge != 0 || width % merge != 0)
    detail::throw_invalid("spatial_merge_order", "merge must be positive and divide height and width, got ",
                          merge, " for ", height, " and ", width);
  std::vector<std::int64_t> order;
  if (detail::cells("spatial_merge_order", {frames, height, width}) == 0) return order;
  for (Index t = 0; t < frames; ++t)
    for (Index block_row = 0; block_row < height; block_row += merge)
      for (Index block_column = 0; block_column < width; block_column += merge)
        for (Index row = block_row; row < block_row + merge; ++row)
          for (Index column = block_column; column < block_column + merge; ++column)
            order.push_back((t * height + row) * width + column);
  return order;
}

/// Adds tokens that do not rotate before and after coordinates: class and register tokens in front, or, as in
/// Llama 4, behind. Their coordinates are 0 on every axis, where a table with an attention_factor of 1 leaves
/// every bit as it is.
///
/// Throws:  std::invalid_argument if a count is negative; std::length_error if the rows exceed the address
///          space
/// Source:  DINOv3, rope-vit and timm (class and registers first), Llama 4 (class last)
template <class Derived>
auto with_unrotated_tokens(const Eigen::DenseBase<Derived>& coordinates, Index before, Index after = 0) {
  if (before < 0 || after < 0)
    detail::throw_invalid("with_unrotated_tokens", "counts must not be negative, got ", before, " and ",
                          after);
  using scalar = typename Derived::Scalar;
  const char* const name = "with_unrotated_tokens";
  const Index count = detail::added_rows(name, detail::added_rows(name, before, coordinates.rows()), after);
  owned_array<scalar> rows = owned_array<scalar>::Zero(count, coordinates.cols());
  if (coordinates.size() > 0) rows.middleRows(before, coordinates.rows()) = coordinates.derived();
  return rows;
}

/// Coordinates one below the other: images of different size laid end to end, each from its own origin.
///
/// \param parts  of one type: what a builder returns, or Eigen arrays
///
/// Throws:  std::invalid_argument if the parts are none or differ in axes; std::length_error if the rows
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

/// The positions that one rank holds when a sequence is cut for context parallelism: of 2 * ranks equal
/// chunks, number `rank` from the front and from the end, so that every rank has the same work under a causal
/// mask.
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
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(2 * chunk));
  for (const Index first : {rank * chunk, mirror})
    for (Index i = 0; i < chunk; ++i) ids.push_back(first + i);
  return ids;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_TOKEN_ORDER_HPP
