// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_GRADIENT_HPP
#define ROPE_ROTATION_GRADIENT_HPP

#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The backward pass of `rotate` with respect to the heads: for y = m R(angle) x and d_y, the gradient of a
/// loss with respect to y,
///
///     d_x = m R(-angle) d_y
///
/// Gradients with respect to angles, frequencies, positions and table entries are in angle_gradient.hpp.

namespace rope::inline ROPE_ABI {

/// The gradient with respect to the heads before rotation. It replaces, in the same memory, the gradient with
/// respect to the rotated heads.
///
///     a' = cos(p)[i] a + sin(p)[i] b
///     b' = cos(p)[i] b - sin(p)[i] a
///
/// where (a, b) are channels Layout::first(i, pairs) and Layout::second(i, pairs).
///
/// This is the transpose of `rotate`: unlike `unrotate`, the inverse, it multiplies by the attention_factor.
///
/// Parameters, errors, accuracy and cost are those of `rotate`.
///
/// Source:  the backward pass of FlashAttention's rotary kernel (`conjugate`) and `ggml_rope_back`, which
///          also multiply by the factor
template <class Layout = detail::unnamed_layout, class T, rotation_table Table, class P = detail::braced_ids,
          class Threads = this_thread>
void rotate_gradient(head_view<T> gradient, const Table& table, const P& positions = P{},
                     const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_gradient", Layout, P, Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("rotate_gradient", "gradient", T);
  detail::rotate_checked<Layout, true, true, T>("rotate_gradient", gradient, gradient, detail::placed(table),
                                                positions, threads, detail::reverse_rotation::transpose);
}

/// The gradients with respect to queries and keys, both in place, in one pass over the table.
///
/// Parameters, errors, accuracy and cost are those of `rotate` of queries and keys.
template <class Layout = detail::unnamed_layout, class Q, class K, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void rotate_gradient(head_view<Q> d_q, head_view<K> d_k, const Table& table, const P& positions = P{},
                     const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_gradient", Layout, P, Threads);
  ROPE_DETAIL_CHECK_BOTH_IN_PLACE("rotate_gradient", Q, K);
  detail::rotate_both_checked<Layout, true>("rotate_gradient", d_q, d_k, detail::placed(table), positions,
                                            threads, detail::reverse_rotation::transpose);
}

/// Writes the gradient with respect to the heads to `d_x`. Channels that are not rotated are copied.
///
/// Requires:  d_x is d_y, or shares no element with it
/// Throws:    as `rotate_to`
template <class Layout = detail::unnamed_layout, class G, class T, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void rotate_gradient_to(head_view<G> d_y, head_view<T> d_x, const Table& table, const P& positions = P{},
                        const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("rotate_gradient_to", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("rotate_gradient_to", "d_x", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("rotate_gradient_to", "d_y and d_x", G, T);
  detail::rotate_checked<Layout, true, false, const G>("rotate_gradient_to", d_y, d_x, detail::placed(table),
                                                       positions, threads,
                                                       detail::reverse_rotation::transpose);
}

ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(rotate_gradient, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(rotate_gradient_to, 2);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_GRADIENT_HPP
