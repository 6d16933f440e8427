// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_CONVERTED_ROW_HPP
#define ROPE_ROTATION_DETAIL_CONVERTED_ROW_HPP

#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/tables/detail/table_rows.hpp>

/// Rows of a table that are computed once for all heads of a token: if the type of entries differs from the
/// type of the arithmetic, or if the rows of an inverse are not those of the table times a constant.

namespace rope::inline ROPE_ABI::detail {

/// Whether 1 / m^2 is a normal number of S, far from the range where products with it lose bits.
template <class S>
bool has_inverse_square(double m) {
  constexpr double largest = std::is_same_v<S, float> ? 0x1p50 : 0x1p400;
  return m <= largest && m >= 1 / largest;
}

/// Whether table entries are converted to the arithmetic type of channels T before they are used. A double
/// entry rounded to float is the entry of a float table. But an entry beyond the range of float would become
/// infinite, and its product with a channel of 0 NaN. For float channels, a table that may have such entries
/// is therefore not converted, and products are formed in double. For 16-bit channels, only rows with such
/// entries are not converted.
///
/// \param m  the table's attention_factor
template <class T, class S>
bool converts_rows(const table_view<S>& table, double m) {
  using A = arithmetic<T>;
  return sizeof(S) < sizeof(A) || sizeof(T) == 2 || (!table.given && has_inverse_square<A>(m));
}

/// A row converted to A, multiplied by the scale and sign of an inverse. Rows of up to 256 pairs are on the
/// stack, longer rows in scratch of the calling thread.
template <class A>
class converted_row {
 public:
  template <class S, bool inverse>
  explicit converted_row(table_row<S, inverse> row)
      : entries_(row.pairs <= few ? few_ : workspace<converted_row, A>(2 * row.pairs)), pairs_(row.pairs) {
    convert<inverse>(row.cos, row.scale, entries_);
    convert<inverse>(row.sin, -row.scale, entries_ + pairs_);
  }
  converted_row(const converted_row&) = delete;
  converted_row& operator=(const converted_row&) = delete;

  /// Whether every entry is finite in A.
  bool is_finite() const { return all_finite(entries_, 2 * pairs_); }

  table_row<A, false> row() const { return {entries_, entries_ + pairs_, pairs_, A(1)}; }

 private:
  static constexpr Index few = 256;

  /// A loop over cos or sin alone is vectorized. In a loop over both the outputs might overlap the inputs.
  template <bool inverse, class S>
  void convert(const S* from, S scale, A* to) const {
    const Index pairs = pairs_;
    for (Index i = 0; i < pairs; ++i) to[i] = static_cast<A>(inverse ? from[i] * scale : from[i]);
  }

  A few_[2 * few];
  A* entries_;
  Index pairs_;
};

/// Calls rotate(row) with the row that rotates channels T: converted if `converts` is true and no entry
/// exceeds the range of float, otherwise unchanged.
template <class T, class S, bool inverse, class Rotate>
EIGEN_ALWAYS_INLINE void with_row(table_row<S, inverse> row, bool converts, const Rotate& rotate) {
  using A = arithmetic<T>;
  if constexpr (!std::is_same_v<S, A>)
    if (converts)
      if (const converted_row<A> converted(row); sizeof(T) > 2 || converted.is_finite())
        return rotate(converted.row());
  rotate(row);
}

/// The row of the inverse rotations. The inverse of [[c, -s], [s, c]] is its transpose divided by c^2 + s^2.
/// In a table of angles that is m^2 for every pair. In a table of given entries it differs from pair to pair,
/// and for extreme m it may leave the range of S. In both of these cases the row is divided before it is
/// used.
///
/// \param unit  a power of two near 1 / m, so that (unit m)^2 stays in range
/// \return  c / (c^2 + s^2), then s / (c^2 + s^2), [2 * pairs], in scratch of the calling thread
template <class S>
const S* inverted_row(const S* cos, Index pairs, double unit) {
  struct inverted_rows {};
  S* row = workspace<inverted_rows, S>(2 * pairs);
  for (Index i = 0; i < pairs; ++i) {
    const double c = unit * static_cast<double>(cos[i]), s = unit * static_cast<double>(cos[i + pairs]);
    const double scale = unit / multiply_add(c, c, s * s);
    row[i] = static_cast<S>(c * scale);
    row[i + pairs] = static_cast<S>(s * scale);
  }
  return row;
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_CONVERTED_ROW_HPP
