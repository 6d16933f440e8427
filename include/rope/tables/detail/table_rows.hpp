// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ROWS_HPP
#define ROPE_TABLES_DETAIL_TABLE_ROWS_HPP

#include <algorithm>  // std::max, std::min
#include <bit>        // std::bit_ceil
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/tables/detail/phase_rows.hpp>
#include <rope/tables/phase.hpp>

/// Rows of a table: their layout for loops, and their computation from phases.

namespace rope::inline ROPE_ABI::detail {

/// Makes tables of given entries, in tables/given_table.hpp.
struct given_entries;
/// Makes tables in the caller's memory, in tables/row_maker.hpp.
struct borrowed_table;

/// The entries of a table, and the properties that a rotation needs.
template <class S>
struct table_view {
  const S* entries;  // row r: cos [pairs], then sin [pairs]
  Index pairs;
  std::int64_t first;              // position of row 0
  bool given;                      // entries were given: cos^2 + sin^2 may differ from pair to pair
  bool unit;                       // attention_factor is 1, or at_origin already accounts for it
  const unsigned char* at_origin;  // per row, for tables of coordinates and given entries; otherwise null

  /// cos [pairs] of a position; sin [pairs] follows.  Requires: the table has the position
  const S* cos(std::int64_t position) const { return entries + (position - first) * (2 * pairs); }

  /// Whether the rotation at `position` is the identity: every coordinate is zero and attention_factor is 1.
  bool is_identity(std::int64_t position) const {
    return unit && (at_origin == nullptr ? position == 0 : at_origin[position - first] != 0);
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
/// digits, which shows in m sin if m is large. In this unit it is a normal number.
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

/// Writes m cos and m sin of a small angle in units of small_unit, with sin x = x and cos x = 1.
template <class S>
void write_small(double angle, double m, S& cos, S& sin) {
  cos = static_cast<S>(m);
  sin = static_cast<S>(m * angle * small_unit);
}

/// Writes m cos and m sin of the angle inv_freq * coordinate, whose phase is `find_phase()`. Below 2^-60 rad
/// sin x is less than x, and cos x less than 1, by a factor of at most 1 - 2^-120. The exact values are
/// therefore just below m x, which is an exact product of integers, and just below m. The floats are the
/// nearest ones to numbers just below these two.
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

/// m cos and m sin of a block of pairs in doubles, and the pairs whose nearest float they do not determine.
struct float_block {
  static constexpr Index size = row_angles::block;
  /// The relative error of an entry is below 2^-37: 2^-37.5 of the polynomial of the sine, 2^-40 of angles
  /// above 2^41 units per axis, and roundings. That is 2^16 units of the last place of a double.
  static constexpr std::uint64_t places = std::uint64_t{1} << 16;

  std::uint64_t turns[size];  // the upper bits of the phases
  double cos[size], sin[size];
  std::uint64_t doubtful[size];  // 0: the double rounds to the nearest float

  /// \param smallest  in units of 2^-64 turn, a power of two: pairs closer than that to a quarter turn are
  ///                  doubtful, since their relative error is too large
  void evaluate(double m, std::uint64_t smallest) {
    constexpr std::uint64_t middle = std::uint64_t{1} << 28, sign_bit = std::uint64_t{1} << 63;
    constexpr std::uint64_t outside =
        2 * middle - 2 * places;  // the bits from 2 * places to below 2 * middle
    const std::uint64_t distances = (sign_bit >> 1) - 2 * smallest;
    double sines[size], cosines[size];
    for (Index k = 0; k < size; ++k) {
      const std::uint64_t rest = turns[k] - ((turns[k] + (sign_bit >> 2)) >> 62 << 62);
      // The distance to the nearest quarter turn, from two integers that are exact doubles each.
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
