// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATE_HPP
#define ROPE_ROTATE_HPP

#include <algorithm>  // std::copy, std::min, std::max
#include <cstdint>
#include <functional>  // std::less
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/rotate_kernel.hpp>
#include <rope/layout.hpp>
#include <rope/positions.hpp>
#include <rope/table.hpp>
#include <rope/view.hpp>

/// Turns the channel pairs of heads by the angles of their positions, and back.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class X>
inline constexpr bool is_head_view = false;
template <class T>
inline constexpr bool is_head_view<head_view<T>> = true;

template <class T>
void check_view(const char* function, const head_view<T>& x) {
  if (x.batch < 0 || x.tokens < 0 || x.heads < 0 || x.head_dim < 0)
    ROPE_THROW(std::invalid_argument,
               message(function, ": the extents of a view must not be negative, got [", x.batch, ", ", x.tokens, ", ",
                       x.heads, ", ", x.head_dim, "]"));
}

/// Whether the view covers every element between its first and its last one.
template <class T>
bool is_dense(const head_view<T>& x) {
  const Index last = (x.batch - 1) * x.batch_stride + (x.tokens - 1) * x.token_stride +
                     (x.heads - 1) * x.head_stride + x.head_dim - 1;
  return x.batch_stride >= 0 && x.token_stride >= 0 && x.head_stride >= 0 && last + 1 == x.size();
}

/// False where `x` and `out` are seen to share elements without being the same view.
template <class T>
bool same_or_disjoint(const head_view<const T>& x, const head_view<T>& out) {
  if (x.size() == 0) return true;
  if (x.data == out.data)
    return x.batch_stride == out.batch_stride && x.token_stride == out.token_stride && x.head_stride == out.head_stride;
  if (!is_dense(x) || !is_dense(out)) return true;
  const std::less<const T*> before;
  return !before(out.data, x.data + x.size()) || !before(x.data, out.data + out.size());
}

/// Everything that can be wrong with a call, found before anything is written.
template <class Layout, class T, class S, class Source>
void check_rotation(const char* function, const head_view<T>& x, const frequency_table<S>& table,
                    const Source& positions) {
  check_view(function, x);
  if (table.rotary_dim() > x.head_dim)
    ROPE_THROW(std::invalid_argument, message(function, ": rotary_dim must not exceed head_dim, got ",
                                              table.rotary_dim(), " of ", x.head_dim));
  const position_range range = positions.range(function, x.batch, x.tokens);
  if (!range.empty() && !(table.contains(range.smallest) && table.contains(range.largest)))
    ROPE_THROW(std::out_of_range,
               message(function, ": position ", table.contains(range.smallest) ? range.largest : range.smallest,
                       " is outside the table's [", table.first(), ", ", table.last(), ")"));
  if constexpr (!std::is_same_v<Layout, interleaved> && !std::is_same_v<Layout, half_split>) {
    for (Index i = 0; i < table.pairs(); ++i) {
      const Index u = Layout::first(i, table.pairs()), v = Layout::second(i, table.pairs());
      if (u < 0 || v < 0 || u >= table.rotary_dim() || v >= table.rotary_dim() || u == v)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": the layout must map a pair to two channels of [0, ", table.rotary_dim(),
                           "), got ", u, " and ", v, " for pair ", i));
    }
  }
}

/// A checked call, token by token. Its members are values, so that a compiler can keep all of them in registers.
template <class Layout, bool inverse, class T, class S, class Source>
struct rotation {
  head_view<const T> x;
  head_view<T> out;
  table_view<S> table;
  Source positions;
  S scale;  // of the inverse
  bool in_place;

  /// Heads [first_head, first_head + heads) of token t of row b.
  EIGEN_ALWAYS_INLINE void operator()(Index b, Index t, Index first_head, Index heads, prefetch_distance ahead) const {
    const std::int64_t position = positions(b, t);
    const token_heads<T> token = {x.at(b, t, first_head), out.at(b, t, first_head), heads, x.head_stride,
                                  out.head_stride};
    const bool identity = table.is_identity(position);
    if (!in_place) copy(token, identity ? 0 : 2 * table.pairs);
    if (identity) return;
    const S* cos = table.cos(position);
    rotate_token<Layout>(token, table_row<S, inverse>{cos, cos + table.pairs, table.pairs, scale}, ahead);
  }

  /// Channels [first, head_dim), which do not rotate.
  void copy(token_heads<T> token, Index first) const {
    for (Index h = 0; h < token.heads; ++h)
      std::copy(token.in + h * token.in_stride + first, token.in + h * token.in_stride + x.head_dim,
                token.out + h * token.out_stride + first);
  }
};

/// Rotates every head of `x` into `out`, which may be `x`; nothing is checked any more.
template <class Layout, bool inverse, class T, class S, class Source>
void rotate_all(const head_view<const T>& x, const head_view<T>& out, const frequency_table<S>& table,
                const Source& positions) {
  const auto scale = static_cast<S>(1 / (table.attention_factor() * table.attention_factor()));
  const rotation<Layout, inverse, T, S, Source> rotate_heads = {x,         out,   table.view(),
                                                                  positions, scale, x.data == out.data};

  // Data that outgrows a core's own cache streams from beyond it, and is asked for ahead of time.
  constexpr Index cached_bytes = Index{1} << 18;
  const Index rotated_bytes = x.batch * x.tokens * x.heads * table.rotary_dim() * Index(sizeof(T));
  const prefetch_distance ahead = rotated_bytes > cached_bytes ? 2048 : 0;

  if (x.token_stride >= x.head_stride || x.tokens == 1) {
    for (Index b = 0; b < x.batch; ++b)
      for (Index t = 0; t < x.tokens; ++t) rotate_heads(b, t, 0, x.heads, ahead);
  } else {
    // The tokens of a head are next to each other. A few heads at a time stream side by side and share the table row of
    // a token; one head alone would read as much table as data, and all of them would be too many streams.
    constexpr Index streams = 8, table_bytes = Index{1} << 16;
    const Index block = (std::max)(Index{1}, table_bytes / (table.rotary_dim() * Index(sizeof(S))));
    for (Index b = 0; b < x.batch; ++b)
      for (Index begin = 0; begin < x.tokens; begin += block)
        for (Index h = 0; h < x.heads; h += streams)
          for (Index t = begin; t < (std::min)(begin + block, x.tokens); ++t)
            rotate_heads(b, t, h, (std::min)(streams, x.heads - h), ahead);
  }
}

/// What is wrong with the types of a call, each in one sentence.
#define ROPE_DETAIL_CHECK_TYPES(name, Layout, T, P)                                                                 \
  static_assert(!std::is_same_v<Layout, detail::unnamed_layout>,                                                    \
                name ": name the pairing of the channels, " name "<interleaved>(...) or " name "<half_split>(...)"); \
  static_assert(pair_layout<Layout> || std::is_same_v<Layout, detail::unnamed_layout>,                              \
                name ": a layout is interleaved, half_split or a type with static first and second (i, pairs)");    \
  static_assert(!std::is_const_v<T>,                                                                                \
                name ": the output is read-only; " name "<Layout>(x, out, table) leaves x as it is");               \
  static_assert(position_form<P>,                                                                                   \
                name ": positions are integers: a start, a list of ids, row_starts or segments")

template <class Layout, bool inverse, class T, class S, class P>
void rotate_checked(const char* function, const head_view<const T>& x, const head_view<T>& out,
                    const frequency_table<S>& table, const P& positions) {
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, table, source);
  if (x.batch != out.batch || x.tokens != out.tokens || x.heads != out.heads || x.head_dim != out.head_dim)
    ROPE_THROW(std::invalid_argument,
               message(function, ": out must have the shape of x, [", x.batch, ", ", x.tokens, ", ", x.heads, ", ",
                       x.head_dim, "], got [", out.batch, ", ", out.tokens, ", ", out.heads, ", ", out.head_dim, "]"));
  ROPE_ASSERT(same_or_disjoint(x, out));
  rotate_all<Layout, inverse>(x, out, table, source);
}

}  // namespace detail

/// Rotates every pair of channels of `x` in place, by the angle of its token's position.
///
///     u' = cos(p)[i] u - sin(p)[i] v
///     v' = cos(p)[i] v + sin(p)[i] u        (u, v) = channels Layout::first(i, pairs), Layout::second(i, pairs)
///
/// Channels [rotary_dim, head_dim) are not touched; `x.channels(first, count)` rotates a window elsewhere in the head.
/// At position 0, with an attention_factor of 1, nothing is touched.
///
/// \tparam Layout     interleaved, half_split or a pair_layout; no default, see layout.hpp
/// \param  x          [batch, tokens, heads, head_dim]
/// \param  table      rows for every position used
/// \param  positions  an integer `start`: token t is at start + t; or ids [tokens] or [batch * tokens]; or
///                    `row_starts` [batch]; or `segments` of a ragged batch
///
/// Throws:    std::invalid_argument if rotary_dim > head_dim or a list has the wrong length; std::out_of_range if a
///            position is outside the table; x is then unchanged
/// Accuracy:  2.75 u sqrt(u^2 + v^2) per channel against exact arithmetic, table included, u = 2^-24 (float) or 2^-53
///            (double); half and bfloat16: computed in float, one final rounding. The same bits for every stride,
///            batch and instruction path of a build (tests/rope/rotate.test.cpp)
/// Cost:      one read and one write of the rotated channels; no allocation
/// Source:    Su et al. 2021, RoFormer, arXiv:2104.09864v5, equation 34; half_split agrees with `rotate_half` of
///            Hugging Face transformers
template <class Layout = detail::unnamed_layout, class T, class S, class P = std::int64_t>
void rotate(head_view<T> x, const frequency_table<S>& table, const P& positions = P{}) {
  ROPE_DETAIL_CHECK_TYPES("rotate", Layout, T, P);
  if constexpr (!std::is_const_v<T>)
    detail::rotate_checked<Layout, false, T>("rotate", x, x, table, positions);
}

/// Rotates `x` into `out`; channels [rotary_dim, head_dim) are copied.
///
/// \param  out  [batch, tokens, heads, head_dim], any strides
///
/// Requires:  out is x, or shares no element with it
/// Throws:    as above, and std::invalid_argument if the shapes differ; out is then unchanged
template <class Layout = detail::unnamed_layout, class X, class T, class S, class P = std::int64_t>
void rotate(head_view<X> x, head_view<T> out, const frequency_table<S>& table, const P& positions = P{}) {
  ROPE_DETAIL_CHECK_TYPES("rotate", Layout, T, P);
  static_assert(std::is_same_v<std::remove_const_t<X>, std::remove_const_t<T>>,
                "rotate: x and out have the same channel type");
  if constexpr (!std::is_const_v<T>)
    detail::rotate_checked<Layout, false, T>("rotate", x, out, table, positions);
}

/// Undoes `rotate` in place: turns every pair by the opposite angle and divides by the attention_factor.
///
///     u = (cos(p)[i] u' + sin(p)[i] v') / m^2
///     v = (cos(p)[i] v' - sin(p)[i] u') / m^2
///
/// Parameters, errors and cost are those of `rotate`.
///
/// Accuracy:  unrotate(rotate(x)) is within 6.3 u sqrt(u^2 + v^2) of x for an attention_factor of 1
template <class Layout = detail::unnamed_layout, class T, class S, class P = std::int64_t>
void unrotate(head_view<T> x, const frequency_table<S>& table, const P& positions = P{}) {
  ROPE_DETAIL_CHECK_TYPES("unrotate", Layout, T, P);
  if constexpr (!std::is_const_v<T>)
    detail::rotate_checked<Layout, true, T>("unrotate", x, x, table, positions);
}

/// Undoes `rotate` from `x` into `out`.
template <class Layout = detail::unnamed_layout, class X, class T, class S, class P = std::int64_t>
void unrotate(head_view<X> x, head_view<T> out, const frequency_table<S>& table, const P& positions = P{}) {
  ROPE_DETAIL_CHECK_TYPES("unrotate", Layout, T, P);
  static_assert(std::is_same_v<std::remove_const_t<X>, std::remove_const_t<T>>,
                "unrotate: x and out have the same channel type");
  if constexpr (!std::is_const_v<T>)
    detail::rotate_checked<Layout, true, T>("unrotate", x, out, table, positions);
}

/// A tensor or pointer without the order of its axes: says what to write instead.
template <class Layout = detail::unnamed_layout, class X, class... Rest>
  requires(!detail::is_head_view<X>)
void rotate(const X&, const Rest&...) {
  static_assert(detail::is_head_view<X>,
                "rotate: x is a head_view; name the order of its axes: bshd(x), bhsd(x), sbhd(x) or thd(x)");
}

#undef ROPE_DETAIL_CHECK_TYPES

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATE_HPP
