// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_ATTENTION_HPP
#define ROPE_CACHE_ATTENTION_HPP

#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/ragged_queries.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Attention of the newest tokens to everything a cache holds, whatever it stores and wherever it keeps it.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Which tokens of q are the queries of which row.
///
/// Throws:  std::invalid_argument
template <class Q, class Rows>
row_queries queries_of(const head_view<Q>& q, const Rows& rows, const row_counts& counts) {
  check_rule("attention", q.batch <= rows.batch(), "q must have at most as many rows as the cache", q.batch,
             rows.batch());
  const std::span<const Index> remembered =
      counts.empty() ? std::span<const Index>(rows.query_counts(q.tokens)) : std::span<const Index>();
  const row_counts given =
      remembered.empty() ? counts : row_counts(remembered.first(static_cast<std::size_t>(q.batch)));
  check_counts("attention", given, q.batch, q.tokens);
  return {q.batch, q.tokens, given};
}

}  // namespace detail

/// Attention of rotated queries (or of queries that need no rotation) to the keys of a cache.
///
///     cache.append(k, v);
///     attention(q, cache, out);
///
/// A cache that rotated its keys needs queries that are rotated alike. A call without a table cannot see that
/// they are, so say it:
///
///     rotate<Layout>(q, table, row_starts{cache.next_positions()});
///     cache.append<Layout>(k, v, table);
///     attention(q, cache, out, {.queries_are_rotated = true});
///
/// The queries are the tokens appended last, so query i of row b is at the position of token size(b) - tokens
/// + i, or size(b) - counts[b] + i with counts. The cache remembers the counts of an append: a call without
/// any then has a query for every token of that append, and row b those that it took. A key is visible by its
/// position: `causal` where it is not after the query's, `window` by the difference of the two. A ring_cache
/// brings its own window and sinks.
///
/// Rows that take different numbers of tokens, a prompt beside decoding steps, are one call:
///
///     const int counts[] = {2, 1, 0};
///     cache.append(k, v, counts);
///     attention(q, cache, out, {}, counts);
///
/// A tree of guessed tokens (speculative decoding) is appended at the depths of its tokens, several at one
/// position, and a mask [tokens, size()] hides from each the guesses that are not its ancestors:
///
///     cache.append_at(k, v, depths);
///     attention(q, cache, out, {.mask = score_matrix(seen, 1, 1, tokens, cache.size())});
///
/// \param q       [rows, tokens, q.heads, head_dim]: the queries of the first rows of the cache, or of all
/// \param cache   kv_cache, ring_cache, latent_cache or another of attended_rows.hpp, of the type of q or,
///                for float q, of a 16-bit type, whose keys and values are widened while they are read. For a
///                latent_cache head_dim is latent_dim + rotary_dim, value_dim latent_dim, and the scale must
///                be given
/// \param out     [batch, tokens, q.heads, value_dim]
/// \param options  a bias or mask is [batch, heads, tokens, keys] with keys = the tokens of the longest row;
///                 entry j belongs to the j-th token that the row holds, whatever its position. One array of
///                 `capacity` entries per row serves every step as
///                 {.data = array, .batch = batch, .keys = cache.size(), .batch_stride = capacity,
///                 .key_stride = 1}
/// \param counts  any integers, [rows] or empty: row b has counts[b] queries, its newest tokens, and zeros
///                are written for the rest. Empty: those of the last append, less what a row has lost of it
///                since. Where rows took and lost the same in several appends, there may also be fewer or
///                more queries than that append had tokens
///
/// Requires:  out shares no element with q unless it is the same view
/// Throws:    std::invalid_argument if shapes disagree, a row has fewer tokens than queries, an option is out
///            of range, the options list positions, counts or offsets, which are the cache's, or ask for
///            dropout, the cache stores raw keys, or rotated its keys and options.queries_are_rotated is
///            false, a latent_cache has no scale, counts are missing although
///            rows differ in the tokens that they took or lost, or a ring has overwritten keys that a query
///            sees or is given a bias or mask; out is then unchanged
/// Accuracy:  that of attention; the order of keys in memory changes the order of sums only
/// Cost:      that of attention: at once of neighbouring rows at positions 0, 1, 2, ... that have as many
///            queries, however long they are, else of one row at a time. Keys and values are read where they
///            are, but for ring_positions::cache, where those that a query sees are copied, one head at a
///            time. No allocation once a call of the same size has been made on the thread
template <class Layout = detail::unnamed_layout, class Q, class Cache, class T, class Threads = this_thread>
requires attended_rows<Cache>
void attention(head_view<Q> q, const Cache& cache, head_view<T> out, const attention_options& options = {},
               const detail::row_counts& counts = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  const detail::row_queries queries = detail::queries_of(q, cache, counts);
  detail::attended_call<detail::unnamed_layout, T, Cache, float, Threads>(q, cache, out, nullptr, options,
                                                                          queries, threads)
      .run();
}

/// Attention of unrotated queries: rotates copies of them, and of keys that are stored raw, by their
/// positions.
///
///     cache.append<Layout>(k, v, table);           // or cache.append(k, v) where it stores raw keys
///     attention<Layout>(q, cache, out, table);
///
/// \param table  rows for the positions of the queries, and of raw keys; for ring_positions::cache, for 0 ..
///               sinks + window - 1
///
/// Throws:  as above; std::invalid_argument if the keys were rotated by another table or layout, or before
///          they were appended, or the window exceeds the head; std::out_of_range if a position is outside
///          the table; out is then unchanged
template <class Layout = detail::unnamed_layout, class Q, class Cache, class T, rotation_table Table,
          class Threads = this_thread>
requires attended_rows<Cache>
void attention(head_view<Q> q, const Cache& cache, head_view<T> out, const Table& table,
               const attention_options& options = {}, const detail::row_counts& counts = {},
               const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  const auto rotation = detail::placed_in(cache, table);
  const detail::row_queries queries = detail::queries_of(q, cache, counts);
  detail::attended_call<Layout, T, Cache, typename Table::scalar, Threads>(q, cache, out, &rotation, options,
                                                                           queries, threads)
      .run();
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_ATTENTION_HPP
