// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_PHASE_ROWS_HPP
#define ROPE_TABLES_DETAIL_PHASE_ROWS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_integer.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/phase.hpp>

/// The phases of all pairs of a row of a table: of consecutive positions, and of rows of coordinates.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One phase per pair. The upper 128 bits, which are all that most float entries need, lie side by side, so
/// that compilers evaluate several pairs at once.
class phase_row {
 public:
  explicit phase_row(std::size_t pairs)
      : upper_(static_cast<Index>(pairs), 1, uint128{}), lower_(static_cast<Index>(pairs), 1, 0) {}

  std::size_t size() const { return static_cast<std::size_t>(upper_.size()); }
  const uint128* upper() const { return upper_.data(); }

  phase operator[](std::size_t i) const {
    const uint128 upper = upper_.data()[i];
    return {{upper.hi, upper.lo, lower_.data()[i]}};
  }
  void set(std::size_t i, phase p) {
    upper_.data()[i] = {p.turn.hi, p.turn.mid};
    lower_.data()[i] = p.turn.lo;
  }
  void clear() {
    for (uint128& upper : upper_) upper = {};
    for (std::uint64_t& lower : lower_) lower = 0;
  }

  void add(std::size_t i, phase p) { set(i, (*this)[i] + p); }
  /// Adds a phase to every pair's.  Requires: as many pairs
  void add(const phase_row& step) {
    const std::size_t pairs = size();
    uint128* upper = upper_.data();
    std::uint64_t* lower = lower_.data();
    const uint128* step_upper = step.upper_.data();
    const std::uint64_t* step_lower = step.lower_.data();
    for (std::size_t i = 0; i < pairs; ++i) {
      const std::uint64_t low = lower[i] + step_lower[i], carry = low < step_lower[i] ? 1u : 0u;
      const std::uint64_t mid = upper[i].lo + step_upper[i].lo, sum = mid + carry;
      upper[i].hi += step_upper[i].hi + (mid < step_upper[i].lo ? 1u : 0u) + (sum < carry ? 1u : 0u);
      upper[i].lo = sum;
      lower[i] = low;
    }
  }

 private:
  number_array<uint128> upper_;
  number_array<std::uint64_t> lower_;
};

/// phase_at(phase_of(inv_freq(i)), inv_freq(i), p) for every pair i and p = first, first + 1, ... Where
/// positions are counted in steps, a phase is the one before it plus the same integer, an exact addition.
class range_phases {
 public:
  /// \param of  on one axis; outlives this object
  range_phases(const frequencies& of, std::int64_t first)
      : position_(first),
        frequencies_(of),
        step_(static_cast<std::size_t>(of.pairs())),
        now_(static_cast<std::size_t>(of.pairs())),
        slow_(of.pairs()) {
    for (std::size_t i = 0; i < step_.size(); ++i) {
      const double speed = of.inv_freq(static_cast<Index>(i), 0);
      step_.set(i, phase_of(speed));
      if (slower_than_steps(speed)) slow_(slow_count_++) = i;
    }
  }

  /// The phases of the next position, valid until the next call.
  const phase_row& next() {
    const std::int64_t position = position_++;
    const auto find = [this, position](std::size_t i) {
      now_.set(i, phase_at(step_[i], frequencies_.inv_freq(static_cast<Index>(i), 0), position));
    };
    if (in_steps_ && !beyond_steps(position)) {
      now_.add(step_);
      for (Index k = 0; k < slow_count_; ++k) find(slow_(k));
    } else {
      for (std::size_t i = 0; i < now_.size(); ++i) find(i);
      in_steps_ = !beyond_steps(position);
    }
    return now_;
  }

 private:
  std::int64_t position_;
  bool in_steps_ = false;  // whether now_ was counted in steps, so that the next phase may be
  const frequencies& frequencies_;
  phase_row step_, now_;
  number_array<std::size_t> slow_;  // [pairs], the first slow_count_: those that are never counted in steps
  Index slow_count_ = 0;
};

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

#endif  // ROPE_TABLES_DETAIL_PHASE_ROWS_HPP
