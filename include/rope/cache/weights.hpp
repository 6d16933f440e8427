// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_WEIGHTS_HPP
#define ROPE_CACHE_WEIGHTS_HPP

#include <algorithm>  // std::fill_n, std::max, std::min
#include <span>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/attention/weight_sums.hpp>
#include <rope/attention/weights.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/attention.hpp>  // queries_of
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The probabilities of attention to the tokens of a cache, and their sums for each token.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The kernel calls of attention without values. The constructor checks the call, and for_each_call calls
/// visit(call, part) for each of them.
template <class Layout, class T, class Rows, class S, class Threads>
attended_call<Layout, T, Rows, S, Threads> weights_call(const head_view<const T>& q, const Rows& rows,
                                                        const row_tokens& queries,
                                                        const placed_table<S>* table,
                                                        attention_options options, const Threads& threads) {
  options.log_sum_exp = {};
  options.products = product_precision::full;
  const head_view<T> none = {nullptr, q.batch, q.tokens, q.heads, 0, 0, 0, 0};
  return {q, rows, none, table, options, queries, threads, true};
}

/// Implements `attention_weights` for stored tokens.
template <class Layout, class Q, class Rows, class S, class W, class Threads>
void find_weights_of_rows(const head_view<Q>& q, const Rows& rows, const row_tokens& queries, W& weights,
                          const placed_table<S>* table, const attention_options& options,
                          const Threads& threads) {
  ROPE_DETAIL_CHECK_THREADS("attention_weights", Threads);
  using T = std::remove_const_t<Q>;
  using A = arithmetic<T>;
  const auto calls = weights_call<Layout, T>(q, rows, queries, table, options, threads);
  const attention_shape& shape = calls.shape();
  const weights_view<A> all = weights_in<T, W&>(weights, shape);
  if (shape.heads == 0) return;  // weights without elements may be null
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index i = 0; i < shape.queries; ++i)
        for (Index j = 0; j < shape.keys; ++j) all.at(b, h, i)[j * all.key_stride] = A(0);
  calls.for_each_call([&](const auto& call, const attended_part& part) {
    weights_view<A> to = all;
    to.data = all.at(queries.row(part.b), part.first_head, queries.first(part.b) + part.first_query);
    to.batch_stride = queries.row_stride(part.b, all.batch_stride, all.query_stride);
    if (part.rank < 0) return write_weights(call, to, threads);
    const Index keys = call.k.tokens;
    number_array<A> by_rank(call.q.heads * keys);
    write_weights(call, weights_view<A>{by_rank.data(), 0, keys, 0, 1}, threads);
    for (Index h = 0; h < call.q.heads; ++h)
      for (Index j = 0; j < keys; ++j)
        to.at(0, h, 0)[part.slot(rows, j) * to.key_stride] = by_rank.data()[h * keys + j];
  });
}

/// Implements `attention_weight_sums` for stored tokens.
template <class Layout, class W, class Q, class Rows, class S, class Threads>
void find_weight_sums_of_rows(const head_view<Q>& q, const Rows& rows, const row_tokens& queries,
                              std::remove_reference_t<W>& list, const placed_table<S>* table,
                              const attention_options& options, const Threads& threads) {
  ROPE_DETAIL_CHECK_THREADS("attention_weight_sums", Threads);
  const std::span<weight_of<Q>> sums = sums_in<Q, W>(list);
  const auto calls = weights_call<Layout, std::remove_const_t<Q>>(q, rows, queries, table, options, threads);
  attention_shape shape = calls.shape();
  shape.batch = queries.asking();
  const Index kv_heads =
      rows.batch() == 0 ? q.heads : token_source<typename Rows::value_type>(rows.keys(0)).heads;
  const weight_sums_view all = weight_sums_in(sums, shape, kv_heads);
  calls.for_each_call([&](const auto& call, const attended_part& part) {
    const Index group = call.group(), head = all.by_key_head ? part.first_head / group : part.first_head;
    weight_sums_view to = all;
    to.data = all.data + part.b * all.batch_stride + head * all.head_stride;
    if (part.rank < 0) return add_weight_sums(call, to, threads);
    const Index keys = call.k.tokens, heads = all.by_key_head ? call.k.heads : call.q.heads;
    double* const by_rank = workspace<struct sums_by_rank, double>(heads * keys);
    std::fill_n(by_rank, heads * keys, 0.0);
    add_weight_sums(call, weight_sums_view{by_rank, 0, keys, all.by_key_head}, threads);
    for (Index h = 0; h < heads; ++h)
      for (Index j = 0; j < keys; ++j)
        to.data[h * to.head_stride + part.slot(rows, j)] += by_rank[h * keys + j];
  });
  write_weight_sums(all.data, sums);
}

}  // namespace detail

/// The probabilities of attention(q, cache, out, options, counts), whose queries are already rotated, or need
/// no rotation.
///
///     std::vector<float> weights(std::size_t(batch * heads * tokens * cache.size()));
///     attention_weights(q, cache, weights, {.queries_are_rotated = true});
///
/// \param q        [rows, tokens, q.heads, head_dim], as in attention
/// \param cache    kv_cache, ring_cache, latent_cache or another class that satisfies attended_rows
/// \param weights  [rows, q.heads, tokens, keys] of float, or of double if q is double, as for views;
///                 overwritten. keys is the number of tokens of the longest row. In a ring_cache it is the
///                 largest order(b).size(). Key j of row b is its token j, or, in a ring_cache, the token
///                 order(b)[j]. Entries without a query or a key are 0
/// \param options  those of attention. log_sum_exp is not written. `products` has no effect: it is always
///                 product_precision::full
/// \param counts   as in attention
///
/// Throws:    std::invalid_argument as attention does, or if weights has another shape; weights is then
///            unchanged
/// Accuracy:  scores in the arithmetic type, softmax in double (tests/cache/weights.test.cpp)
/// Cost:      as attention_weights for views. This function is for inspection
template <class Layout = detail::unnamed_layout, class Q, class Cache, class W, class Threads = this_thread>
requires attended_rows<Cache>
void attention_weights(head_view<Q> q, const Cache& cache, W&& weights, const attention_options& options = {},
                       const detail::row_counts& counts = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weights", Layout);
  detail::find_weights_of_rows<detail::unnamed_layout>(q, cache, detail::queries_of(q, cache, counts),
                                                       weights, detail::without_table, options, threads);
}

/// The probabilities of attention<Layout>(q, cache, out, table, options, counts).
///
///     attention_weights<Layout>(q, cache, weights, table);
///
/// Throws:  as attention<Layout> does, or std::invalid_argument if weights has another shape; weights is then
///          unchanged
template <class Layout = detail::unnamed_layout, class Q, class Cache, class W, rotation_table Table,
          class Threads = this_thread>
requires attended_rows<Cache>
void attention_weights(head_view<Q> q, const Cache& cache, W&& weights, const Table& table,
                       const attention_options& options = {}, const detail::row_counts& counts = {},
                       const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention_weights", Layout);
  const auto rotation = detail::placed_in(cache, table);
  detail::find_weights_of_rows<Layout>(q, cache, detail::queries_of(q, cache, counts), weights, &rotation,
                                       options, threads);
}

/// The attention that each token of a cache receives from queries that are already rotated or need no
/// rotation. It is the sum of the token's weights over the queries, for every query head or summed over the
/// query heads of its key head.
///
///     sum_j = sum_i w_ij,   w_i = softmax over visible j of  scale * q_i . k_j
///
/// H2O removes the tokens with the smallest sums over all queries so far. SnapKV and TOVA use the sums over
/// the newest queries. examples/thin_a_cache.cpp is an example.
///
///     std::vector<float> sums(std::size_t(batch * kv_heads * cache.size()));
///     attention_weight_sums(q, cache, sums, {.queries_are_rotated = true});
///
/// \param q      [rows, tokens, q.heads, head_dim], as in attention
/// \param sums   [rows, q.heads, keys] or [rows, kv_heads, keys] of float, or of double if q is double;
///               overwritten. The length of sums decides between the two shapes. keys is the number of tokens
///               of the longest row. Key j of row b is its token j, or, in a ring_cache, the token
///               order(b)[j]. A token that no query sees has a sum of 0
/// \param options, counts  as in attention_weights
///
/// Throws:    std::invalid_argument as attention does, or if sums has another length; sums is then unchanged
/// Accuracy:  scores and weights as in attention, added up in double and rounded once; no array
///            [queries, keys] exists (tests/cache/weights.test.cpp)
/// Cost:      as for views (attention/weight_sums.hpp)
template <class Layout = detail::unnamed_layout, class Q, class Cache,
          class W = std::span<detail::weight_of<Q>>, class Threads = this_thread>
requires attended_rows<Cache>
void attention_weight_sums(head_view<Q> q, const Cache& cache, W&& sums,
                           const attention_options& options = {}, const detail::row_counts& counts = {},
                           const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weight_sums", Layout);
  detail::find_weight_sums_of_rows<detail::unnamed_layout, W>(q, cache, detail::queries_of(q, cache, counts),
                                                              sums, detail::without_table, options, threads);
}

/// The attention that each token of a cache receives from unrotated queries.
///
///     attention_weight_sums<Layout>(q, cache, sums, table);
///
/// Throws:  as attention<Layout> does, or std::invalid_argument if sums has another length; sums is then
///          unchanged
template <class Layout = detail::unnamed_layout, class Q, class Cache,
          class W = std::span<detail::weight_of<Q>>, rotation_table Table, class Threads = this_thread>
requires attended_rows<Cache>
void attention_weight_sums(head_view<Q> q, const Cache& cache, W&& sums, const Table& table,
                           const attention_options& options = {}, const detail::row_counts& counts = {},
                           const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention_weight_sums", Layout);
  const auto rotation = detail::placed_in(cache, table);
  detail::find_weight_sums_of_rows<Layout, W>(q, cache, detail::queries_of(q, cache, counts), sums, &rotation,
                                              options, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_WEIGHTS_HPP
