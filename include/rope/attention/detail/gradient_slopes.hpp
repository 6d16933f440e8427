// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_SLOPES_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_SLOPES_HPP

#include <algorithm>  // std::fill
#include <cmath>
#include <cstddef>
#include <limits>

#include <rope/attention/detail/gradient_panels.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>  // score_factors
#include <rope/attention/detail/strip_in_tile.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/exp2.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>

/// What the softmax makes of a strip of queries and one tile of keys in the backward pass: out of scores and
/// of products upstream . value, weights and the gradients with respect to the scores ("slopes"), in place.
///
///     w_ij = 2^(score_ij - shift_i) factor_i
///     slope_ij = w_ij (gain_ij g_i . v_j - g_i . o_i) bend_ij
///
/// gain is what dropout multiplies a kept weight by, 0 for others, and then also multiplies w where it
/// weighs values; bend is the slope of the softcap. Both numbers are 0 where the query does not see the key.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class A>
class strip_slopes {
  using P = packet<A>;

 public:
  static constexpr Index L = lanes<P>, tile = gradient_shape<A>::tile;
  static constexpr int rows = gradient_shape<A>::rows;

  /// What is known of the softmax of each row.
  struct row_numbers {
    const A *shifts, *factors, *products;
  };

  /// \param d_bias  laid out as the bias, or null
  strip_slopes(const block_keys& keys, const strip_rows& strip, double* d_bias)
      : strip_(keys, strip), d_bias_(d_bias) {}

  /// Keys of the tile that any row may see.
  const tile_range& hull() const { return strip_.hull; }

  /// \param weights  [rows, tile], scores in the panels that the hull touches; everything is written
  /// \param slopes   [rows, tile], products upstream . value there
  void run(A* weights, A* slopes, const score_factors& factors, const row_numbers& of) {
    for (Index r = 0; r < rows; ++r, weights += tile, slopes += tile)
      if (r >= strip_.rows.count || !prepare(r, weights, slopes, factors))
        clear(weights, slopes, 0, tile);
      else
        differentiate(r, weights, slopes, of.shifts[r], of.factors[r], of.products[r]);
  }

  /// Calls pair(j) for every key of the tile that row r sees.
  void for_each_visible(Index r, const auto& pair) {
    const tile_range range = met(r).range;
    if (range.empty()) return;
    strip_.mark_hidden(r, hidden_);
    for (Index j = range.first; j < range.last; ++j)
      if (!hidden_[j]) pair(j);
  }

 private:
  const row_in_tile& met(Index r) const { return strip_.met[r]; }
  const attention_options& options() const { return strip_.rules.options(); }

  static void clear(A* weights, A* slopes, Index first, Index last) {
    std::fill(weights + first, weights + last, A(0));
    std::fill(slopes + first, slopes + last, A(0));
  }

  /// Caps and biases the scores of row r, and drops products. False where it sees none.
  bool prepare(Index r, A* scores, A* products, const score_factors& factors) {
    const tile_range range = met(r).range;
    if (range.empty() || (met(r).has_holes && strip_.mark_hidden(r, hidden_) == range.last)) return false;
    if (options().softcap > 0) {
      const tile_range whole = packets_of<L>(range);
      hyperbolic_tangents(scores + whole.first, whole.last - whole.first, bends_ + whole.first);
      for (Index j = whole.first; j < whole.last; j += L) {
        const P tangent = load<P>(bends_ + j);
        store(scores + j, multiply(tangent, fill<P>(static_cast<A>(factors.cap))));
        store(bends_ + j, multiply_add(subtract(fill<P>(A(0)), tangent), tangent, fill<P>(A(1))));
      }
    }
    strip_.for_each_bias(r, [&](Index j, float added) {
      scores[j] = multiply_add(static_cast<A>(added), static_cast<A>(log2_e), scores[j]);
    });
    if (options().dropout > 0) {
      const A gain = static_cast<A>(1 / (1 - options().dropout));
      strip_.for_each_kept(r, [&](Index j, bool kept) {
        gains_[j] = kept ? gain : A(0);
        products[j] *= gains_[j];
      });
    }
    return true;
  }

  void differentiate(Index r, A* weights, A* slopes, A shift_number, A factor_number, A product_number) {
    const tile_range range = met(r).range, whole = packets_of<L>(range);
    const P shift = fill<P>(shift_number), factor = fill<P>(factor_number), product = fill<P>(product_number);
    // Scores that are seen may be infinite only where the largest of them, the shift, was.
    if (equal((std::abs)(shift_number), (std::numeric_limits<A>::max)()))
      for (Index j = whole.first; j < whole.last; ++j) weights[j] = saturated(weights[j]);
    for (Index j = whole.first; j < whole.last; j += L) {
      const P weight = multiply(exp2(subtract(load<P>(weights + j), shift)), factor);
      store(weights + j, weight);
      store(slopes + j, multiply(weight, subtract(load<P>(slopes + j), product)));
    }
    clear(weights, slopes, 0, range.first);
    clear(weights, slopes, range.last, tile);
    if (met(r).has_holes)
      for (Index j = range.first; j < range.last; ++j) {
        weights[j] = hidden_[j] ? A(0) : weights[j];
        slopes[j] = hidden_[j] ? A(0) : slopes[j];
      }
    if (d_bias_ != nullptr) add_to_bias(r, slopes, range);
    // The softmax is of all keys, kept or not; only what multiplies values changes.
    if (options().dropout > 0)
      for (Index j = range.first; j < range.last; ++j) weights[j] *= gains_[j];
    if (options().softcap > 0)
      for (Index j = range.first; j < range.last; ++j) slopes[j] *= bends_[j];
  }

  void add_to_bias(Index r, const A* slopes, tile_range range) const {
    const score_view<float>& bias = options().bias;
    const Index step = bias.key_step(), begin = strip_.begin;
    double* d_bias = d_bias_ + (strip_.bias_of(r) - bias.data);
    if (step == 1)
      for (Index j = range.first; j < range.last; ++j) d_bias[begin + j] += static_cast<double>(slopes[j]);
    else
      for (Index j = range.first; j < range.last; ++j)
        d_bias[(begin + j) * step] += static_cast<double>(slopes[j]);
  }

  strip_in_tile<rows> strip_;
  double* d_bias_;
  key_mark<A> hidden_[std::size_t(tile)];  // of a row that has holes
  A bends_[std::size_t(tile)];
  A gains_[std::size_t(tile)];
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_SLOPES_HPP
