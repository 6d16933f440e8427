// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_ATTENDED_ROWS_HPP
#define ROPE_CACHE_ATTENDED_ROWS_HPP

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>

#include <rope/attention/detail/token_source.hpp>
#include <rope/attention/options.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>

/// The interface through which attention reads stored tokens.

namespace rope::inline ROPE_ABI {

namespace detail {

/// The first requirement of attended_rows, alone, because compilers list every requirement of an expression
/// that an argument (a view, for example) does not meet.
template <class Rows>
concept names_storage = requires(const Rows& rows) {
  { rows.storage() } -> std::same_as<key_storage>;
};

}  // namespace detail

/// Stored tokens that `attention(q, rows, out)` reads: kv_cache, ring_cache, latent_cache, or your own class.
/// Tokens 0, 1, ..., seen(b) - 1 were appended to row b. The row stores some of them, each in a slot. The
/// queries are its newest tokens.
///
///     value_type                  channels of keys and values
///     batch()                     rows
///     storage()                   whether keys are stored rotated or raw
///     keys(b), values(b)          of row b, [1, slots, kv_heads, ...]: a head_view, or a quantized_view
///     order(b)                    [slots]: the position of the token in each slot. `causal`, `window` and
///                                 `sinks` compare these positions, and raw keys are rotated by them. An
///                                 empty list means 0, 1, 2, ... no_token marks a slot without a token. Only
///                                 the causal rule or a window hides such a slot
///     seen(b)                     number of tokens appended to row b and not removed since
///     order_of(b, token)          the position of a token, whether or not it is stored
///     query_counts(queries)       [batch]: the number of queries of each row in a call without counts, in
///                                 which q has `queries` tokens. An empty list means all of them
///     rules(function, options)    `options` with the values that the rows prescribe, such as a window.
///                                 Throws if `options` set other values
///     check_table<Layout>(table)  throws unless the stored keys were rotated by this table in this layout
///
/// Attention also uses these members if a class has them:
///
///     ordered(b)                  how many positions at the start of order(b) are 0, 1, 2, ... (`counted`),
///                                 and how many do not decrease (`ascending`). Without this member,
///                                 attention scans order(b) in every call
///     placed(function, table)     the table, placed at the first rotated channel of stored keys. Without
///                                 this member, the table stays at its own channel
///     check_queries(function, b, queries)
///                                 throws if a key visible to one of the newest `queries` tokens is no longer
///                                 stored
///     rotates_keys()              whether the rows rotated the stored keys themselves, by a table passed to
///                                 them. If so, attention without a table needs queries_are_rotated. If not,
///                                 and the keys are not raw, attention with a table throws
///
/// rows_on_axes adds coordinates of tokens, and rows_by_rank adds ranks of tokens.
template <class Rows>
concept attended_rows = detail::names_storage<Rows> &&
    requires(const Rows& rows, Index b, std::int64_t token, const attention_options& options,
             const frequency_table<float>& table) {
  typename Rows::value_type;
  { rows.batch() } -> std::convertible_to<Index>;
  { rows.keys(b) } -> std::convertible_to<detail::token_source<typename Rows::value_type>>;
  { rows.values(b) } -> std::convertible_to<detail::token_source<typename Rows::value_type>>;
  { rows.order(b) } -> std::convertible_to<std::span<const std::int64_t>>;
  { rows.seen(b) } -> std::convertible_to<std::int64_t>;
  { rows.order_of(b, token) } -> std::convertible_to<std::int64_t>;
  { rows.query_counts(b) } -> std::convertible_to<std::span<const Index>>;
  { rows.rules("attention", options) } -> std::same_as<attention_options>;
  rows.template check_table<half_split>(table);
};

/// Rows whose tokens have axes() coordinates each, or one position if axes() is 0. coordinates_of(b, token)
/// returns the coordinates of a stored token, [axes].
template <class Rows>
concept rows_on_axes = attended_rows<Rows> && requires(const Rows& rows, Index b, std::int64_t token) {
  { rows.axes() } -> std::convertible_to<Index>;
  { rows.coordinates_of(b, token) } -> std::convertible_to<const double*>;
};

/// Rows that keep the tokens that a ring_policy prescribes. With ring_positions::cache, keys are rotated by
/// their rank among the keys visible to a query. slot(token) is the slot of a stored token: the sinks have
/// the first slots, and the tokens after the sinks cycle through the others.
template <class Rows>
concept rows_by_rank = attended_rows<Rows> && requires(const Rows& rows, std::int64_t token) {
  { rows.policy() } -> std::convertible_to<const ring_policy&>;
  { rows.slot(token) } -> std::convertible_to<Index>;
};

/// The value in order(b) for a slot without a token. It is greater than the position of every query.
inline constexpr std::int64_t no_token = (std::numeric_limits<std::int64_t>::max)();

namespace detail {

/// The number of ranks if keys are rotated by their ranks, or 0 if they are rotated by their positions.
template <class Rows>
std::int64_t ranks_of(const Rows& rows) {
  if constexpr (rows_by_rank<Rows>)
    if (rows.policy().positions == ring_positions::cache)
      return std::int64_t{rows.policy().sinks} + rows.policy().window;
  return 0;
}

/// Whether the keys of row b are at positions 0, 1, 2, ...
template <class Rows>
bool is_counted(const Rows& rows, Index b) {
  if constexpr (requires { rows.ordered(b); })
    if (rows.ordered(b).counted == rows.seen(b)) return true;
  return std::span<const std::int64_t>(rows.order(b)).empty();
}

/// Adds the positions by which the keys of row b are rotated while they are read, except that of the query if
/// they are rotated by rank. A ring drops some of its tokens for new ones.
///
/// \param appended  the number of tokens that are appended to the row before the keys are read
template <class Rows>
void include_read_keys(const Rows& rows, Index b, position_range& read, Index appended = 0) {
  if (rows.storage() != key_storage::raw) return;
  if (ranks_of(rows) > 0) return read.include(0);
  const std::span<const std::int64_t> order = rows.order(b);
  if (order.empty()) return read.include(0, rows.seen(b));
  if constexpr (requires { rows.ordered(b); })
    if (rows.ordered(b).ascending == rows.seen(b)) {
      read.include(order.front());
      return read.include(order.back());
    }
  std::int64_t sinks = 0, kept = 0;  // a ring drops the positions in [sinks, kept)
  if constexpr (rows_by_rank<Rows>) {
    const ring_policy& ring = rows.policy();
    sinks = ring.sinks;
    kept = rows.seen(b) + appended - ring.window - (ring.chunk - 1);
  }
  for (const std::int64_t position : order)
    if (position != no_token && (position < sinks || position >= kept)) read.include(position);
}

/// The table, placed at the first channel that it rotates in heads of queries and keys.
template <class Rows, class Table>
auto placed_in(const Rows& rows, const Table& table) {
  if constexpr (requires { rows.placed("attention", table); })
    return rows.placed("attention", table);
  else
    return placed(table);
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_ATTENDED_ROWS_HPP
