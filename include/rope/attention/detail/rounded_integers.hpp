// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ROUNDED_INTEGERS_HPP
#define ROPE_ATTENTION_DETAIL_ROUNDED_INTEGERS_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>
#include <limits>

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Queries, and the weights of a tile, as integers of 16 bits beside one scale: what multiplies keys and
/// values of 8 bits, so that a sum of products stays below 2^31.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Rounds the channels of a query and returns their scale.
inline float round_query(const float* channels, Index head_dim, std::int16_t* rounded) {
  constexpr Index largest = (std::numeric_limits<std::int16_t>::max)(),
                  sum = (std::numeric_limits<std::int32_t>::max)();
  return quantize_channels(
      channels, head_dim, rounded,
      static_cast<std::int32_t>((std::min)(largest, sum / 128 / (std::max)(Index{1}, head_dim))));
}

/// Rounds a row of weights [tile], of which those of `hull` count, and returns their scale. They are
/// multiplied in pairs: a neighbour that is not in the hull has a weight of zero.
inline float round_weights(const tile_range& hull, const float* weights, std::int16_t* rounded) {
  constexpr Index largest = (std::numeric_limits<std::int16_t>::max)(), tile = panel_shape<float>::tile;
  static_assert(largest * 128 * tile < Index{(std::numeric_limits<std::int32_t>::max)()});
  if (hull.first % 2 == 1) rounded[hull.first - 1] = 0;
  if (hull.last % 2 == 1) rounded[hull.last] = 0;
  return quantize_channels(weights + hull.first, hull.last - hull.first, rounded + hull.first,
                           std::int32_t{largest});
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_ROUNDED_INTEGERS_HPP
