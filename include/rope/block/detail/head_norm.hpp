// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_HEAD_NORM_HPP
#define ROPE_BLOCK_DETAIL_HEAD_NORM_HPP

#include <algorithm>  // std::min
#include <cmath>

#include <rope/base/parallel.hpp>
#include <rope/base/workspace.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// The root-mean-square norm that some models put on every head of q and k before the rotation.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// y = g x / rms,   rms = sqrt(mean(x^2) + epsilon),   g = offset + weight
///
/// Source:  Zhang and Sennrich 2019, arXiv:1910.07467, equation 4; Qwen 3 has offset 0, Gemma 3 offset 1
template <class T>
struct head_norm {
  const T* weight;  // [head_dim], null: no norm
  double epsilon;
  double offset;

  using channels = Eigen::Array<T, Eigen::Dynamic, 1>;

  auto gain(Index head_dim) const {
    return Eigen::Map<const channels>(weight, head_dim) + static_cast<T>(offset);
  }
  T inverse_rms(const Eigen::Map<const channels>& x) const {
    return 1 / std::sqrt(x.square().mean() + static_cast<T>(epsilon));
  }

  /// Every head of x into y, of the same shape; y may be x.
  template <class Threads>
  void apply(const head_view<const T>& x, const head_view<T>& y, const Threads& threads) const {
    if (weight == nullptr) return;
    const Index bytes = x.size() * Index(sizeof(T));
    parallel_pieces(threads, x.batch * x.tokens, bytes, [&](Index first, Index last) {
      for_each_head(x, first, last, [&](Index b, Index t, Index h) {
        const Eigen::Map<const channels> in(x.at(b, t, h), x.head_dim);
        Eigen::Map<channels>(y.at(b, t, h), x.head_dim) = in * inverse_rms(in) * gain(x.head_dim);
      });
    });
  }

  /// Replaces the gradient d by y with that by x, and writes that by the weight to d_weight where it is
  /// given:
  ///
  ///     d_x = (g d - x mean(x g d) / rms^2) / rms,   d_weight = sum over heads of d x / rms
  template <class Threads>
  void apply_gradient(const head_view<const T>& x, const head_view<T>& d, T* d_weight,
                      const Threads& threads) const {
    if (weight == nullptr) return;
    // One sum per 64 tokens, added in their order, so that the bits do not depend on the threads.
    constexpr Index tokens_of_sum = 64;
    const Index tokens = x.batch * x.tokens, sums = (tokens + tokens_of_sum - 1) / tokens_of_sum;
    T* partial = d_weight == nullptr ? nullptr : workspace<partial_sums, T>(sums * x.head_dim);
    const Index operations = 10 * tokens_of_sum * x.heads * x.head_dim;
    parallel_tasks(threads, sums, operations, [&](Index s) {
      if (partial != nullptr) list(partial, s, x.head_dim).setZero();
      const Index first = s * tokens_of_sum, last = (std::min)(first + tokens_of_sum, tokens);
      for_each_head(x, first, last, [&](Index b, Index t, Index h) {
        const Eigen::Map<const channels> in(x.at(b, t, h), x.head_dim);
        Eigen::Map<channels> gradient(d.at(b, t, h), x.head_dim);
        const T r = inverse_rms(in);
        if (partial != nullptr) list(partial, s, x.head_dim) += gradient * in * r;
        const T along = (in * gain(x.head_dim) * gradient).mean() * r * r;
        gradient = (gain(x.head_dim) * gradient - in * along) * r;
      });
    });
    if (d_weight == nullptr) return;
    list(d_weight, 0, x.head_dim).setZero();
    for (Index s = 0; s < sums; ++s) list(d_weight, 0, x.head_dim) += list(partial, s, x.head_dim);
  }

 private:
  struct partial_sums {};

  static Eigen::Map<channels> list(T* lists, Index i, Index length) { return {lists + i * length, length}; }

  /// The heads of tokens [first, last) of the batch.
  template <class Body>
  static void for_each_head(const head_view<const T>& x, Index first, Index last, const Body& body) {
    for (Index i = first; i < last; ++i)
      for (Index h = 0; h < x.heads; ++h) body(i / x.tokens, i % x.tokens, h);
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_HEAD_NORM_HPP
