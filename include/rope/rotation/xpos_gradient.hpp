// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_XPOS_GRADIENT_HPP
#define ROPE_ROTATION_XPOS_GRADIENT_HPP

#include <cstdint>

#include <rope/base/owned_array.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/angle_gradient_kernel.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/xpos.hpp>

/// Gradients with respect to the rates and inv_freq that the tables of xPos were made from.

namespace rope::inline ROPE_ABI {

/// The side, queries or keys, whose table rotated the heads.
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
template <class Layout = detail::unnamed_layout, class X, class G, class S, class P = std::int64_t,
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

/// The gradient with respect to inv_freq of one side, as in angle_gradient.hpp.
///
///     d_inv_freq_i = sum over tokens and heads of  p (u b - v a)
///
/// Parameters and accuracy are those of `rate_gradient`. The gradient of the loss is the sum over both sides.
///
/// Returns:  owned_array<double> [pairs, 1]
/// Throws:   as `angle_gradient`
/// Cost:     one read of x and d_x, and 64 pairs doubles
template <class Layout = detail::unnamed_layout, class X, class G, class S, class P = std::int64_t,
          class Threads = this_thread>
detail::owned_doubles<X> inv_freq_gradient(head_view<X> x, head_view<G> d_x, const xpos<S>& tables,
                                           const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("inv_freq_gradient", Layout, P, Threads);
  const auto heads =
      detail::checked_gradient<Layout>("inv_freq_gradient", x, d_x, tables.queries(), positions);
  return detail::weighted_sums<Layout, detail::part::across>(
      heads, 1, threads, [&](Index b, Index t, Index) { return static_cast<double>(heads.positions(b, t)); });
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_XPOS_GRADIENT_HPP
