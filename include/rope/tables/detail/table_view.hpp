// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_VIEW_HPP
#define ROPE_TABLES_DETAIL_TABLE_VIEW_HPP

#include <cstdint>

#include <rope/config.hpp>

/// The rows of a table as values a loop can keep in registers.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Makes tables of entries that are given: detail/given_entries.hpp.
struct given_entries;

/// The entries of a table, and what a rotation has to know of them.
template <class S>
struct table_view {
  const S* entries;  // row r: cos [pairs], then sin [pairs]
  Index pairs;
  std::int64_t first;              // position of row 0
  bool given;                      // entries were given: cos^2 + sin^2 may differ from pair to pair
  bool unit;                       // attention_factor is 1, or at_origin already accounts for it
  const unsigned char* at_origin;  // per row, for tables of coordinates and given entries; else null

  /// cos [pairs] of a position that is known to be in the table; sin [pairs] follows.
  const S* cos(std::int64_t position) const { return entries + (position - first) * (2 * pairs); }

  /// Whether the rotation at `position` is the identity: every coordinate is zero and attention_factor is 1.
  bool is_identity(std::int64_t position) const {
    return unit && (at_origin == nullptr ? position == 0 : at_origin[position - first] != 0);
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_TABLE_VIEW_HPP
