// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP
#define ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP

#include <type_traits>

#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// What can be wrong with the types of a call, each in one sentence that is the same for every function.
///
/// Macros, because the text of a static_assert is a literal. `name` is the name of the function, a literal
/// too; other arguments are types.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class X>
inline constexpr bool is_head_view = false;
template <class T>
inline constexpr bool is_head_view<head_view<T>> = true;

template <class X>
concept channel_pointer = std::is_pointer_v<X> && channel<std::remove_cv_t<std::remove_pointer_t<X>>>;

/// Channels in memory that does not tell the order of its axes: a pointer, a tensor, a matrix, a container.
template <class X>
concept memory_without_axes =
    !is_head_view<X> &&
    (channel_pointer<std::decay_t<X>> || requires(X & x) { requires channel_pointer<decltype(x.data())>; });

/// Whether an argument of a call is such memory; bit i of `places` stands for argument i.
template <unsigned places, class... Arguments>
constexpr bool has_memory_at() {
  unsigned place = 0;
  bool has = false;
  ((has |= (places >> place++) % 2 == 1 && memory_without_axes<std::remove_cvref_t<Arguments>>), ...);
  return has;
}

/// Whether the first argument of a call is no view, or another of the first `views` is memory.
template <int views, class First, class... Others>
constexpr bool lacks_view() {
  return !is_head_view<std::remove_cvref_t<First>> || has_memory_at<(1U << views) - 1, First, Others...>();
}

/// What any function takes for a table: one, or one behind a norm, or one for queries and one for keys.
template <class X>
concept table_behind_norm = requires(const X& x) {
  placed(x.table());
};
template <class X>
concept tables_of_both = requires(const X& x) {
  placed(x.queries());
};
template <class X>
concept given_table = rotation_table<X> || table_behind_norm<X> || tables_of_both<X>;

template <class... Arguments>
inline constexpr bool lacks_table = (!given_table<std::remove_cvref_t<Arguments>> && ...);

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

/// A layout that turns pairs is named, and is one.
#define ROPE_DETAIL_CHECK_LAYOUT(name, Layout)                                                     \
  static_assert(!std::is_same_v<Layout, detail::unnamed_layout>,                                   \
                name ": name the layout of the channel pairs, " name "<interleaved>(...) or " name \
                     "<half_split>(...)");                                                         \
  static_assert(pair_layout<Layout> || std::is_same_v<Layout, detail::unnamed_layout>, name        \
                ": a layout is interleaved, half_split or a type with static first and second "    \
                "(i, pairs)")

/// Without a table nothing turns, so a layout that is named means a table that was forgotten.
#define ROPE_DETAIL_CHECK_NO_LAYOUT(name, Layout)               \
  static_assert(std::is_same_v<Layout, detail::unnamed_layout>, \
                name ": a layout rotates by a table; give one, or leave the layout out")

#define ROPE_DETAIL_CHECK_POSITIONS(name, Positions) \
  static_assert(position_form<Positions>,            \
                name ": positions are integers: a start, a list of ids, row_starts or segments")

#define ROPE_DETAIL_CHECK_THREADS(name, Threads)                                         \
  static_assert(parallel_executor<Threads>, name                                         \
                ": threads are an Eigen::ThreadPoolDevice or a type with threads() and " \
                "parallel_for(count, body), both const")

/// What every function that turns pairs takes.
#define ROPE_DETAIL_CHECK_ROTATION(name, Layout, Positions, Threads) \
  ROPE_DETAIL_CHECK_LAYOUT(name, Layout);                            \
  ROPE_DETAIL_CHECK_POSITIONS(name, Positions);                      \
  ROPE_DETAIL_CHECK_THREADS(name, Threads)

/// A head `x` that is overwritten, beside the function that leaves it as it is.
#define ROPE_DETAIL_CHECK_IN_PLACE(name, x, T) \
  static_assert(!std::is_const_v<T>,           \
                name ": " x " is read-only; " name "_to<Layout>(" x ", out, table) leaves it as it is")

#define ROPE_DETAIL_CHECK_BOTH_IN_PLACE(name, Q, K)                                            \
  static_assert(!std::is_const_v<Q> && !std::is_const_v<K>,                                    \
                name ": both views turn in place, and one is read-only; out of place is " name \
                     "_to<Layout>(x, out, table)");                                            \
  static_assert(std::is_same_v<std::remove_const_t<Q>, std::remove_const_t<K>>,                \
                name ": both views have the same channel type")

#define ROPE_DETAIL_CHECK_WRITABLE(name, out, T) \
  static_assert(!std::is_const_v<T>, name ": " out " is read-only")

#define ROPE_DETAIL_CHECK_SAME_CHANNELS(name, names, A, B)                      \
  static_assert(std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>, \
                name ": " names " have the same channel type")

#define ROPE_DETAIL_VIEW_SENTENCE(name) \
  name ": x is a head_view; name the order of its axes: bshd(x), bhsd(x), sbhd(x) or thd(x)"
#define ROPE_DETAIL_TABLE_SENTENCE(name) \
  name ": a table is a frequency_table, or one that is placed in the head by at_channel"

/// An overload of `function` for calls that no other takes: it says what to write where a view is missing or,
/// if it is none of views, a table. Both conditions are about `Layout` and `Arguments`.
#define ROPE_DETAIL_ASK(function, name, no_view, no_table)                     \
  template <class Layout = detail::unnamed_layout, class... Arguments>         \
  requires((no_view) || (no_table)) void function(Arguments&&...) {            \
    static_assert(!(no_view), ROPE_DETAIL_VIEW_SENTENCE(name));                \
    static_assert((no_view) || !(no_table), ROPE_DETAIL_TABLE_SENTENCE(name)); \
  }                                                                            \
  static_assert(true)

/// The first `views` arguments are views. Further ones may be lists of positions, which have no axes either.
#define ROPE_DETAIL_ASK_FOR_VIEWS(function, views) \
  ROPE_DETAIL_ASK(function, #function, (detail::lacks_view<views, Arguments...>()), false)

/// The arguments of bits `places` are views, where others that come first or between them are none.
#define ROPE_DETAIL_ASK_FOR_VIEWS_AT(function, places) \
  ROPE_DETAIL_ASK(function, #function, (detail::has_memory_at<places, Arguments...>()), false)

/// The first `views` arguments are views, and one behind them is a table.
#define ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(function, views)                        \
  ROPE_DETAIL_ASK(function, #function, (detail::lacks_view<views, Arguments...>()), \
                  detail::lacks_table<Arguments...>)

/// The same where a table is needed with a layout alone, of functions that are named otherwise to callers.
#define ROPE_DETAIL_ASK_FOR_TABLE_OF_LAYOUT(function, name, views)             \
  ROPE_DETAIL_ASK(function, name, (detail::lacks_view<views, Arguments...>()), \
                  (!std::is_same_v<Layout, detail::unnamed_layout> && detail::lacks_table<Arguments...>))

#endif  // ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP
