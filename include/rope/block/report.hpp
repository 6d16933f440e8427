// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_REPORT_HPP
#define ROPE_BLOCK_REPORT_HPP

#include <span>

#include <rope/config.hpp>

/// What a block tells about a call besides its output.

namespace rope {
inline namespace ROPE_ABI {

/// Where a block writes what it tells besides its output; what is left empty is not told.
///
///     std::vector<float> probabilities(batch * heads * queries * keys);
///     block.reporting({.probabilities = probabilities}).forward(x, batch, out, table);
///
/// \tparam T  that of the block
template <class T>
struct multi_head_report {
  /// [batch, queries, heads], as in attention_options; where it is given it takes the place of the one there.
  std::span<double> log_sum_exp = {};
  /// [batch, heads, queries, keys]: what `attention_weights` says of the projected heads, 0 for what a query
  /// does not see, dropout included. For looking at: plain loops, beside the attention itself. Not told by a
  /// call with a cache.
  std::span<T> probabilities = {};
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_REPORT_HPP
