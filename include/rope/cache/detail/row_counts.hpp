// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ROW_COUNTS_HPP
#define ROPE_CACHE_DETAIL_ROW_COUNTS_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <cstdint>
#include <utility>  // std::exchange
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/tensor_shape.hpp>  // owns_memory
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>

/// The number of tokens in each row of a batch.
///
/// Copies and reorders rows of a cache in place.

namespace rope::inline ROPE_ABI::detail {

/// A list of any integers, [batch], or an empty one, which means that every row has all tokens.
///
/// Requires:  the list outlives the call
class row_counts : public any_integers {
 public:
  row_counts() = default;
  template <integers_in_memory X>
  row_counts(const X& list) : any_integers("counts", list) {}
  template <integers_in_memory X>
  requires owns_memory<X> row_counts(const X& list ROPE_DETAIL_LIFETIMEBOUND)
      : any_integers("counts", list) {}
};

/// A list of any integers, [batch]: for each row, the row that it becomes a copy of.
class row_list : public any_integers {
 public:
  template <integers_in_memory X>
  row_list(const X& list) : any_integers("rows", list) {}
};

/// Checks that counts are empty, or are [batch] and each in [0, tokens].
///
/// Throws:  std::invalid_argument
inline void check_counts(const char* function, const row_counts& counts, Index batch, Index tokens) {
  if (counts.empty()) return;
  if (static_cast<Index>(counts.size()) != batch)
    throw_invalid(function, "counts must be [batch] = ", batch, ", got ", counts.size());
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > tokens)
      throw_invalid(function, "counts must be in [0, tokens] = [0, ", tokens, "], got ", counts[b]);
}

/// Makes every row b of a cache a copy of row from[b] before the call.
///
/// \param rows   the sizes of the rows: used(b) slots are in use in row b
/// \param parts  the content of these slots
///
/// Throws:  std::invalid_argument unless `from` has an entry for every row, std::out_of_range if an entry is
///          not a row
template <class Rows, class... Parts>
void reorder(const char* function, const row_list& from, Index batch, Rows& rows, Parts&... parts) {
  const auto at = [](Index b) { return static_cast<std::size_t>(b); };
  if (from.size() != at(batch))
    throw_invalid(function, "rows must be [batch] = ", batch, ", got ", from.size());
  std::vector<Index> source, readers(from.size());
  for (Index b = 0; b < batch; ++b) source.push_back(rows.checked(function, from[at(b)]));
  const auto stays = [&](Index b) { return source[at(b)] == b; };
  for (Index b = 0; b < batch; ++b)
    if (!stays(b)) ++readers[at(source[at(b)])];
  // A row that no other row copies can be overwritten. After this copy, the same may be true of the row that
  // was its source.
  for (Index first = 0; first < batch; ++first)
    for (Index b = first; !stays(b) && readers[at(b)] == 0; --readers[at(b)]) {
      const Index made_of = std::exchange(source[at(b)], b);
      (parts.copy_row(parts, made_of, b, rows.used(made_of)), ...);
      rows.copy_row(rows, made_of, b);
      b = made_of;
    }
  // The remaining rows form cycles. Each swap completes one row and moves the first row of the cycle to the
  // next row.
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

#endif  // ROPE_CACHE_DETAIL_ROW_COUNTS_HPP
