// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_COORDINATE_PHASES_HPP
#define ROPE_DETAIL_COORDINATE_PHASES_HPP

#include <bit>  // std::countr_zero
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/exact.hpp>
#include <rope/detail/wide_integer.hpp>
#include <rope/frequencies.hpp>
#include <rope/phase.hpp>

/// The phases of rows of coordinates, with the work that does not depend on the row done once.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A coordinate that is no integer as a whole and a fraction in units of 2^-64, without its sign. What has
/// bits below 2^-64, as only coordinates below 2^-11 can, does not fit.
struct fixed_point {
  std::uint64_t whole = 0, fraction = 0;
  bool fits = false;

  explicit fixed_point(double coordinate) {
    const binary c = binary_of(coordinate);  // exponent < 0, as every double from 2^53 on is an integer
    if (c.exponent + std::countr_zero(c.significand) < -64) return;
    fits = true;
    if (c.exponent > -64) {
      whole = c.significand >> -c.exponent;
      fraction = c.significand << (64 + c.exponent);
    } else {
      fraction = c.significand >> (-64 - c.exponent);
    }
  }
};

/// How fast one pair turns along one axis: |inv_freq| / (2 pi) turns in units of 2^-192, the most significant
/// word first, which is enough for any coordinate of a double.
///
/// Accuracy of a product with a fixed_point below 2^53:  2^-128 turn
class turning_rate {
 public:
  explicit turning_rate(double inv_freq) : inv_freq_(inv_freq), step_(phase_of(inv_freq)) {
    const uint128 upper = phase_of((std::abs)(inv_freq), 0x1p-64).turn,
                  lower = phase_of((std::abs)(inv_freq), 0x1p64).turn;
    // `upper` was rounded to nearest; the words are those of a number cut off.
    const uint128 cut = upper + -uint128{0, lower.hi >> 63};
    turns_[0] = cut.hi;
    turns_[1] = cut.lo;
    turns_[2] = lower.hi;
    turns_[3] = lower.lo;
  }

  /// The phase at a whole coordinate, of either sign.
  phase at_integer(std::int64_t position) const { return phase_at(step_, inv_freq_, position); }

  /// The phase at a coordinate of which `magnitude` is the fixed point.
  phase at_real(double coordinate, const fixed_point& magnitude) const {
    if (!magnitude.fits) return phase_of(inv_freq_, coordinate);
    const uint128 a = multiply(magnitude.whole, turns_[3]), b = multiply(magnitude.fraction, turns_[2]);
    const std::uint64_t c = multiply(magnitude.fraction, turns_[3]).hi, half = std::uint64_t{1} << 63;
    const uint128 below =
        uint128{0, a.lo} + uint128{0, b.lo} + uint128{0, c} + uint128{0, half};  // 2^-192 turn
    uint128 turn = multiply(magnitude.whole, turns_[2]) + multiply(magnitude.fraction, turns_[1]) +
                   uint128{0, a.hi} + uint128{0, b.hi} + uint128{0, below.hi};
    turn.hi += magnitude.whole * turns_[1] + magnitude.fraction * turns_[0];
    return {(inv_freq_ < 0) != (coordinate < 0) ? -turn : turn};
  }

 private:
  double inv_freq_;
  phase step_;
  std::uint64_t turns_[4];  // whole turns, then fractions of 2^-64, 2^-128 and 2^-192
};

/// sum_a inv_freq(i, a) * coordinate_a / (2 pi), modulo 1, for every pair i.
class coordinate_phases {
 public:
  explicit coordinate_phases(const frequencies::inv_freq_map& inv_freq)
      : pairs_(static_cast<std::size_t>(inv_freq.rows())), axes_(static_cast<std::size_t>(inv_freq.cols())) {
    for (Index a = 0; a < inv_freq.cols(); ++a)
      for (Index i = 0; i < inv_freq.rows(); ++i)
        if (!equal(inv_freq(i, a), 0))
          axes_[static_cast<std::size_t>(a)].push_back(
              {static_cast<std::size_t>(i), turning_rate(inv_freq(i, a))});
  }

  /// The phases [pairs] at one row of coordinates [axes], valid until the next call.
  template <class Row>
  const phase* at(const Row& coordinates) {
    pairs_.assign(pairs_.size(), phase{});
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      const double coordinate = coordinates(static_cast<Index>(a));
      if (equal(coordinate, std::trunc(coordinate))) {
        const auto position = static_cast<std::int64_t>(coordinate);
        for (const auto& [pair, rate] : axes_[a]) pairs_[pair] = pairs_[pair] + rate.at_integer(position);
      } else {
        const fixed_point magnitude(coordinate);
        for (const auto& [pair, rate] : axes_[a])
          pairs_[pair] = pairs_[pair] + rate.at_real(coordinate, magnitude);
      }
    }
    return pairs_.data();
  }

 private:
  struct turning_pair {
    std::size_t pair;
    turning_rate rate;
  };
  std::vector<phase> pairs_;
  std::vector<std::vector<turning_pair>> axes_;  // the pairs that turn along each axis
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_COORDINATE_PHASES_HPP
