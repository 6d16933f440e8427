// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP
#define ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <rope/base/numbers.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/phase_row.hpp>
#include <rope/tables/phase.hpp>

/// The phases of rows of coordinates. What does not depend on the row is computed once.

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

/// How fast one pair turns along one axis: |inv_freq| / (2 pi) turns as an integer in units of 2^-256 turn,
/// whose bits are enough for every coordinate that is a double.
class turning_rate {
 public:
  explicit turning_rate(double inv_freq) : negative_(inv_freq < 0) {
    const binary_turns turns(inv_freq, 1.0);
    for (int k = 0; k < 5; ++k) turns_[k] = turns.word_from(64 * k - 256);
  }

  /// The phase at a coordinate, given by its sign and its magnitude.
  ///
  /// Accuracy:  (1/2 + 2^-10) 2^-192 turn for magnitudes up to 2^53
  phase at(bool negative, const fractional& magnitude) const {
    if (magnitude.word > 4) return {};  // turns * 2^-places < 2^-256
    const std::uint64_t* turns = turns_ + magnitude.word;
    const int bit = magnitude.bit;
    const auto shifted = [turns, bit](int w) {
      return (turns[w] >> bit) | (turns[w + 1] << 1 << (63 - bit));
    };
    const std::uint64_t s = magnitude.significand;
    // shifted(w): word w of turns * 2^-places, word 0 beginning at 2^-256 turn. Whole turns of the product
    // drop out.
    const uint128 a = multiply(s, shifted(0)), b = multiply(s, shifted(1)), c = multiply(s, shifted(2));
    const uint128 low = uint128{0, a.hi} + uint128{0, b.lo} + uint128{0, a.lo >> 63};
    const uint128 middle = uint128{0, b.hi} + uint128{0, c.lo} + uint128{0, low.hi};
    const phase turned = {{c.hi + s * shifted(3) + middle.hi, middle.lo, low.lo}};
    return negative_ != negative ? -turned : turned;
  }

 private:
  std::uint64_t turns_[9] =
      {};  // words from 2^-256, 2^-192, 2^-128, 2^-64 turn and whole turns on, then zeros
  bool negative_;
};

/// sum_a inv_freq(i, a) * coordinate_a / (2 pi), modulo 1, for every pair i.
class coordinate_phases {
 public:
  explicit coordinate_phases(const frequencies& of)
      : pairs_(static_cast<std::size_t>(of.pairs())),
        axes_(of.axes(), 1, axis{}),
        turning_(of.pairs(), of.axes()) {
    for (Index a = 0; a < of.axes(); ++a)
      for (Index i = 0; i < of.pairs(); ++i) {
        const double speed = of.inv_freq(i, a);
        if (equal(speed, 0)) continue;
        axis& along = axes_(a);
        turning_(along.count++, a) = {static_cast<std::size_t>(i), speed, phase_of(speed),
                                      turning_rate(speed)};
        along.slow = along.slow || slower_than_steps(speed);
      }
  }

  /// The phases at one row of coordinates [axes], valid until the next call.
  template <class Row>
  const phase_row& at(const Row& coordinates) {
    pairs_.clear();
    for (Index a = 0; a < axes_.size(); ++a) {
      const double coordinate = coordinates(a);
      const axis along = axes_(a);
      if (!equal(coordinate, std::trunc(coordinate))) {
        const fractional magnitude(coordinate);
        const bool negative = coordinate < 0;
        for (Index k = 0; k < along.count; ++k)
          pairs_.add(turning_(k, a).pair, turning_(k, a).rate.at(negative, magnitude));
        continue;
      }
      const auto position = static_cast<std::int64_t>(coordinate);
      if (position == 0) continue;
      if (beyond_steps(position) || along.slow) {
        for (Index k = 0; k < along.count; ++k)
          pairs_.add(turning_(k, a).pair, phase_at(turning_(k, a).step, turning_(k, a).inv_freq, position));
      } else {
        for (Index k = 0; k < along.count; ++k)
          pairs_.add(turning_(k, a).pair, turning_(k, a).step * position);
      }
    }
    return pairs_;
  }

 private:
  struct axis {
    Index count = 0;    // of the pairs that turn along it
    bool slow = false;  // whether one is slower than steps
  };
  struct turning_pair {
    std::size_t pair;
    double inv_freq;
    phase step;
    turning_rate rate;
  };
  phase_row pairs_;
  number_array<axis> axes_;
  number_array<turning_pair> turning_;  // [pairs, axes], the first `count` of every axis
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_COORDINATE_PHASES_HPP
