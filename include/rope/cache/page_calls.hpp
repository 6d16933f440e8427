// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_CALLS_HPP
#define ROPE_CACHE_PAGE_CALLS_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>  // the checks of types too
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/key_rotation.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/rotate.hpp>  // the checks of types
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Writes new keys and values to pages, and attends with the newest tokens of many sequences to pages.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Sequences in pages as a class that satisfies attended_rows, and the tokens of a call that are the newest
/// ones of each sequence. Tokens of a sequence are at positions 0, 1, 2, ...
template <class P>
class rows_in_pages : public row_tokens {
 public:
  using value_type = std::remove_const_t<P>;

  /// Throws:  as check_blocks; std::invalid_argument unless a view [batch, tokens, ...] has the new tokens of
  ///          every sequence, and no sequence has more new tokens than its length
  rows_in_pages(const char* function, const page_view<P>& pages, Index batch, Index tokens,
                const any_integers& offsets)
      : row_tokens(pages.sequences(), tokens, {}, offsets), pages_(pages) {
    pages.check_blocks(function);
    const auto given = static_cast<Index>(offsets.size());
    if (given == 0) {
      if (batch != asking())
        throw_invalid(function, "without query_offsets there is a row for each of the ", asking(),
                      " sequences, got ", batch);
    } else {
      if (batch != 1 || given != asking() + 1)
        throw_invalid(function, "query_offsets are sequences + 1 = ", asking() + 1,
                      " numbers for a batch of 1, got ", given, " for a batch of ", batch);
      check_offsets(function, "query_offsets", given, tokens, [&](Index s) { return offset(s); });
    }
    for (Index s = 0; s < asking(); ++s)
      if (count(s) > seen(s))
        throw_invalid(function, "lengths include the new tokens: sequence ", s, " has a length of ", seen(s),
                      " and ", count(s), " new tokens");
  }

  Index batch() const { return pages_.sequences(); }
  key_storage storage() const { return pages_.storage(); }
  token_source<value_type> keys(Index s) const { return {pages_.keys(), pages_.blocks(), s, seen(s)}; }
  token_source<value_type> values(Index s) const { return {pages_.values(), pages_.blocks(), s, seen(s)}; }
  std::span<const std::int64_t> order(Index /*s*/) const { return {}; }
  Index seen(Index s) const { return pages_.length(s); }
  std::int64_t order_of(Index /*s*/, std::int64_t token) const { return token; }
  std::span<const Index> query_counts(Index /*queries*/) const { return {}; }
  template <class Layout, class Table>
  void check_table(const Table& /*table*/) const {}
  /// The position of the first new token of a sequence.
  Index start(Index s) const { return seen(s) - count(s); }

  /// Returns `options` without query_offsets, which row_tokens have.
  ///
  /// Throws:  std::invalid_argument if there are query_offsets and a bias or a mask
  attention_options rules(const char* function, const attention_options& options) const {
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

/// The sequences of a call of attention. If there are none, checks the heads, which are otherwise checked for
/// each sequence.
template <class Q, class P, class T>
rows_in_pages<P> attended_pages(const char* function, const head_view<Q>& q, const page_view<P>& pages,
                                const head_view<P>& values, const head_view<T>& out,
                                const attention_options& options) {
  const rows_in_pages<P> rows(function, pages, q.batch, q.tokens, options.query_offsets);
  if (rows.batch() == 0) check_heads(function, q, pages.keys(), values, out);
  return rows;
}

/// Writes new tokens to their pages. Keys are rotated by a key_transform, or copied if it is an
/// unknown_table.
template <class Layout, class K, class V, class T, class Keys, class Threads>
void write_newest(const head_view<K>& k, const head_view<V>& v, const page_view<T>& pages, const Keys& keys,
                  const any_integers& query_offsets, const Threads& threads) {
  static_assert(!std::is_const_v<T>, "write_pages: pages are read-only");
  ROPE_DETAIL_CHECK_STORED("write_pages", K, V, T);
  ROPE_DETAIL_CHECK_THREADS("write_pages", Threads);
  const auto check_shape = [&](const char* name, const auto& x, const head_view<T>& pool) {
    check_heads("write_pages", x);
    if (x.batch != k.batch || x.tokens != k.tokens || x.heads != pool.heads || x.head_dim != pool.head_dim)
      throw_invalid("write_pages", name, " must be ",
                    shape_text({k.batch, k.tokens, pool.heads, pool.head_dim}), ", got ", shape_text(x));
    check_written("write_pages", pool);
  };
  check_shape("k", k, pages.keys());
  check_shape("v", v, pages.values());
  const rows_in_pages<T> newest("write_pages", pages, k.batch, k.tokens, query_offsets);
  check_pages_are_own(
      "write_pages", pages, [&](Index s) { return newest.start(s); },
      [&](Index s) { return newest.count(s); });
  position_range positions;
  for (Index s = 0; s < newest.batch(); ++s) positions.include(newest.start(s), newest.count(s));
  if constexpr (!are_copied<Keys>) {
    if (pages.storage() == key_storage::raw) refuse_raw_keys("write_pages");
    check_rotation<Layout>("write_pages", k, keys.table, known_range{positions});
  }
  const auto norm = checked_norm("write_pages", keys.norm, k);
  const double bytes = cost_of(k.batch, k.tokens, pages.keys().heads,
                               pages.keys().head_dim + pages.values().head_dim, sizeof(T));
  newest.for_each_run(threads, bytes, [&](Index s, Index first, Index size) {
    for (const Index last = first + size; first < last;) {
      const Index t = newest.start(s) + first, slot = pages.slot(t), page = pages.page(s, t);
      const Index count = (std::min)(last - first, pages.page_size() - slot);
      const auto from = [&](const auto& x) { return newest.rows(x, s, 1).token_range(first, count); };
      const auto to = [&](const head_view<T>& pool) {
        return pool.batch_range(page, 1).token_range(slot, count);
      };
      if constexpr (are_copied<Keys>)
        copy_channels(from(k), to(pages.keys()));
      else
        rotate_channels<Layout>(from(k), to(pages.keys()), keys.table, contiguous_positions{t}, norm);
      copy_channels(from(v), to(pages.values()));
      first += count;
    }
  });
}

/// Whether write_pages rejects the arguments after its two views. It takes pages, a table for keys, offsets
/// and threads, in this order. All except the pages are optional.
template <class K, class V, class Pages, class... More>
constexpr bool misplaced_in_write_pages() {
  const std::size_t place = begins_with_table<value_place::own, More...>() ? 1 : 0;
  constexpr bool are_pages = requires(const Pages& pages) { pages.used_blocks(Index{}); };
  return !are_pages || lacks_list<any_integers, More...>(place);
}

}  // namespace detail

/// Copies the newest keys and values of each sequence to its pages.
///
/// \param k        [1, tokens, kv_heads, head_dim] with query_offsets, [sequences + 1], as in attention to
///                 pages; [sequences, tokens, ...] without them. Keys are already rotated, unless the model
///                 does not rotate keys or the pages hold raw keys
/// \param v        [..., kv_heads, value_dim]
/// \param pages    lengths include the new tokens, which go to positions length - n to length - 1
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  k and v share no element with the pages
/// Throws:    std::invalid_argument if shapes disagree, a length exceeds the blocks, a sequence has more new
///            tokens than its length, offsets do not fit, channels of a pool overlap each other, or a page to
///            be written is listed twice in the blocks (a shared prefix is read-only); std::out_of_range if a
///            block that holds tokens names a page beyond the pool; the pages are then unchanged
/// Cost:      one copy of the new keys and values, and one check of every block that holds tokens
template <int no_layout = 0, class K, class V, class T,  // so that write_pages<Layout> is never this function
          class Threads = this_thread>
void write_pages(head_view<K> k, head_view<V> v, const page_view<T>& pages,
                 const detail::any_integers& query_offsets = {}, const Threads& threads = {}) {
  detail::write_newest<detail::unnamed_layout>(k, v, pages, detail::unknown_table{}, query_offsets, threads);
}

/// Rotates copies of new keys by their positions, and writes keys and values to their pages. The stored bits
/// are those of kv_cache::append.
///
///     write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
///
/// \param table  the table that rotates k, or a normed_table, which normalises the heads first
///
/// Throws:  as above; std::invalid_argument if the rotated channels exceed the head or the pages hold raw
///          keys, std::out_of_range if a position is outside the table; the pages are then unchanged
/// Cost:    as above, with one rotation of k
template <class Layout = detail::unnamed_layout, class K, class V, class T, key_table Table,
          class Threads = this_thread>
void write_pages(head_view<K> k, head_view<V> v, const page_view<T>& pages, const Table& table,
                 const detail::any_integers& query_offsets = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("write_pages", Layout);
  if constexpr (pair_layout<Layout>)
    detail::write_newest<Layout>(k, v, pages, detail::key_transform_of(table), query_offsets, threads);
}

ROPE_DETAIL_ASK_FOR_TOKENS(write_pages, (detail::misplaced_in_write_pages<Arguments...>()),
                           "after k and v pass the pages (a page_view), then the table if keys rotate, "
                           "then query_offsets (any integers, [sequences + 1], or {}), then the threads");

/// Attention of queries that are already rotated, or need no rotation, to keys in pages.
///
///     attention(q, pages, out, {.query_offsets = offsets});
///
/// The queries of a sequence are its newest tokens: query i of n is at position length - n + i. One call may
/// mix whole prompts, chunks of prompts and decoding steps. For this, concatenate the queries of all
/// sequences.
///
/// \param q       [1, tokens, q.heads, head_dim] with options.query_offsets, [sequences + 1]: sequence s has
///                tokens query_offsets[s] .. query_offsets[s + 1] - 1. Without offsets [sequences, tokens,
///                ...], equally many per sequence
/// \param pages   their channels have the type of q or, for float q, a 16-bit type or std::int8_t. Attention
///                widens keys and values while reading
/// \param out     as q, [..., q.heads, value_dim]
/// \param options  a bias or a mask is for queries without offsets, and is [sequences, heads, tokens, keys]
///                 where keys is the longest length. key_ranges and selected keys number the tokens of the
///                 sequence, and have one range or list for each token of q. log_sum_exp is [tokens of q,
///                 q.heads] in the order of q
/// \param threads  your threads, see base/parallel.hpp
///
/// Requires:  out shares no element with q unless it is the same view, and none with the pages
/// Throws:    std::invalid_argument if shapes disagree, a length exceeds the blocks, a sequence has more new
///            tokens than its length, offsets do not fit, an option is out of range, the options list
///            positions or counts or set dropout, or the pages hold raw keys; std::out_of_range if a block
///            that holds tokens names a page beyond the pool; out is then unchanged
/// Accuracy:  the bits of `attention` to the same keys and values in one view
///            (tests/cache/laws/pages.test.cpp)
/// Cost:      as attention for every sequence. Pages are read in place. Adjacent sequences with equal numbers
///            of queries share one kernel call and its threads. Allocates nothing after the first call of
///            this size on the thread
/// Source:    Kwon et al. 2023, PagedAttention, arXiv:2309.06180
template <class Layout = detail::unnamed_layout, class Q, class P, class T, class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  const auto rows = detail::attended_pages("attention", q, pages, pages.values(), out, options);
  detail::attend_to_rows<detail::unnamed_layout>(q, rows, rows, out, detail::without_table, options, threads);
}

/// Attention of unrotated queries. Copies of the queries are rotated by their positions, and so are raw keys
/// while they are read.
///
///     write_pages<Layout>(k, v, pages, table);  // the newest tokens of every sequence
///     attention<Layout>(q, pages, out, table);
///
/// Throws:  as above, except for raw keys; std::invalid_argument if the rotated channels exceed the head;
///          std::out_of_range if a position is outside the table; out is then unchanged
template <class Layout = detail::unnamed_layout, class Q, class P, class T, rotation_table Table,
          class Threads = this_thread>
void attention(head_view<Q> q, const page_view<P>& pages, head_view<T> out, const Table& table,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  const auto rows = detail::attended_pages("attention", q, pages, pages.values(), out, options);
  const auto rotation = detail::placed(table);
  detail::attend_to_rows<Layout>(q, rows, rows, out, &rotation, options, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_PAGE_CALLS_HPP
