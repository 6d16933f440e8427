// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_NAMES_HPP
#define ROPE_CACHE_DETAIL_CACHE_NAMES_HPP

#include <rope/config.hpp>

/// Functions that caches share, under the names that their users call them by.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// What messages call a cache and its functions.
struct cache_names {
  const char *cache, *size, *positions, *next_positions, *rebase, *truncate, *remove, *shift, *copy_row,
      *reorder, *keys, *values;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

/// A macro, because literals alone are joined.
#define ROPE_DETAIL_CACHE_NAMES(name)                                                                    \
  {                                                                                                      \
    .cache = name, .size = name "::size", .positions = name "::positions",                               \
    .next_positions = name "::next_positions", .rebase = name "::rebase", .truncate = name "::truncate", \
    .remove = name "::remove", .shift = name "::shift", .copy_row = name "::copy_row",                   \
    .reorder = name "::reorder", .keys = name "::keys", .values = name "::values"                        \
  }

#endif  // ROPE_CACHE_DETAIL_CACHE_NAMES_HPP
