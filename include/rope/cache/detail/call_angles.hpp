// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CALL_ANGLES_HPP
#define ROPE_CACHE_DETAIL_CALL_ANGLES_HPP

#include <algorithm>  // std::min
#include <cstdint>
#include <utility>  // std::pair

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/ragged_queries.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Finds the table rows that rotate queries with coordinates. A table of coordinates must be at the
/// coordinates of the queries. A table of positions can rotate only text, that is, tokens with the same
/// integer coordinate on every axis.
///
/// Copies the keys visible to one query, and rotates the copies by their ranks among these keys.

namespace rope::inline ROPE_ABI::detail {

/// The row of the table for query i of row first + b of the stored tokens.
struct listed_angles {
  const std::int64_t* rows;
  const row_queries& queries;
  Index first;

  std::int64_t operator()(Index b, Index i) const { return rows[queries.place(first + b, i)]; }
};

/// Throws:  std::invalid_argument unless row `row` of the table has the coordinates of the token
template <class S>
void check_coordinates(const frequency_table<S>& table, Index row, const double* coordinates,
                       const char* token) {
  const auto of_table = table.coordinates();
  for (Index a = 0; a < table.axes(); ++a)
    if (!equal(of_table(row, a), coordinates[a]))
      throw_invalid("attention", "the table must be at the coordinates of ", token, ", row ", row, " is at ",
                    of_table(row, a), " on axis ", a, " and the token at ", coordinates[a]);
}

/// Checks a table for raw keys. It must have a row for every token, one batch row after another.
///
/// Throws:  std::invalid_argument
template <class Layout, class T, class Rows, class S>
void check_raw_keys_on_axes(const head_view<const T>& q, const Rows& rows, const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  if (!is_coordinate_table("attention", rows.axes(), table))
    throw_invalid("attention", "raw keys on ", rows.axes(),
                  " axes are read by a table at cache.coordinates(), got one of positions");
  std::int64_t size = 0;
  for (Index b = 0; b < rows.batch(); ++b) size += rows.seen(b);
  if (table.rows() != size)
    throw_invalid("attention", "raw keys are read by a table at cache.coordinates(), which has ", size,
                  " rows, got ", table.rows());
  check_rotation<Layout>("attention", q, placed, known_range{});
  Index row = 0;
  for (Index b = 0; b < rows.batch(); ++b)
    for (std::int64_t token = 0; token < rows.seen(b); ++token)
      check_coordinates(table, row++, rows.coordinates_of(b, token), "all tokens");
}

/// Copies the keys and values of key heads [head, head + heads) of row b that are visible to the query at
/// `position`, whose rank is `rank`, [1, ranks, heads, ...]. Keys are rotated by their ranks. The copies are
/// valid until the next call on this thread.
template <class Layout, class T, class Rows, class S>
std::pair<head_view<const T>, head_view<const T>> read_by_rank(const Rows& rows, const placed_table<S>& table,
                                                               Index b, Index head, Index heads,
                                                               std::int64_t position, std::int64_t rank) {
  struct ranked_keys {};
  struct ranked_values {};
  const auto k = rows.keys(b).head_range(head, heads), v = rows.values(b).head_range(head, heads);
  const Index sinks = rows.policy().sinks, count = to_index(rank + 1);
  const head_view<T> keys = bhsd(workspace<ranked_keys, T>(count * heads * k.head_dim), 1, heads, count,
                                 k.head_dim),
                     values = bhsd(workspace<ranked_values, T>(count * heads * v.head_dim), 1, heads, count,
                                   v.head_dim);
  for (Index r = 0; r < count;) {
    // Ranks r, r + 1, ... are contiguous in memory up to the end of the sinks or of the ring.
    const Index slot = rows.slot(r < sinks ? r : position - rank + r);
    const Index run = (std::min)(count - r, (slot < sinks ? sinks : k.tokens) - slot);
    rotate_channels<Layout>(k.token_range(slot, run), keys.token_range(r, run), table,
                            contiguous_positions{r});
    copy_channels(v.token_range(slot, run), values.token_range(r, run));
    r += run;
  }
  return {keys, values};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_CALL_ANGLES_HPP
