// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_SHIFT_KEYS_HPP
#define ROPE_CACHE_SHIFT_KEYS_HPP

#include <algorithm>  // std::min, std::sort
#include <cstdint>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/key_rotator.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>  // the checks of types
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Context shift and change of schedule for rotated keys in your memory, with the bits of kv_cache::shift and
/// kv_cache::rebase.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Throws:  std::invalid_argument unless the rotated channels lie in the head; as check_written
template <class Layout, class T, class S>
void check_rotated_keys(const char* function, const head_view<T>& keys, const placed_table<S>& table) {
  static_assert(!std::is_const_v<T>, "shift_keys and rebase_keys: the keys are read-only");
  check_rotation<Layout>(function, keys.batch, keys.tokens, keys.head_dim, table, known_range{});
  check_written(function, keys);
}

/// Throws:  as check_rotated_keys and page_view::check_blocks; std::invalid_argument if the keys are raw
template <class Layout, class T, class S>
void check_rotated_pages(const char* function, const page_view<T>& pages, const placed_table<S>& table) {
  check_rotated_keys<Layout>(function, pages.keys(), table);
  if (pages.storage() == key_storage::raw)
    throw_invalid(function, "raw keys are stored unrotated; leave them, and pass the table to attention");
  pages.check_blocks(function);
}

/// A page with keys: its block number in a sequence, and the number of its keys.
struct used_page {
  Index page, block, tokens;
};

/// Calls visit(page, block, tokens) once for every page with keys.
///
/// Throws:  std::invalid_argument if a page has different block numbers in two sequences, so that its keys
///          would have two positions. This is checked before the first visit
template <class T, class Visit>
void for_each_used_page(const char* function, const page_view<T>& pages, const Visit& visit) {
  const Index size = pages.page_size();
  Index count = 0;
  for (Index s = 0; s < pages.sequences(); ++s) count += pages.used_blocks(s);
  used_page* used = workspace<struct used_pages, used_page>(count);
  count = 0;
  for (Index s = 0; s < pages.sequences(); ++s)
    for (Index block = 0; block < pages.used_blocks(s); ++block)
      used[count++] = {pages.blocks().page(s, block), block,
                       (std::min)(size, pages.length(s) - block * size)};
  std::sort(used, used + count, [](const used_page& a, const used_page& b) {
    return a.page != b.page ? a.page < b.page : a.tokens > b.tokens;
  });
  for (Index i = 1; i < count; ++i)
    if (used[i].page == used[i - 1].page && used[i].block != used[i - 1].block)
      throw_invalid(function, "page ", used[i].page, " is block ", used[i - 1].block, " and block ",
                    used[i].block, ", so its keys would need two positions; give one sequence a copy");
  for (Index i = 0; i < count; ++i)
    if (i == 0 || used[i].page != used[i - 1].page) visit(used[i].page, used[i].block, used[i].tokens);
}

}  // namespace detail

/// Adds `delta` to the positions of rotated keys. Rotates the keys in place by the exact angle of `delta`.
///
///     k' = R(delta) k,  without the attention_factor, which k has already
///
///     shift_keys<Layout>(keys.token_range(keep, count), -dropped, table);
///
/// \param keys   [batch, tokens, heads, head_dim]. The keys of all tokens are rotated
/// \param table  the table that rotated the keys. It needs no rows for their positions
///
/// Throws:    std::invalid_argument if the rotated channels exceed the head, the channels of the keys overlap
///            each other, or the angles of the table are not exact (source() is not
///            table_source::positions); the keys are then unchanged
/// Accuracy:  the error of one more rotation
/// Cost:      one pass over the keys
/// Source:    K-shift of llama.cpp, which multiplies by the attention_factor once more
template <class Layout = detail::unnamed_layout, class T, rotation_table Table>
void shift_keys(head_view<T> keys, std::int64_t delta, const Table& table) {
  ROPE_DETAIL_CHECK_LAYOUT("shift_keys", Layout);
  const auto rotation = detail::placed(table);
  detail::check_heads("shift_keys", keys);
  detail::check_rotated_keys<Layout>("shift_keys", keys, rotation);
  auto rotator = detail::shift_rotator<Layout, T>("shift_keys", rotation);
  if (delta == 0) return;
  for (Index b = 0; b < keys.batch; ++b)
    for (Index t = 0; t < keys.tokens; ++t) rotator.rotate(keys, b, t, delta);
}

/// A range of tokens of a sequence in pages.
///
///     shift_keys<Layout>(pages, {.sequence = 2, .first = 64, .count = 100}, -16, table);
struct tokens_in_pages {
  Index sequence;  // in [0, sequences())
  Index first;     // the index of the first token, which is also its position
  Index count;     // tokens
};

/// Adds `delta` to the positions of tokens of a sequence in pages, for example after earlier blocks were
/// removed from the list.
///
/// Throws:  as above; std::out_of_range if there is no such sequence or token, or a block names a page beyond
///          the pool; std::invalid_argument if the pages hold raw keys, or a page to be rotated is listed
///          twice; the keys are then unchanged
template <class Layout = detail::unnamed_layout, class T, rotation_table Table>
void shift_keys(const page_view<T>& pages, const tokens_in_pages& tokens, std::int64_t delta,
                const Table& table) {
  ROPE_DETAIL_CHECK_LAYOUT("shift_keys", Layout);
  const auto rotation = detail::placed(table);
  const auto keys = pages.keys();
  detail::check_rotated_pages<Layout>("shift_keys", pages, rotation);
  const auto [sequence, first, count] = tokens;
  if (sequence < 0 || sequence >= pages.sequences())
    detail::throw_out_of_range("shift_keys", "sequence must be in [0, ", pages.sequences(), "), got ",
                               sequence);
  const Index length = pages.length(sequence);
  if (first < 0 || count < 0 || first > length || count > length - first)
    detail::throw_out_of_range("shift_keys", "tokens must be in [0, ", length, "), got ", count,
                               " from token ", first, " on");
  detail::check_pages_are_own(
      "shift_keys", pages, [&](Index) { return tokens.first; },
      [&](Index s) { return s == tokens.sequence ? tokens.count : Index{0}; });
  auto rotator = detail::shift_rotator<Layout, detail::numbers_of<T>>("shift_keys", rotation);
  if (delta == 0) return;
  for (Index t = first; t < first + count; ++t)
    detail::rotate_stored(rotator, keys, pages.page(sequence, t), pages.slot(t), delta);
}

/// Rotates keys from the angles of one table to those of another, in place, by the exact difference of the
/// two angles at each position.
///
///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
///
/// \param keys       [batch, tokens, heads, head_dim]
/// \param positions  of the keys, as in `rotate`
///
/// Throws:    std::invalid_argument if the rotated channels exceed the head, the channels of the keys overlap
///            each other, the tables differ in pairs or first channel, or one of them has no range of
///            positions or no exact angles; the keys are then unchanged
/// Accuracy:  the error of one more rotation
/// Cost:      one pass over the keys, and a row of cos and sin per position
template <class Layout = detail::unnamed_layout, class T, position_form P, rotation_table From,
          rotation_table To>
void rebase_keys(head_view<T> keys, const P& positions, const From& from, const To& to) {
  ROPE_DETAIL_CHECK_LAYOUT("rebase_keys", Layout);
  const auto source = detail::position_source(positions, keys.tokens);
  detail::check_heads("rebase_keys", keys);
  detail::check_rotated_keys<Layout>("rebase_keys", keys, detail::placed(from));
  source.range("rebase_keys", keys.batch, keys.tokens);
  auto rotator = detail::rebase_rotator<Layout, T>("rebase_keys", detail::placed(from), detail::placed(to));
  for (Index t = 0; t < keys.tokens; ++t)
    for (Index b = 0; b < keys.batch; ++b) rotator.rotate(keys, b, t, source(b, t));
}

/// Rebases all keys in pages. Keys of a shared page are rotated once.
///
/// Throws:  as above; std::out_of_range if a block names a page beyond the pool; std::invalid_argument if the
///          pages hold raw keys, or a page has different block numbers in two sequences, so that its keys
///          would have two positions; the keys are then unchanged
template <class Layout = detail::unnamed_layout, class T, rotation_table From, rotation_table To>
void rebase_keys(const page_view<T>& pages, const From& from, const To& to) {
  ROPE_DETAIL_CHECK_LAYOUT("rebase_keys", Layout);
  const auto keys = pages.keys();
  detail::check_rotated_pages<Layout>("rebase_keys", pages, detail::placed(from));
  auto rotator = detail::rebase_rotator<Layout, detail::numbers_of<T>>("rebase_keys", detail::placed(from),
                                                                       detail::placed(to));
  detail::for_each_used_page("rebase_keys", pages, [&](Index page, Index block, Index tokens) {
    for (Index t = 0; t < tokens; ++t)
      detail::rotate_stored(rotator, keys, page, t, block * pages.page_size() + t);
  });
}

ROPE_DETAIL_ASK(shift_keys, "shift_keys", (detail::has_memory_at<0b1, Arguments...>()),
                detail::lacks_table<Arguments...>);
ROPE_DETAIL_ASK(rebase_keys, "rebase_keys", (detail::has_memory_at<0b1, Arguments...>()),
                detail::lacks_table<Arguments...>);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_SHIFT_KEYS_HPP
