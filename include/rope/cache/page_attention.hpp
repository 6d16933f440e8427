// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_ATTENTION_HPP
#define ROPE_CACHE_PAGE_ATTENTION_HPP

#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>  // the checks of types too
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/ragged_queries.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// Attention of the newest tokens of many sequences to keys and values in pages.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Sequences in pages as attended_rows: their tokens are at positions 0, 1, 2, ...
template <class P>
class rows_in_pages {
 public:
  using value_type = std::remove_const_t<P>;

  /// Throws:  std::invalid_argument, std::out_of_range as check_blocks and check_counts
  rows_in_pages(const page_view<P>& pages, const newest_in_pages<P>& newest, Index batch) : pages_(pages) {
    pages.check_blocks("attention");
    newest.check_counts("attention", batch);
  }

  Index batch() const { return pages_.sequences(); }
  key_storage storage() const { return pages_.storage(); }
  token_source<value_type> keys(Index s) const {
    return {pages_.keys(), pages_.blocks(), s, pages_.length(s)};
  }
  token_source<value_type> values(Index s) const {
    return {pages_.values(), pages_.blocks(), s, pages_.length(s)};
  }
  std::span<const std::int64_t> order(Index /*s*/) const { return {}; }
  std::int64_t seen(Index s) const { return pages_.length(s); }
  std::int64_t order_of(Index /*s*/, std::int64_t token) const { return token; }
  std::span<const Index> query_counts(Index /*queries*/) const { return {}; }
  template <class Layout, class Table>
  void check_table(const Table& /*table*/) const {}

  /// Throws:  std::invalid_argument if options list positions or counts, which the pages determine
  attention_options rules(const char* function, const attention_options& options) const {
    if (!options.query_positions.empty() || !options.key_positions.empty() || !options.query_counts.empty() ||
        !options.key_counts.empty() || !options.key_offsets.empty())
      throw_invalid(
          function,
          "pages have lengths, and their tokens positions; the options must list nothing but query_offsets");
    if (!options.query_offsets.empty() && (options.bias || options.mask))
      throw_invalid(function,
                    "a bias or a mask has a row for each sequence; give the queries as [sequences, tokens], "
                    "without query_offsets");
    attention_options rest = options;
    rest.query_offsets = {};
    return rest;
  }

 private:
  const page_view<P>& pages_;
};

template <class Layout, class T, class P, class S, class Threads>
void attend_to_pages(const head_view<const T>& q, const page_view<P>& pages, const head_view<T>& out,
                     const placed_table<S>* table, const attention_options& options, const Threads& threads) {
  const newest_in_pages<P> newest(pages, q.tokens, options.query_offsets);
  const rows_in_pages<P> rows(pages, newest, q.batch);
  if (table == nullptr && pages.storage() == key_storage::raw)
    throw_invalid("attention", "these pages hold raw keys, give the layout and the table");
  attended_call<Layout, T, rows_in_pages<P>, S, Threads>(q, rows, out, table, options, newest, threads).run();
}

}  // namespace detail

/// Attention of queries that are already rotated, or need no rotation, to keys in pages.
///
///     attention(q, pages, out, {.query_offsets = offsets});
///
/// The queries of a sequence are its newest tokens: query i of n is at position length - n + i. One call may
/// mix prefill, chunks of it and decoding steps: concatenate the queries of all sequences.
///
/// \param q       [1, tokens, q.heads, head_dim] with options.query_offsets, [sequences + 1]: sequence s has
///                tokens query_offsets[s] .. query_offsets[s + 1] - 1. Without offsets [sequences, tokens,
///                ...], equally many per sequence
/// \param pages   of the type of q or, for float q, of a 16-bit type or std::int8_t; attention widens keys
///                and values while reading
/// \param out     as q, [..., q.heads, value_dim]
/// \param options  a bias or a mask, for queries without offsets, is [sequences, heads, tokens, keys] with
///                 keys = the longest length; key_ranges count the tokens of the sequence, one range for each
///                 token of q; log_sum_exp is [tokens of q, q.heads] in the order of q
/// \param threads  your threads, see base/parallel.hpp
///
/// Requires:  out shares no element with q unless it is the same view, and none with the pages
/// Throws:    std::invalid_argument if shapes disagree, a length exceeds the blocks, a sequence has more new
///            tokens than its length, offsets do not fit, an option is out of range, the options list
///            positions or counts or set dropout, or the pages hold raw keys; std::out_of_range if a block
///            that holds tokens names a page beyond the pool; out is then unchanged
/// Accuracy:  the bits of `attention` to the same keys and values in one view
///            (tests/cache/laws/pages.test.cpp)
/// Cost:      that of attention for every sequence; pages are read in place. Adjacent sequences with equal
///            numbers of queries share one kernel call and its threads. Allocates nothing after the first
///            call of this size on the thread
/// Source:    Kwon et al. 2023, PagedAttention, arXiv:2309.06180
template <class Layout = detail::unnamed_layout, class Q, class P, class T, class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  detail::attend_to_pages<detail::unnamed_layout, T, P, float>(q, pages, out, nullptr, options, threads);
}

/// Attention of unrotated queries: rotates copies of the queries, and raw keys while they are read, by their
/// positions.
///
///     write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
///     attention<Layout>(q, pages, out, table);
///
/// Throws:  as above, std::invalid_argument if the rotated channels exceed the head, std::out_of_range if a
///          position is outside the table; out is then unchanged
template <class Layout = detail::unnamed_layout, class Q, class P, class T, rotation_table Table,
          class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out, const Table& table,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  const auto rotation = detail::placed(table);
  detail::attend_to_pages<Layout, T>(q, pages, out, &rotation, options, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_PAGE_ATTENTION_HPP
