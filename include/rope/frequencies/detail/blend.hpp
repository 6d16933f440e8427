// SPDX-License-Identifier: MIT
#ifndef ROPE_FREQUENCIES_DETAIL_BLEND_HPP
#define ROPE_FREQUENCIES_DETAIL_BLEND_HPP

#include <algorithm>  // std::clamp, std::min, std::max
#include <cmath>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>

/// Where a scaling rule passes from one schedule to another: between two pairs, each given by the number of
/// turns that it makes over the L0 positions of training. d is rotary_dim.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The pair, as a real number, that turns `rotations` times over L0 positions.
inline long double pair_of_rotations(double rotations, const schedule& axis, double original_max_position) {
  return static_cast<long double>(axis.rotary_dim) *
         std::log(widened(original_max_position) / (widened(rotations) * 2 * wide_pi)) /
         (2 * std::log(axis.base));
}

/// The pairs between which a blend runs.
struct blend_bounds {
  long double low;
  long double high;
};

/// The pairs that turn `fast` and `slow` times, rounded outwards if `truncate`, and kept in [0, d - 1]. Where
/// they are equal, high is 0.001 above low, as in Hugging Face transformers. Where no pair of [0, d - 1] lies
/// between, low > high.
inline blend_bounds blend_between(double fast, double slow, bool truncate, const schedule& axis,
                                  double original_max_position) {
  long double low = pair_of_rotations(fast, axis, original_max_position);
  long double high = pair_of_rotations(slow, axis, original_max_position);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = (std::max)(low, 0.0L);
  high = (std::min)(high, static_cast<long double>(axis.rotary_dim - 1));
  if (equal(low, high)) high += 0.001L;
  return {low, high};
}

/// 0 below `low`, 1 above `high`, linear between: the share of a pair that is interpolated.
inline long double ramp(Index pair, long double low, long double high) {
  return std::clamp((static_cast<long double>(pair) - low) / (high - low), 0.0L, 1.0L);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_FREQUENCIES_DETAIL_BLEND_HPP
