// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP
#define ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP

#include <limits>
#include <vector>

#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// How many cells a grid of patches has, found before memory is asked for.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The number of cells of a grid, checked to have axes, no negative extent and a size that fits memory.
inline Index cells(const char* function, const std::vector<Index>& extents) {
  if (extents.empty())
    ROPE_THROW(std::invalid_argument, message(function, ": give one extent per axis, got none"));
  for (const Index extent : extents)
    if (extent < 0)
      ROPE_THROW(std::invalid_argument, message(function, ": an extent must not be negative, got ", extent));
  const Index most =
      (std::numeric_limits<Index>::max)() / static_cast<Index>(sizeof(double) * extents.size());
  for (const Index extent : extents)
    if (extent == 0) return 0;
  Index count = 1;
  for (const Index extent : extents) {
    if (!product_fits({count, extent}, most))
      ROPE_THROW(std::length_error, message(function, ": the grid exceeds the address space"));
    count *= extent;
  }
  return count;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP
