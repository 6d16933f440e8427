// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_DETAIL_GIVEN_ENTRIES_HPP
#define ROPE_TABLES_DETAIL_GIVEN_ENTRIES_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/table.hpp>

/// Makes tables whose entries are given instead of computed from frequencies.

namespace rope::inline ROPE_ABI::detail {

/// The radius sqrt(cos^2 + sin^2) of a given pair is in [1 / largest_radius, largest_radius], so that the
/// pair and its inverse are normal numbers of S and the square of the radius is one of double.
template <class S>
inline constexpr double largest_radius = std::is_same_v<S, float> ? 0x1p126 : 0x1p500;

/// The value rounded to S. A value beyond the range of S becomes the largest number, which `table` below
/// rejects.
template <class S>
S entry_of(double value) {
  constexpr auto largest = static_cast<double>((std::numeric_limits<S>::max)());
  return static_cast<S>(value > largest ? largest : value < -largest ? -largest : value);
}

/// Makes a frequency_table from given entries; a friend of frequency_table.
struct given_entries {
  /// The table whose row r `write(r, cos, sin)` writes, cos [pairs] and sin [pairs].
  ///
  /// \param origin  the frequencies that the table reports: pairs, inv_freq and attention_factor
  ///
  /// Throws:  std::length_error if the positions exceed int64; std::invalid_argument if an entry is not
  ///          finite or the radius of a pair is not in [1 / largest_radius, largest_radius]
  template <class S, class WriteRow>
  static frequency_table<S> table(const char* function, const frequencies& origin, std::int64_t first,
                                  Index rows, const WriteRow& write) {
    if (!sum_is_position(first, rows))
      throw_length(function, "the positions of ", rows, " rows from ", first, " on exceed int64");
    frequency_table<S> table(origin, first, rows, typename frequency_table<S>::unwritten_tag{});
    table.source_ = table_source::entries;
    table.fingerprint_ = mix(mix(table.fingerprint_, 2), static_cast<std::uint64_t>(first));
    table.at_origin_ = number_array<unsigned char>(rows, 1, 1);
    const Index pairs = origin.pairs();
    for (Index r = 0; r < rows; ++r) {
      S* cos = table.entries_.data() + static_cast<std::size_t>(r * 2 * pairs);
      write(r, cos, cos + pairs);
      for (Index i = 0; i < pairs; ++i) {
        const auto c = static_cast<double>(cos[i]), s = static_cast<double>(cos[i + pairs]);
        constexpr double largest = largest_radius<S>;
        if (!is_finite(c) || !is_finite(s) || (std::abs)(c) > largest || (std::abs)(s) > largest ||
            c * c + s * s > largest * largest || c * c + s * s < 1 / (largest * largest))
          throw_invalid(function, "an entry must be finite and sqrt(cos^2 + sin^2) within [2^",
                        -std::ilogb(largest), ", 2^", std::ilogb(largest), "], got cos = ", c,
                        " and sin = ", s, " at row ", r, ", pair ", i);
        if (!equal(c, 1) || !equal(s, 0)) table.at_origin_(r) = 0;
        table.fingerprint_ =
            mix(mix(table.fingerprint_, bit_cast<std::uint64_t>(c)), bit_cast<std::uint64_t>(s));
      }
    }
    return table;
  }

  /// Replaces the hash of the entries by a hash of the rule that made them: two tables of one rule are then
  /// equal whatever their ranges of positions.
  template <class S>
  static void identify(frequency_table<S>& table, std::uint64_t rule) {
    table.fingerprint_ = mix(rule, 3);
  }

  /// The frequencies that a table without frequencies reports: `pairs` zeros, and m.
  static frequencies origin(Index pairs, double attention_factor) {
    return frequencies::custom(number_array<double>(pairs, 1, 0.0), attention_factor);
  }
};

template <class Derived>
inline constexpr bool is_real =
    std::is_same_v<typename Derived::Scalar, float> || std::is_same_v<typename Derived::Scalar, double>;
template <class Derived>
inline constexpr bool is_entry = is_real<Derived> || std::is_same_v<typename Derived::Scalar, Eigen::half> ||
                                 std::is_same_v<typename Derived::Scalar, Eigen::bfloat16>;

template <class Cos, class Sin>
void check_same_shape(const char* function, const Cos& cos, const Sin& sin) {
  if (cos.rows() != sin.rows() || cos.cols() != sin.cols())
    throw_invalid(function, "cos and sin must have one shape, got ", shape_text({cos.rows(), cos.cols()}),
                  " and ", shape_text({sin.rows(), sin.cols()}));
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_TABLES_DETAIL_GIVEN_ENTRIES_HPP
