// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP
#define ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/base/exact.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/phase.hpp>

/// The phases of rows of coordinates, with the work that does not depend on the row done once.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A coordinate that is no integer, as significand * 2^-places.
struct fractional {
  std::uint64_t significand;
  int word, bit;  // places = 64 word + bit

  explicit fractional(double coordinate) {
    const binary c = binary_of(coordinate);  // exponent < 0, as every double from 2^53 on is an integer
    significand = c.significand;
    word = -c.exponent / 64;
    bit = -c.exponent % 64;
  }
};

/// How fast one pair turns along one axis: |inv_freq| / (2 pi) turns in units of 2^-256, the least
/// significant word first, which is enough for any coordinate of a double.
class turning_rate {
 public:
  explicit turning_rate(double inv_freq) : negative_(inv_freq < 0) {
    const binary_turns turns(inv_freq, 1.0);
    for (int k = 0; k < 5; ++k) turns_[k] = turns.word_from(64 * k - 256);
  }

  /// The phase at a coordinate of which `magnitude` are the bits.
  ///
  /// Accuracy:  (1/2 + 2^-10) 2^-192 turn up to 2^53
  phase at(bool negative, const fractional& magnitude) const {
    if (magnitude.word > 4) return {};  // turns * 2^-places < 2^-256
    const std::uint64_t* turns = turns_ + magnitude.word;
    const int bit = magnitude.bit;
    const auto shifted = [turns, bit](int w) {
      return (turns[w] >> bit) | (turns[w + 1] << 1 << (63 - bit));
    };
    const std::uint64_t s = magnitude.significand;
    // The words of turns * 2^-places from 2^-256 turn on; whole turns, times the significand, vanish.
    const uint128 a = multiply(s, shifted(0)), b = multiply(s, shifted(1)), c = multiply(s, shifted(2));
    const uint128 low = uint128{0, a.hi} + uint128{0, b.lo} + uint128{0, a.lo >> 63};
    const uint128 middle = uint128{0, b.hi} + uint128{0, c.lo} + uint128{0, low.hi};
    const phase turned = {{c.hi + s * shifted(3) + middle.hi, middle.lo, low.lo}};
    return negative_ != negative ? -turned : turned;
  }

 private:
  std::uint64_t turns_[9] = {};  // from 2^-256, 2^-192, 2^-128 and 2^-64 turn on, whole turns, and zeros
  bool negative_;
};

/// sum_a inv_freq(i, a) * coordinate_a / (2 pi), modulo 1, for every pair i.
class coordinate_phases {
 public:
  /// \param inv_freq  [pairs, axes]
  explicit coordinate_phases(const frequencies::inv_freq_map& inv_freq)
      : pairs_(static_cast<std::size_t>(inv_freq.rows())), axes_(static_cast<std::size_t>(inv_freq.cols())) {
    for (Index a = 0; a < inv_freq.cols(); ++a)
      for (Index i = 0; i < inv_freq.rows(); ++i)
        if (!equal(inv_freq(i, a), 0)) axes_[static_cast<std::size_t>(a)].include(i, inv_freq(i, a));
  }

  /// The phases at one row of coordinates [axes], valid until the next call.
  template <class Row>
  const phase_row& at(const Row& coordinates) {
    pairs_.clear();
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      const double coordinate = coordinates(static_cast<Index>(a));
      const axis& along = axes_[a];
      if (!equal(coordinate, std::trunc(coordinate))) {
        const fractional magnitude(coordinate);
        const bool negative = coordinate < 0;
        for (std::size_t k = 0; k < along.pairs.size(); ++k)
          pairs_.add(along.pairs[k], along.rates[k].at(negative, magnitude));
        continue;
      }
      const auto position = static_cast<std::int64_t>(coordinate);
      if (position == 0) continue;
      if (beyond_steps(position) || along.slow) {
        for (std::size_t k = 0; k < along.pairs.size(); ++k)
          pairs_.add(along.pairs[k], phase_at(along.steps[k], along.inv_freq[k], position));
      } else {
        for (std::size_t k = 0; k < along.pairs.size(); ++k)
          pairs_.add(along.pairs[k], along.steps[k] * position);
      }
    }
    return pairs_;
  }

 private:
  /// The pairs that turn along an axis.
  struct axis {
    std::vector<std::size_t> pairs;
    std::vector<double> inv_freq;
    std::vector<phase> steps;
    std::vector<turning_rate> rates;
    bool slow = false;  // whether one is slower than steps

    void include(Index pair, double speed) {
      pairs.push_back(static_cast<std::size_t>(pair));
      inv_freq.push_back(speed);
      steps.push_back(phase_of(speed));
      rates.emplace_back(speed);
      slow = slow || slower_than_steps(speed);
    }
  };
  phase_row pairs_;
  std::vector<axis> axes_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP
