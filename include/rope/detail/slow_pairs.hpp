// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_SLOW_PAIRS_HPP
#define ROPE_DETAIL_SLOW_PAIRS_HPP

#include <algorithm>  // std::max
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/exact.hpp>
#include <rope/frequencies.hpp>
#include <rope/owned_array.hpp>
#include <rope/phase.hpp>

/// Pairs that hardly turn: learned frequencies near zero, or a schedule divided by 1e30.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A step of a pair is rounded to 2^-128 turn, which leaves it fewer bits than a double has when inv_freq is
/// below 2^-65. Phases of such a pair are therefore counted for 2^shift times its inv_freq, which lies in
/// [2^-65, 2^-64), and the sine and cosine are taken of the angle divided by 2^shift. The raised angle stays
/// below half a radian at every position, so that nothing of it is lost to whole turns.
class slow_pairs {
 public:
  explicit slow_pairs(const frequencies::inv_freq_map& inv_freq) : raised_(inv_freq) {
    for (Index i = 0; i < inv_freq.rows(); ++i) {
      double fastest = 0;
      for (Index a = 0; a < inv_freq.cols(); ++a) fastest = (std::max)(fastest, (std::abs)(inv_freq(i, a)));
      if (equal(fastest, 0) || fastest >= 0x1p-65) continue;
      const int shift = -65 - std::ilogb(fastest);
      for (Index a = 0; a < inv_freq.cols(); ++a) raised_(i, a) = std::ldexp(inv_freq(i, a), shift);
      pairs_.push_back({i, shift});
    }
  }

  /// inv_freq [pairs, axes], times 2^shift where a pair is slow.
  frequencies::inv_freq_map raised() const { return raised_.map(); }

  /// Writes the entries of the slow pairs of a row, whose phases are those of raised().
  template <class S>
  void write(const phase* phases, double m, S* cos, S* sin) const {
    for (const auto& [pair, shift] : pairs_) {
      const uint128 turn = phases[pair].turn;
      const bool negative = static_cast<std::int64_t>(turn.hi) < 0;
      const auto [head, tail] = angle_for_double(negative ? -turn : turn);
      const double angle = std::ldexp(negative ? -(head + tail) : head + tail, -shift);
      cos[pair] = static_cast<S>(m * std::cos(angle));
      sin[pair] = static_cast<S>(m * std::sin(angle));
    }
  }

 private:
  struct slow_pair {
    Index pair;
    int shift;
  };
  owned_array<double> raised_;
  std::vector<slow_pair> pairs_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_SLOW_PAIRS_HPP
