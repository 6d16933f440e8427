// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_AXES_TABLES_HPP
#define ROPE_CACHE_DETAIL_AXES_TABLES_HPP

#include <cmath>
#include <cstdint>
#include <utility>  // std::exchange

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/key_rotator.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/phase.hpp>
#include <rope/tables/table.hpp>

/// Tables that a cache with axes accepts: a table of coordinates, with one row per new token, or, for text, a
/// table of positions. Text is a token with the same integer coordinate on every axis.
///
/// Frequencies are hashed without the coordinates, because each append has new coordinates but must use the
/// same frequencies.

namespace rope::inline ROPE_ABI::detail {

/// The row of token t of row b in a list of coordinates. It is t if the rows of the batch share the list,
/// otherwise b * tokens + t.
struct token_rows {
  Index row_stride;  // 0 if the rows of a batch share the coordinates

  Index operator()(Index b, Index t) const { return b * row_stride + t; }
};
inline contiguous_positions positions_of_row(const token_rows& all, Index b, Index first = 0) {
  return {all(b, first)};
}

/// Throws:  std::invalid_argument unless there is a row of coordinates for every token
inline token_rows checked_token_rows(const char* function, Index rows, Index batch, Index tokens) {
  if (rows != tokens && rows != batch * tokens)
    throw_invalid(function, "coordinates must have [tokens] = ", tokens,
                  " or [batch * tokens] = ", batch * tokens, " rows, got ", rows);
  return {rows == tokens ? 0 : tokens};
}

/// Throws:  std::invalid_argument unless the coordinates have as many axes as the cache
inline void check_axes(const char* function, Index cache_axes, Index axes) {
  if (axes != cache_axes)
    throw_invalid(function, "tokens of this cache have ", cache_axes, " axes, got coordinates of ", axes);
}

/// Whether the table is made from coordinates, with one row per token. Otherwise its rows are positions.
///
/// Throws:  std::invalid_argument unless the table is made from positions, or from coordinates on these axes
template <class S>
bool is_coordinate_table(const char* function, Index axes, const frequency_table<S>& table) {
  if (table.source() == table_source::positions) return false;
  if (table.source() != table_source::coordinates)
    throw_invalid(function,
                  "a cache with axes takes a table of coordinates or, for text, of positions, got one of ",
                  table.source() == table_source::entries ? "given entries" : "float angles");
  check_axes(function, axes, table.axes());
  return true;
}

/// The position by which a table of positions rotates a token at coordinate(a) on each axis a.
///
/// Throws:  std::invalid_argument unless the token is text, that is, has the same integer coordinate on every
///          axis
template <class Coordinate>
std::int64_t text_position(const char* function, const char* token, Index axes,
                           const Coordinate& coordinate) {
  const double first = coordinate(Index{0});
  for (Index a = 0; a < axes; ++a)
    if (!equal(coordinate(a), first) || !equal(first, std::floor(first)))
      throw_invalid(function,
                    "a table of positions rotates text only (one integer on all axes); pass a table of "
                    "coordinates for ",
                    token, " at ", first, " and ", coordinate(a));
  return static_cast<std::int64_t>(first);
}

/// The rotation of keys by a table in a cache with axes. `frequencies` is a hash of the frequencies on all
/// axes. It is 0 for a table of positions, which determines only the rotation of text. `text` is the
/// fingerprint of the table of positions that rotates text in the same way. It is 0 if a pair is rotated
/// along several axes, because then no such table exists.
///
/// Throws:  as is_coordinate_table
template <class Layout, class S>
key_rotation rotation_on_axes(const char* function, Index axes, const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  key_rotation rotation = rotation_by<Layout>(placed);
  rotation.text = std::exchange(rotation.frequencies, 0);
  if (!is_coordinate_table(function, axes, table)) return rotation;
  const auto factor = bit_cast<std::uint64_t>(table.attention_factor());
  rotation.frequencies =
      mix(factor, table.pairs(), table.axes(), [&](Index i, Index a) { return table.inv_freq(i, a); });
  rotation.text = mix(mix(factor, static_cast<std::uint64_t>(table.pairs())), 1);
  for (Index i = 0; i < table.pairs(); ++i) {
    double frequency = 0;
    for (Index a = 0; a < table.axes(); ++a) {
      if (equal(table.inv_freq(i, a), 0)) continue;
      if (!equal(frequency, 0)) return {rotation.frequencies, 0, rotation.layout, rotation.first_channel};
      frequency = table.inv_freq(i, a);
    }
    rotation.text = mix(rotation.text, bit_cast<std::uint64_t>(frequency));
  }
  return rotation;
}

/// The angle of a pair at the coordinates of a token, [axes]. They are all equal if the table has one axis.
template <class S>
phase phase_at(const frequency_table<S>& table, Index pair, const double* coordinates) {
  phase angle;
  for (Index a = 0; a < table.axes(); ++a) angle = angle + phase_of(table.inv_freq(pair, a), coordinates[a]);
  return angle;
}

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

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_AXES_TABLES_HPP
