// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP
#define ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <vector>

#include <rope/base/message.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/config.hpp>

/// Rows of a cache copied, and in another order, in place.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The rows that the rows of a cache are made of, [batch].
///
/// Throws:  std::invalid_argument unless there is one for every row, std::out_of_range if one is no row
///
/// \param rows  rows.checked(function, b) refuses what is no row
template <class Rows>
std::vector<Index> checked_sources(const char* function, const row_list& from, const Rows& rows,
                                   Index batch) {
  if (from.size() != static_cast<std::size_t>(batch))
    throw_invalid(function, "rows must be [batch] = ", batch, ", got ", from.size());
  std::vector<Index> sources;
  for (std::size_t b = 0; b < from.size(); ++b) sources.push_back(rows.checked(function, from.given(b)));
  return sources;
}

/// Makes every row b what row source[b] was, of rows that can be copied over another and swapped.
///
/// \param source     [batch], each a row
/// \param overwrite  overwrite(row, to)
/// \param exchange   exchange(first, second)
template <class Overwrite, class Exchange>
void reorder_rows(std::vector<Index> source, const Overwrite& overwrite, const Exchange& exchange) {
  const std::size_t batch = source.size();
  const auto stays = [&](std::size_t b) { return source[b] == static_cast<Index>(b); };
  std::vector<Index> readers(batch);
  for (std::size_t b = 0; b < batch; ++b)
    if (!stays(b)) ++readers[static_cast<std::size_t>(source[b])];
  // A row that no other one is made of can be overwritten, which may free the row that it is made of.
  for (std::size_t first = 0; first < batch; ++first)
    for (std::size_t b = first; !stays(b) && readers[b] == 0;) {
      const Index made_of = source[b];
      overwrite(made_of, static_cast<Index>(b));
      source[b] = static_cast<Index>(b);
      b = static_cast<std::size_t>(made_of);
      --readers[b];
    }
  // The others are circles. Each swap puts one row in its place and passes the first one on to the next.
  for (std::size_t b = 0; b < batch; ++b) {
    std::size_t to = b;
    while (source[to] != static_cast<Index>(b)) {
      const Index next = source[to];
      exchange(static_cast<Index>(to), next);
      source[to] = static_cast<Index>(to);
      to = static_cast<std::size_t>(next);
    }
    source[to] = static_cast<Index>(to);
  }
}

/// Makes row `to` of a cache what row `from` is.
///
/// \param rows   the slots of each row that are in use, used(b), and what the cache knows of them
/// \param parts  what is in these slots
///
/// Throws:  std::out_of_range if there is no such row
template <class Rows, class... Parts>
void copy_row(const char* function, Index from, Index to, Rows& rows, Parts&... parts) {
  rows.checked(function, from);
  if (rows.checked(function, to) == from) return;
  (parts.copy_row(from, to, rows.used(from)), ...);
  rows.copy_row(from, to);
}

/// Makes every row b of a cache what row from[b] was.
///
/// Throws:  std::invalid_argument unless there is one for every row, std::out_of_range if one is no row
template <class Rows, class... Parts>
void reorder(const char* function, const row_list& from, Index batch, Rows& rows, Parts&... parts) {
  reorder_rows(
      checked_sources(function, from, rows, batch),
      [&](Index row, Index to) { detail::copy_row(function, row, to, rows, parts...); },
      [&](Index a, Index b) {
        const Index count = (std::max)(rows.used(a), rows.used(b));
        (parts.swap_rows(a, b, count), ...);
        rows.swap_rows(a, b);
      });
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP
