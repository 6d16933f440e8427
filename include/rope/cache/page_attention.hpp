// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_ATTENTION_HPP
#define ROPE_CACHE_PAGE_ATTENTION_HPP

#include <rope/attention/attention.hpp>  // the checks of types too
#include <rope/attention/options.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/detail/paged_call.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// Attention of the newest tokens of many sequences to keys and values in pages.

namespace rope {
inline namespace ROPE_ABI {

/// Attention of rotated queries (or of queries that need no rotation) to keys in pages.
///
///     attention(q, pages, out, {.query_offsets = offsets});
///
/// The queries of a sequence are its newest tokens: query i of n is at position length - n + i. Prefill, its
/// chunks and single steps go together in one call, with the queries of all sequences laid end to end.
///
/// \param q       [1, tokens, q.heads, head_dim] with options.query_offsets, [sequences + 1]: those of
///                sequence s are query_offsets[s] .. query_offsets[s + 1] - 1; or [sequences, tokens, ...]
///                without, as many of each
/// \param pages   of the type of q or, for float q, of a 16-bit type, whose keys and values are widened while
///                they are read
/// \param out     as q, [..., q.heads, value_dim]
/// \param options  a bias or a mask, for queries without offsets, is [sequences, heads, tokens, keys] with
///                 keys = the longest length; log_sum_exp is [tokens of q, q.heads] in the order of q
/// \param threads  the caller's threads, see base/parallel.hpp
///
/// Requires:  out shares no element with q unless it is the same view, and none with the pages
/// Throws:    std::invalid_argument if shapes disagree, a length exceeds the blocks, a sequence has more new
///            tokens than its length, offsets do not fit, an option is out of range, the options list
///            positions or counts or ask for dropout, or the pages hold raw keys; std::out_of_range if a
///            block that holds tokens names a page beyond the pool; out is then unchanged
/// Accuracy:  the bits of `attention` to the same keys and values in one view
///            (tests/cache/laws/pages.test.cpp)
/// Cost:      that of attention for every sequence; pages are read where they are. Neighbours with as many
///            queries share a call, so its threads. No allocation once a call of the same size has been made
///            on the thread
/// Source:    Kwon et al. 2023, PagedAttention, arXiv:2309.06180
template <class Layout = detail::unnamed_layout, class Q, class P, class T, class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  detail::paged_call<detail::unnamed_layout, T, P, float, Threads>(q, pages, out, nullptr, options, threads)
      .run();
}

/// Attention of unrotated queries: rotates copies of them, and raw keys while they are read, by their
/// positions.
///
///     write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
///     attention<Layout>(q, pages, out, table);
///
/// Throws:  as above, std::invalid_argument if the window of the table exceeds the head, std::out_of_range if
///          a position is outside the table; out is then unchanged
template <class Layout = detail::unnamed_layout, class Q, class P, class T, rotation_table Table,
          class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out, const Table& table,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  const auto rotation = detail::placed(table);
  detail::paged_call<Layout, T, P, typename Table::scalar, Threads>(q, pages, out, &rotation, options,
                                                                    threads)
      .run();
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_PAGE_ATTENTION_HPP
