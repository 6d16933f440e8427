// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ORDERED_TOKENS_HPP
#define ROPE_CACHE_DETAIL_ORDERED_TOKENS_HPP

#include <algorithm>  // std::min
#include <cstdint>
#include <span>

#include <rope/config.hpp>

/// What a cache knows of the order of positions, so that no step has to look at all of them.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// How many tokens of a row, from its first one on, are at positions 0, 1, 2, ... (`counted`), and how many
/// at positions that do not decrease (`ascending`).
struct ordered_tokens {
  Index counted = 0, ascending = 0;

  /// Extends both counts as far as the positions of the row allow.
  ///
  /// Requires:  the counts hold for these positions
  void extend(std::span<const std::int64_t> positions) {
    const auto at = [&](Index t) { return positions[static_cast<std::size_t>(t)]; };
    const auto size = static_cast<Index>(positions.size());
    while (counted < size && at(counted) == counted) ++counted;
    while (ascending < size && (ascending == 0 || at(ascending) >= at(ascending - 1))) ++ascending;
  }
  /// Limits both counts to tokens [0, first): those behind have changed.
  void forget_from(Index first) {
    counted = (std::min)(counted, first);
    ascending = (std::min)(ascending, first);
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_ORDERED_TOKENS_HPP
