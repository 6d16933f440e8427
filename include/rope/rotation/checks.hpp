// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_CHECKS_HPP
#define ROPE_ROTATION_CHECKS_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/shared_memory.hpp>  // share_memory
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Checks of the arguments of a call: types, views, layout, rotated channels and positions. They all run
/// before anything is written.

namespace rope::inline ROPE_ABI::detail {

// Checks of the types of a call. All functions report an error with the same sentence.
//
// These are macros because the text of a static_assert must be a literal. `name`, the name of the function,
// is a literal too. Other arguments are types.

template <class X>
inline constexpr bool is_head_view = false;
template <class T>
inline constexpr bool is_head_view<head_view<T>> = true;

template <class X>
concept channel_pointer = std::is_pointer_v<X> && channel<std::remove_cv_t<std::remove_pointer_t<X>>>;

/// Channels in memory whose type does not name its axes: a pointer, a tensor, a matrix, a container.
template <class X>
concept memory_without_axes =
    !is_head_view<X> &&
    (channel_pointer<std::decay_t<X>> || requires(X & x) { requires channel_pointer<decltype(x.data())>; });

/// Whether an argument of a call is memory_without_axes. Bit i of `places` selects argument i.
template <unsigned places, class... Arguments>
constexpr bool has_memory_at() {
  unsigned place = 0;
  bool has = false;
  ((has |= (places >> place++) % 2 == 1 && memory_without_axes<std::remove_cvref_t<Arguments>>), ...);
  return has;
}

/// True if the first argument of a call is not a view, or another of the first `views` arguments is
/// memory_without_axes.
template <int views, class First, class... Others>
constexpr bool lacks_view() {
  return !is_head_view<std::remove_cvref_t<First>> || has_memory_at<(1U << views) - 1, First, Others...>();
}

/// The tables that functions accept: one table, a norm and a table, or a table each for queries and keys.
template <class X>
concept given_table = rotation_table<X> || requires(const X& x) {
  placed(x.table());
} || requires(const X& x) {
  placed(x.queries());
};

template <class... Arguments>
inline constexpr bool lacks_table = (!given_table<std::remove_cvref_t<Arguments>> && ...);

/// True unless the arguments of a call have a table, at most two views, and no view after the table.
template <class... Arguments>
constexpr bool misplaces_table() {
  int place = 0, last_view = -1, table = -1;
  ((last_view = is_head_view<std::remove_cvref_t<Arguments>> ? place : last_view,
    table = table < 0 && given_table<std::remove_cvref_t<Arguments>> ? place : table, ++place),
   ...);
  return last_view > table || last_view > 1;
}

}  // namespace rope::inline ROPE_ABI::detail

/// Throws at compile time unless Layout is given and is a layout.
#define ROPE_DETAIL_CHECK_LAYOUT(name, Layout)                                                     \
  static_assert(!std::is_same_v<Layout, detail::unnamed_layout>,                                   \
                name ": name the layout of the channel pairs, " name "<interleaved>(...) or " name \
                     "<half_split>(...)");                                                         \
  static_assert(pair_layout<Layout> || std::is_same_v<Layout, detail::unnamed_layout>, name        \
                ": a layout is interleaved, half_split or a type with static first and second "    \
                "(i, pairs)")

#define ROPE_DETAIL_CHECK_POSITIONS(name, Positions) \
  static_assert(                                     \
      position_form<Positions>, name                 \
      ": positions are integers: a start, a list of ids, row_starts or segments; threads come after them")

#define ROPE_DETAIL_CHECK_THREADS(name, Threads)                                         \
  static_assert(parallel_executor<Threads>, name                                         \
                ": threads are an Eigen::ThreadPoolDevice or a type with threads() and " \
                "parallel_for(count, body), both const; tables come before options")

/// Checks the types of every function that rotates pairs.
#define ROPE_DETAIL_CHECK_ROTATION(name, Layout, Positions, Threads) \
  ROPE_DETAIL_CHECK_LAYOUT(name, Layout);                            \
  ROPE_DETAIL_CHECK_POSITIONS(name, Positions);                      \
  ROPE_DETAIL_CHECK_THREADS(name, Threads)

/// Checks that `x` can be overwritten, and names the function that leaves it unchanged.
#define ROPE_DETAIL_CHECK_IN_PLACE(name, x, T) \
  static_assert(!std::is_const_v<T>, name ": " x " is read-only (or temporary); give " name "_to an out")

#define ROPE_DETAIL_CHECK_BOTH_IN_PLACE(name, Q, K)                                                   \
  static_assert(!std::is_const_v<Q> && !std::is_const_v<K>,                                           \
                name ": both views are rotated in place, and one is read-only; out of place is " name \
                     "_to<Layout>(x, out, table)")

#define ROPE_DETAIL_CHECK_WRITABLE(name, out, T) \
  static_assert(!std::is_const_v<T>, name ": " out " is read-only (or temporary)")

#define ROPE_DETAIL_CHECK_SAME_CHANNELS(name, names, A, B)                      \
  static_assert(std::is_same_v<std::remove_const_t<A>, std::remove_const_t<B>>, \
                name ": " names " have the same channel type")

#define ROPE_DETAIL_CHECK_ROUNDED(name, X, T)                                             \
  static_assert(channel<std::remove_const_t<T>> &&                                        \
                    detail::is_or_widens<std::remove_const_t<X>, std::remove_const_t<T>>, \
                name ": x and out have the same channel type, or x is float and out half or bfloat16")

#define ROPE_DETAIL_VIEW_SENTENCE(name)                                                                    \
  name ": x must be a head_view; name the order of its axes: bshd(x), bhsd(x), sbhd(x) or thd(x) of a "    \
       "row-major tensor, dhsb(x), dshb(x), dhbs(x) or dht(x) of a column-major one with channels first, " \
       "staged<\"bshd\">(x) of any other, thd(m, heads) or dht(m, heads) of a matrix, and "                \
       "bshd(data, batch, tokens, heads, head_dim) of a pointer to row-major memory"
#define ROPE_DETAIL_TABLE_SENTENCE(name) \
  name ": a table is a frequency_table, or one placed by at_channel, after the views; v is not rotated"

/// An overload of `function` for calls that no other overload accepts. Its message tells the user how to
/// replace a missing view or, if all views are present, a missing table. The conditions no_view and no_table
/// may use `Layout` and `Arguments`.
#define ROPE_DETAIL_ASK(function, name, no_view, no_table)                     \
  template <class Layout = detail::unnamed_layout, class... Arguments>         \
  requires((no_view) || (no_table)) void function(Arguments&&...) {            \
    static_assert(!(no_view), ROPE_DETAIL_VIEW_SENTENCE(name));                \
    static_assert((no_view) || !(no_table), ROPE_DETAIL_TABLE_SENTENCE(name)); \
  }                                                                            \
  static_assert(true)

/// Checks that the first `views` arguments are views. Later ones may be lists of positions.
#define ROPE_DETAIL_ASK_FOR_VIEWS(function, views) \
  ROPE_DETAIL_ASK(function, #function, (detail::lacks_view<views, Arguments...>()), false)

/// Checks that the arguments whose bits are set in `places` are views. Other arguments may come first or
/// between them.
#define ROPE_DETAIL_ASK_FOR_VIEWS_AT(function, places) \
  ROPE_DETAIL_ASK(function, #function, (detail::has_memory_at<places, Arguments...>()), false)

/// An overload of `function` for calls with a layout that is a value, such as an enumerator.
#define ROPE_DETAIL_ASK_FOR_LAYOUT_TYPE(function, name)                                            \
  template <auto layout, class... Arguments>                                                       \
  void function(Arguments&&...) {                                                                  \
    static_assert(std::is_void_v<decltype(layout)>,                                                \
                  name ": a layout is a type, " #function "<half_split>(...) or " #function        \
                       "<interleaved>(...); for one that is known at run time, write both calls"); \
  }                                                                                                \
  static_assert(true)

/// Checks that the first `views` arguments are views, and a later one is a table.
#define ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(function, views)                        \
  ROPE_DETAIL_ASK_FOR_LAYOUT_TYPE(function, #function);                             \
  ROPE_DETAIL_ASK(function, #function, (detail::lacks_view<views, Arguments...>()), \
                  (detail::misplaces_table<Arguments...>()))

namespace rope::inline ROPE_ABI::detail {

/// Throws std::invalid_argument if an extent is negative or scales have another shape, and std::length_error
/// if the view exceeds the address space.
template <class T>
void check_extents(const char* function, const head_view<T>& x) {
  check_extents<T>(function, x.batch, x.tokens, x.heads, x.head_dim, "the extents of a view");
  if constexpr (is_quantized<std::remove_const_t<T>>)
    if (x.scales.batch != x.batch || x.scales.tokens != x.tokens || x.scales.heads != x.heads ||
        x.scales.head_dim != 1)
      throw_invalid(function, "scales must be [", x.batch, ", ", x.tokens, ", ", x.heads, ", 1], got ",
                    shape_text(x.scales));
}
/// check_extents, for functions that do not take int8 heads.
template <class T>
void check_view(const char* function, const head_view<T>& x) {
  static_assert(channel<std::remove_const_t<T>>,
                "head_view: channels are float, double, half or bfloat16 here; dequantize int8 heads first");
  check_extents(function, x);
}

/// Throws std::invalid_argument if a view with elements has a null pointer.
template <class... T>
void check_memory(const char* function, const head_view<T>&... views) {
  const auto check_one = [function](const auto& x) {
    if (x.batch == 0 || x.tokens == 0 || x.heads == 0) return;
    if constexpr (is_quantized<typename std::remove_cvref_t<decltype(x)>::value_type>) {
      if (x.scales.data == nullptr || (x.data == nullptr && x.head_dim != 0))
        throw_invalid(function, "a quantized view must have data and scales, got null for ", shape_text(x));
    } else if (x.data == nullptr && x.head_dim != 0) {
      throw_invalid(function, "a view must have data, got null for ", shape_text(x));
    }
  };
  (check_one(views), ...);
}

/// check_view and check_memory. This function and check_rotation are declared inline: if g++ calls them, it
/// stores every field of the view first, which takes as long as rotating a head.
template <class T>
inline void check_heads(const char* function, const head_view<T>& x) {
  check_view(function, x);
  check_memory(function, x);
}

/// Whether two views have the same extents.
template <class X, class T>
bool have_same_shape(const head_view<X>& x, const head_view<T>& y) {
  return x.batch == y.batch && x.tokens == y.tokens && x.heads == y.heads && x.head_dim == y.head_dim;
}

/// Throws std::invalid_argument unless a view has the shape of `x`.
///
/// \param name  the name of the view in messages
template <class X, class T>
void check_same_shape(const char* function, const head_view<X>& x, const head_view<T>& view,
                      const char* name = "out") {
  if (!have_same_shape(x, view))
    throw_invalid(function, name, " must have the shape of x, ", shape_text(x), ", got ", shape_text(view));
}

/// Throws std::invalid_argument if an axis of an output view with more than one entry has a stride below
/// head_dim in magnitude, as in an expanded tensor. Other overlaps are not detected.
template <class T>
void check_written(const char* function, const head_view<T>& x) {
  if constexpr (is_quantized<std::remove_const_t<T>>) check_written(function, x.scales);
  if (x.size() == 0) return;
  const auto check_axis = [&](Index extent, Index stride) {
    if (extent > 1 && stride < x.head_dim && stride > -x.head_dim)
      throw_invalid(function, "the channels of a view that is written must not overlap, got a stride of ",
                    stride, " between heads of ", x.head_dim,
                    " channels; copy an expanded (broadcast) tensor first");
  };
  check_axis(x.batch, x.batch_stride);
  check_axis(x.tokens, x.token_stride);
  check_axis(x.heads, x.head_stride);
}

/// Replaces positions in a call of check_rotation if the smallest and largest position are known.
struct known_range {
  position_range known;
  position_range range(const char* /*function*/, Index /*batch*/, Index /*tokens*/) const { return known; }
};

/// The start of positions that are given as one start.
template <class Source>
std::optional<std::int64_t> start_of(const Source& positions) {
  if constexpr (requires { positions.start; }) return positions.start;
  if constexpr (std::is_same_v<Source, braced_positions>)
    if (positions.ids.data == nullptr) return 0;
  return {};
}

/// Rejects position ids from which the table was made. Row r of such a table is already that of token r. The
/// caller must leave the ids out: they would select row ids[r] instead.
///
/// Throws:  std::invalid_argument if a token would get another coordinate than its id
template <class S, class Source>
void check_ids(const char* function, Index tokens, const frequency_table<S>& table, const Source& positions) {
  if constexpr (requires { positions.ids; }) {
    if (table.source() != table_source::coordinates || table.axes() != 1 ||
        table.rows() != positions.ids.size())
      return;
    Index same = 0, harmless = 0;
    for (Index r = 0; r < table.rows() && same == r; ++r) {
      const std::int64_t id = positions(r / tokens, r % tokens);
      same += equal(static_cast<double>(id), table.coordinate(r, 0));
      harmless += table.contains(id) && equal(table.coordinate(Index(id), 0), table.coordinate(r, 0));
    }
    if (same == table.rows() && harmless < same)
      throw_invalid(function,
                    "the table was made of these ids, its row r of id number r; leave the ids out, or take a "
                    "table of positions, got id ",
                    positions(0, 0), " for row 0");
  }
}

/// Rejects a call without positions whose table has coordinates for every token of a batch of several rows:
/// every row of the batch would be rotated by the coordinates of the first one.
template <class S>
void check_rows_of_batch(const char* function, Index batch, Index tokens, const frequency_table<S>& table,
                         const char* advice) {
  if (batch > 1 && tokens > 0 && table.source() == table_source::coordinates &&
      table.rows() == batch * tokens)
    throw_invalid(function, "the table has coordinates for ", batch, " rows of ", tokens,
                  " tokens, and without positions every row would get those of the first; ", advice);
}

/// Throws std::out_of_range if positions are not all in the table's [first, last). The message says how to
/// make a table that includes them.
///
/// \param start  the start of the positions of `tokens` tokens, if it is given
[[noreturn]] EIGEN_DONT_INLINE inline void throw_outside(const char* function, const position_range& range,
                                                         std::int64_t first, std::int64_t last,
                                                         table_source source,
                                                         std::optional<std::int64_t> start, Index tokens) {
  const std::int64_t position =
                         range.smallest >= first && range.smallest < last ? range.largest : range.smallest,
                     from = (std::min)(first, position), to = (std::max)(last, advance(position, 1));
  std::string given, advice = ", one for each token, and row r is position r";
  if (start && tokens != 1)
    append(given, {", got positions ", *start, " to ", advance(*start, tokens - 1), " (start ", *start, ", ",
                   tokens, " tokens)"});
  if (source == table_source::entries) {
    advice = "; give it a row for this position";
  } else if (source != table_source::coordinates) {
    const bool in_float = source == table_source::float_angles;
    advice = first > 0 && position < first ? ", start at its first position (append_at) or" : ",";
    append(advice, {" make it with frequency_table",
                    in_float ? "<>::with_float_angles(frequencies, " : "(frequencies, "});
    if (from != 0 || in_float) append(advice, {from, ", "});
    append(advice, {to, ")"});
  }
  throw_out_of_range(function, "position ", position, " is outside the table's [", first, ", ", last, ")",
                     given, "; the table has ", last - first, " rows", advice);
}

/// Checks a rotation of [batch, tokens, heads, head_dim]: channels, positions and layout, but not memory.
///
/// Throws:  std::invalid_argument; std::out_of_range if a position is outside the table
template <class Layout, class S, class Source>
void check_rotation(const char* function, Index batch, Index tokens, Index head_dim,
                    const placed_table<S>& placed, const Source& positions) {
  const frequency_table<S>& table = placed.table();
  const Index first_channel = placed.first_channel(), rotary_dim = table.rotary_dim();
  if (rotary_dim > head_dim)
    throw_invalid(function, "rotary_dim must not exceed head_dim, got ", rotary_dim, " of ", head_dim);
  if (first_channel > head_dim - rotary_dim)
    throw_invalid(function, "the rotated channels must lie in the head of ", head_dim, " channels, got ",
                  rotary_dim, " channels from channel ", first_channel, " on");
  const position_range range = positions.range(function, batch, tokens);
  if constexpr (std::is_same_v<Source, braced_positions>)
    if (positions.ids.data == nullptr)
      check_rows_of_batch(function, batch, tokens, table, "give id b * tokens + t for token t of row b");
  check_ids(function, tokens, table, positions);
  if (!range.empty() && !(table.contains(range.smallest) && table.contains(range.largest)))
    throw_outside(function, range, table.first(), table.last(), table.source(), start_of(positions), tokens);
  check_layout<Layout>(function, table.pairs());
}

/// Checks the view as well, before anything is written.
template <class Layout, class T, class S, class Source>
inline void check_rotation(const char* function, const head_view<T>& x, const placed_table<S>& table,
                           const Source& positions) {
  check_heads(function, x);
  check_rotation<Layout>(function, x.batch, x.tokens, x.head_dim, table, positions);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_CHECKS_HPP
