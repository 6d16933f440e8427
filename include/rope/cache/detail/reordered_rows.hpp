// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP
#define ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <utility>  // std::exchange
#include <vector>

#include <rope/base/message.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/config.hpp>

/// Copies and reorders rows of a cache in place.

namespace rope::inline ROPE_ABI::detail {

/// Makes row `to` of a cache a copy of row `from`.
///
/// \param rows   the bookkeeping of the cache, with used(b) slots in use in row b
/// \param parts  the content of these slots
///
/// Throws:  std::out_of_range if there is no such row
template <class Rows, class... Parts>
void copy_row(const char* function, Index from, Index to, Rows& rows, Parts&... parts) {
  rows.checked(function, from);
  if (rows.checked(function, to) == from) return;
  (parts.copy_row(from, to, rows.used(from)), ...);
  rows.copy_row(from, to);
}

/// Makes every row b of a cache a copy of what row from[b] was before the call.
///
/// Throws:  std::invalid_argument unless `from` has an entry for every row, std::out_of_range if an entry is
///          not a row
template <class Rows, class... Parts>
void reorder(const char* function, const row_list& from, Index batch, Rows& rows, Parts&... parts) {
  const auto at = [](Index b) { return static_cast<std::size_t>(b); };
  if (from.size() != at(batch))
    throw_invalid(function, "rows must be [batch] = ", batch, ", got ", from.size());
  std::vector<Index> source, readers(from.size());
  for (Index b = 0; b < batch; ++b) source.push_back(rows.checked(function, from.given(at(b))));
  const auto stays = [&](Index b) { return source[at(b)] == b; };
  for (Index b = 0; b < batch; ++b)
    if (!stays(b)) ++readers[at(source[at(b)])];
  // A row that no other row copies can be overwritten. This may free the row that it copies.
  for (Index first = 0; first < batch; ++first)
    for (Index b = first; !stays(b) && readers[at(b)] == 0; --readers[at(b)]) {
      const Index made_of = std::exchange(source[at(b)], b);
      detail::copy_row(function, made_of, b, rows, parts...);
      b = made_of;
    }
  // The remaining rows form cycles. Each swap puts one row in its place and moves the first row on to the
  // next.
  for (Index b = 0; b < batch; ++b) {
    Index to = b;
    while (source[at(to)] != b) {
      const Index next = std::exchange(source[at(to)], to),
                  count = (std::max)(rows.used(to), rows.used(next));
      (parts.swap_rows(to, next, count), ...);
      rows.swap_rows(to, next);
      to = next;
    }
    source[at(to)] = to;
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_REORDERED_ROWS_HPP
