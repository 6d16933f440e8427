// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ANGLE_GRADIENT_HPP
#define ROPE_ROTATION_ANGLE_GRADIENT_HPP

#include <algorithm>  // std::fill, std::min
#include <cstdint>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>
#include <rope/tables/xpos.hpp>

/// The backward pass of `rotate` with respect to angles, frequencies, positions and table entries. The
/// functions are vector-Jacobian products of
///
///     y = m R(angle) x,   angle_i = sum_a p_a inv_freq(i, a)
///
/// Given d_y, the gradient of a loss with respect to y, whose pair i is (a, b), the gradient with respect to
///
///     the angle           d_angle_i = u b - v a     (u, v) = pair i of y                angle_gradient
///     the frequencies     d_inv_freq(i, a) = sum over tokens and heads of p_a d_angle_i   inv_freq_gradient
///     the positions       d_p_a = sum over heads and pairs of inv_freq(i, a) d_angle_i  coordinate_gradient
///     cos and sin         d_cos = u a + v b, d_sin = u b - v a   (u, v) = pair i of x        table_gradient
///
/// A rotation does not change u b - v a. The first three functions therefore accept heads and gradient from
/// before the rotation, or heads and gradient from after it. Training code that rotates in place has heads
/// and gradient from after the rotation. If every head has its own frequencies, pass x.head_range(h, 1) for
/// the gradient of head h.
///
/// The functions sum products of channel pairs x = (u, v) and their gradients g = (a, b). As complex numbers,
/// x = u + iv and g = a + ib, the product conj(x) g has two parts:
///
///     along    u a + v b      how the loss changes with the logarithm of the pair's magnitude
///     across   u b - v a      how the loss changes with the pair's angle
///
/// A rotation maps x to z x. If g is the gradient after the rotation, conj(z) g is the gradient before it.
/// Both parts are therefore equal before and after the rotation: conj(x) (conj(z) g) = conj(z x) g.
///
/// Sums are in double, in an order that depends only on the shapes. Whether products and sums are fused is
/// decided by multiply_add instead of the compiler. A training step is therefore reproducible bit by bit with
/// any threads.
///
/// For xPos tables, use rate_gradient and the inv_freq_gradient that takes an `xpos`.

namespace rope::inline ROPE_ABI::detail {

/// The two parts of conj(x) g, see above.
enum class part { along, across };

/// Adds one part of every pair of the heads of token t of row b to `sums` [pairs].
///
/// \param heads  the result of checked_gradient, here and below
template <class Layout, part which>
void add_token(const auto& heads, Index b, Index t, double* sums) {
  const Index pairs = heads.table.pairs();
  for (Index h = 0; h < heads.x.heads; ++h) {
    const auto* value = heads.x.at(b, t, h);
    const auto* gradient = heads.d_x.at(b, t, h);
    for (Index i = 0; i < pairs; ++i) {
      const Index first = Layout::first(i, pairs), second = Layout::second(i, pairs);
      const auto u = static_cast<double>(value[first]), v = static_cast<double>(value[second]);
      const auto a = static_cast<double>(gradient[first]), b_ = static_cast<double>(gradient[second]);
      sums[i] += which == part::along ? multiply_add(u, a, v * b_) : multiply_add(u, b_, -(v * a));
    }
  }
}

/// Checks the arguments of a gradient, and returns what the sums need of them.
///
/// \param name  the name of d_x in messages
///
/// Throws:  as check_rotation; std::invalid_argument if the shapes differ or d_x has no memory
template <class Layout, class X, class G, class Table, class P>
auto checked_gradient(const char* function, const head_view<X>& x, const head_view<G>& d_x,
                      const Table& table, const P& positions, const char* name = "d_x") {
  const auto place = placed(table);
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, place, source);
  check_heads(function, d_x);
  check_same_shape(function, x, d_x, name);
  const Index first = place.first_channel(), count = place.table().rotary_dim();
  struct rotated_heads {
    head_view<X> x;    // the rotated channels, before the rotation or after it
    head_view<G> d_x;  // the gradient with respect to them
    const frequency_table<typename Table::scalar>& table;
    std::remove_const_t<decltype(source)> positions;  // of token t of row b: positions(b, t)
  };
  return rotated_heads{x.channels(first, count), d_x.channels(first, count), place.table(), source};
}

/// Throws if the table has given entries: their frequencies and positions are unknown.
///
/// Throws:  std::invalid_argument
template <class S>
void check_made_from_frequencies(const char* function, const frequency_table<S>& table) {
  if (table.source() == table_source::entries)
    throw_invalid(function,
                  "the table must be made from frequencies, got one of given entries: use angle_gradient or "
                  "table_gradient");
}

/// One part of every pair of every token, summed over the heads: [pairs, batch * tokens].
template <class Layout, part which>
number_array<double> sums_by_token(const auto& heads, const auto& threads) {
  const auto& x = heads.x;
  number_array<double> sums(heads.table.pairs(), x.batch * x.tokens, 0.0);
  for_each_token(x, threads, [&](Index b, Index t) {
    add_token<Layout, which>(heads, b, t, sums.data() + (b * x.tokens + t) * sums.rows());
  });
  return sums;
}

/// For every row of the table, the sum of the columns of `by_token` [n, batch * tokens] whose tokens use that
/// row: [rows, n].
number_array<double> sums_by_row(const number_array<double>& by_token, const auto& heads) {
  const Index tokens = heads.x.tokens;
  number_array<double> by_row(heads.table.rows(), by_token.rows(), 0.0);
  for (Index token = 0; token < by_token.cols(); ++token) {
    const auto row =
        static_cast<Index>(heads.positions(token / tokens, token % tokens) - heads.table.first());
    for (Index i = 0; i < by_token.rows(); ++i) by_row(row, i) += by_token(i, token);
  }
  return by_row;
}

/// One part of every pair, summed over heads and tokens with weights weight(b, t, column): [pairs, columns].
template <class Layout, part which>
number_array<double> weighted_sums(const auto& heads, Index columns, const auto& threads,
                                   const auto& weight) {
  const auto& x = heads.x;
  const Index pairs = heads.table.pairs();
  // The number of pieces does not depend on the number of threads. 64 pieces keep the threads of most
  // machines busy, and their sums need little memory compared to the heads.
  constexpr Index max_pieces = 64;
  const Index tokens = x.batch * x.tokens, pieces = (std::min)(tokens, max_pieces);
  number_array<double> partial(pairs * columns, pieces, 0.0);
  const double bytes = cost_of(x.size(), sizeof(*x.data) + sizeof(*heads.d_x.data));
  parallel_pieces(threads, pieces, bytes, [&](Index first, Index last) {
    number_array<double> sums(pairs);
    for (Index piece = first; piece < last; ++piece) {
      const Index end = begin_of_piece(tokens, piece + 1, pieces);
      for (Index token = begin_of_piece(tokens, piece, pieces); token < end; ++token) {
        const Index b = token / x.tokens, t = token % x.tokens;
        std::fill(sums.begin(), sums.end(), 0.0);
        add_token<Layout, which>(heads, b, t, sums.data());
        for (Index c = 0; c < columns; ++c) {
          const double by = weight(b, t, c);
          for (Index i = 0; i < pairs; ++i) {
            double& sum = partial(i + pairs * c, piece);
            sum = multiply_add(by, sums(i), sum);
          }
        }
      }
    }
  });
  number_array<double> total(pairs, columns, 0.0);
  for (Index piece = 0; piece < pieces; ++piece)
    for (Index i = 0; i < total.size(); ++i) total(i) += partial(i, piece);
  return total;
}

/// The gradient with respect to inv_freq, [pairs, axes].
template <class Layout>
number_array<double> frequency_sums(const auto& heads, const auto& threads) {
  const auto coordinates = heads.table.coordinates();
  return weighted_sums<Layout, part::across>(
      heads, heads.table.axes(), threads, [&](Index b, Index t, Index axis) {
        const std::int64_t position = heads.positions(b, t);
        return coordinates.size() == 0 ? static_cast<double>(position)
                                       : coordinates(static_cast<Index>(position), axis);
      });
}

}  // namespace rope::inline ROPE_ABI::detail

namespace rope::inline ROPE_ABI {

/// The gradient with respect to the angle of every row and pair of the table, for training learned angles.
///
///     d_angle(r, i) = sum over tokens at position first + r, and over heads, of  u b - v a
///
/// \param  x          [batch, tokens, heads, head_dim], before the rotation or after it
/// \param  d_x        the gradient with respect to x, of the same shape; its channel type may differ
/// \param  table, positions, threads  as in `rotate`
///
/// Returns:   owned_array<double> [table.rows(), pairs]
/// Throws:    as `rotate`, std::invalid_argument if the shapes differ, and std::length_error if pairs doubles
///            per token exceed the address space
/// Accuracy:  products and sums in double (products of float channels are exact)
/// Cost:      one read of x and d_x, and pairs doubles per token
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
detail::owned_doubles<X> angle_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                        const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("angle_gradient", Layout, P, Threads);
  const auto heads = detail::checked_gradient<Layout>("angle_gradient", x, d_x, table, positions);
  return detail::sums_by_row(detail::sums_by_token<Layout, detail::part::across>(heads, threads), heads);
}

/// The gradient with respect to inv_freq, for training learned frequencies.
///
///     d_inv_freq(i, a) = sum over tokens and heads of  p_a (u b - v a)
///
/// where p_a is the token's coordinate on axis a.
///
/// Parameters and accuracy are those of `angle_gradient`.
///
/// Returns:  owned_array<double> [pairs, axes], the shape of table.inv_freq()
/// Throws:   as `angle_gradient`, and std::invalid_argument if the table's entries were given
///           (tables/given_table.hpp)
/// Cost:     one read of x and d_x, and 64 pairs * axes doubles
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
detail::owned_doubles<X> inv_freq_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                           const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("inv_freq_gradient", Layout, P, Threads);
  const auto heads = detail::checked_gradient<Layout>("inv_freq_gradient", x, d_x, table, positions);
  detail::check_made_from_frequencies("inv_freq_gradient", heads.table);
  return detail::frequency_sums<Layout>(heads, threads);
}

/// The gradient with respect to the coordinates of every row of the table. For a table of a range of
/// positions it is the gradient with respect to the position.
///
///     d_p(r, a) = sum over tokens at position first + r, heads and pairs of  inv_freq(i, a) (u b - v a)
///
/// Parameters, accuracy and cost are those of `angle_gradient`. Errors are those of `inv_freq_gradient`.
///
/// Returns:  owned_array<double> [table.rows(), axes]
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
detail::owned_doubles<X> coordinate_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                             const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("coordinate_gradient", Layout, P, Threads);
  const auto heads = detail::checked_gradient<Layout>("coordinate_gradient", x, d_x, table, positions);
  detail::check_made_from_frequencies("coordinate_gradient", heads.table);
  const number_array<double> d_angle = detail::sums_by_token<Layout, detail::part::across>(heads, threads);
  number_array<double> by_token(heads.table.axes(), d_angle.cols());
  for (Index token = 0; token < by_token.cols(); ++token)
    for (Index a = 0; a < by_token.rows(); ++a) {
      double sum = 0;
      for (Index i = 0; i < heads.table.pairs(); ++i)
        sum = detail::multiply_add(heads.table.inv_freq(i, a), d_angle(i, token), sum);
      by_token(a, token) = sum;
    }
  return detail::sums_by_row(by_token, heads);
}

/// The gradient with respect to the entries of a table.
///
///     const cos_sin_gradient d_table = table_gradient<half_split>(x, d_y, table);
template <class Numbers = owned_array<double>>
struct cos_sin_gradient {
  Numbers cos;  // with respect to cos, [rows, pairs]
  Numbers sin;  // with respect to sin, [rows, pairs]
};

/// The gradient with respect to every cos and sin of the table. Each is an independent variable, as in a
/// table whose entries a network computes. Unlike the three functions above it needs x from before the
/// rotation and the gradient from after it.
///
///     d_cos(r, i) = sum over tokens at position first + r, and over heads, of  u a + v b
///     d_sin(r, i) = sum over the same of                                       u b - v a
///
/// \param  x    [batch, tokens, heads, head_dim], before the rotation
/// \param  d_y  the gradient with respect to the rotated heads, of the same shape; its channel type may
///              differ
///
/// Other parameters, errors and accuracy are those of `angle_gradient`. The cost is twice that of
/// `angle_gradient`.
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
cos_sin_gradient<detail::owned_doubles<X>> table_gradient(head_view<X> x, head_view<G> d_y,
                                                          const Table& table, const P& positions = P{},
                                                          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("table_gradient", Layout, P, Threads);
  const auto heads = detail::checked_gradient<Layout>("table_gradient", x, d_y, table, positions, "d_y");
  return {detail::sums_by_row(detail::sums_by_token<Layout, detail::part::along>(heads, threads), heads),
          detail::sums_by_row(detail::sums_by_token<Layout, detail::part::across>(heads, threads), heads)};
}

ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(angle_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(inv_freq_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(coordinate_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(table_gradient, 2);

/// The side, queries or keys, whose heads the table rotated.
enum class xpos_side { queries, keys };

/// The gradient with respect to the rates of one side. The gradient of the loss is the sum over both sides.
///
///     d_rate_i = sum over tokens and heads of  +-(p - center) / scale_base (u a + v b),   + for queries
///
/// where (u, v) is pair i of x and (a, b) of d_x. Rotation by an xPos table does not change u a + v b, so x
/// and d_x may both be from before the rotation or both from after it.
///
/// \param side        whether x are queries or keys
/// \param x, d_x      [batch, tokens, heads, head_dim] and the gradient with respect to it; channel types may
///           differ
/// \param positions, threads  as in `rotate`
///
/// Returns:   owned_array<double, 1> [pairs]
/// Throws:    as `angle_gradient`
/// Accuracy:  products and sums in double, in an order that does not depend on the threads
/// Cost:      one read of x and d_x, and 64 pairs doubles
template <class Layout = detail::unnamed_layout, class X, class G, class S, class P = detail::braced_ids,
          class Threads = this_thread>
detail::owned_doubles<X, 1> rate_gradient(xpos_side side, head_view<X> x, head_view<G> d_x,
                                          const xpos<S>& tables, const P& positions = P{},
                                          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rate_gradient", Layout, P, Threads);
  const auto heads = detail::checked_gradient<Layout>("rate_gradient", x, d_x, tables.queries(), positions);
  const double sign = side == xpos_side::queries ? 1 : -1;
  return detail::weighted_sums<Layout, detail::part::along>(heads, 1, threads, [&](Index b, Index t, Index) {
    return sign * ((static_cast<double>(heads.positions(b, t)) - tables.center()) / tables.scale_base());
  });
}

/// The gradient with respect to inv_freq of one side.
///
///     d_inv_freq_i = sum over tokens and heads of  p (u b - v a)
///
/// Parameters, except `side`, and accuracy are those of `rate_gradient`. The gradient of the loss is the sum
/// over both sides.
///
/// Returns:  owned_array<double> [pairs, 1]
/// Throws:   as `angle_gradient`
/// Cost:     one read of x and d_x, and 64 pairs doubles
template <class Layout = detail::unnamed_layout, class X, class G, class S, class P = detail::braced_ids,
          class Threads = this_thread>
detail::owned_doubles<X> inv_freq_gradient(head_view<X> x, head_view<G> d_x, const xpos<S>& tables,
                                           const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("inv_freq_gradient", Layout, P, Threads);
  const auto heads =
      detail::checked_gradient<Layout>("inv_freq_gradient", x, d_x, tables.queries(), positions);
  return detail::frequency_sums<Layout>(heads, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_ANGLE_GRADIENT_HPP
