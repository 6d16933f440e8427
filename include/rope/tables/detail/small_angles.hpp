// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_SMALL_ANGLES_HPP
#define ROPE_TABLES_DETAIL_SMALL_ANGLES_HPP

#include <algorithm>  // std::max, std::min
#include <cmath>
#include <cstddef>
#include <limits>

#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_row.hpp>
#include <rope/tables/phase.hpp>

/// Angles so small that their phase, a multiple of 2^-192 turn, has fewer bits than a double: learned
/// frequencies near zero, a schedule divided by 1e30, coordinates of 1e-40.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

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

#endif  // ROPE_TABLES_DETAIL_SMALL_ANGLES_HPP
