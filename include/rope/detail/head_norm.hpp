// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_HEAD_NORM_HPP
#define ROPE_DETAIL_HEAD_NORM_HPP

#include <cmath>

#include <rope/config.hpp>
#include <rope/view.hpp>

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
  void apply(const head_view<const T>& x, const head_view<T>& y) const {
    if (weight == nullptr) return;
    for (Index b = 0; b < x.batch; ++b)
      for (Index t = 0; t < x.tokens; ++t)
        for (Index h = 0; h < x.heads; ++h) {
          const Eigen::Map<const channels> in(x.at(b, t, h), x.head_dim);
          Eigen::Map<channels>(y.at(b, t, h), x.head_dim) = in * inverse_rms(in) * gain(x.head_dim);
        }
  }

  /// Replaces the gradient d by y with that by x, and adds that by the weight to d_weight where it is given:
  ///
  ///     d_x = (g d - x mean(x g d) / rms^2) / rms,   d_weight = sum over heads of d x / rms
  void apply_gradient(const head_view<const T>& x, const head_view<T>& d, T* d_weight) const {
    if (weight == nullptr) return;
    for (Index b = 0; b < x.batch; ++b)
      for (Index t = 0; t < x.tokens; ++t)
        for (Index h = 0; h < x.heads; ++h) {
          const Eigen::Map<const channels> in(x.at(b, t, h), x.head_dim);
          Eigen::Map<channels> gradient(d.at(b, t, h), x.head_dim);
          const T r = inverse_rms(in);
          if (d_weight != nullptr) Eigen::Map<channels>(d_weight, x.head_dim) += gradient * in * r;
          const T along = (in * gain(x.head_dim) * gradient).mean() * r * r;
          gradient = (gain(x.head_dim) * gradient - in * along) * r;
        }
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_HEAD_NORM_HPP
