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
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// What attention needs of stored tokens.

namespace rope::inline ROPE_ABI {

/// Stored tokens that `attention(q, rows, out)` reads: kv_cache, ring_cache, latent_cache, or a class of your
/// own. Row b has been given tokens 0, 1, ..., seen(b) - 1. It stores some of them, each in a slot. The
/// newest tokens of a row are its queries.
///
///     value_type                  channels of keys and values
///     batch()                     rows
///     storage()                   whether keys are stored rotated or raw
///     keys(b), values(b)          of row b, [1, slots, kv_heads, ...]: a head_view, or a quantized_view
///     order(b)                    [slots]: the position of the token in each slot. `causal`, `window` and
///                                 `sinks` go by it, and raw keys are rotated by it. An empty list means
///                                 0, 1, 2, ...; no_token is a slot without a token, for causal rules alone
///     seen(b)                     tokens that row b has been given and has not forgotten
///     order_of(b, token)          the position of a token, whether or not it is stored
///     query_counts(queries)       [batch]: how many of `queries` queries each row has in a call without
///                                 counts; empty: all of them
///     rules(function, options)    the options of the call with the rules of the rows. Throws if the options
///                                 contradict them
///     check_table<Layout>(table)  throws unless the stored keys were rotated by this table in this layout
///
/// A class may have more, which attention uses:
///
///     ordered(b)                  the order of order(b), which is otherwise read in every call
///     placed(function, table)     the table where it rotates a stored key; otherwise at its own channel
///     check_queries(function, b, queries)
///                                 throws if a key that one of the newest `queries` tokens sees is gone
///     rotates_keys()              whether the rows rotated the keys that they store, by a table that they
///                                 were given. If so, attention without a table needs queries_are_rotated,
///                                 if not, attention with a table throws
///
/// It has coordinates as rows_on_axes says, and ranks as rows_by_rank says.
template <class Rows>
concept attended_rows = requires(const Rows& rows, Index b, std::int64_t token,
                                 const attention_options& options, const frequency_table<float>& table) {
  typename Rows::value_type;
  { rows.batch() } -> std::convertible_to<Index>;
  { rows.storage() } -> std::same_as<key_storage>;
  { rows.keys(b) } -> std::convertible_to<detail::token_source<typename Rows::value_type>>;
  { rows.values(b) } -> std::convertible_to<detail::token_source<typename Rows::value_type>>;
  { rows.order(b) } -> std::convertible_to<std::span<const std::int64_t>>;
  { rows.seen(b) } -> std::convertible_to<std::int64_t>;
  { rows.order_of(b, token) } -> std::convertible_to<std::int64_t>;
  { rows.query_counts(b) } -> std::convertible_to<std::span<const Index>>;
  { rows.rules("attention", options) } -> std::same_as<attention_options>;
  rows.template check_table<half_split>(table);
};

/// Rows whose tokens have axes() coordinates each, or a position where that is 0. coordinates_of(b, token) is
/// those of a stored token, [axes].
template <class Rows>
concept rows_on_axes = attended_rows<Rows> && requires(const Rows& rows, Index b, std::int64_t token) {
  { rows.axes() } -> std::convertible_to<Index>;
  { rows.coordinates_of(b, token) } -> std::convertible_to<const double*>;
};

/// Rows that store the tokens of a ring_policy. With ring_positions::cache, keys are rotated by their rank
/// among those that a query sees. slot(token) is the slot of a stored token: the sinks have the first slots,
/// and the tokens behind them go through the others, over and over.
template <class Rows>
concept rows_by_rank = attended_rows<Rows> && requires(const Rows& rows, std::int64_t token) {
  { rows.policy() } -> std::convertible_to<const ring_policy&>;
  { rows.slot(token) } -> std::convertible_to<Index>;
};

/// What order(b) shows for a slot without a token: after every query.
inline constexpr std::int64_t no_token = (std::numeric_limits<std::int64_t>::max)();

namespace detail {

/// The number of ranks that keys are rotated by; 0: keys are rotated by their positions.
template <class Rows>
std::int64_t ranks_of(const Rows& rows) {
  if constexpr (rows_by_rank<Rows>)
    if (rows.policy().positions == ring_positions::cache)
      return std::int64_t{rows.policy().sinks} + rows.policy().window;
  return 0;
}

/// Whether the keys of row b are at positions 0, 1, 2, ..., and what is known of their order otherwise.
template <class Rows>
bool is_counted(const Rows& rows, Index b) {
  if constexpr (requires { rows.ordered(b); })
    if (rows.ordered(b).counted == rows.seen(b)) return true;
  return std::span<const std::int64_t>(rows.order(b)).empty();
}

/// The positions of the stored tokens of row b.
template <class Rows>
position_range held_positions(const Rows& rows, Index b) {
  const std::span<const std::int64_t> order = rows.order(b);
  position_range range;
  if constexpr (requires { rows.ordered(b); })
    if (!order.empty() && rows.ordered(b).ascending == rows.seen(b)) return {order.front(), order.back()};
  if (order.empty() && rows.seen(b) > 0) return {0, rows.seen(b) - 1};
  for (const std::int64_t position : order)
    if (position != no_token) range.include(position);
  return range;
}

/// The table where it rotates the heads of queries and keys.
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
