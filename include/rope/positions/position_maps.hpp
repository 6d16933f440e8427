// SPDX-License-Identifier: MIT
#ifndef ROPE_POSITIONS_POSITION_MAPS_HPP
#define ROPE_POSITIONS_POSITION_MAPS_HPP

#include <algorithm>  // std::min
#include <concepts>   // std::same_as
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// Longer contexts without new frequencies: rules that keep the distances between queries and keys in the
/// trained range by changing position ids only. A rule maps positions to a distance,
///
///     distance(p, k), the distance between a query at position p and a key at k <= p,
///
/// and gives the position ids at which to rotate, so that scores depend on this distance. There are two ways
/// to attend under a rule:
///
///   - One query at p, a decoding step: rotate it at p and the unrotated keys 0 .. p at
///     `key_positions(rule, p, 0, p + 1)`, then attend as usual.
///   - Many queries: rotate them once for each kind of key (near and far, or by chunk) at the ids below.
///     Attend to each kind in a separate call with attention_options::log_sum_exp, and weight each output by
///     the exponential of its log_sum_exp (tests/attention/laws/position_maps_prefill.test.cpp).
///
/// The first way needs a table of positions 0 .. p. The ids of queries of the second way may exceed p, up to
/// `window`, or up to chunk_size + length() - 1 of dual_chunk.

namespace rope::inline ROPE_ABI {

namespace detail {

inline void check_distance(const char* rule, std::int64_t p, std::int64_t k) {
  if (k < 0 || k > p)
    throw_invalid(rule, "a query at p attends to keys at 0 .. p, got p = ", p, " and k = ", k);
}

}  // namespace detail

/// Self-Extend: keys nearer than `window` keep their distance. Positions of farther keys are divided by
/// `group`. The distance is continuous at the window if group divides window; otherwise it may skip `window`.
///
///     distance = p - k                                                          p - k < window
///     distance = (floor(p / group) + window - floor(window / group)) - floor(k / group)    else
///
/// For far keys, k <= p - window, rotate queries at query(p) and keys at key(k).
///
///     const auto ids = key_positions(self_extend{.group = 8, .window = 1024}, p, 0, p + 1);
///
/// Throws:  std::invalid_argument from every function unless group and window are positive and 0 <= k <= p
/// Source:  Jin et al. 2024, LLM Maybe LongLM, arXiv:2401.01325
struct self_extend {
  std::int64_t group;   // number of far tokens that share an id, positive
  std::int64_t window;  // tokens, positive

  /// The id of a query at p for its far keys: floor(p / group) + window - floor(window / group).
  std::int64_t query(std::int64_t p) const {
    const std::int64_t grouped = key(p);         // checks group and window before they are used
    return grouped + (window - window / group);  // in this order no sum exceeds max(p, window)
  }
  /// The id of a far key at k: floor(k / group).
  std::int64_t key(std::int64_t k) const {
    if (group <= 0 || window <= 0)
      detail::throw_invalid("self_extend", "group and window must be positive, got ", group, " and ", window);
    detail::check_distance("self_extend", k, k);
    return k / group;
  }
  /// The distance between a query at p and a key at k.
  std::int64_t distance(std::int64_t p, std::int64_t k) const {
    detail::check_distance("self_extend", p, k);
    const std::int64_t beyond = query(p) - key(k);
    return p - k < window ? p - k : beyond;
  }
};

/// ReRoPE: distances are limited to `window`.
///
///     distance = min(p - k, window)
///
/// For far keys, k <= p - window, rotate queries at query(p) = window. The keys are at key(k) = 0, that is,
/// unrotated.
///
///     const auto ids = key_positions(rerope{.window = 1024}, p, 0, p + 1);
///
/// Throws:  std::invalid_argument from every function unless window is positive and 0 <= k <= p
/// Source:  Su 2023, https://github.com/bojone/rerope
struct rerope {
  std::int64_t window;  // tokens, positive

  /// The id of a query for its far keys: the window, for every p.
  std::int64_t query(std::int64_t p) const { return key(p) + window; }
  /// The id of a far key: 0, for every k.
  std::int64_t key(std::int64_t k) const {
    if (window <= 0) detail::throw_invalid("rerope", "window must be positive, got ", window);
    detail::check_distance("rerope", k, k);
    return 0;
  }
  /// The distance between a query at p and a key at k.
  std::int64_t distance(std::int64_t p, std::int64_t k) const {
    detail::check_distance("rerope", p, k);
    return (std::min)(p - k, query(p));
  }
};

/// Dual chunk attention: positions restart in chunks of `length()` = chunk_size - local_size tokens. A query
/// has one position for the keys of its own chunk, one for the previous chunk and one for all earlier chunks.
///
///     key and query, own chunk:   p mod length
///     query, chunk before:        min((p mod length) + length, chunk_size)
///     query, earlier chunks:      min(2 length - 1, chunk_size)
///
/// If local_size <= length, distances up to local_size are kept. No distance exceeds chunk_size. A sparse
/// attention that selects a few keys uses `successive_critical` and `earlier_critical` instead, which keep
/// the order of the queries.
///
///     const dual_chunk rule = {.chunk_size = 262144, .local_size = 8192};
///     const auto ids = key_positions(rule, p, 0, p + 1);
///
/// Throws:  std::invalid_argument from every function unless 0 < local_size < chunk_size <= 2^62 and
///          0 <= k <= p
/// Source:  An et al. 2024, Training-Free Long-Context Scaling of Large Language Models, arXiv:2402.17463;
///          DualChunkRotaryEmbedding of vLLM (Qwen2.5-1M)
struct dual_chunk {
  std::int64_t chunk_size;  // tokens, the largest distance, at most 2^62
  std::int64_t local_size;  // tokens, in (0, chunk_size)

  /// The number of tokens of a chunk: chunk_size - local_size.
  std::int64_t length() const {
    if (local_size <= 0 || local_size >= chunk_size)
      detail::throw_invalid("dual_chunk", "local_size must be in (0, chunk_size), got ", local_size, " of ",
                            chunk_size);
    // With this limit, chunk_size plus a smaller number fits 64 bits.
    if (chunk_size > std::int64_t{1} << 62)
      detail::throw_invalid("dual_chunk", "chunk_size must be at most 2^62, got ", chunk_size);
    return chunk_size - local_size;
  }
  /// The id of a key at k: k mod length().
  std::int64_t key(std::int64_t k) const {
    detail::check_distance("dual_chunk", k, k);
    return k % length();
  }
  /// The id of a query at p for the keys of its own chunk: p mod length().
  std::int64_t query(std::int64_t p) const { return key(p); }
  /// The id of a query at p for the keys of the previous chunk: min((p mod length()) + length(), chunk_size).
  std::int64_t successive(std::int64_t p) const { return (std::min)(successive_critical(p), chunk_size); }
  /// The id of every query for the keys of earlier chunks: min(2 length() - 1, chunk_size).
  std::int64_t earlier() const { return (std::min)(2 * length() - 1, chunk_size); }
  /// Replaces successive(p) if the order of queries matters: (p mod length()) + length().
  std::int64_t successive_critical(std::int64_t p) const { return key(p) + length(); }
  /// Replaces earlier() if the order of queries matters: (p mod length()) + chunk_size.
  std::int64_t earlier_critical(std::int64_t p) const { return key(p) + chunk_size; }
  /// The distance between a query at p and a key at k.
  std::int64_t distance(std::int64_t p, std::int64_t k) const {
    detail::check_distance("dual_chunk", p, k);
    const std::int64_t chunks = p / length() - k / length();
    return (chunks == 0 ? query(p) : chunks == 1 ? successive(p) : earlier()) - key(k);
  }
};

/// A rule of distances: one of the three above, or your own type.
template <class X>
concept distance_rule = requires(const X& rule, std::int64_t p) {
  { rule.distance(p, p) } -> std::same_as<std::int64_t>;
};

/// The ids map(first), map(first + 1), ... of `count` tokens:
///
///     const auto ids = mapped_positions(0, tokens, [&](std::int64_t p) { return rule.query(p); });
///
/// Throws:  std::invalid_argument if count is negative; std::out_of_range if a token's position exceeds 64
///          bits; and any exception of the map
template <class Map>
std::vector<std::int64_t> mapped_positions(std::int64_t first, Index count, const Map& map) {
  if (count < 0) detail::throw_invalid("mapped_positions", "count must not be negative, got ", count);
  if (count > 0) detail::position_sum("mapped_positions", first, count - 1);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  // Unsigned, because g++ 12 warns of an overflow at known values although the check above has excluded it.
  for (Index t = 0; t < count; ++t)
    ids[static_cast<std::size_t>(t)] =
        map(static_cast<std::int64_t>(static_cast<std::uint64_t>(first) + static_cast<std::uint64_t>(t)));
  return ids;
}

/// The positions at which to rotate keys `first` .. first + count - 1, so that their distances to a query
/// rotated at `position` are those of the rule.
///
///     ids[j] = position - rule.distance(position, first + j)
///
/// Throws:  std::invalid_argument unless count is not negative and 0 <= first + j <= position for every key;
///          std::out_of_range if a distance of your own rule gives an id outside 64 bits
template <distance_rule Rule>
std::vector<std::int64_t> key_positions(const Rule& rule, std::int64_t position, std::int64_t first,
                                        Index count) {
  if (count < 0 || first < 0 || (first > position ? count > 0 : count - 1 > position - first))
    detail::throw_invalid("key_positions", "keys must be within [0, position] = [0, ", position, "], got ",
                          count, " from ", first, " on");
  return mapped_positions(first, count, [&](std::int64_t k) {
    return detail::position_difference("key_positions", position, rule.distance(position, k));
  });
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_POSITIONS_POSITION_MAPS_HPP
