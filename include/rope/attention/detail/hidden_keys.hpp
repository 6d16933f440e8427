// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_HIDDEN_KEYS_HPP
#define ROPE_ATTENTION_DETAIL_HIDDEN_KEYS_HPP

#include <algorithm>  // std::min, std::max
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>

#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// The keys of a tile that are visible to a query.
///
/// A tile is consecutive keys of a row that a kernel processes at a time. Keys of a tile are numbered from 0,
/// its first key. The range of a query in a tile contains its visible keys. Hidden keys in the range are
/// holes. The hull of several queries is the smallest range that contains all their ranges.

namespace rope::inline ROPE_ABI::detail {

/// Keys [first, last) of a tile.
struct tile_range {
  Index first, last;
  bool empty() const { return first >= last; }
  /// Extends this range to include `other`.
  void include(const tile_range& other) {
    if (other.empty()) return;
    *this = empty() ? other : tile_range{(std::min)(first, other.first), (std::max)(last, other.last)};
  }
};

/// The range, extended to whole packets of `lanes` keys.
template <Index lanes>
tile_range packets_of(tile_range range) {
  return {range.first / lanes * lanes, pieces_of(range.last, lanes) * lanes};
}

/// The keys of a tile that are visible to a query: all keys of `range`, except the hidden ones if has_holes
/// is true.
struct row_in_tile {
  tile_range range;
  bool has_holes;

  bool sees_all(Index count) const { return range.first == 0 && range.last == count && !has_holes; }
};

/// The keys of a query that are in the tile [begin, begin + count), numbered from `begin`.
inline row_in_tile keys_in_tile(const key_set& keys, Index begin, Index count) {
  const auto clip = [&](Index first, Index last) {
    return tile_range{(std::max)(first - begin, Index{0}), (std::min)(last - begin, count)};
  };
  const tile_range low = clip(keys.begin, keys.gap_begin), high = clip(keys.gap_end, keys.end);
  if (low.empty() && high.empty()) return {{0, 0}, false};
  if (low.empty()) return {high, false};
  if (high.empty()) return {low, false};
  return {{low.first, high.last}, true};
}

/// Removes the keys j with hides(j) from the visible keys of a query. A vectorised loop first counts the
/// hidden keys, because most tiles are entirely visible or entirely hidden.
void hide(row_in_tile& row, const auto& hides) {
  int hidden = 0;
  for_each_index(row.range.first, row.range.last, [&](Index j) { hidden += hides(j) ? 1 : 0; });
  if (hidden == row.range.last - row.range.first) row = {{0, 0}, false};
  if (hidden == 0 || row.range.empty()) return;
  for (; hides(row.range.first); --hidden) ++row.range.first;
  for (; hides(row.range.last - 1); --hidden) --row.range.last;
  row.has_holes = row.has_holes || hidden > 0;
}
/// Eight entries of a mask as one integer: 0 if all are false, eight_visible if all are true.
inline std::uint64_t eight_of(const bool* mask) {
  std::uint64_t entries;
  std::memcpy(&entries, mask, sizeof entries);
  return entries;
}
inline constexpr std::uint64_t eight_visible = 0x0101010101010101u;

/// Removes the keys j with mask[j] = false from the visible keys of a query. mask[0] is the entry of the
/// first key of the tile. Eight entries are read at a time, because reading single entries takes a large
/// share of a prefill in which a mask hides most tiles.
inline void hide(row_in_tile& row, const bool* mask) {
  static_assert(sizeof(bool) == 1);
  Index first = row.range.first, last = row.range.last;
  while (first + 8 <= last && eight_of(mask + first) == 0) first += 8;
  while (first < last && !mask[first]) ++first;
  while (first + 8 <= last && eight_of(mask + last - 8) == 0) last -= 8;
  while (first < last && !mask[last - 1]) --last;
  std::uint64_t hidden = 0;
  Index j = first;
  for (; j + 8 <= last; j += 8) hidden |= eight_of(mask + j) ^ eight_visible;
  for (; j < last; ++j) hidden |= mask[j] ? 0u : 1u;
  row = first == last ? row_in_tile{{0, 0}, false} : row_in_tile{{first, last}, row.has_holes || hidden != 0};
}

/// The type of the mark of a key: 1 if the key is hidden, otherwise 0. It has the width of a score, so that
/// compilers vectorise loops over marks and scores.
template <class A>
using key_mark = std::conditional_t<sizeof(A) == 4, std::uint32_t, std::uint64_t>;

/// Calls body(j, entry) for each key j of `range`. j counts from the first key of the tile, which is key
/// `begin` of the row. `row` counts from key 0 of the row. There are two loops, because compilers vectorise
/// only the contiguous one.
template <class X, class Body>
void for_each_entry(X* row, Index step, Index begin, tile_range range, const Body& body) {
  if (step == 1)
    for_each_index(range.first, range.last, [&](Index j) { body(j, row[begin + j]); });
  else
    for (Index j = range.first; j < range.last; ++j) body(j, row[(begin + j) * step]);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_HIDDEN_KEYS_HPP
