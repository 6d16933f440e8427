// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_TABLE_ROWS_HPP
#define ROPE_TABLES_DETAIL_TABLE_ROWS_HPP

#include <algorithm>  // std::max, std::min
#include <bit>        // std::bit_cast
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/phase_rows.hpp>
#include <rope/tables/phase.hpp>

/// Rows of a table: how a loop reads them, and how phases or angles become one.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Makes tables of entries that are given: detail/given_entries.hpp.
struct given_entries;

/// The entries of a table, and what a rotation has to know of them.
template <class S>
struct table_view {
  const S* entries;  // row r: cos [pairs], then sin [pairs]
  Index pairs;
  std::int64_t first;              // position of row 0
  bool given;                      // entries were given: cos^2 + sin^2 may differ from pair to pair
  bool unit;                       // attention_factor is 1, or at_origin already accounts for it
  const unsigned char* at_origin;  // per row, for tables of coordinates and given entries; else null

  /// cos [pairs] of a position that is known to be in the table; sin [pairs] follows.
  const S* cos(std::int64_t position) const { return entries + (position - first) * (2 * pairs); }

  /// Whether the rotation at `position` is the identity: every coordinate is zero and attention_factor is 1.
  bool is_identity(std::int64_t position) const {
    return unit && (at_origin == nullptr ? position == 0 : at_origin[position - first] != 0);
  }
};

/// Writes m cos and m sin of a phase, rounded to S.
template <class S>
void write_turned(phase p, double m, S& cos, S& sin) {
  const cos_sin value = cos_sin_of<S>(p);
  cos = static_cast<S>(m * value.cos);
  sin = static_cast<S>(m * value.sin);
}

/// Writes m cos and m sin of every phase of a row, rounded to S.
template <class S>
void write_table_row(const phase_row& phases, double m, S* cos, S* sin) {
  for (std::size_t i = 0; i < phases.size(); ++i) write_turned(phases[i], m, cos[i], sin[i]);
}

/// The same for float, where compilers evaluate several pairs at once from the upper 128 bits of their
/// phases. Angles within 2^-64 turn of a quarter turn need all bits and are written again.
inline void write_table_row(const phase_row& phases, double m, float* cos, float* sin) {
  const std::size_t pairs = phases.size();
  const uint128* upper = phases.upper();
  std::uint64_t close = 0;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint64_t quadrant = nearest_quadrant(upper[i].hi), hi = upper[i].hi - (quadrant << 62),
                        sign = 0 - (hi >> 63);
    // The upper bits of -x are those of ~x, unless all bits below are 0.
    const uint128 magnitude = {hi ^ sign, upper[i].lo ^ sign};
    close |= magnitude.hi == 0 ? 1u : 0u;
    const cos_sin value = in_quadrant(quadrant, sign != 0, float_cos_sin(angle_for_float(magnitude)));
    cos[i] = static_cast<float>(m * value.cos);
    sin[i] = static_cast<float>(m * value.sin);
  }
  if (close == 0) return;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::uint64_t hi = upper[i].hi - (nearest_quadrant(upper[i].hi) << 62);
    if (hi == 0 || hi == ~std::uint64_t{0}) write_turned(phases[i], m, cos[i], sin[i]);
  }
}

// Angles so small that their phase, a multiple of 2^-192 turn, has fewer bits than a double: learned
// frequencies near zero, a schedule divided by 1e30, coordinates of 1e-40.

/// Whether an angle [rad] is formed as a product of doubles and not as a phase. Then cos = 1 and sin = angle,
/// both with a relative error below 2^-250. The phase of a larger angle has 60 bits or more.
inline bool is_small(double angle) { return (std::abs)(angle) < 0x1p-128; }

/// Writes m cos and m sin of a small angle.
template <class S>
void write_small(double angle, double m, S& cos, S& sin) {
  cos = static_cast<S>(m);
  sin = static_cast<S>(m * angle);
}

/// The unit in which small angles are multiplied, [rad]. A product below 2^-1022 rad is subnormal and has
/// lost digits, which m sin shows if m is large; in this unit it is a normal number. A small angle is less
/// than 2^-8 units, so that a sum over up to 256 axes stays below 1.
inline constexpr double small_unit = 0x1p-120;

/// inv_freq * coordinate in units of small_unit.
inline double product_in_small_units(double inv_freq, double coordinate) {
  return inv_freq / small_unit * coordinate;
}
/// is_small of an angle in units of small_unit.
inline bool is_small_in_units(double angle) { return (std::abs)(angle) < 0x1p-128 / small_unit; }

/// write_small of an angle in units of small_unit.
template <class S>
void write_small_of_units(double angle, double m, S& cos, S& sin) {
  cos = static_cast<S>(m);
  sin = static_cast<S>(m * angle * small_unit);
}

/// Writes m cos and m sin of inv_freq * coordinate.
template <class S>
void write_product(double inv_freq, double coordinate, double m, S& cos, S& sin) {
  const double product = product_in_small_units(inv_freq, coordinate);
  if (is_small_in_units(product))
    write_small_of_units(product, m, cos, sin);
  else
    write_turned(phase_of(inv_freq, coordinate), m, cos, sin);
}

/// The small angles of a table: sum_a inv_freq(i, a) * coordinate_a where every product is small.
class small_angles {
 public:
  /// \param of  outlives this object
  explicit small_angles(const frequencies& of)
      : frequencies_(of), slowest_(of.axes(), 1, (std::numeric_limits<double>::max)()) {
    for (Index a = 0; a < of.axes(); ++a)
      for (Index i = 0; i < of.pairs(); ++i) {
        const double speed = (std::abs)(of.inv_freq(i, a));
        if (!equal(speed, 0)) slowest_(a) = (std::min)(slowest_(a), speed);
      }
  }

  /// Writes the entries of the pairs that turn by a small angle at `coordinates` [axes].
  template <class Row, class S>
  void write(const Row& coordinates, double m, S* cos, S* sin) const {
    if (!occur(coordinates)) return;
    for (Index i = 0; i < frequencies_.pairs(); ++i) {
      double angle = 0, largest = 0;
      for (Index a = 0; a < frequencies_.axes(); ++a) {
        const double product = product_in_small_units(frequencies_.inv_freq(i, a), coordinates(a));
        angle += product;
        largest = (std::max)(largest, (std::abs)(product));
      }
      if (is_small_in_units(largest)) write_small_of_units(angle, m, cos[i], sin[i]);
    }
  }

 private:
  /// Whether a product that is not 0 is small.
  template <class Row>
  bool occur(const Row& coordinates) const {
    for (Index a = 0; a < frequencies_.axes(); ++a) {
      const double coordinate = coordinates(a);
      if (!equal(coordinate, 0) && is_small(slowest_(a) * coordinate)) return true;
    }
    return false;
  }

  const frequencies& frequencies_;
  number_array<double> slowest_;  // [axes]: of the pairs that turn along it
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_DETAIL_TABLE_ROWS_HPP
