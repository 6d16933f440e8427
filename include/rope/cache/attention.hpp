// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_ATTENTION_HPP
#define ROPE_CACHE_ATTENTION_HPP

#include <span>

#include <rope/attention/attention.hpp>
#include <rope/base/instances.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Attention of the newest tokens to all tokens of a cache.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Determines which tokens of q are the queries of each row of the cache.
///
/// Throws:  std::invalid_argument
template <class Q, class Rows>
row_tokens queries_of(const head_view<Q>& q, const Rows& rows, const row_counts& counts) {
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

/// Attention of queries that are already rotated, or need no rotation, to the keys of a cache.
///
///     cache.append(k, v);
///     attention(q, cache, out);
///
/// If the cache rotated its keys, the queries must be rotated by the same table and layout. A call without a
/// table cannot check this, so confirm it with queries_are_rotated:
///
///     rotate<Layout>(q, table, row_starts{cache.next_positions()});
///     cache.append<Layout>(k, v, table);
///     attention(q, cache, out, {.queries_are_rotated = true});
///
/// The queries are the tokens appended last: query i of row b is at the position of token seen(b) - tokens +
/// i, or seen(b) - counts[b] + i with counts. The cache remembers the counts of its last append. In a call
/// without counts, row b has as many queries as it took tokens in that append. Visibility depends on
/// positions: `causal` admits keys at positions up to that of the query, and `window` limits the difference
/// between the two positions. A ring_cache adds its own window and sinks.
///
/// Rows with different numbers of new tokens, such as a prompt and decoding steps, go into one call:
///
///     const int counts[] = {2, 1, 0};
///     cache.append(k, v, counts);
///     attention(q, cache, out, {}, counts);
///
/// For speculative decoding with a tree of draft tokens, append each token at the position of its depth in
/// the tree. Several tokens then have the same position. A mask [tokens, size()] hides from each token the
/// draft tokens that are not its ancestors:
///
///     cache.append_at(k, v, depths);
///     attention(q, cache, out, {.mask = score_matrix(seen, 1, 1, tokens, cache.size())});
///
/// \param q       [rows, tokens, q.heads, head_dim]: row b of q has the queries of row b of the cache. q may
///                have fewer rows than the cache
/// \param cache   kv_cache, ring_cache, latent_cache or another class that satisfies attended_rows. Its
///                channels have the type of q or, for float q, a 16-bit type or std::int8_t; attention widens
///                them while reading. For a latent_cache head_dim is latent_dim + rotary_dim, value_dim is
///                latent_dim, and options.scale is required
/// \param out     [batch, tokens, q.heads, value_dim]
/// \param options  a bias or mask is [batch, heads, tokens, keys] where keys is the number of tokens in the
///                 longest row. Entry j is for the j-th stored token of the row, whatever its position. One
///                 array of `capacity` entries per row serves every step as {.data = array, .batch = batch,
///                 .keys = cache.size(), .batch_stride = capacity, .key_stride = 1}. Key ranges and selected
///                 keys number the tokens of the row in the same order
/// \param counts  any integers, [rows], or empty. Row b has counts[b] queries, which are its newest tokens.
///                Zeros are written for the other tokens of row b of q. If counts are empty, a row has as
///                many queries as it took tokens in the last append, without those that it lost since. If all
///                rows took and lost the same tokens in several appends, q may also have fewer or more tokens
///                than the last append
///
/// Requires:  out shares no element with q unless it is the same view
/// Throws:    std::invalid_argument if shapes disagree, a row has fewer tokens than queries, an option is out
///            of range, the options list positions, counts or offsets (the cache has its own) or set dropout,
///            the cache stores raw keys, the cache rotated its keys and options.queries_are_rotated is false,
///            a latent_cache has no scale, counts are missing although rows differ in the tokens that they
///            took or lost, or a ring has overwritten keys visible to a query or is given a bias, mask,
///            key_ranges or selected keys; out is then unchanged
/// Accuracy:  as attention. The order of keys in memory changes only the order of sums
/// Cost:      as attention. Adjacent rows share one kernel call if their tokens are at positions 0, 1, 2, ...
///            and they have the same number of queries. Their lengths may differ. Every other row takes one
///            call. Keys and values are read in place. With ring_positions::cache, those visible to a query
///            are copied, one head at a time. Allocates nothing after the first call of this size on the
///            thread
template <class Layout = detail::unnamed_layout, class Q, class Cache, class T, class Threads = this_thread>
requires attended_rows<Cache>
void attention(head_view<Q> q, const Cache& cache, head_view<T> out, const attention_options& options = {},
               const detail::row_counts& counts = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  detail::attend_to_rows<detail::unnamed_layout>(q, cache, detail::queries_of(q, cache, counts), out,
                                                 detail::without_table, options, threads);
}

/// Attention of unrotated queries. Copies of the queries are rotated by their positions, and so are copies of
/// keys that are stored raw.
///
///     cache.append<Layout>(k, v, table);           // or cache.append(k, v) where it stores raw keys
///     attention<Layout>(q, cache, out, table);
///
/// \param table  with rows for the positions of the queries, and of raw keys; for ring_positions::cache, for
///               positions 0 .. sinks + window - 1
///
/// Throws:  as above, except for raw keys; std::invalid_argument if options.queries_are_rotated is true, the
///          keys were rotated by another table or layout, or before they were appended, or the rotated
///          channels exceed the head; std::out_of_range if a position is outside the table; out is then
///          unchanged
template <class Layout = detail::unnamed_layout, class Q, class Cache, class T, rotation_table Table,
          class Threads = this_thread>
requires attended_rows<Cache>
void attention(head_view<Q> q, const Cache& cache, head_view<T> out, const Table& table,
               const attention_options& options = {}, const detail::row_counts& counts = {},
               const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  const auto rotation = detail::placed_in(cache, table);
  detail::attend_to_rows<Layout>(q, cache, detail::queries_of(q, cache, counts), out, &rotation, options,
                                 threads);
}

}  // namespace rope::inline ROPE_ABI

#define ROPE_DETAIL_CACHES_OF(declared, T, Layout)                          \
  declared class attended_call<Layout, T, kv_cache<T>, float, this_thread>; \
  declared void stored_tokens<T, value_place::own>::store<Layout>(          \
      const char*, const head_view<const T>&, const head_view<const T>&,    \
      const key_transform<float, no_norm>&, const next_tokens&, const row_counts&, const this_thread&)
#define ROPE_DETAIL_CACHES(declared, T)                                             \
  declared class attended_call<unnamed_layout, T, kv_cache<T>, float, this_thread>; \
  ROPE_DETAIL_CACHES_OF(declared, T, interleaved);                                  \
  ROPE_DETAIL_CACHES_OF(declared, T, half_split)
ROPE_DETAIL_DECLARE_INSTANCES(ROPE_DETAIL_CACHES);

#undef ROPE_INSTANTIATE
#define ROPE_INSTANTIATE                          \
  ROPE_DETAIL_INSTANTIATE(ROPE_DETAIL_ROTATIONS)  \
  ROPE_DETAIL_INSTANTIATE(ROPE_DETAIL_ATTENTIONS) \
  ROPE_DETAIL_INSTANTIATE(ROPE_DETAIL_CACHES)

#endif  // ROPE_CACHE_ATTENTION_HPP
