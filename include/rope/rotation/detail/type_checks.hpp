// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP
#define ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP

#include <type_traits>

#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>

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

/// Memory that does not tell the order of its axes: a pointer, a tensor, a matrix, a container.
template <class X>
concept memory_without_axes =
    !is_head_view<X> && (std::is_pointer_v<X> || std::is_array_v<X> ||
                         requires(X & x) { std::is_pointer_v<decltype(x.data())>; });

/// Whether the first argument of a call is no view, or another of the first `views` is memory.
template <int views, class First, class... Others>
constexpr bool lacks_view() {
  int place = 1;
  bool lacks = !is_head_view<std::remove_cvref_t<First>>;
  ((lacks |= place++ < views && memory_without_axes<std::remove_cvref_t<Others>>), ...);
  return lacks;
}

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

/// An overload of `function` for calls whose first `views` arguments are not all views: it says what to
/// write. Further arguments may be lists of positions, which have no axes either.
#define ROPE_DETAIL_ASK_FOR_VIEWS(function, views)                                             \
  template <class Layout = detail::unnamed_layout, class... Arguments>                         \
  requires(detail::lacks_view<views, Arguments...>()) void function(Arguments&&...) {          \
    static_assert(!detail::lacks_view<views, Arguments...>(), #function                        \
                  ": x is a head_view; name the order of its axes: bshd(x), bhsd(x), sbhd(x) " \
                  "or thd(x)");                                                                \
  }                                                                                            \
  static_assert(true)

#endif  // ROPE_ROTATION_DETAIL_TYPE_CHECKS_HPP
