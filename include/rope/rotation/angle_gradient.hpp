// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_ANGLE_GRADIENT_HPP
#define ROPE_ROTATION_ANGLE_GRADIENT_HPP

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
#include <rope/rotation/detail/angle_gradient_kernel.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

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
/// A rotation does not change u b - v a. The first three functions therefore accept heads and gradient either
/// both from before the rotation or both from after it. Training code that rotates in place has the latter.
/// If every head has its own frequencies, pass x.head_range(h, 1) for the gradient of head h.
///
/// Sums are in double, in an order that does not depend on the threads: a training step is reproducible bit
/// by bit.

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
/// Throws:    as `rotate`, and std::invalid_argument if the shapes differ
/// Accuracy:  products and sums in double (products of float channels are exact)
/// Cost:      one read of x and d_x, and pairs doubles per token
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = std::int64_t, class Threads = this_thread>
detail::owned_doubles<X> angle_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                        const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("angle_gradient", Layout, P, Threads);
  using detail::part;
  const auto heads = detail::checked_gradient<Layout>("angle_gradient", x, d_x, table, positions);
  return detail::sums_by_row(detail::sums_by_token<Layout, part::across>(heads, threads), heads);
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
          class P = std::int64_t, class Threads = this_thread>
detail::owned_doubles<X> inv_freq_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                           const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("inv_freq_gradient", Layout, P, Threads);
  using detail::part;
  const auto heads = detail::checked_gradient<Layout>("inv_freq_gradient", x, d_x, table, positions);
  detail::check_made_from_frequencies("inv_freq_gradient", heads.table);
  const auto coordinates = heads.table.coordinates();
  return detail::weighted_sums<Layout, part::across>(
      heads, heads.table.axes(), threads, [&](Index b, Index t, Index axis) {
        const std::int64_t position = heads.positions(b, t);
        return coordinates.size() == 0 ? static_cast<double>(position)
                                       : coordinates(static_cast<Index>(position), axis);
      });
}

/// The gradient with respect to the coordinates of every row of the table. For a table of a range of
/// positions it is the gradient with respect to the position.
///
///     d_p(r, a) = sum over tokens at position first + r, heads and pairs of  inv_freq(i, a) (u b - v a)
///
/// Parameters, accuracy and cost are those of `angle_gradient`. Errors are those of `inv_freq_gradient`.
///
/// Returns:  owned_array<double> [table.rows(), axes], the shape of table.coordinates()
template <class Layout = detail::unnamed_layout, class X, class G, rotation_table Table,
          class P = std::int64_t, class Threads = this_thread>
detail::owned_doubles<X> coordinate_gradient(head_view<X> x, head_view<G> d_x, const Table& table,
                                             const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("coordinate_gradient", Layout, P, Threads);
  using detail::part;
  const auto heads = detail::checked_gradient<Layout>("coordinate_gradient", x, d_x, table, positions);
  detail::check_made_from_frequencies("coordinate_gradient", heads.table);
  const number_array<double> d_angle = detail::sums_by_token<Layout, part::across>(heads, threads);
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

/// The gradient with respect to every cos and sin of the table, each an independent variable: for tables
/// whose entries a network computes. Unlike the three functions above it needs x from before the rotation and
/// the gradient from after it.
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
          class P = std::int64_t, class Threads = this_thread>
cos_sin_gradient<detail::owned_doubles<X>> table_gradient(head_view<X> x, head_view<G> d_y,
                                                          const Table& table, const P& positions = P{},
                                                          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("table_gradient", Layout, P, Threads);
  using detail::part;
  const auto heads = detail::checked_gradient<Layout>("table_gradient", x, d_y, table, positions);
  return {detail::sums_by_row(detail::sums_by_token<Layout, part::along>(heads, threads), heads),
          detail::sums_by_row(detail::sums_by_token<Layout, part::across>(heads, threads), heads)};
}

ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(angle_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(inv_freq_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(coordinate_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(table_gradient, 2);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_ANGLE_GRADIENT_HPP
