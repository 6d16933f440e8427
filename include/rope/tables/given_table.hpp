// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_GIVEN_TABLE_HPP
#define ROPE_TABLES_GIVEN_TABLE_HPP

#include <algorithm>  // std::nth_element
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/owned_array.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_arguments.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/table.hpp>

/// Tables that are not made from frequencies: from angles that a network predicts for every token (learned
/// rotations), or from cos and sin of another library. Row r is the rotation at position first + r.

namespace rope::inline ROPE_ABI::detail {

/// The radius sqrt(cos^2 + sin^2) of a given pair is in [1 / largest_radius, largest_radius]. The pair and
/// its inverse are then normal numbers of S, and the square of the radius is a normal double.
template <class S>
inline constexpr double largest_radius = std::is_same_v<S, float> ? 0x1p126 : 0x1p500;

/// Makes a frequency_table from given entries; a friend of frequency_table.
struct given_entries {
  /// Makes a table. write(r, cos, sin) writes its row r, cos [pairs] and sin [pairs].
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
    frequency_table<S> table(origin, first, rows, function);
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
                        " and sin = ", s, ", rounded to ", type_name<S>, ", at row ", r, ", pair ", i);
        if (!equal(c, 1) || !equal(s, 0)) table.at_origin_(r) = 0;
        table.fingerprint_ =
            mix(mix(table.fingerprint_, bit_cast<std::uint64_t>(c)), bit_cast<std::uint64_t>(s));
      }
    }
    return table;
  }

  /// Replaces the hash of the entries by a hash of the rule that made them. Two tables made by one rule then
  /// have equal fingerprints for any ranges of positions.
  template <class S>
  static void identify(frequency_table<S>& table, std::uint64_t rule) {
    table.fingerprint_ = mix(rule, 3);
  }

  /// Makes a table without frequencies: it reports zeros for all pairs, and m.
  template <class S, class WriteRow>
  static frequency_table<S> table(const char* function, Index pairs, double m, std::int64_t first, Index rows,
                                  const WriteRow& write) {
    const frequencies origin = frequencies::custom(number_array<double>(pairs, 1, 0.0), m);
    return table<S>(function, origin, first, rows, write);
  }
};

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

namespace rope::inline ROPE_ABI {

/// How the columns of a matrix of angles, cos or sin belong to pairs. The two wide forms, `concatenated` and
/// `repeated`, have every number twice. There is no default, because a matrix read in the wrong form gives
/// wrong angles or twice the pairs.
enum class table_form {
  half_width,    ///< [rows, pairs]      a0 a1 a2 ...          ONNX, FlashAttention, vLLM, candle
  concatenated,  ///< [rows, 2 pairs]    a0 a1 ... a0 a1 ...   Hugging Face `cat((freqs, freqs))`
  repeated       ///< [rows, 2 pairs]    a0 a0 a1 a1 ...       lucidrains, diffusers, `repeat_interleave(2)`
};

namespace detail {

/// The largest difference between cos^2 + sin^2 of a pair and the table's common value, relative to it, for
/// entries with unit roundoff u. A float or double entry has an error of at most 3 u: 1 ulp from the cos or
/// sin of another library, and half an ulp from its product with m. A sum of squares then has an error of 6
/// u, the common value has 6 u too, and the sum computed here in double adds 2 u. A 16-bit entry is a float
/// that was rounded once, with an error of u. This gives 2 u and 2 u, and twice as much if m was multiplied
/// in 16 bits.
template <class Entry>
inline constexpr double radius_tolerance = std::is_same_v<Entry, double>        ? 16 * 0x1p-53
                                           : std::is_same_v<Entry, float>       ? 16 * 0x1p-24
                                           : std::is_same_v<Entry, Eigen::half> ? 8 * 0x1p-11
                                                                                : 8 * 0x1p-8;

/// The number of pairs of a matrix.
///
/// Throws:  std::invalid_argument if an entry is not finite or the two copies of a wide form differ
template <class Matrix>
Index checked_pairs(const char* function, const char* name, const Matrix& x, table_form form) {
  const bool twice = form != table_form::half_width;
  const Index pairs = twice ? x.cols() / 2 : x.cols();
  if (pairs == 0 || (twice && x.cols() % 2 != 0))
    throw_invalid(function, name, " must be [rows, ", twice ? "2 * pairs" : "pairs", "] with pairs > 0, got ",
                  shape_text({x.rows(), x.cols()}));
  for (Index r = 0; r < x.rows(); ++r)
    for (Index c = 0; c < x.cols(); ++c) {
      const auto value = static_cast<double>(x(r, c));
      if (!is_finite(value))
        throw_invalid(function, name, " must be finite, got ", value, " at row ", r, ", column ", c);
      const Index pair = form == table_form::repeated ? c / 2 : c % pairs;
      const Index copy = form == table_form::repeated ? 2 * pair : pair;
      if (!detail::equal(value, static_cast<double>(x(r, copy))))
        throw_invalid(function, "the two copies of ", name, " must agree in the ",
                      form == table_form::repeated ? "repeated" : "concatenated", " form, got ",
                      static_cast<double>(x(r, copy)), " and ", value, " at row ", r, ", pair ", pair);
    }
  return pairs;
}

/// The first column of pair i.
constexpr Index column(table_form form, Index i) { return form == table_form::repeated ? 2 * i : i; }

/// The table of the entries of two matrices, rounded to S. It reports the given m.
template <class S, class Cos, class Sin>
frequency_table<S> table_of_matrices(const char* function, const Cos& cos, const Sin& sin, table_form form,
                                     Index pairs, double m, std::int64_t first) {
  const auto write = [&](Index r, S* cos_row, S* sin_row) {
    for (Index i = 0; i < pairs; ++i) {
      cos_row[i] = saturated_to<S>(static_cast<double>(cos(r, column(form, i))));
      sin_row[i] = saturated_to<S>(static_cast<double>(sin(r, column(form, i))));
    }
  };
  return given_entries::table<S>(function, pairs, m, first, cos.rows(), write);
}

/// Writes m cos and m sin of the angle inv_freq * coordinate.
template <class S>
void write_product(double inv_freq, double coordinate, double m, S& cos, S& sin) {
  write_product(
      inv_freq, coordinate, m, [=] { return phase_of(inv_freq, coordinate); }, cos, sin);
}

/// Returns an angle, or a factor of angles.
///
/// \param where  its place, the end of a message
template <class... Where>
double checked_angle(const char* name, double angle, const Where&... where) {
  if (!is_finite(angle) || (std::abs)(angle) >= 0x1p64)
    throw_invalid("table_of_angles", name, " must be finite and below 2^64 in magnitude, got ", angle,
                  where...);
  return angle;
}

/// Returns the m of a table, which messages call `name`.
///
/// Throws:  std::invalid_argument unless m is in [1 / largest_radius, largest_radius]
template <class S>
double checked_m(const char* function, const char* name, double m) {
  constexpr double largest = largest_radius<S>;
  if (!is_finite(m) || m < 1 / largest || m > largest)
    throw_invalid(function, name, " must be in [2^", -std::ilogb(largest), ", 2^", std::ilogb(largest),
                  "], got ", m);
  return m;
}

/// Returns m^2, which is the median of cos^2 + sin^2. Checks that the sum of every pair equals it within
/// radius_tolerance.
///
/// Throws:  std::invalid_argument
template <class Entry, class Cos, class Sin>
double checked_square(const char* function, const Cos& cos, const Sin& sin, table_form form, Index pairs) {
  if (cos.rows() == 0) return 1;
  const auto square = [&](Index r, Index i) {
    const auto c = static_cast<double>(cos(r, column(form, i))),
               s = static_cast<double>(sin(r, column(form, i)));
    return c * c + s * s;
  };
  std::vector<decltype(square(Index{}, Index{}))> squares;
  squares.reserve(static_cast<std::size_t>(cos.rows() * pairs));
  for (Index r = 0; r < cos.rows(); ++r)
    for (Index i = 0; i < pairs; ++i) squares.push_back(square(r, i));
  const auto middle = squares.begin() + static_cast<std::ptrdiff_t>(squares.size() / 2);
  std::nth_element(squares.begin(), middle, squares.end());
  const double common = *middle;
  for (Index r = 0; r < cos.rows(); ++r)
    for (Index i = 0; i < pairs; ++i)
      if ((std::abs)(square(r, i) - common) > radius_tolerance<Entry> * common)
        throw_invalid(function, "cos^2 + sin^2 must be one m^2 for every pair, here ", common,
                      ", to within 2^", std::ilogb(radius_tolerance<Entry>), " of it, got ", square(r, i),
                      " at row ", r, ", pair ", i);
  return (std::abs)(common - 1) <= radius_tolerance<Entry> ? 1 : common;
}

}  // namespace detail

/// The table of given angles in radians, one row per token: learned rotations.
///
///     cos(first + r)[i] = m cos(angles(r, i)),   sin(first + r)[i] = m sin(angles(r, i))
///
///     const frequency_table<> table = table_of_angles(angles, table_form::half_width);
///
/// Pass angles [batch, tokens, pairs] as [batch * tokens, pairs], and rotate with `row_starts` 0, tokens, 2
/// tokens, ... If the angles differ between heads, make one table per head and rotate `head_range`s.
///
/// \tparam S                 float or double: the type of a table entry
/// \param  angles            Eigen expression [rows, pairs], or [rows, 2 pairs] in the two wide forms
/// \param  attention_factor  m, in [2^-126, 2^126] (float) or [2^-500, 2^500] (double)
///
/// Throws:    std::invalid_argument if an angle is infinite, NaN or at least 2^64 in magnitude, there is no
///            pair, the copies of a wide form differ, or attention_factor or sqrt(cos^2 + sin^2) of a pair of
///            rounded entries is outside the range above; std::length_error if the positions of the rows
///            exceed 64 bits, or their entries the address space
/// Accuracy:  as a frequency_table, for cos and sin of the given angle: 0.5 ulp (float), 0.51 (double)
/// Source:    `apply_learned_rotations` of lucidrains/rotary-embedding-torch. Its RotaryEmbedding returns
///            angles in the repeated form. The rotary embedding of Transformer Engine returns them in the
///            concatenated form
template <class S = float, class Derived>
frequency_table<S> table_of_angles(const Eigen::DenseBase<Derived>& angles, table_form form,
                                   std::int64_t first = 0, double attention_factor = 1.0) {
  static_assert(detail::is_real<Derived>,
                "table_of_angles: angles are float or double; 16-bit types lose them");
  const owned_array<typename Derived::Scalar> values = angles;
  const Index pairs = detail::checked_pairs("table_of_angles", "angles", values, form);
  const double m = detail::checked_m<S>("table_of_angles", "attention_factor", attention_factor);
  const auto write = [&](Index r, S* cos, S* sin) {
    for (Index i = 0; i < pairs; ++i) {
      const Index column = detail::column(form, i);
      const double angle = detail::checked_angle("an angle", static_cast<double>(values(r, column)),
                                                 " at row ", r, ", column ", column);
      detail::write_product(angle, 1.0, m, cos[i], sin[i]);
    }
  };
  return detail::given_entries::table<S>("table_of_angles", pairs, m, first, values.rows(), write);
}

/// The table of learned rotations, each of which rotates one pair for every frequency of a list.
///
///     angle of pair a * ranges.size() + f  =  rotations(r, a) * ranges(f)
///
///     const frequency_table<> table = table_of_angles(rotations, ranges);
///
/// \param rotations  Eigen expression [rows, rotations], radians
/// \param ranges     vector [ranges]
///
/// Throws:    as above; std::invalid_argument if a range is infinite, NaN or at least 2^64 in magnitude
/// Accuracy:  as above; the product is exact
/// Source:    `apply_learned_rotations(..., freq_ranges)` of lucidrains/rotary-embedding-torch
template <class S = float, class Derived, class Ranges>
frequency_table<S> table_of_angles(const Eigen::DenseBase<Derived>& rotations,
                                   const Eigen::DenseBase<Ranges>& ranges, std::int64_t first = 0,
                                   double attention_factor = 1.0) {
  static_assert(detail::is_real<Derived> && detail::is_real<Ranges>,
                "table_of_angles: rotations and ranges are float or double; 16-bit types lose the angle");
  static_assert(bool(Ranges::IsVectorAtCompileTime), "table_of_angles: ranges is a vector");
  const owned_array<typename Derived::Scalar> given = rotations;
  const owned_array<typename Ranges::Scalar, 1> factors = ranges;
  const Index count = factors.size();
  if (!detail::product_fits({given.cols(), count, 2}))
    detail::throw_length("table_of_angles", given.cols(), " rotations times ", count,
                         " ranges exceed the address space");
  const Index pairs = given.cols() * count;
  if (pairs == 0)
    detail::throw_invalid("table_of_angles", "rotations [rows, rotations] and ranges must not be empty, got ",
                          detail::shape_text({given.rows(), given.cols()}), " and ", count);
  const double m = detail::checked_m<S>("table_of_angles", "attention_factor", attention_factor);
  for (Index f = 0; f < count; ++f)
    detail::checked_angle("a range", static_cast<double>(factors(f)), " at index ", f);
  const auto write = [&](Index r, S* cos, S* sin) {
    for (Index a = 0; a < given.cols(); ++a) {
      const double angle =
          detail::checked_angle("an angle", static_cast<double>(given(r, a)), " at row ", r, ", column ", a);
      for (Index f = 0; f < count; ++f, ++cos, ++sin)
        detail::write_product(static_cast<double>(factors(f)), angle, m, *cos, *sin);
    }
  };
  return detail::given_entries::table<S>("table_of_angles", pairs, m, first, given.rows(), write);
}

/// The table of cos and sin that another library computed, after checking that all pairs are rotations scaled
/// by one m.
///
///     const frequency_table<> table = table_of_cos_sin(cos, sin, table_form::concatenated);
///
/// An attention_factor that is already multiplied into the entries stays there. The table reports the
/// measured m, or exactly 1 if it is 1 within the precision of the entries.
///
/// vLLM and FlashInfer store one matrix [cos, sin]: pass cache.leftCols(pairs), cache.rightCols(pairs) and
/// half_width. timm stores sin first, in the repeated form.
///
/// \param cos, sin  Eigen expressions [rows, pairs], or [rows, 2 pairs] in the two wide forms; float, double,
///                  Eigen::half or Eigen::bfloat16
///
/// Throws:  std::invalid_argument if the shapes differ, an entry is not finite, the copies of a wide form
///          differ, cos^2 + sin^2 of a pair differs from the table's common m^2 by more than a few units of
///          roundoff of the entries (the message names the row and the pair), or m is outside the range of
///          table_of_angles. std::length_error as table_of_angles
template <class S = float, class Cos, class Sin>
frequency_table<S> table_of_cos_sin(const Eigen::DenseBase<Cos>& cos, const Eigen::DenseBase<Sin>& sin,
                                    table_form form, std::int64_t first = 0) {
  static_assert(detail::is_entry<Cos> && std::is_same_v<typename Cos::Scalar, typename Sin::Scalar>,
                "table_of_cos_sin: cos and sin are both float, double, Eigen::half or Eigen::bfloat16");
  const owned_array<typename Cos::Scalar> c = cos;
  const owned_array<typename Sin::Scalar> s = sin;
  detail::check_same_shape("table_of_cos_sin", c, s);
  const Index pairs = detail::checked_pairs("table_of_cos_sin", "cos", c, form);
  detail::checked_pairs("table_of_cos_sin", "sin", s, form);
  const double square = detail::checked_square<typename Cos::Scalar>("table_of_cos_sin", c, s, form, pairs);
  const double m = detail::checked_m<S>("table_of_cos_sin", "sqrt(cos^2 + sin^2)", std::sqrt(square));
  return detail::table_of_matrices<S>("table_of_cos_sin", c, s, form, pairs, m, first);
}

/// A table of arbitrary entries, which need not be rotations. Examples are pairs that also grow or shrink
/// (xPos), mixtures of several angles (FoPE), and entries of low precision. `unrotate` divides every pair by
/// its own cos^2 + sin^2.
///
///     const frequency_table<> table = table_of_entries(cos, sin);
///
/// \param cos, sin  Eigen expressions [rows, pairs], float, double, Eigen::half or Eigen::bfloat16
///
/// Throws:    std::invalid_argument if the shapes differ, an entry is not finite, or sqrt(cos^2 + sin^2) of a
///            pair is outside [2^-126, 2^126] (float) or [2^-500, 2^500] (double), where the pair and its
///            inverse are numbers of S. std::length_error as table_of_angles
/// Accuracy:  the entries, rounded to S
template <class S = float, class Cos, class Sin>
frequency_table<S> table_of_entries(const Eigen::DenseBase<Cos>& cos, const Eigen::DenseBase<Sin>& sin,
                                    std::int64_t first = 0) {
  static_assert(detail::is_entry<Cos> && detail::is_entry<Sin>,
                "table_of_entries: cos and sin are float, double, Eigen::half or Eigen::bfloat16");
  const owned_array<typename Cos::Scalar> c = cos;
  const owned_array<typename Sin::Scalar> s = sin;
  detail::check_same_shape("table_of_entries", c, s);
  constexpr table_form form = table_form::half_width;
  const Index pairs = detail::checked_pairs("table_of_entries", "cos", c, form);
  return detail::table_of_matrices<S>("table_of_entries", c, s, form, pairs, 1, first);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_GIVEN_TABLE_HPP
