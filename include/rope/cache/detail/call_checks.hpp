// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CALL_CHECKS_HPP
#define ROPE_CACHE_DETAIL_CALL_CHECKS_HPP

#include <cstddef>
#include <type_traits>

#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/policy.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>  // the checks of types
#include <rope/rotation/normed_table.hpp>
#include <rope/tables/table.hpp>

/// Checks of argument types in calls that store or rotate tokens. Each check reports an error in one
/// sentence.

namespace rope::inline ROPE_ABI::detail {

/// Instead of positions: new tokens are at the next positions, or at the coordinates of their table.
struct next_tokens {};

/// The types of argument that give the positions of tokens to append_rotated.
template <class P>
concept place_form =
    position_form<P> || std::is_same_v<P, token_coordinates> || std::is_same_v<P, next_tokens>;

/// Where the values of a cache are stored: in memory of their own, or in the first channels of the keys, as
/// latents. Heads may be normalised before rotation and may have coordinates. Latents may not.
enum class value_place { own, in_keys };

/// Whether `More` begin with a table for keys.
template <value_place place, class... More>
constexpr bool begins_with_table() {
  constexpr bool tables[] = {(place == value_place::own ? key_table<std::remove_cvref_t<More>>
                                                        : rotation_table<std::remove_cvref_t<More>>)...,
                             false};
  return tables[0];
}

/// Whether argument `place` of `More` exists and is not a `List`. The next argument is threads, which another
/// check reports.
template <class List, class... More>
constexpr bool lacks_list(std::size_t place) {
  constexpr bool lists[] = {std::is_convertible_v<More, List>..., false};
  return place < sizeof...(More) && !lists[place];
}

/// Whether the arguments of `append` after its two views are not a table, counts and threads, in this order.
template <value_place place, class K, class V, class... More>
constexpr bool misplaced_in_append() {
  return lacks_list<row_counts, More...>(begins_with_table<place, More...>() ? 1 : 0);
}

/// Whether the arguments of `append_at` after its two views are not a table, positions, counts and threads,
/// in this order.
template <value_place place, class K, class V, class... More>
constexpr bool misplaced_in_append_at() {
  constexpr bool positions[] = {position_form<std::remove_cvref_t<More>>..., false},
                 coordinates[] = {std::is_same_v<std::remove_cvref_t<More>, token_coordinates>..., false};
  const std::size_t first = begins_with_table<place, More...>() ? 1 : 0;
  const bool given = positions[first] || (place == value_place::own && first == 0 && coordinates[0]);
  return !given || lacks_list<row_counts, More...>(first + 1);
}

/// Whether `shift` rejects the arguments after its numbers. It takes a table and a row, in this order. The
/// table is required if there is a layout. The row is optional.
template <class Layout, class First, class Count, class Delta, class... More>
constexpr bool misplaced_in_shift() {
  const std::size_t place = begins_with_table<value_place::in_keys, More...>() ? 1 : 0;
  return (place == 0 && !std::is_same_v<Layout, unnamed_layout>) || sizeof...(More) > place + 1 ||
         lacks_list<batch_row, More...>(place);
}

/// Whether append_rotated rejects the arguments after its two views. It takes a table, positions (or
/// coordinates, or {}), counts and threads, in this order. All except the table are optional.
template <class K, class V, class... More>
constexpr bool misplaced_in_append_rotated() {
  constexpr bool places[] = {place_form<std::remove_cvref_t<More>>..., true, true};
  return !begins_with_table<value_place::in_keys, More...>() || !places[1] ||
         lacks_list<row_counts, More...>(2);
}

/// Whether `Arguments` are not `count` tables.
template <class... Arguments>
constexpr bool lacks_tables(std::size_t count) {
  return sizeof...(Arguments) != count || !(rotation_table<std::remove_cvref_t<Arguments>> && ...);
}

}  // namespace rope::inline ROPE_ABI::detail

/// An overload of `function` that reports calls with wrong arguments.
#define ROPE_DETAIL_REFUSE(function, qualifier, wrong, sentence)                                      \
  template <class Layout = detail::unnamed_layout, class... Arguments>                                \
  requires(wrong) void function(const Arguments&...) qualifier { static_assert(!(wrong), sentence); } \
  static_assert(true)

/// Overloads of `function` for calls that match no other: without a view, without the table of a layout, or
/// with misplaced arguments after the views.
#define ROPE_DETAIL_ASK_FOR_TOKENS(function, misplaced, sentence)                                          \
  ROPE_DETAIL_ASK_FOR_LAYOUT_TYPE(function, #function);                                                    \
  ROPE_DETAIL_ASK(function, #function, (detail::lacks_view<2, Arguments...>()),                            \
                  (!std::is_same_v<Layout, detail::unnamed_layout> && detail::lacks_table<Arguments...>)); \
  ROPE_DETAIL_REFUSE(                                                                                      \
      function, ,                                                                                          \
      (!detail::lacks_view<2, Arguments...>() &&                                                           \
       (std::is_same_v<Layout, detail::unnamed_layout> || !detail::lacks_table<Arguments...>)&&misplaced), \
      #function ": " sentence)

#endif  // ROPE_CACHE_DETAIL_CALL_CHECKS_HPP
