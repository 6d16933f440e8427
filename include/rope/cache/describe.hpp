// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DESCRIBE_HPP
#define ROPE_CACHE_DESCRIBE_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include <rope/base/quantized_channels.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>

/// Text that describes the content of a cache.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The position of a token, or its coordinates, such as (time, height, width).
template <class Cache>
std::string place_of(const Cache& cache, Index b, std::size_t slot) {
  if constexpr (rows_on_axes<Cache>) {
    if (cache.axes() > 0) {
      const auto at = cache.coordinates(b);
      std::string text = "(";
      for (Index a = 0; a < cache.axes(); ++a)
        text += (a > 0 ? ", " : "") + exact_digits(at(static_cast<Index>(slot), a));
      return text + ")";
    }
  }
  return std::to_string(cache.order(b)[slot]);
}
/// The position of the next token of row b if that token is text.
template <class Cache>
std::string next_place(const Cache& cache, Index b) {
  if constexpr (rows_on_axes<Cache>)
    if (cache.axes() > 0) return exact_digits(cache.next_coordinates()(b, 0));
  return std::to_string(cache.next_positions()[static_cast<std::size_t>(b)]);
}

}  // namespace detail

/// Returns one line per row, without a newline after the last. A line has the number of tokens in the row,
/// the positions, or the coordinates such as (0, 4, 7), of the first and the last of them, the next position
/// of text and the storage of keys, such as `raw keys of 8 bits`. It ends with the number of queries in a
/// call of attention without counts, unless any number is valid.
///
///     std::puts(describe(cache).c_str());
///
///     row 0: 46 of 64 tokens, from 0 to 45, text goes on at 46; raw keys; 46 of 46 queries without counts
///     row 1: no tokens of 64, text goes on at 0; raw keys; 0 of 46 queries without counts
///
/// For a ring, the line has the number of stored tokens and the number of all tokens appended, such as `20 of
/// 4000 seen tokens`. The first token is then the oldest one that the ring stores. positions(b) or
/// coordinates(b) of the cache return the position of every token.
///
/// \param cache  kv_cache, ring_cache or latent_cache
///
/// Throws:  std::out_of_range if the next text token of a cache with axes would be above 2^53
template <class Cache>
requires attended_rows<Cache> std::string describe(const Cache& cache) {
  std::string text;
  for (Index b = 0; b < cache.batch(); ++b) {
    const auto order = cache.order(b);
    text += std::string(b == 0 ? "" : "\n") + "row " + std::to_string(b) + ": ";
    if (cache.size(b) == 0) {
      text += "no tokens of " + std::to_string(cache.capacity());
    } else {
      // In a ring, tokens are out of order in memory, and the slots of rolled-back tokens are empty.
      std::size_t first = 0, last = order.size() - 1;
      std::int64_t of = cache.capacity();
      if constexpr (rows_by_rank<Cache>) {
        of = cache.seen(b);
        for (std::size_t slot = 0; slot < order.size(); ++slot)
          if (order[slot] < order[first]) first = slot;
        last = first;
        for (std::size_t slot = 0; slot < order.size(); ++slot)
          if (order[slot] != no_token && order[slot] > order[last]) last = slot;
      }
      text += std::to_string(cache.size(b)) + " of " + std::to_string(of) +
              (rows_by_rank<Cache> ? " seen tokens, from " : " tokens, from ") +
              detail::place_of(cache, b, first) + " to " + detail::place_of(cache, b, last);
    }
    text += ", text goes on at " + detail::next_place(cache, b) +
            (cache.storage() == key_storage::raw ? "; raw keys" : "; rotated keys") +
            (detail::is_quantized<typename Cache::value_type> ? " of 8 bits" : "");
    if (const std::string counts = cache.newest().described(b); !counts.empty()) text += "; " + counts;
  }
  return text;
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_DESCRIBE_HPP
