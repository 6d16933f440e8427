// SPDX-License-Identifier: MIT
#ifndef ROPE_SOFTMAX_HPP
#define ROPE_SOFTMAX_HPP

#include <algorithm>  // std::max
#include <cmath>

#include <rope/config.hpp>

/// Softmax over keys that arrive in pieces.

namespace rope {
inline namespace ROPE_ABI {

/// The softmax of one query over every key it has been shown so far.
///
///     maximum = max_j s_j,   sum = sum_j exp(s_j - maximum)
///
/// so that the attention output is  sum_j exp(s_j - maximum) v_j / sum.  Before the first key `sum` is 0 and
/// `maximum` has no meaning: no infinity stands for "nothing yet", so the recurrence also holds under
/// -ffast-math.
///
/// \tparam A  float or double
///
/// Source:  Milakov and Gimelshein 2018, Online normalizer calculation for softmax, arXiv:1805.02867,
/// algorithm 3
template <class A>
struct softmax_state {
  A maximum = 0;
  A sum = 0;

  /// Shows the query more keys: replaces their scores by the weights exp(score - maximum).
  ///
  /// \param scores  [keys], at least one; overwritten
  ///
  /// Returns:  the factor by which every earlier weight, and any sum of values weighted with them, must be
  /// multiplied
  template <class Scores>
  A add(Scores&& scores) {
    const bool first = sum == 0;
    const A largest = scores.maxCoeff(), before = maximum;
    maximum = first ? largest : (std::max)(before, largest);
    scores = (scores - maximum).exp();
    const A shrink = first ? A(0) : std::exp(before - maximum);
    sum = sum * shrink + scores.sum();
    return shrink;
  }

  /// Whether any key has been seen.
  bool empty() const { return sum == 0; }
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_SOFTMAX_HPP
