// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_PHASE_ROWS_HPP
#define ROPE_TABLES_DETAIL_PHASE_ROWS_HPP

#include <algorithm>  // std::min
#include <bit>        // std::countr_zero
#include <cmath>
#include <cstdint>
#include <limits>

#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/phase.hpp>

/// The phases of all pairs for a row of a table, at a position or at coordinates.

namespace rope::inline ROPE_ABI::detail {

/// The frequency of one pair on one axis.
struct pair_frequency {
  double inv_freq = 0;
  phase step;  // of one unit

  pair_frequency() = default;
  explicit pair_frequency(double frequency) : pair_frequency(frequency, binary_turns(frequency, 1.0)) {}
  /// Requires: turns == binary_turns(frequency, 1.0)
  pair_frequency(double frequency, const binary_turns& turns)
      : inv_freq(frequency), step(frequency < 0 ? -turns.rounded() : turns.rounded()) {}

  EIGEN_ALWAYS_INLINE phase at(std::int64_t position) const { return phase_at(step, inv_freq, position); }
  /// Requires: |coordinate| <= 2^53
  EIGEN_ALWAYS_INLINE phase at(double coordinate) const {
    const auto whole = static_cast<std::int64_t>(coordinate);
    if (equal(coordinate, static_cast<double>(whole))) return at(whole);
    return phase_of(inv_freq, coordinate);
  }
};

/// Phases of the angles sum_a inv_freq(i, a) * coordinate_a, for every pair i: all bits of one pair, or 64
/// bits of many pairs. A row of coordinates is a function of the axis that returns an integer or a double.
class row_angles {
 public:
  /// The number of pairs per call of find_upper.
  static constexpr Index block = 16;

  explicit row_angles(const frequencies& of)
      : frequencies_(of.pairs(), of.axes(), {}),
        words_((of.pairs() + block - 1) / block * block, columns * of.axes(), 0) {
    for (Index a = 0; a < axes(); ++a)
      for (Index i = 0; i < pairs(); ++i) {
        const double inv_freq = of.inv_freq(i, a);
        slowest_ = (std::min)(slowest_, (std::abs)(inv_freq));
        if (equal(inv_freq, 0)) continue;
        const binary_turns turns(inv_freq, 1.0);
        frequencies_(i, a) = pair_frequency(inv_freq, turns);
        for (int k = 0; k < 3; ++k) {
          const std::uint64_t word = turns.word_from(-64 * k);
          words_(i, columns * a + 2 * k + 1) = static_cast<std::uint32_t>(word >> 32);
          words_(i, columns * a + 2 * k + 2) = static_cast<std::uint32_t>(word);
        }
        words_(i, columns * a + 7) = inv_freq < 0 ? 1 : 0;
      }
  }

  Index pairs() const { return frequencies_.rows(); }
  Index axes() const { return frequencies_.cols(); }
  /// The smallest |inv_freq|.
  double slowest() const { return slowest_; }
  const pair_frequency& frequency(Index pair, Index axis) const { return frequencies_(pair, axis); }

  /// The upper 64 bits of the phases of pairs [first, first + block), with an error of at most four units per
  /// axis. Beyond the last pair, the values are those of frequency 0.
  template <class Row>
  EIGEN_ALWAYS_INLINE void find_upper(const Row& coordinates, Index first, std::uint64_t* turns) const {
    for (Index k = 0; k < block; ++k) turns[k] = 0;
    for (Index a = 0; a < axes(); ++a) {
      const auto coordinate = coordinates(a);
      auto [significand, exponent] = binary_of(coordinate);
      if (significand == 0) continue;
      const int zeros = std::countr_zero(significand);
      if (exponent < 0) {
        significand >>= zeros;
        exponent += zeros;
      }
      if (exponent < 0 && exponent <= -96) {
        for (Index k = 0; k < block && first + k < pairs(); ++k)
          turns[k] += frequencies_(first + k, a).at(coordinate).turn.hi;
        continue;
      }
      const std::uint32_t* words = &words_(first, columns * a);
      const std::uint64_t sign = coordinate < 0 ? 1 : 0;
      add_turns(static_cast<std::uint32_t>(significand), -exponent, sign, words, turns);
      add_turns(static_cast<std::uint32_t>(significand >> 32), -exponent - 32, sign, words, turns);
    }
  }

 private:
  /// Adds count * 2^-places times the frequencies, using 96 of their bits. The words have 32 bits because
  /// compilers vectorise products of such words.
  ///
  /// Requires: places in [-32, 96)
  EIGEN_ALWAYS_INLINE void add_turns(std::uint64_t count, int places, std::uint64_t sign,
                                     const std::uint32_t* words, std::uint64_t* turns) const {
    if (count == 0) return;
    const Index stride = words_.rows();
    const int shift = places & 31;
    const std::uint32_t* first = words + (3 - (places - shift) / 32) * stride;
    const std::uint32_t *before = first - stride, *second = first + stride, *third = second + stride,
                        *negative = words + 7 * stride;
    const auto add = [=](Index k, std::uint64_t top, std::uint64_t middle, std::uint64_t low) {
      const std::uint64_t turned = (top * count << 32) + middle * count + (low * count >> 32),
                          flipped = 0 - (negative[k] ^ sign);
      turns[k] += (turned ^ flipped) - flipped;
    };
    if (shift == 0) {
      for (Index k = 0; k < block; ++k) add(k, first[k], second[k], third[k]);
      return;
    }
    for (Index k = 0; k < block; ++k) {
      const auto shifted = [shift](std::uint64_t upper, std::uint64_t lower) {
        return (upper << 32 | lower) >> shift & 0xffffffffu;
      };
      add(k, shifted(before[k], first[k]), shifted(first[k], second[k]), shifted(second[k], third[k]));
    }
  }

  /// The columns of one axis: 0, six words of 32 bits from 2^63 turns down to 2^-128 turn, and 1 if inv_freq
  /// is negative.
  static constexpr Index columns = 8;

  number_array<pair_frequency> frequencies_;  // [pairs, axes]
  double slowest_ = (std::numeric_limits<double>::max)();
  number_array<std::uint32_t> words_;  // [pairs, padded to whole blocks; 8 axes]: bits of |inv_freq| / (2 pi)
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_PHASE_ROWS_HPP
