// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ROTATE_HPP
#define ROPE_ROTATION_ROTATE_HPP

#include <algorithm>  // std::max, std::min
#include <limits>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet_pairs.hpp>  // convert_channels
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Rotation of heads by the angles of their positions, and its inverse.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Throws std::invalid_argument if unrotate cannot divide by m: 1 / m must be a normal number of the table's
/// type, so m is at most 2^126 for float and 2^1022 for double.
template <class S>
void check_inverse(const char* function, const placed_table<S>& placed) {
  const frequency_table<S>& table = placed.table();
  using limits = std::numeric_limits<S>;
  if (table.attention_factor() > 1 / static_cast<double>((limits::min)()))
    throw_invalid(function, "the attention_factor must be at most 2^", 1 - limits::min_exponent,
                  " for its inverse to be a number of the table's type, got ", table.attention_factor());
}

/// Writes the rotated float `x` to 16-bit `out`. Pieces are rotated in float and rounded once. Requires a
/// checked call.
template <class Layout, bool inverse, class T, class S, class Source, class Threads>
void rotate_and_round(const head_view<const float>& x, const head_view<T>& out, const placed_table<S>& table,
                      const Source& source, const Threads& threads) {
  const Index channels = x.heads * x.head_dim,
              piece = (std::max)(Index{1}, 16384 / (std::max)(Index{1}, channels));
  const auto rotate_piece = [&](Index b, Index t, Index count) {
    const head_view<float> wide =
        bshd(workspace<struct rotated_pieces, float>(count * channels), Index{1}, count, x.heads, x.head_dim);
    rotate_into<Layout, inverse>(x.batch_range(b, 1).token_range(t, count), wide, table,
                                 positions_of_row(source, b, t));
    for (Index i = 0; i < count; ++i)
      for (Index h = 0; h < x.heads; ++h) convert_channels(wide.at(0, i, h), x.head_dim, out.at(b, t + i, h));
  };
  parallel_pieces(threads, x.batch * x.tokens, cost_of(x.batch * x.tokens, channels, sizeof(float)),
                  [&](Index begin, Index end) { for_each_piece(x, begin, end, piece, rotate_piece); });
}

/// Throws std::invalid_argument unless `out` can take a result that has the shape of `x`: it is `x`, or
/// shares no memory with it.
template <class X, class T>
void check_result(const char* function, const head_view<const X>& x, const head_view<T>& out) {
  check_same_shape(function, x, out);
  check_memory(function, out);
  check_written(function, out);
  if constexpr (std::is_same_v<X, T>) {
    if (!are_same(x, out) && share_memory(x, out))
      throw_invalid(function,
                    "out must be x or share no channel with it, and covers a part of x; give other memory");
  } else if (share_memory(x, out)) {
    throw_invalid(function,
                  "out has another channel type than x and must share no memory with it; give other memory");
  }
}

/// Rotates `x` into `out` after all argument checks. Compiles nothing for types that the caller has rejected.
///
/// \tparam in_place  whether out is x
/// \tparam X         T if in_place, else a const channel type
template <class Layout, bool inverse, bool in_place, class X, class T, class S, class P, class Threads>
void rotate_checked(const char* function, const head_view<X>& x, const head_view<T>& out,
                    const placed_table<S>& table, const P& positions, const Threads& threads,
                    reverse_rotation back = reverse_rotation::inverse) {
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, table, source);
  if (inverse && back == reverse_rotation::inverse) check_inverse(function, table);
  if constexpr (in_place)
    check_written(function, out);
  else
    check_result(function, x, out);
  using input = std::remove_const_t<X>;
  if constexpr (std::is_same_v<input, T>)
    rotate_into<Layout, inverse, in_place>(x, out, table, source, threads, back);
  else if constexpr (!std::is_const_v<T> && is_or_widens<input, T>)
    rotate_and_round<Layout, inverse>(x, out, table, source, threads);
}

/// Throws unless q and k have the same batch and tokens.
template <class Q, class K>
void check_same_tokens(const char* function, const head_view<Q>& q, const head_view<K>& k) {
  if (q.batch != k.batch || q.tokens != k.tokens)
    throw_invalid(function, "q and k must have the same batch and tokens, got ",
                  shape_text({q.batch, q.tokens}), " and ", shape_text({k.batch, k.tokens}),
                  "; heads may differ");
}

/// All argument checks for rotating q and k in place.
template <class Layout, class Q, class K, class S, class Source>
void check_both(const char* function, const head_view<Q>& q, const head_view<K>& k,
                const placed_table<S>& table, const Source& source) {
  check_heads(function, q);
  check_heads(function, k);
  check_same_tokens(function, q, k);
  check_rotation<Layout>(function, q.batch, q.tokens, (std::min)(q.head_dim, k.head_dim), table, source);
  check_written(function, q);
  check_written(function, k);
  if (share_memory(q, k))
    throw_invalid(function,
                  "q and k must not share channels, which would rotate twice; to write to other views, call ",
                  function, "_to");
}

/// Rotates q and k block by block, in one pass over the table.
template <class Layout, bool inverse, class Q, class K, class S, class P, class Threads>
void rotate_both_checked(const char* function, const head_view<Q>& q, const head_view<K>& k,
                         const placed_table<S>& table, const P& positions, const Threads& threads,
                         reverse_rotation back = reverse_rotation::inverse) {
  const auto source = position_source(positions, q.tokens);
  check_both<Layout>(function, q, k, table, source);
  if (inverse && back == reverse_rotation::inverse) check_inverse(function, table);
  if constexpr (!std::is_const_v<Q> && !std::is_const_v<K>) {  // otherwise the caller has rejected the types
    const rotation_plan<Layout, inverse, Q, S, true> queries(q, q, table, back);
    const rotation_plan<Layout, inverse, K, S, true> keys(k, k, table, back);
    if (queries.tokens() == 1) {
      queries.rotate_one(source(0, 0));
      return keys.rotate_one(source(0, 0));
    }
    run_plans(threads, queries.block(), plan_at{queries, source}, plan_at{keys, source});
  }
}

}  // namespace detail

/// Rotates every pair of channels of `x` in place, by the angle of its token's position.
///
///     u' = cos(p)[i] u - sin(p)[i] v
///     v' = cos(p)[i] v + sin(p)[i] u
///
/// where (u, v) are channels Layout::first(i, pairs) and Layout::second(i, pairs).
///
/// Rotates channels [0, rotary_dim) of each head, or [first, first + rotary_dim) with
/// `table.at_channel(first)`. Other channels keep their bits. At position 0 with attention_factor 1, all
/// channels keep their bits.
///
/// \tparam Layout     interleaved, half_split or a pair_layout; no default, see layout.hpp
/// \param  x          [batch, tokens, heads, head_dim]
/// \param  table      a frequency_table, or table.at_channel(first), with a row for every position used
/// \param  positions  an integer `start`: token t is at start + t; or ids [tokens], [batch * tokens] or a
///                    matrix [batch, tokens], of any integer type, order and strides; or `row_starts`
///                    [batch]; or `segments` of a ragged batch
/// \param  threads    your threads, see base/parallel.hpp; small calls use the calling thread only
///
/// Throws:    std::invalid_argument if the rotated channels exceed the head, a list has the wrong length, ids
///            equal the coordinates that the table was made of, or positions are left out although the table
///            has coordinates for every token of several rows; std::out_of_range if a position is outside the
///            table; x is then unchanged
/// Accuracy:  the error of a channel, including that of the table, is at most 2.75 eps sqrt(u^2 + v^2), eps =
///            2^-24 (float) or 2^-53 (double). half and bfloat16: computed in float, one final rounding.
///            Table entries are first converted to the arithmetic type. Entries beyond the range of float are
///            multiplied in double. In builds with AVX512_BF16, a bfloat16 below 2^-126 becomes zero.
///            Strides, batch and the instruction path of a build do not change the bits
///            (tests/rotation/laws/rotate_bits.test.cpp, mixed_types.test.cpp)
/// Cost:      one read and one write of the rotated channels; allocates a copy of ids that are an expression,
///            and scratch for rows of more than 256 pairs that are converted
/// Source:    Su et al. 2021, arXiv:2104.09864v5, equation 34; half_split is `rotate_half` of Hugging Face
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void rotate(head_view<T> x, const Table& table, const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("rotate", "x", T);
  detail::rotate_checked<Layout, false, true, T>("rotate", x, x, detail::placed(table), positions, threads);
}

/// Rotates queries and keys, both in place, in one pass over the table. The bits are those of two calls. q
/// and k may have different channel types.
///
///     rotate<half_split>(bshd(q), bshd(k), table, start);
///
/// \param  q, k  [batch, tokens, heads, head_dim] each; heads and head_dim may differ (grouped queries)
///
/// Requires:  q and k share no element; throws if an overlap is detected (for equal strides nearly always)
/// Throws:    as above, and std::invalid_argument if batch or tokens differ; q and k are then unchanged
template <class Layout = detail::unnamed_layout, class Q, class K, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void rotate(head_view<Q> q, head_view<K> k, const Table& table, const P& positions = P{},
            const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_BOTH_IN_PLACE("rotate", Q, K);
  detail::rotate_both_checked<Layout, false>("rotate", q, k, detail::placed(table), positions, threads);
}

/// Writes the rotated `x` to `out`. Channels that are not rotated are copied. Float x may be written to half
/// or bfloat16 out: every channel is computed in float and rounded once.
///
/// \param  out  [batch, tokens, heads, head_dim], any strides; of the type of x, or a 16-bit type if x is
///              float
///
/// Requires:  out is x, or shares no element with x. If their types differ, out shares no element with x.
///            Throws if an overlap is detected (for equal strides nearly always)
/// Throws:    as above, and std::invalid_argument if the shapes differ; out is then unchanged
template <class Layout = detail::unnamed_layout, class X, class T, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void rotate_to(head_view<X> x, head_view<T> out, const Table& table, const P& positions = P{},
               const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_to", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("rotate_to", "out", T);
  ROPE_DETAIL_CHECK_ROUNDED("rotate_to", X, T);
  detail::rotate_checked<Layout, false, false, const X>("rotate_to", x, out, detail::placed(table), positions,
                                                        threads);
}

/// Inverse of `rotate`, in place: rotates every pair by the opposite angle and divides by attention_factor.
///
///     u = (cos(p)[i] u' + sin(p)[i] v') / m^2
///     v = (cos(p)[i] v' - sin(p)[i] u') / m^2
///
/// Parameters and cost are those of `rotate`.
///
/// Throws:    as `rotate`, and std::invalid_argument if m > 2^126 (float table) or m > 2^1022 (double table),
///            because 1 / m would be subnormal
/// Accuracy:  unrotate(rotate(x)) is within 6.3 eps sqrt(u^2 + v^2) of x for an attention_factor of 1
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void unrotate(head_view<T> x, const Table& table, const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("unrotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("unrotate", "x", T);
  detail::rotate_checked<Layout, true, true, T>("unrotate", x, x, detail::placed(table), positions, threads);
}

/// Inverse of `rotate` for queries and keys, both in place, in one pass over the table.
///
/// Throws:  as `rotate` of both and `unrotate`; q and k are then unchanged
template <class Layout = detail::unnamed_layout, class Q, class K, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void unrotate(head_view<Q> q, head_view<K> k, const Table& table, const P& positions = P{},
              const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("unrotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_BOTH_IN_PLACE("unrotate", Q, K);
  detail::rotate_both_checked<Layout, true>("unrotate", q, k, detail::placed(table), positions, threads);
}

/// Writes the inverse rotation of `x` to `out`. Channels that are not rotated are copied.
///
/// Requires:  out is x, or shares no element with it; throws if an overlap is detected (for equal
///            strides nearly always)
/// Throws:    as `rotate_to` and `unrotate`; out is then unchanged
template <class Layout = detail::unnamed_layout, class X, class T, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void unrotate_to(head_view<X> x, head_view<T> out, const Table& table, const P& positions = P{},
                 const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("unrotate_to", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("unrotate_to", "out", T);
  ROPE_DETAIL_CHECK_ROUNDED("unrotate_to", X, T);
  detail::rotate_checked<Layout, true, false, const X>("unrotate_to", x, out, detail::placed(table),
                                                       positions, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(rotate, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(rotate_to, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(unrotate, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(unrotate_to, 2);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_ROTATE_HPP
