// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HEAD_NORM_HPP
#define ROPE_ROTATION_HEAD_NORM_HPP

#include <algorithm>  // std::max, std::min, std::fill_n
#include <cstddef>
#include <span>
#include <type_traits>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/head_norm_pass.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The root-mean-square norm of the heads of q and k (QK norm), alone or in one pass with the rotation that
/// follows it, and its backward pass.

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

  /// [head_dim], the same for all heads, or [heads, head_dim]: a std::vector, an Eigen vector, a span.
  detail::number_span<W> weight = {};
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
  const Index size = to_index(norm.weight.size()), all = x.heads * x.head_dim;
  if (size != x.head_dim && size != all)
    throw_invalid(function, "the weight of the norm must have length head_dim or heads * head_dim, ",
                  x.head_dim, " or ", all, ", got ", size);
  if (!is_finite(norm.epsilon) || norm.epsilon < 0 || !is_finite(norm.offset))
    throw_invalid(function,
                  "the epsilon of the norm must be finite and not negative, its offset finite, got ",
                  norm.epsilon, " and ", norm.offset);
  return {norm.weight, norm.mean_over == norm_mean::token ? (std::max)(Index{1}, x.heads) : Index{1},
          size == x.head_dim ? Index{0} : x.head_dim, norm.epsilon, norm.offset};
}

/// Checks and normalises the heads, and rotates them unless `rotation` is without_rotation. Heads that are
/// rotated are checked before, with their rotation.
template <class T, class W, class Rotation, class Threads>
void normalize_checked(const char* function, const head_view<const T>& x, const head_view<T>& out,
                       const head_norm<W>& norm, const Rotation& rotation, const Threads& threads) {
  if constexpr (std::is_same_v<Rotation, without_rotation>) check_heads(function, x);
  const norm_rule<W> rule = checked_norm(function, norm, x);
  check_result(function, x, out);
  run_plans(threads, tokens_of_norm, norm_pass{x, out, rule, rotation});
}
template <class Layout, class T, class W, class S, class P, class Threads>
void normalize_and_rotate_checked(const char* function, const head_view<const T>& x, const head_view<T>& out,
                                  const head_norm<W>& norm, const placed_table<S>& table, const P& positions,
                                  const Threads& threads) {
  const auto source = position_source(positions, x.tokens);
  check_rotation<Layout>(function, x, table, source);
  normalize_checked(function, x, out, norm, row_rotation<Layout>(table, source), threads);
}

}  // namespace detail

/// Normalises every head of `x` in place.
///
/// \param x        [batch, tokens, heads, head_dim]
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument if the weight is neither [head_dim] nor [heads, head_dim], epsilon is
///            negative or not finite, or offset is not finite; x is then unchanged
/// Accuracy:  where 1 / rms and its square are normal numbers:
///            float: relative error at most 4 eps, eps = 2^-24, because the mean square is formed in double.
///            double: at most (9 + n / 32) eps, eps = 2^-53, for a mean over n channels. half and bfloat16:
///            computed in float, one final rounding. Strides, batch and threads do not change the bits
///            (tests/rotation/head_norm.test.cpp)
/// Cost:      one read and one write of x. The thread's scratch holds the gains and, for 16-bit channels, the
///            heads of a token: no allocation after the first call of this size on the thread
template <class T, class W, class Threads = this_thread>
void normalize_heads(head_view<T> x, const head_norm<W>& norm, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("normalize_heads", Threads);
  ROPE_DETAIL_CHECK_IN_PLACE("normalize_heads", "x", T);
  if constexpr (!std::is_const_v<T>)
    detail::normalize_checked<T>("normalize_heads", x, x, norm, detail::without_rotation{}, threads);
}

/// Writes the normalised `x` to `out`.
///
/// Requires:  out is x, or shares no element with it; throws if an overlap is detected (for equal
///            strides nearly always)
/// Throws:    as normalize_heads, and std::invalid_argument if the shapes differ; out is then unchanged
template <class X, class T, class W, class Threads = this_thread>
void normalize_heads_to(head_view<X> x, head_view<T> out, const head_norm<W>& norm,
                        const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_THREADS("normalize_heads_to", Threads);
  ROPE_DETAIL_CHECK_WRITABLE("normalize_heads_to", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_heads_to", "x and out", X, T);
  if constexpr (!std::is_const_v<T> && std::is_same_v<std::remove_const_t<X>, T>)
    detail::normalize_checked<T>("normalize_heads_to", x, out, norm, detail::without_rotation{}, threads);
}

/// Normalises every head of `x` in place and rotates it, in one pass over memory.
///
///     y = R(norm(x))
///
/// The norm is taken over the whole head, and the rotation applies to the rotated channels. For float and
/// double the result has the bits of `normalize_heads` followed by `rotate`. 16-bit channels stay in float
/// between norm and rotation and are rounded once, at the end. The two calls round them twice. Hugging Face
/// transformers rounds them five times: x / rms, its product with the weight (Gemma rounds these two
/// together), and in the rotation both products and their sum.
///
/// \param norm     see head_norm
/// \param table, positions, threads  as in `rotate`
///
/// Throws:    as normalize_heads and `rotate`; x is then unchanged. If memory runs out, x may be normalised
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
/// Requires:  q and k share no element; throws if an overlap is detected (for equal strides nearly always)
/// Throws:    as above, and std::invalid_argument if batch or tokens differ; q and k are then unchanged. If
///            memory runs out, q may be done
template <class Layout = detail::unnamed_layout, class Q, class K, class QW, class KW, rotation_table Table,
          class P = detail::braced_ids, class Threads = this_thread>
void normalize_and_rotate(head_view<Q> q, head_view<K> k, const head_norm<QW>& q_norm,
                          const head_norm<KW>& k_norm, const Table& table, const P& positions = P{},
                          const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ROTATION("normalize_and_rotate", Layout, P, Threads);
  ROPE_DETAIL_CHECK_BOTH_IN_PLACE("normalize_and_rotate", Q, K);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_and_rotate", "both views", Q, K);
  if constexpr (!std::is_const_v<Q> && std::is_same_v<Q, K>) {
    const auto place = detail::placed(table);
    const auto source = detail::position_source(positions, q.tokens);
    detail::check_both<Layout>("normalize_and_rotate", q, k, place, source);
    const auto rotation = detail::row_rotation<Layout>(place, source);
    const auto pass_of = [&](const auto& x, const auto& norm) {
      return detail::norm_pass{x, x, detail::checked_norm("normalize_and_rotate", norm, x), rotation};
    };
    const auto queries = pass_of(q, q_norm);
    const auto keys = pass_of(k, k_norm);
    detail::run_plans(threads, detail::tokens_of_norm, queries, keys);
  }
}

/// Writes the normalised and rotated `x` to `out`.
///
/// Requires:  out is x, or shares no element with it; throws if an overlap is detected (for equal
///            strides nearly always)
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

namespace detail {

/// The backward pass of tokens [first, last) of the batch, for checked arguments. Overwrites d.
///
/// \param d_weight  of the length of the weights, gradients are added to it; or null
template <class T, class W>
void run_norm_gradient(const head_view<const T>& x, const head_view<T>& d, const norm_rule<W>& norm,
                       Index first, Index last, double* d_weight) {
  using A = arithmetic<T>;
  const Index n = x.head_dim, size = x.heads * n;
  const A* const gains = norm.template gains<A>();
  A* const rows = workspace<struct wide_heads, A>(2 * size);
  for (; first < last; ++first) {
    const Index b = first / x.tokens, t = first % x.tokens;
    for (Index h = 0; h < x.heads; ++h) {
      widen(x.at(b, t, h), n, rows + h * n);
      widen(d.at(b, t, h), n, rows + size + h * n);
    }
    for (Index group = 0; group < x.heads; group += norm.group) {
      double squares = 0, along = 0;
      for (Index h = group; h < group + norm.group; ++h) {
        const A *const in = rows + h * n, *const by = in + size, *const gain = gains + h * norm.head_stride;
        squares += sum_of_squares(in, n);
        along += sum_of_products(
            n, [=](Index i) { return static_cast<double>(in[i]) * static_cast<double>(gain[i]); },
            [=](Index i) { return static_cast<double>(by[i]); });
      }
      const double r = norm.template inverse_rms<double>(squares, n);
      const double share = along * r * r / static_cast<double>(norm.group * n);
      for (Index h = group; h < group + norm.group; ++h) {
        const A *const in = rows + h * n, *const gain = gains + h * norm.head_stride;
        A* const by = rows + size + h * n;
        if (d_weight != nullptr)
          for (Index i = 0; i < n; ++i) {
            double& sum = d_weight[h * norm.head_stride + i];
            sum = multiply_add(static_cast<double>(by[i]) * static_cast<double>(in[i]), r, sum);
          }
        for (Index i = 0; i < n; ++i)
          by[i] = static_cast<A>(multiply_add(static_cast<double>(gain[i]), static_cast<double>(by[i]),
                                              -(static_cast<double>(in[i]) * share)) *
                                 r);
        round_channels<T>(by, n, d.at(b, t, h));
      }
    }
  }
}

}  // namespace detail

/// The gradients of `normalize_heads`, in place: overwrites `d`, the gradient with respect to the normalised
/// heads, with the gradient with respect to the heads before the norm.
///
///     d_x = (g d - x mean(x g d) / rms^2) / rms
///     d_weight = sum over the heads that a weight is for, of all tokens, of  d x / rms
///
/// The gradient of `normalize_and_rotate` is rotate_gradient followed by this function.
///
///     rotate_gradient<half_split>(d_q, table, start);
///     normalize_heads_gradient(q, q_norm, d_q, d_q_weight);
///
/// \param x         [batch, tokens, heads, head_dim], before the norm
/// \param d         of the shape of x
/// \param d_weight  overwritten, of the length of norm.weight; empty if not needed
/// \param threads   your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  d shares no element with x; throws if an overlap is detected
/// Throws:    as normalize_heads, and std::invalid_argument if a shape or length differs; nothing is then
///            written
/// Accuracy:  products and sums in double, one rounding to the arithmetic type and one to 16 bits
/// Cost:      one read of x, one read and one write of d; scratch for a token, and one double per weight and
///            64 tokens if d_weight is given
template <class X, class T, class W, class Threads = this_thread>
void normalize_heads_gradient(head_view<X> x, const head_norm<W>& norm, head_view<T> d,
                              std::span<detail::arithmetic<std::remove_const_t<X>>> d_weight = {},
                              const Threads& threads = {}) {
  const char* const function = "normalize_heads_gradient";
  ROPE_DETAIL_CHECK_THREADS("normalize_heads_gradient", Threads);
  ROPE_DETAIL_CHECK_WRITABLE("normalize_heads_gradient", "d", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("normalize_heads_gradient", "x and d", X, T);
  if constexpr (!std::is_const_v<T> && std::is_same_v<std::remove_const_t<X>, T>) {
    detail::check_view(function, x);
    detail::check_memory(function, x, d);
    detail::check_written(function, d);
    detail::check_same_shape(function, x, d, "d");
    if (detail::share_memory(x, d))
      detail::throw_invalid(function, "d must share no memory with x; give other memory");
    const detail::norm_rule<W> rule = detail::checked_norm(function, norm, x);
    if (!d_weight.empty() && d_weight.size() != norm.weight.size())
      detail::throw_invalid(function, "d_weight must be empty or have length ", norm.weight.size(), ", got ",
                            d_weight.size());

    // One sum per 64 tokens, added in token order, so that the bits do not depend on the threads.
    constexpr Index tokens_of_sum = 64;
    const Index tokens = x.batch * x.tokens, sums = detail::pieces_of(tokens, tokens_of_sum),
                weights = detail::to_index(norm.weight.size());
    double* const partial =
        d_weight.empty() ? nullptr : detail::workspace<struct partial_sums, double>(sums * weights);
    const double operations = detail::cost_of(10, tokens_of_sum, x.heads, x.head_dim);
    detail::parallel_tasks(threads, sums, operations, [&](Index s) {
      double* const sum = partial == nullptr ? nullptr : partial + s * weights;
      if (sum != nullptr) std::fill_n(sum, weights, 0.0);
      const Index first = s * tokens_of_sum;
      detail::run_norm_gradient<T>(x, d, rule, first, (std::min)(first + tokens_of_sum, tokens), sum);
    });
    for (std::size_t i = 0; i < d_weight.size(); ++i) {
      double sum = 0;
      for (Index s = 0; s < sums; ++s) sum += partial[s * weights + static_cast<Index>(i)];
      d_weight[i] = static_cast<detail::arithmetic<T>>(sum);
    }
  }
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_HEAD_NORM_HPP
