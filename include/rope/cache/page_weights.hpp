// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_WEIGHTS_HPP
#define ROPE_CACHE_PAGE_WEIGHTS_HPP

#include <span>

#include <rope/attention/options.hpp>
#include <rope/attention/weight_sums.hpp>
#include <rope/attention/weights.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/detail/attended_call.hpp>  // without_table
#include <rope/cache/page_calls.hpp>            // attended_pages
#include <rope/cache/page_view.hpp>
#include <rope/cache/weights.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The probabilities of attention to keys in pages, and their sums for each token.

namespace rope::inline ROPE_ABI {

/// The probabilities of attention(q, pages, out, options), whose queries are already rotated, or need no
/// rotation.
///
///     std::vector<float> weights(std::size_t(heads * tokens * longest));
///     attention_weights(q, pages, weights, {.query_offsets = offsets});
///
/// \param q        [1, tokens, q.heads, head_dim] with options.query_offsets, or [sequences, tokens, ...], as
///                 in attention to pages
/// \param weights  [q.batch, q.heads, q.tokens, keys] of float, or of double if q is double, as for views;
///                 overwritten. keys is the length of the longest sequence. Key j of a query is token j of
///                 its sequence. Entries without a key are 0
/// \param options  those of attention to pages. log_sum_exp is not written. `products` has no effect: it is
///                 always product_precision::full
///
/// Requires:  weights share no element with q or the pages
/// Throws:    as attention to pages does, std::invalid_argument if weights has another shape; weights is then
///            unchanged
/// Accuracy:  the bits of attention_weights for the same keys in one view (tests/cache/page_weights.test.cpp)
/// Cost:      as attention_weights for views. This function is for inspection
template <class Layout = detail::unnamed_layout, class Q, class P, class W = std::span<detail::weight_of<Q>>,
          class Threads = this_thread>
void attention_weights(head_view<Q> q, const page_view<P>& pages, W&& weights,
                       const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weights", Layout);
  const auto rows = detail::attended_pages("attention_weights", q, pages, pages.keys(), q, options);
  detail::find_weights_of_rows<detail::unnamed_layout>(q, rows, rows, weights, detail::without_table, options,
                                                       threads);
}

/// The probabilities of attention<Layout>(q, pages, out, table, options).
///
///     attention_weights<Layout>(q, pages, weights, table);
///
/// Throws:  as attention<Layout> to pages does, or std::invalid_argument if weights has another shape;
///          weights is then unchanged
template <class Layout = detail::unnamed_layout, class Q, class P, class W = std::span<detail::weight_of<Q>>,
          rotation_table Table, class Threads = this_thread>
void attention_weights(head_view<Q> q, const page_view<P>& pages, W&& weights, const Table& table,
                       const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention_weights", Layout);
  const auto rows = detail::attended_pages("attention_weights", q, pages, pages.keys(), q, options);
  const auto rotation = detail::placed(table);
  detail::find_weights_of_rows<Layout>(q, rows, rows, weights, &rotation, options, threads);
}

/// The attention that each token of each sequence receives from queries that are already rotated or need no
/// rotation. It is the sum of the token's weights over the queries of its sequence, for every query head or
/// summed over the query heads of its key head.
///
///     std::vector<float> sums(std::size_t(pages.sequences() * kv_heads * longest));
///     attention_weight_sums(q, pages, sums, {.query_offsets = offsets});
///
/// \param q     as in attention_weights
/// \param sums  [sequences, q.heads, keys] or [sequences, kv_heads, keys] of float, or of double if q is
///              double; overwritten. The length of sums decides between the two shapes. keys is the length of
///              the longest sequence. A token that no query sees has a sum of 0. If sequences share a page,
///              each has sums of its own for the tokens in it
/// \param options  as in attention_weights
///
/// Requires:  sums shares no element with q or the pages
/// Throws:    as attention to pages does, std::invalid_argument if sums has another length; sums is then
///            unchanged
/// Accuracy:  the bits of attention_weight_sums for the same keys in one view
///            (tests/cache/page_weights.test.cpp)
/// Cost:      as for views (attention/weight_sums.hpp)
template <class Layout = detail::unnamed_layout, class Q, class P, class W = std::span<detail::weight_of<Q>>,
          class Threads = this_thread>
void attention_weight_sums(head_view<Q> q, const page_view<P>& pages, W&& sums,
                           const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weight_sums", Layout);
  const auto rows = detail::attended_pages("attention_weight_sums", q, pages, pages.keys(), q, options);
  detail::find_weight_sums_of_rows<detail::unnamed_layout, W>(q, rows, rows, sums, detail::without_table,
                                                              options, threads);
}

/// The attention that each token of each sequence receives from unrotated queries.
///
///     attention_weight_sums<Layout>(q, pages, sums, table);
///
/// Throws:  as attention<Layout> to pages does, or std::invalid_argument if sums has another length; sums is
///          then unchanged
template <class Layout = detail::unnamed_layout, class Q, class P, class W = std::span<detail::weight_of<Q>>,
          rotation_table Table, class Threads = this_thread>
void attention_weight_sums(head_view<Q> q, const page_view<P>& pages, W&& sums, const Table& table,
                           const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention_weight_sums", Layout);
  const auto rows = detail::attended_pages("attention_weight_sums", q, pages, pages.keys(), q, options);
  const auto rotation = detail::placed(table);
  detail::find_weight_sums_of_rows<Layout, W>(q, rows, rows, sums, &rotation, options, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_PAGE_WEIGHTS_HPP
