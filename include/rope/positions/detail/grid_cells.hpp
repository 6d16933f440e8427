// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP
#define ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP

#include <limits>
#include <string>
#include <vector>

#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// How many cells a grid of patches has, found before memory is asked for.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The extents of a grid as a message shows them: "[8, 64, 32]".
inline std::string shown_extents(const std::vector<Index>& extents) {
  std::string text = "[";
  for (const Index extent : extents) {
    if (text.size() > 1) append(text, ", ");
    append(text, extent);
  }
  append(text, "]");
  return text;
}

/// The number of cells of a grid.
///
/// Throws:  std::invalid_argument if there is no axis or an extent is negative; std::length_error if the
///          coordinates of all cells exceed the address space
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
      ROPE_THROW(std::length_error, message(function, ": the grid exceeds the address space, got ",
                                            shown_extents(extents).c_str()));
    count *= extent;
  }
  return count;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_POSITIONS_DETAIL_GRID_CELLS_HPP
