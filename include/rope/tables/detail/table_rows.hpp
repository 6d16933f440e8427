// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ROWS_HPP
#define ROPE_TABLES_DETAIL_TABLE_ROWS_HPP

#include <algorithm>  // std::max, std::min
#include <bit>        // std::bit_ceil, std::countr_zero
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/wide_real.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/phase.hpp>

/// Rows of a table: how loops find the entries, and how entries are computed from phases.
///
/// The phases of all pairs for a row of a table, at a position or at coordinates.

namespace rope::inline ROPE_ABI::detail {

/// The frequency of one pair on one axis.
struct pair_frequency {
  double inv_freq = 0;
  phase step = {};  // for one unit of position

  EIGEN_ALWAYS_INLINE phase at(std::int64_t position) const { return phase_at(step, inv_freq, position); }
  /// Requires: |coordinate| <= 2^53
  EIGEN_ALWAYS_INLINE phase at(double coordinate) const {
    const auto whole = static_cast<std::int64_t>(coordinate);
    if (equal(coordinate, static_cast<double>(whole))) return at(whole);
    return phase_of(inv_freq, coordinate);
  }
};

/// Computes the phases of the angles sum_a inv_freq(i, a) * coordinate_a of every pair i: all bits of one
/// pair, or the upper 64 bits of a block of pairs. A row of coordinates is a function of the axis that
/// returns an integer or a double.
class row_angles {
 public:
  /// The number of pairs per call of find_upper.
  static constexpr Index block = 16;

  explicit row_angles(const frequencies& of)
      : frequencies_(of.pairs(), of.axes(), {}),
        words_(pieces_of(of.pairs(), block) * block, columns * of.axes(), 0) {
    for (Index a = 0; a < axes(); ++a)
      for (Index i = 0; i < pairs(); ++i) {
        const double inv_freq = of.inv_freq(i, a);
        slowest_ = (std::min)(slowest_, (std::abs)(inv_freq));
        if (equal(inv_freq, 0)) continue;
        const binary_turns turns(inv_freq, 1.0);
        frequencies_(i, a) = {inv_freq, inv_freq < 0 ? -turns.rounded() : turns.rounded()};
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
      if (exponent <= -96) {
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
  /// Requires: -33 <= places < 96
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

  /// The number of columns of words_ for one axis. Column 0 has zeros. Columns 1 to 6 have |inv_freq| in
  /// turns, as words of 32 bits: the first bit counts 2^63 turns, the last one 2^-128 turn. Column 7 has 1 if
  /// inv_freq is negative, otherwise 0.
  static constexpr Index columns = 8;

  number_array<pair_frequency> frequencies_;  // [pairs, axes]
  double slowest_ = (std::numeric_limits<double>::max)();
  number_array<std::uint32_t> words_;  // [pairs, padded to whole blocks; 8 axes]: bits of |inv_freq| / (2 pi)
};

/// Makes tables of given entries, in tables/given_table.hpp.
struct given_entries;

/// The entries of a table, and the properties that a rotation needs.
template <class S>
struct table_view {
  const S* entries;  // row r: cos [pairs], then sin [pairs]
  Index pairs;
  std::int64_t first;  // position of row 0
  bool given;          // entries were given: cos^2 + sin^2 may differ from pair to pair
  // The position whose rotation is the identity. If there is none, a position that no table has.
  std::int64_t identity;
  // Per row of coordinates or given entries, whether its rotation is the identity. Otherwise null.
  const unsigned char* identities;

  /// cos [pairs] of a position; sin [pairs] follows.  Requires: the table has the position
  const S* cos(std::int64_t position) const { return entries + (position - first) * (2 * pairs); }

  /// Whether the rotation at `position` is the identity: every coordinate is zero and attention_factor is 1,
  /// or every given entry is cos = 1, sin = 0.
  bool is_identity(std::int64_t position) const {
    return position == identity || (identities != nullptr && identities[position - first] != 0);
  }
};

/// Writes m cos and m sin of a phase, rounded to S.
template <class S>
EIGEN_ALWAYS_INLINE void write_phase(phase p, double m, S& cos, S& sin) {
  const quadrant_distance angle = nearest_quadrant(p);
  const cos_sin value = in_quadrant(angle, scaled_cos_sin<S>(angle.magnitude, m));
  cos = static_cast<S>(value.cos);
  sin = static_cast<S>(value.sin);
}

// Small angles occur with learned frequencies near zero, a schedule divided by 1e30, or coordinates of 1e-40.
// A phase is a multiple of 2^-192 turn, so it has fewer significant bits than a double if the angle is below
// 2^-140 rad.

/// The unit of products of small angles, [rad]. A product below 2^-1022 rad would be subnormal and lose
/// digits, which shows in m sin if m is large. In this unit it is a normal number down to 2^-1142 rad. A
/// smaller angle matters only if m is above 2^120.
inline constexpr double small_unit = 0x1p-120;

/// inv_freq * coordinate in units of small_unit.
inline double product_in_small_units(double inv_freq, double coordinate) {
  return inv_freq / small_unit * coordinate;
}
/// Whether an angle in units of small_unit is below 2^exponent rad.
template <int exponent>
bool is_below(double angle) {
  return (std::abs)(angle) < scale_of_bits(exponent) / small_unit;
}

/// Writes m cos and m sin of a small angle in units of small_unit, with sin x = x and cos x = 1. The unit
/// comes first where the product with m could overflow, and last where the angle could lose digits.
template <class S>
void write_small(double angle, double m, S& cos, S& sin) {
  cos = static_cast<S>(m);
  sin = static_cast<S>((std::abs)(angle) < 1 ? m * angle * small_unit : m * (angle * small_unit));
}

/// Writes m cos and m sin of the angle inv_freq * coordinate, whose phase is `find_phase()`. Below 2^-60 rad,
/// sin x is between (1 - 2^-120) x and x, and cos x is between 1 - 2^-120 and 1. The exact values are
/// therefore just below m x, which is an exact product of integers, and just below m. The entries are the
/// floats nearest to numbers just below these two.
template <class Coordinate, class FindPhase, class S>
EIGEN_ALWAYS_INLINE void write_product(double inv_freq, Coordinate coordinate, double m,
                                       const FindPhase& find_phase, S& cos, S& sin) {
  const double product = product_in_small_units(inv_freq, static_cast<double>(coordinate));
  if (!is_below<-60>(product)) return write_phase(find_phase(), m, cos, sin);
  if (equal(inv_freq, 0) || equal(coordinate, 0)) return write_small(0, m, cos, sin);
  if constexpr (std::is_same_v<S, float>) {
    const auto nearest = [m](uint128 mantissa, int exponent) {
      const int zeros = leading_zeros(mantissa);
      return static_cast<float>(nearest_float((mantissa << zeros) - uint128{0, 1}, exponent - zeros, m));
    };
    const binary f = binary_of(inv_freq), c = binary_of(coordinate);
    cos = nearest({0, 1}, 0);
    sin = nearest(multiply(f.significand, c.significand), f.exponent + c.exponent);
    if ((inv_freq < 0) != (coordinate < 0)) sin = -sin;
  } else {
    write_small(product, m, cos, sin);
  }
}

/// Writes m cos and m sin of the angle of one pair. Products on several axes are added as phases.
template <class Row, class S>
EIGEN_ALWAYS_INLINE void write_entry(const row_angles& angles, Index pair, const Row& coordinates, double m,
                                     S& cos, S& sin) {
  double sum = 0, largest = 0;  // of the products, in units of small_unit
  Index count = 0, axis = 0;    // how many are not 0, and the axis of the last such one
  for (Index a = 0; a < angles.axes() && angles.axes() > 1; ++a) {
    const double product =
        product_in_small_units(angles.frequency(pair, a).inv_freq, static_cast<double>(coordinates(a)));
    if (equal(product, 0)) continue;
    sum += product;
    largest = (std::max)(largest, (std::abs)(product));
    ++count;
    axis = a;
  }
  if (count <= 1) {
    const pair_frequency& of_axis = angles.frequency(pair, axis);
    const auto find_phase = [&] { return of_axis.at(coordinates(axis)); };
    return write_product(of_axis.inv_freq, coordinates(axis), m, find_phase, cos, sin);
  }
  if (is_below<-128>(largest)) return write_small(sum, m, cos, sin);
  phase p;
  for (Index a = 0; a < angles.axes(); ++a) p = p + angles.frequency(pair, a).at(coordinates(a));
  write_phase(p, m, cos, sin);
}

/// Writes m cos and m sin of every pair, rounded to S.
template <class Row, class S>
void write_row(const row_angles& angles, const Row& coordinates, double m, S* cos, S* sin) {
  const bool one_axis = angles.axes() == 1;
  if (one_axis &&
      !is_below<-60>(product_in_small_units(angles.slowest(), static_cast<double>(coordinates(0))))) {
    for (Index i = 0; i < angles.pairs(); ++i)
      write_phase(angles.frequency(i, 0).at(coordinates(0)), m, cos[i], sin[i]);
    return;
  }
  for (Index i = 0; i < angles.pairs(); ++i) write_entry(angles, i, coordinates, m, cos[i], sin[i]);
}

/// m cos and m sin of a block of pairs in doubles. A pair is doubtful if these doubles do not determine its
/// nearest floats.
struct float_block {
  static constexpr Index size = row_angles::block;
  /// The relative error of an entry is below 2^-37: 2^-37.5 from the polynomial of the sine, 2^-39 from an
  /// angle above 2^41 units per axis, and roundings. That is 2^16 units of the last place of a double.
  static constexpr std::uint64_t places = std::uint64_t{1} << 16;

  std::uint64_t turns[size];  // the upper bits of the phases
  double cos[size], sin[size];
  std::uint64_t doubtful[size];  // 0: the double rounds to the nearest float

  /// \param smallest  a power of two, in units of 2^-64 turn. Pairs closer than that to a quarter turn are
  ///                  doubtful, because their relative error is too large
  void evaluate(double m, std::uint64_t smallest) {
    constexpr std::uint64_t middle = std::uint64_t{1} << 28, sign_bit = std::uint64_t{1} << 63;
    constexpr std::uint64_t outside =
        2 * middle - 2 * places;  // the bits from 2 * places to below 2 * middle
    const std::uint64_t distances = (sign_bit >> 1) - 2 * smallest;
    double sines[size], cosines[size];
    for (Index k = 0; k < size; ++k) {
      const std::uint64_t rest = turns[k] - ((turns[k] + (sign_bit >> 2)) >> 62 << 62);
      // The distance to the nearest quarter turn, from two integers, each of which is an exact double.
      const auto upper = static_cast<std::int32_t>(static_cast<std::uint32_t>(rest >> 32));
      const auto lower = static_cast<std::int32_t>(static_cast<std::uint32_t>(rest) >> 1);
      const double x = (static_cast<double>(upper) + static_cast<double>(lower) * 0x1p-31) *
                       (2 * std::numbers::pi * 0x1p-32);
      // Coefficients: tests/oracle/sine_cosine.py.
      const double z = x * x;
      sines[k] =
          x + x * z *
                  (-0x1.5555554c71d06p-3 +
                   z * (0x1.1111086a60fa8p-7 + z * (-0x1.a00f7f2882c09p-13 + z * 0x1.6cd1f2a3276bdp-19)));
      cosines[k] =
          1 +
          z * (-0x1.ffffffffe98afp-2 +
               z * (0x1.55555545c514cp-5 +
                    z * (-0x1.6c16b348bc12cp-10 + z * (0x1.a00eb9af2f4c7p-16 + z * -0x1.23c97e5fc048ap-22))));
    }
    for (Index k = 0; k < size; ++k) {
      const std::uint64_t quadrant = (turns[k] + (sign_bit >> 2)) >> 62, rest = turns[k] - (quadrant << 62);
      const auto s = bit_cast<std::uint64_t>(m * sines[k]), c = bit_cast<std::uint64_t>(m * cosines[k]);
      const std::uint64_t exchanged = (s ^ c) & (0 - (quadrant & 1));
      // 0 if a value is close to the middle between two floats, or the distance is small.
      const std::uint64_t s_apart = (s - (middle - places)) & outside,
                          c_apart = (c - (middle - places)) & outside;
      doubtful[k] = ((s_apart - 1) | (c_apart - 1) | (((rest + smallest) & distances) - 1)) >> 63;
      cos[k] = bit_cast<double>(c ^ exchanged ^ ((quadrant + 1) << 62 & sign_bit));
      sin[k] = bit_cast<double>(s ^ exchanged ^ (quadrant << 62 & sign_bit));
    }
  }
};

/// Writes m cos and m sin of every pair as the nearest floats: a block of pairs at a time in doubles, then
/// the doubtful pairs again in integers.
template <class Row>
void write_row(const row_angles& angles, const Row& coordinates, double m, float* cos, float* sin) {
  constexpr std::uint64_t most = std::uint64_t{1} << 20;  // with more axes every pair is doubtful
  const std::uint64_t smallest = std::bit_ceil((std::min)(static_cast<std::uint64_t>(angles.axes()), most))
                                 << 41;
  float_block block;
  for (Index first = 0; first < angles.pairs(); first += float_block::size) {
    const Index count = (std::min)(float_block::size, angles.pairs() - first);
    angles.find_upper(coordinates, first, block.turns);
    block.evaluate(m, smallest);
    std::uint64_t doubtful = m < 0x1p-100 ? 1 : 0;  // products with m may be subnormal floats
    for (Index k = 0; k < count; ++k) {
      cos[first + k] = static_cast<float>(block.cos[k]);
      sin[first + k] = static_cast<float>(block.sin[k]);
      doubtful |= block.doubtful[k];
    }
    for (Index k = 0; k < count && doubtful != 0; ++k)
      if (block.doubtful[k] != 0 || m < 0x1p-100)
        write_entry(angles, first + k, coordinates, m, cos[first + k], sin[first + k]);
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_TABLE_ROWS_HPP
