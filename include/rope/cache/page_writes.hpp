// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_PAGE_WRITES_HPP
#define ROPE_CACHE_PAGE_WRITES_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/detail/call_checks.hpp>
#include <rope/cache/detail/key_rotation.hpp>
#include <rope/cache/detail/ragged_queries.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>  // the checks of types
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// Writes new keys and values to pages.

namespace rope::inline ROPE_ABI {
namespace detail {

/// All argument checks for new tokens of pages, before the first token is written.
template <class K, class V, class T>
void check_page_writes(const char* function, const head_view<K>& k, const head_view<V>& v,
                       const page_view<T>& pages, const newest_in_pages<T>& newest) {
  static_assert(!std::is_const_v<T>, "write_pages: pages are read-only");
  ROPE_DETAIL_CHECK_STORED("write_pages", K, V, T);
  check_view(function, k);
  check_view(function, v);
  check_memory(function, k, v);
  const auto check_shape = [&](const char* name, const auto& x, const stored_view<T>& like) {
    if (x.batch != k.batch || x.tokens != k.tokens || x.heads != like.heads || x.head_dim != like.head_dim)
      throw_invalid(function, name, " must be ", shape_text({k.batch, k.tokens, like.heads, like.head_dim}),
                    ", got ", shape_text(x));
  };
  check_shape("k", k, pages.keys());
  check_shape("v", v, pages.values());
  pages.check_blocks(function);
  newest.check_counts(function, k.batch);
  check_pages_are_own(
      function, pages, [&](Index s) { return newest.start(s); }, [&](Index s) { return newest.count(s); });
}

/// Calls write(sequence, first, count, page, slot) for runs of new tokens, each within one page: tokens
/// [first, first + count) of the new tokens of a sequence.
template <class T, class Threads, class Write>
void for_each_page_run(const page_view<T>& pages, const newest_in_pages<T>& newest, const Threads& threads,
                       const Write& write) {
  Index tokens = 0;
  for (Index s = 0; s < newest.sequences(); ++s) tokens += newest.count(s);
  const double bytes =
      cost_of(tokens, pages.keys().heads, pages.keys().head_dim + pages.values().head_dim, sizeof(T));
  parallel_pieces(threads, tokens, bytes, [&](Index begin, Index end) {
    Index before = 0;  // new tokens of all earlier sequences
    for (Index s = 0; s < newest.sequences() && before < end; before += newest.count(s++)) {
      const Index last = (std::min)(end - before, newest.count(s));
      for (Index first = (std::max)(begin - before, Index{0}), count; first < last; first += count) {
        const Index t = newest.start(s) + first, slot = pages.slot(t);
        count = (std::min)(last - first, pages.page_size() - slot);
        write(s, first, count, pages.page(s, t), slot);
      }
    }
  });
}

template <class X>
inline constexpr bool is_page_view = false;
template <class T>
inline constexpr bool is_page_view<page_view<T>> = true;

/// Whether the arguments after the two views are not pages, a table for keys, offsets and threads, in this
/// order.
template <class K, class V, class Pages, class... More>
constexpr bool misplaced_in_write_pages() {
  const std::size_t place = begins_with_table<stored_as::heads, More...>() ? 1 : 0;
  return !is_page_view<std::remove_cvref_t<Pages>> ||
         lacks_list<std::span<const std::int64_t>, More...>(place);
}

}  // namespace detail

/// Copies the newest keys and values of every sequence to their pages.
///
/// \param k        [1, tokens, kv_heads, head_dim] with query_offsets, [sequences + 1], as in attention to
///                 pages; or [sequences, tokens, ...] without. Already rotated if the model rotates keys,
///                 unless the pages hold raw keys
/// \param v        [..., kv_heads, value_dim]
/// \param pages    lengths include the new tokens, which go to positions length - n to length - 1
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  k and v share no element with the pages
/// Throws:    std::invalid_argument if shapes disagree, a length exceeds the blocks, a sequence has more new
///            tokens than its length, offsets do not fit, or a page to be written is listed twice in the
///            blocks (a shared prefix is read-only); std::out_of_range if a block that holds tokens names a
///            page beyond the pool; the pages are then unchanged
/// Cost:      one copy of the new keys and values, and one check of every block that holds tokens
template <int no_layout = 0, class K, class V, class T,  // so that write_pages<Layout> is never this function
          class Threads = this_thread>
void write_pages(head_view<K> k, head_view<V> v, const page_view<T>& pages,
                 std::span<const std::int64_t> query_offsets = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("write_pages", Threads);
  const detail::newest_in_pages<T> newest(pages, k.tokens, query_offsets);
  detail::check_page_writes("write_pages", k, v, pages, newest);
  detail::for_each_page_run(
      pages, newest, threads, [&](Index s, Index first, Index count, Index page, Index slot) {
        const auto to = [&](const detail::stored_view<T>& pool) {
          return pool.batch_range(page, 1).token_range(slot, count);
        };
        detail::copy_channels(newest.rows(k, s, 1).token_range(first, count), to(pages.keys()));
        detail::copy_channels(newest.rows(v, s, 1).token_range(first, count), to(pages.values()));
      });
}

/// Rotates copies of new keys by their positions, and writes keys and values to their pages, with the bits of
/// kv_cache::append.
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
                 std::span<const std::int64_t> query_offsets = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("write_pages", Threads);
  ROPE_DETAIL_CHECK_LAYOUT("write_pages", Layout);
  const auto transform = detail::key_transform_of(table);
  const detail::newest_in_pages<T> newest(pages, k.tokens, query_offsets);
  detail::check_page_writes("write_pages", k, v, pages, newest);
  if (pages.storage() == key_storage::raw) detail::refuse_raw_keys("write_pages");
  detail::check_rotation<Layout>("write_pages", k, transform.table, detail::known_range{newest.range()});
  const auto norm = detail::checked_norm("write_pages", transform.norm, k);
  detail::for_each_page_run(
      pages, newest, threads, [&](Index s, Index first, Index count, Index page, Index slot) {
        const auto to = [&](const detail::stored_view<T>& pool) {
          return pool.batch_range(page, 1).token_range(slot, count);
        };
        detail::rotate_channels<Layout>(newest.rows(k, s, 1).token_range(first, count), to(pages.keys()),
                                        transform.table,
                                        detail::contiguous_positions{newest.start(s) + first}, norm);
        detail::copy_channels(newest.rows(v, s, 1).token_range(first, count), to(pages.values()));
      });
}

ROPE_DETAIL_ASK_FOR_TOKENS(write_pages, "write_pages", (detail::misplaced_in_write_pages<Arguments...>()),
                           "behind k and v come the pages (a page_view), then the table where keys rotate, "
                           "then query_offsets (std::int64_t, [sequences + 1], or {}), then the threads");

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_PAGE_WRITES_HPP
