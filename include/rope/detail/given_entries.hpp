// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_GIVEN_ENTRIES_HPP
#define ROPE_DETAIL_GIVEN_ENTRIES_HPP

#include <algorithm>  // std::nth_element
#include <bit>        // std::bit_cast
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/table_row.hpp>
#include <rope/frequencies.hpp>
#include <rope/table.hpp>

/// What is checked of entries that another program computed, and how they become a frequency_table.

namespace rope {
inline namespace ROPE_ABI {

/// How the columns of an angle, cos or sin matrix stand for pairs. There is no default: one form read as
/// another has other angles, or twice the pairs.
enum class table_form {
  half_width,    ///< [rows, pairs]      a0 a1 a2 ...          ONNX, FlashAttention, vLLM, candle
  concatenated,  ///< [rows, 2 pairs]    a0 a1 ... a0 a1 ...   Hugging Face `cat((freqs, freqs))`
  repeated       ///< [rows, 2 pairs]    a0 a0 a1 a1 ...       lucidrains, diffusers, `repeat_interleave(2)`
};

namespace detail {

/// The radius sqrt(cos^2 + sin^2) of a given pair is in [1 / largest, largest], so that the pair and its
/// inverse are normal numbers of S and the square of the radius is one of double.
template <class S>
inline constexpr double largest_radius = std::is_same_v<S, float> ? 0x1p126 : 0x1p500;

/// What cos^2 + sin^2 of a pair of a checked table may be off by, relative to the table's common value, for
/// entries of type E with unit roundoff u. A float or double entry carries at most 1 ulp of its libm and half
/// an ulp of its product with m, 3 u, so a sum of squares 6 u; the common value as much; and the sum formed
/// here in double 2 u more. A 16-bit entry is a float rounded once, u: 2 u and 2 u, and a second rounding
/// where m was applied in 16 bits.
template <class E>
inline constexpr double radius_tolerance = std::is_same_v<E, double>        ? 16 * 0x1p-53
                                           : std::is_same_v<E, float>       ? 16 * 0x1p-24
                                           : std::is_same_v<E, Eigen::half> ? 8 * 0x1p-11
                                                                            : 8 * 0x1p-8;

/// The one way to make a frequency_table from anything but frequencies.
struct given_entries {
  /// `write(r, cos, sin)` writes row r, [pairs] each.
  ///
  /// \param origin  the pairs, and what the table reports as attention_factor and inv_freq
  ///
  /// Throws:  std::length_error if the positions exceed int64, std::invalid_argument if an entry is not
  /// finite or
  ///          the radius of a pair is out of range
  template <class S, class WriteRow>
  static frequency_table<S> table(const char* function, const frequencies& origin, std::int64_t first,
                                  Index rows, const WriteRow& write) {
    if (first > (std::numeric_limits<std::int64_t>::max)() - rows)
      ROPE_THROW(std::length_error,
                 message(function, ": the positions of ", rows, " rows from ", first, " on exceed int64"));
    frequency_table<S> table(origin, first, rows, typename frequency_table<S>::unwritten_tag{});
    table.given_ = true;
    table.by_position_ = false;
    table.fingerprint_ = mix(mix(table.fingerprint_, 2), static_cast<std::uint64_t>(first));
    table.at_origin_.assign(static_cast<std::size_t>(rows), 1);
    const Index pairs = origin.pairs();
    for (Index r = 0; r < rows; ++r) {
      S* cos = table.entries_.data() + static_cast<std::size_t>(r * 2 * pairs);
      write(r, cos, cos + pairs);
      for (Index i = 0; i < pairs; ++i) {
        const auto c = static_cast<double>(cos[i]), s = static_cast<double>(cos[i + pairs]);
        constexpr double largest = largest_radius<S>;
        if (!is_finite(c) || !is_finite(s) || std::abs(c) > largest || std::abs(s) > largest ||
            c * c + s * s > largest * largest || c * c + s * s < 1 / (largest * largest))
          ROPE_THROW(
              std::invalid_argument,
              message(function, ": an entry must be finite and sqrt(cos^2 + sin^2) within [", 1 / largest,
                      ", ", largest, "], got cos = ", c, " and sin = ", s, " at row ", r, ", pair ", i));
        if (c != 1 || s != 0) table.at_origin_[static_cast<std::size_t>(r)] = 0;
        table.fingerprint_ =
            mix(mix(table.fingerprint_, std::bit_cast<std::uint64_t>(c)), std::bit_cast<std::uint64_t>(s));
      }
    }
    return table;
  }

  /// What a table of entries without frequencies reports of itself: `pairs` zeros, and m.
  static frequencies origin(Index pairs, double attention_factor) {
    return frequencies::custom(Eigen::ArrayXd::Zero(pairs), attention_factor);
  }
};

/// Number of pairs of a matrix, which is finite and whose copies of a pair agree.
template <class Matrix>
Index checked_pairs(const char* function, const char* name, const Matrix& x, table_form form) {
  const bool twice = form != table_form::half_width;
  const Index pairs = twice ? x.cols() / 2 : x.cols();
  if (pairs == 0 || (twice && x.cols() % 2 != 0))
    ROPE_THROW(std::invalid_argument,
               message(function, ": ", name, " must be [rows, ", twice ? "2 * pairs" : "pairs",
                       "] with pairs > 0, got [", x.rows(), ", ", x.cols(), "]"));
  for (Index r = 0; r < x.rows(); ++r)
    for (Index c = 0; c < x.cols(); ++c) {
      const auto value = static_cast<double>(x(r, c));
      if (!is_finite(value))
        ROPE_THROW(std::invalid_argument, message(function, ": ", name, " must be finite, got ", value,
                                                  " at row ", r, ", column ", c));
      const Index pair = form == table_form::repeated ? c / 2 : c % pairs;
      const Index copy = form == table_form::repeated ? 2 * pair : pair;
      if (value != static_cast<double>(x(r, copy)))
        ROPE_THROW(std::invalid_argument,
                   message(function, ": the two copies of ", name, " must agree in the ",
                           form == table_form::repeated ? "repeated" : "concatenated", " form, got ",
                           static_cast<double>(x(r, copy)), " and ", value, " at row ", r, ", pair ", pair));
    }
  return pairs;
}

/// The column of pair i, the first where there are two.
constexpr Index column(table_form form, Index i) { return form == table_form::repeated ? 2 * i : i; }

template <class Derived>
inline constexpr bool is_real =
    std::is_same_v<typename Derived::Scalar, float> || std::is_same_v<typename Derived::Scalar, double>;
template <class Derived>
inline constexpr bool is_entry = is_real<Derived> || std::is_same_v<typename Derived::Scalar, Eigen::half> ||
                                 std::is_same_v<typename Derived::Scalar, Eigen::bfloat16>;

inline double checked_angle(const char* function, double angle, Index r, Index i) {
  if (!is_finite(angle) || std::abs(angle) >= 0x1p64)
    ROPE_THROW(std::invalid_argument, message(function, ": an angle must be finite and below 2^64, got ",
                                              angle, " at row ", r, ", column ", i));
  return angle;
}

template <class Cos, class Sin>
void check_same_shape(const char* function, const Cos& cos, const Sin& sin) {
  if (cos.rows() != sin.rows() || cos.cols() != sin.cols())
    ROPE_THROW(std::invalid_argument,
               message(function, ": cos and sin must have one shape, got [", cos.rows(), ", ", cos.cols(),
                       "] and [", sin.rows(), ", ", sin.cols(), "]"));
}

/// m^2, the median of cos^2 + sin^2, which every pair must keep to.
template <class E, class Cos, class Sin>
double checked_square(const char* function, const Cos& cos, const Sin& sin, table_form form, Index pairs) {
  if (cos.rows() == 0) return 1;
  const auto square = [&](Index r, Index i) {
    const auto c = static_cast<double>(cos(r, column(form, i))),
               s = static_cast<double>(sin(r, column(form, i)));
    return c * c + s * s;
  };
  std::vector<double> squares;
  squares.reserve(static_cast<std::size_t>(cos.rows() * pairs));
  for (Index r = 0; r < cos.rows(); ++r)
    for (Index i = 0; i < pairs; ++i) squares.push_back(square(r, i));
  const auto middle = squares.begin() + static_cast<std::ptrdiff_t>(squares.size() / 2);
  std::nth_element(squares.begin(), middle, squares.end());
  const double common = *middle;
  for (Index r = 0; r < cos.rows(); ++r)
    for (Index i = 0; i < pairs; ++i)
      if (std::abs(square(r, i) - common) > radius_tolerance<E> * common)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": cos^2 + sin^2 must be one m^2 for every pair, here ", common,
                           " within a factor of ", radius_tolerance<E>, ", got ", square(r, i), " at row ", r,
                           ", pair ", i));
  return std::abs(common - 1) <= radius_tolerance<E> ? 1 : common;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_GIVEN_ENTRIES_HPP
