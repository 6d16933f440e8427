// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_COORDINATES_HPP
#define ROPE_BASE_COORDINATES_HPP

#include <cstdint>
#include <type_traits>
#include <utility>  // std::cmp_less_equal, std::cmp_greater_equal

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>

/// Checks the coordinates of tokens, integers or real numbers, and copies them as doubles.

namespace rope::inline ROPE_ABI::detail {

/// Whether a coordinate is finite and at most 2^53 in magnitude. A double holds every integer up to 2^53.
template <class Scalar>
bool is_coordinate(Scalar value) {
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if constexpr (std::is_integral_v<Scalar>)
    // + promotes bool and characters, which std::cmp_less_equal rejects.
    return std::cmp_less_equal(+value, most) && std::cmp_greater_equal(+value, -most);
  else
    return is_within_2_53(static_cast<double>(value));
}

/// Checks the coordinates at(row, axis).
///
/// Throws:  std::invalid_argument if the number of columns differs from the number of axes, or a coordinate
///          is infinite, NaN or above 2^53 in magnitude
template <class At>
void check_row_coordinates(const char* function, Index axes, Index rows, Index columns, const At& at) {
  using coordinate = std::decay_t<decltype(at(Index{}, Index{}))>;
  static_assert(
      std::is_integral_v<coordinate> || std::is_same_v<coordinate, float> ||
          std::is_same_v<coordinate, double>,
      "frequency_table, row_maker and token_coordinates: coordinates are integers, float or double; "
      "16-bit types lose the position");
  if (columns != axes)
    throw_invalid(function, "coordinates must be [rows, ", axes, "], got ", shape_text({rows, columns}));
  for (Index r = 0; r < rows; ++r)
    for (Index a = 0; a < axes; ++a)
      if (!is_coordinate(at(r, a)))
        throw_invalid(function, "a coordinate must be finite and at most 2^53 in magnitude, got ", at(r, a),
                      " at row ", r, ", axis ", a);
}

/// Coordinates as doubles, [rows, axes].
///
/// Throws:  as check_row_coordinates
template <class Derived>
number_array<double> checked_coordinates(const char* function, Index axes,
                                         const Eigen::DenseBase<Derived>& coordinates) {
  const number_array<typename Derived::Scalar> given = coordinates;
  check_row_coordinates(function, axes, given.rows(), given.cols(),
                        [&](Index r, Index a) { return given(r, a); });
  number_array<double> checked(given.rows(), given.cols());
  for (Index i = 0; i < given.size(); ++i) checked(i) = static_cast<double>(given(i));
  return checked;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_COORDINATES_HPP
