// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_TOKEN_COORDINATES_HPP
#define ROPE_CACHE_TOKEN_COORDINATES_HPP

#include <cstdint>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/positions/multimodal_positions.hpp>  // is_within_2_53
#include <rope/positions/positions.hpp>             // as_position

/// Coordinates of new tokens of a cache with axes, for keys that are appended without a table.

namespace rope::inline ROPE_ABI {
namespace detail {

template <class Scalar>
bool is_coordinate(Scalar value) {
  constexpr std::int64_t most = std::int64_t{1} << 53;
  if constexpr (std::is_integral_v<Scalar>)
    return as_position(value) <= most && as_position(value) >= -most;
  else
    return is_within_2_53(static_cast<double>(value));
}

}  // namespace detail

/// Coordinates of new tokens, one row per token, for keys that are stored raw or are already rotated.
///
///     cache.append_at(k, v, token_coordinates(prompt.coordinates));
///
/// If the cache rotates the keys, pass a table of coordinates instead.
class token_coordinates {
 public:
  /// \param coordinates  [tokens, axes] Eigen expression, integer or real, shared by the rows of a batch; or
  ///                     [batch * tokens, axes], token t of row b in row b * tokens + t
  ///
  /// Throws:  std::invalid_argument if one is not finite or above 2^53 in magnitude
  template <class Derived>
  explicit token_coordinates(const Eigen::DenseBase<Derived>& coordinates)
      : coordinates_(checked(number_array<typename Derived::Scalar>(coordinates))) {}

  /// Tokens, or batch * tokens.
  Index rows() const { return coordinates_.rows(); }
  /// Coordinates of a token.
  Index axes() const { return coordinates_.cols(); }
  /// All coordinates, [rows, axes]; valid while this object lives.
  template <class Map = number_array<double>::const_map_type>
  Map coordinates() const {
    return Map(coordinates_.data(), rows(), axes());
  }
  /// One coordinate.  Requires: row in [0, rows), axis in [0, axes)
  double coordinate(Index row, Index axis) const { return coordinates_(row, axis); }

 private:
  template <class Scalar>
  static number_array<double> checked(const number_array<Scalar>& given) {
    constexpr bool whole = std::is_integral_v<Scalar>;
    static_assert(whole || std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double>,
                  "token_coordinates: coordinates are integers, float or double; 16-bit types lose the "
                  "position");
    for (Index r = 0; r < given.rows(); ++r)
      for (Index a = 0; a < given.cols(); ++a)
        if (!detail::is_coordinate(given(r, a)))
          detail::throw_invalid("token_coordinates",
                                "a coordinate must be finite and at most 2^53 in magnitude, got ",
                                given(r, a), " at row ", r, ", axis ", a);
    number_array<double> numbers(given.rows(), given.cols());
    for (Index i = 0; i < given.size(); ++i) numbers(i) = static_cast<double>(given(i));
    return numbers;
  }

  number_array<double> coordinates_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_TOKEN_COORDINATES_HPP
