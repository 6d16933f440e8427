// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_HEAD_NORM_GRADIENT_HPP
#define ROPE_ROTATION_HEAD_NORM_GRADIENT_HPP

#include <algorithm>  // std::min, std::fill_n, std::copy_n
#include <cstddef>
#include <span>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/head_norm_pass.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/view.hpp>

/// The backward pass of `normalize_heads`.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The backward pass of checked arguments. Like norm_pass, it runs on a range of tokens.
template <class T, class W>
class norm_gradient {
  using A = arithmetic<T>;

 public:
  norm_gradient(const head_view<const T>& x, const head_view<T>& d, const norm_rule<W>& norm)
      : x_(x), d_(d), norm_(norm) {}

  /// The number of weights.
  Index weights() const { return norm_.head_stride == 0 ? x_.head_dim : x_.heads * x_.head_dim; }

  /// Processes tokens [first, last) of the batch.
  ///
  /// \param d_weight  [weights()], gradients are added to it; or null
  void run(Index first, Index last, double* d_weight) const {
    struct wide_heads {};
    const Index size = x_.heads * x_.head_dim;
    const A* const gains = norm_.template gains<A>(weights());
    A* const rows = workspace<wide_heads, A>(2 * size);
    for (; first < last; ++first) {
      const Index b = first / x_.tokens, t = first % x_.tokens;
      for (Index h = 0; h < x_.heads; ++h) {
        widen(x_.at(b, t, h), x_.head_dim, rows + h * x_.head_dim);
        widen(d_.at(b, t, h), x_.head_dim, rows + size + h * x_.head_dim);
      }
      for (Index h = 0; h < x_.heads; h += norm_.group) run_group(h, rows, rows + size, gains, d_weight);
      for (Index h = 0; h < x_.heads; ++h) {
        const A* const row = rows + size + h * x_.head_dim;
        if constexpr (std::is_same_v<T, A>)
          std::copy_n(row, x_.head_dim, d_.at(b, t, h));
        else
          round_channels<T>(row, x_.head_dim, d_.at(b, t, h));
      }
    }
  }

 private:
  /// Processes the `group` heads that share one mean, from head `first` on. x and d are [heads, head_dim] of
  /// one token.
  void run_group(Index first, const A* x, A* d, const A* gains, double* d_weight) const {
    const Index n = x_.head_dim;
    double squares = 0, along = 0;
    for (Index h = first; h < first + norm_.group; ++h) {
      const A *const in = x + h * n, *const by = d + h * n, *const gain = gains + h * norm_.head_stride;
      squares += sum_of_squares(in, n);
      along += sum_of_products(
          n, [=](Index i) { return static_cast<double>(in[i]) * static_cast<double>(gain[i]); },
          [=](Index i) { return static_cast<double>(by[i]); });
    }
    const double r = norm_.template inverse_rms<double>(squares, n);
    const double share = along * r * r / static_cast<double>(norm_.group * n);
    for (Index h = first; h < first + norm_.group; ++h) {
      const A *const in = x + h * n, *const gain = gains + h * norm_.head_stride;
      A* const by = d + h * n;
      if (d_weight != nullptr)
        for (Index i = 0; i < n; ++i) {
          double& sum = d_weight[h * norm_.head_stride + i];
          sum = multiply_add(static_cast<double>(by[i]) * static_cast<double>(in[i]), r, sum);
        }
      for (Index i = 0; i < n; ++i)
        by[i] = static_cast<A>(multiply_add(static_cast<double>(gain[i]), static_cast<double>(by[i]),
                                            -(static_cast<double>(in[i]) * share)) *
                               r);
    }
  }

  head_view<const T> x_;
  head_view<T> d_;
  norm_rule<W> norm_;
};

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
/// \param d_weight  overwritten, with the length of norm.weight; or empty if not needed
/// \param threads   your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  d shares no element with x
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
    detail::check_same_shape(function, x, d, "d");
    const detail::norm_gradient<T, W> pass(x, d, detail::checked_norm(function, norm, x));
    if (!d_weight.empty() && d_weight.size() != norm.weight.size())
      detail::throw_invalid(function, "d_weight must be empty or have length ", norm.weight.size(), ", got ",
                            d_weight.size());

    // One sum per 64 tokens, added in token order, so that the bits do not depend on the threads.
    struct partial_sums {};
    constexpr Index tokens_of_sum = 64;
    const Index tokens = x.batch * x.tokens, sums = (tokens + tokens_of_sum - 1) / tokens_of_sum,
                weights = pass.weights();
    double* const partial =
        d_weight.empty() ? nullptr : detail::workspace<partial_sums, double>(sums * weights);
    const double operations = detail::cost_of(10, tokens_of_sum, x.heads, x.head_dim);
    detail::parallel_tasks(threads, sums, operations, [&](Index s) {
      double* const sum = partial == nullptr ? nullptr : partial + s * weights;
      if (sum != nullptr) std::fill_n(sum, weights, 0.0);
      const Index first = s * tokens_of_sum;
      pass.run(first, (std::min)(first + tokens_of_sum, tokens), sum);
    });
    for (std::size_t i = 0; i < d_weight.size(); ++i) {
      double sum = 0;
      for (Index s = 0; s < sums; ++s) sum += partial[s * weights + static_cast<Index>(i)];
      d_weight[i] = static_cast<detail::arithmetic<T>>(sum);
    }
  }
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_HEAD_NORM_GRADIENT_HPP
