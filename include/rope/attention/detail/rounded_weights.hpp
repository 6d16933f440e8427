// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ROUNDED_WEIGHTS_HPP
#define ROPE_ATTENTION_DETAIL_ROUNDED_WEIGHTS_HPP

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/narrow_channels.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Weights of a tile as bfloat16.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// to[j] = weights[j], rounded, for as many weights as a panel is wide.
inline void round_panel(const float* weights, Eigen::bfloat16* to) {
  if constexpr (lanes < pair_sums >> 1) {
    const auto both = load_even_odd<pair_sums>(weights);
    store_even_odd(to, both.even, both.odd);
  } else {
    for (Index j = 0; j < panel_shape<float>::width; ++j) to[j] = rounded<Eigen::bfloat16>(weights[j]);
  }
}

/// Rounds `rows` rows of weights [rows, tile] for keys of `hull`, which are then multiplied in pairs: a
/// neighbour that is not in the hull has a weight of zero.
inline void round_weights(const tile_range& hull, Index rows, const float* weights,
                          Eigen::bfloat16* rounded) {
  using shape = panel_shape<float>;
  for (Index r = 0; r < rows; ++r) {
    Eigen::bfloat16* row = rounded + r * shape::tile;
    for (Index j = hull.first / shape::width * shape::width; j < hull.last; j += shape::width)
      round_panel(weights + r * shape::tile + j, row + j);
    if (hull.first % 2 == 1) row[hull.first - 1] = Eigen::bfloat16(0.0f);
    if (hull.last % 2 == 1) row[hull.last] = Eigen::bfloat16(0.0f);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_ROUNDED_WEIGHTS_HPP
