// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HEAD_NORM_HPP
#define ROPE_ROTATION_HEAD_NORM_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/head_norm_pass.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// The root-mean-square norm of the heads of q and k (QK norm), alone or in one pass with the rotation that
/// follows it. Its backward pass is in head_norm_gradient.hpp.

namespace rope::inline ROPE_ABI {

/// The channels over which a norm takes its mean.
enum class norm_mean {
  head,  // one head: Qwen 3, Gemma 3
  token  // all heads of a token: OLMo 2, whose weights are [heads, head_dim]
};

/// The norm of a head, as checkpoints store it (`q_norm`, `k_norm`).
///
///     y = g x / rms,   rms = sqrt(mean(x^2) + epsilon),   g = offset + weight
///
///     const head_norm<float> q_norm = {.weight = q_weight, .offset = 1};  // Gemma 3
///     normalize_and_rotate<half_split>(q, q_norm, table, start);
///
/// Does not own the weights.
///
/// \tparam W  a channel type; may differ from that of the heads
///
/// Source:  Zhang and Sennrich 2019, arXiv:1910.07467, equation 4
template <class W>
struct head_norm {
  static_assert(channel<W>, "head_norm: weights are float, double, Eigen::half or Eigen::bfloat16");

  /// [head_dim], the same for all heads, or [heads, head_dim].
  std::span<const W> weight = {};
  /// Added to the mean square (`rms_norm_eps`). If it is 0, a head of zeros becomes NaN.
  double epsilon = 1e-6;
  /// Added to the weights: 1 for Gemma, whose checkpoints store the gain minus 1.
  double offset = 0;
  /// The channels over which the mean square is taken.
  norm_mean mean_over = norm_mean::head;
};

namespace detail {

/// The norm, checked against the shape of the heads.
///
/// Throws:  std::invalid_argument
template <class W, class T>
norm_rule<W> checked_norm(const char* function, const head_norm<W>& norm, const head_view<T>& x) {
  const std::size_t size = norm.weight.size();
  if (size != static_cast<std::size_t>(x.head_dim) && size != static_cast<std::size_t>(x.heads * x.head_dim))
    throw_invalid(function, "the weight of the norm must have length head_dim or heads * head_dim, ",
                  x.head_dim, " or ", x.heads * x.head_dim, ", got ", size);
  if (!is_finite(norm.epsilon) || norm.epsilon < 0 || !is_finite(norm.offset))
    throw_invalid(function,
                  "the epsilon of the norm must be finite and not negative, its offset finite, got ",
                  norm.epsilon, " and ", norm.offset);
  const bool shared = size == static_cast<std::size_t>(x.head_dim);
  return {norm.weight.data(), norm.mean_over == norm_mean::token ? (std::max)(Index{1}, x.heads) : Index{1},
          shared ? Index{0} : x.head_dim, norm.epsilon, norm.offset};
}

template <class T, class W, class Threads>
void normalize_checked(const char* function, const head_view<const T>& x, const head_view<T>& out,
                       const head_norm<W>& norm, const Threads& threads) {
  check_view(function, x);
  check_memory(function, x);
  check_same_shape(function, x, out);
  check_memory(function, out);
  const norm_rule<W> rule = checked_norm(function, norm, x);
  check_same_or_disjoint(function, x, out);
  run_plans(threads, tokens_of_norm, norm_pass<T, W, no_turn>(x, out, rule, {}));
}

template <class Layout, class T, class W, class S, class P, class Threads>
void normalize_and_rotate_checked(const char* function, const head_view<const T>& x, const head_view<T>& out,
                                  const head_norm<W>& norm, const placed_table<S>& table, const P& positions,
                                  const Threads& threads) {
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, table, source);
  check_same_shape(function, x, out);
  check_memory(function, out);
  const norm_rule<W> rule = checked_norm(function, norm, x);
  check_same_or_disjoint(function, x, out);
  normalize_and_rotate_all<Layout>(x, out, rule, table, source, threads);
}

template <class Layout, class T, class QW, class KW, class S, class P, class Threads>
void normalize_and_rotate_both(const char* function, const head_view<T>& q, const head_view<T>& k,
                               const head_norm<QW>& q_norm, const head_norm<KW>& k_norm,
                               const placed_table<S>& table, const P& positions, const Threads& threads) {
  const auto source = position_source(positions, q.tokens);
  check_both<Layout>(function, q, k, table, source);
  const norm_rule<QW> q_rule = checked_norm(function, q_norm, q);
  const norm_rule<KW> k_rule = checked_norm(function, k_norm, k);
  using turn = row_turn<Layout, S, std::remove_const_t<decltype(source)>>;
  run_plans(threads, tokens_of_norm, norm_pass<T, QW, turn>(q, q, q_rule, turn(table, source)),
            norm_pass<T, KW, turn>(k, k, k_rule, turn(table, source)));
}

}  // namespace detail

/// Normalises every head of `x` in place.
///
/// \param x        [batch, tokens, heads, head_dim]
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument if the weight is neither [head_dim] nor [heads, head_dim], epsilon is
///            negative or not finite, or offset is not finite; x is then unchanged
/// Accuracy:  relative to exact arithmetic 4 eps, eps = 2^-24 (float), because the mean square is formed in
///            double; (9 + n / 32) eps, eps = 2^-53 (double), for a mean over n channels; half and bfloat16:
///            computed in float, one final rounding. The same bits for every stride, batch and number of
///            threads (tests/rotation/head_norm.test.cpp)
/// Cost:      one read and one write of x. The thread's scratch holds the gains and, for 16-bit channels, the
///            heads of a token: no allocation after the first call of this size on the thread
template <class T, class W, class Threads = this_thread>
void normalize_heads(head_view<T> x, const head_norm<W>& norm, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("normalize_heads", Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("normalize_heads", "x", T);
  if constexpr (!std::is_const_v<T>) detail::normalize_checked<T>("normalize_heads", x, x, norm, threads);
}

/// Writes the normalised `x` to `out`.
///
/// Requires:  out is x, or shares no element with it; throws if an overlap is detected (always for equal
///            strides)
/// Throws:    as normalize_heads, and std::invalid_argument if the shapes differ; out is then unchanged
template <class X, class T, class W, class Threads = this_thread>
void normalize_heads_to(head_view<X> x, head_view<T> out, const head_norm<W>& norm,
                        const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("normalize_heads_to", Threads);
  ROPE_DETAIL_CHECK_WRITABLE("normalize_heads_to", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_heads_to", "x and out", X, T);
  if constexpr (!std::is_const_v<T> && std::is_same_v<std::remove_const_t<X>, T>)
    detail::normalize_checked<T>("normalize_heads_to", x, out, norm, threads);
}

/// Normalises every head of `x` in place and rotates it, in one pass over memory.
///
///     y = R(norm(x))
///
/// The norm is over the whole head. The rotation is of its rotated channels. For float and double the result
/// has the bits of `normalize_heads` followed by `rotate`. 16-bit channels stay in float between norm and
/// rotation and are rounded once, at the end. The two calls round them twice. Transformers rounds them five
/// times: x / rms, its product with the weight (Gemma rounds these two together), and in the rotation both
/// products and their sum.
///
/// \param norm     see head_norm
/// \param table, positions, threads  as in `rotate`
///
/// Throws:    as normalize_heads and `rotate`; x is then unchanged
/// Accuracy:  that of the norm and of `rotate` in the arithmetic type, then one rounding of 16-bit channels
/// Cost:      one read and one write of x; scratch as in normalize_heads
/// Source:    `Qwen3Attention`, `Gemma3Attention` and `Olmo2Attention` of Hugging Face transformers
template <class Layout = detail::unnamed_layout, class T, class W, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void normalize_and_rotate(head_view<T> x, const head_norm<W>& norm, const Table& table,
                          const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("normalize_and_rotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("normalize_and_rotate", "x", T);
  if constexpr (!std::is_const_v<T>)
    detail::normalize_and_rotate_checked<Layout, T>("normalize_and_rotate", x, x, norm, detail::placed(table),
                                                    positions, threads);
}

/// Normalises and rotates queries and keys, each with its norm, both in place, in one pass over the table.
/// The bits are those of two calls.
///
///     normalize_and_rotate<half_split>(q, k, q_norm, k_norm, table, start);
///
/// \param  q, k  [batch, tokens, heads, head_dim] each; heads and head_dim may differ
///
/// Requires:  q and k share no element; throws if an overlap is detected (always for equal strides)
/// Throws:    as above, and std::invalid_argument if batch or tokens differ; q and k are then unchanged
template <class Layout = detail::unnamed_layout, class Q, class K, class QW, class KW, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void normalize_and_rotate(head_view<Q> q, head_view<K> k, const head_norm<QW>& q_norm,
                          const head_norm<KW>& k_norm, const Table& table, const P& positions = P{},
                          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("normalize_and_rotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_BOTH_IN_PLACE("normalize_and_rotate", Q, K);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_and_rotate", "both views", Q, K);
  if constexpr (!std::is_const_v<Q> && std::is_same_v<Q, K>)
    detail::normalize_and_rotate_both<Layout>("normalize_and_rotate", q, k, q_norm, k_norm,
                                              detail::placed(table), positions, threads);
}

/// Writes the normalised and rotated `x` to `out`.
///
/// Requires:  out is x, or shares no element with it; throws if an overlap is detected (always for equal
///            strides)
/// Throws:    as above, and std::invalid_argument if the shapes differ; out is then unchanged
template <class Layout = detail::unnamed_layout, class X, class T, class W, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void normalize_and_rotate_to(head_view<X> x, head_view<T> out, const head_norm<W>& norm, const Table& table,
                             const P& positions = P{}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("normalize_and_rotate_to", Layout, P, Threads);
  ROPE_DETAIL_CHECK_WRITABLE("normalize_and_rotate_to", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_and_rotate_to", "x and out", X, T);
  if constexpr (!std::is_const_v<T> && std::is_same_v<std::remove_const_t<X>, T>)
    detail::normalize_and_rotate_checked<Layout, T>("normalize_and_rotate_to", x, out, norm,
                                                    detail::placed(table), positions, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(normalize_heads, 1);
ROPE_DETAIL_ASK_FOR_VIEWS(normalize_heads_to, 2);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(normalize_and_rotate, 1);
ROPE_DETAIL_ASK_FOR_VIEWS_AND_TABLE(normalize_and_rotate_to, 2);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_HEAD_NORM_HPP
