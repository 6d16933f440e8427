// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_ROW_MAKER_HPP
#define ROPE_TABLES_ROW_MAKER_HPP

#include <algorithm>  // std::max
#include <concepts>   // std::integral
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <rope/base/coordinates.hpp>
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_arguments.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/table.hpp>

/// Rows of cos and sin in the caller's memory, for decoding steps with new coordinates.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Whether an expression is a matrix product. Eigen cannot compute a single coefficient of one.
template <class Derived>
inline constexpr bool is_matrix_product = false;
template <class Left, class Right>
inline constexpr bool is_matrix_product<Eigen::Product<Left, Right, Eigen::DefaultProduct>> = true;

}  // namespace detail

/// Computes rows of a table, and small tables, in the caller's memory. The constructor computes everything
/// that depends on the frequencies alone. The other functions allocate no memory.
///
///     const row_maker<> maker(on_axes(frequencies(128), contiguous_sections({16, 24, 24})));  // per model
///     std::vector<std::byte> memory(maker.memory_size(1));                                    // per thread
///     const frequency_table<> table = maker.table(coordinates, memory);                       // per step
///     rotate<half_split>(q, k, table);
///
/// \tparam S  float or double: the type of an entry
///
/// Invariant: immutable, so threads may share it, each with its own memory. Empty after it was moved from.
/// Accuracy:  the bits of a frequency_table of the same coordinates or position
template <class S = float>
class row_maker {
 public:
  /// Copies the frequencies and prepares them.
  ///
  /// Throws:  std::invalid_argument if attention_factor is outside the normal range of S, or the frequencies
  ///          were moved from
  /// Cost:    at most 72 bytes per pair and axis, with the pairs rounded up to a multiple of 16
  explicit row_maker(const frequencies& of)
      : frequencies_(of),
        fingerprint_(detail::checked_fingerprint<S>(of, "row_maker")),
        angles_((detail::checked_entries<S>(0, of.pairs(), "row_maker"), of)) {}

  row_maker(const row_maker&) = default;
  row_maker(row_maker&&) = default;
  /// Assigns everything or nothing.
  row_maker& operator=(const row_maker& other) { return *this = row_maker(other); }
  row_maker& operator=(row_maker&&) = default;

  /// Number of channel pairs.
  Index pairs() const { return frequencies_.pairs(); }
  /// Number of entries of a row: cos [pairs], then sin [pairs].
  Index rotary_dim() const { return frequencies_.rotary_dim(); }
  /// Number of coordinates of a row.
  Index axes() const { return frequencies_.axes(); }

  /// Writes the rows of cos and sin at coordinates.
  ///
  ///     rows[r * rotary_dim + i] = m cos(angle_i(r)),   rows[r * rotary_dim + pairs + i] = m sin(angle_i(r))
  ///
  /// \param coordinates  [rows, axes] Eigen expression, integer or real, without a matrix product; its
  ///                     coefficients are read many times
  /// \param rows         [rows * rotary_dim] entries, which share no memory with the coordinates
  ///
  /// Throws:  std::invalid_argument, before anything is written, if the number of columns differs from the
  ///          number of axes, a coordinate is infinite, NaN or above 2^53 in magnitude, or the number of
  ///          entries is not rows * rotary_dim
  template <class Derived>
  void write(const Eigen::DenseBase<Derived>& coordinates, std::span<S> rows) const {
    check_coordinates(coordinates);
    check_entries(coordinates.rows(), rows);
    for (Index r = 0; r < coordinates.rows(); ++r)
      write_row([&](Index a) { return static_cast<double>(coordinates.derived().coeff(r, a)); },
                rows.data() + r * rotary_dim());
  }

  /// Writes the row at a position.
  ///
  /// \param row  [rotary_dim] entries: cos [pairs], then sin [pairs]
  ///
  /// Throws:  std::invalid_argument, before anything is written, if the frequencies have more than one axis,
  ///          or the number of entries is not rotary_dim; std::length_error unless position is below 2^63
  template <std::integral Position>
  void write(Position position, std::span<S> row) const {
    const std::int64_t at = detail::checked_position("row_maker::write", position);
    if (axes() != 1)
      detail::throw_invalid("row_maker::write", "a position needs frequencies of one axis, got ", axes(),
                            " axes: give coordinates [rows, axes]");
    check_entries(1, row);
    write_row([at](Index /*a*/) { return at; }, row.data());
  }

  /// The bytes that `table` needs for `rows` rows: 2 * pairs entries, one double per axis and one byte for
  /// each row, and 7 more bytes for alignment.
  ///
  /// Throws:  std::invalid_argument if rows is negative; std::length_error if the bytes exceed the address
  ///          space
  std::size_t memory_size(Index rows) const {
    if (rows < 0) detail::throw_invalid("row_maker::memory_size", "rows must not be negative, got ", rows);
    const auto row = static_cast<std::size_t>(rotary_dim()) * sizeof(S) +
                     static_cast<std::size_t>(axes()) * sizeof(double) + 1;
    if (static_cast<std::size_t>(rows) > ((std::numeric_limits<std::size_t>::max)() / 2 - 8) / row ||
        !detail::product_fits({rows, (std::max)(rotary_dim(), axes())}))
      detail::throw_length("row_maker::memory_size", "", rows, " rows of ", pairs(),
                           " pairs exceed the address space");
    return static_cast<std::size_t>(rows) * row + alignof(double) - 1;
  }

  /// The table at coordinates, one row per token, in the caller's memory. It equals frequency_table(of,
  /// coordinates) and can be used wherever a table can. The row_maker and the memory must outlive the table
  /// and stay unchanged, because the table refers to both. A copy of the table has its own memory.
  ///
  /// \param coordinates  [rows, axes] Eigen expression, integer or real, without a matrix product; its
  ///                     coefficients are read twice
  /// \param memory       at least memory_size(rows) bytes, at any address. The coordinates must not lie in it
  ///
  /// Throws:  std::invalid_argument, before anything is written, if the number of columns differs from the
  ///          number of axes, a coordinate is infinite, NaN or above 2^53 in magnitude, or the memory is too
  ///          small
  template <class Derived>
  frequency_table<S> table(const Eigen::DenseBase<Derived>& coordinates, std::span<std::byte> memory) const {
    check_coordinates(coordinates);
    const Index rows = coordinates.rows();
    const std::size_t size = memory_size(rows);
    if (memory.size() < size)
      detail::throw_invalid("row_maker::table", "the memory of ", rows,
                            " rows must have at least memory_size(", rows, ") = ", size, " bytes, got ",
                            memory.size());
    // 2 * pairs entries of S are a multiple of 8 bytes, so the following numbers are aligned too.
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    void* begin = memory.data() + (alignof(double) - address % alignof(double)) % alignof(double);
    auto* entries = static_cast<S*>(begin);
    auto* numbers = static_cast<double*>(static_cast<void*>(entries + rows * rotary_dim()));
    auto* at_origin = static_cast<unsigned char*>(static_cast<void*>(numbers + rows * axes()));
    for (Index a = 0; a < axes(); ++a)
      for (Index r = 0; r < rows; ++r)
        numbers[r + a * rows] = static_cast<double>(coordinates.derived().coeff(r, a));
    // Frequencies are only read, so nothing is written through this pointer.
    auto* inv_freq =
        const_cast<double*>(frequencies_.inv_freq<typename frequency_table<S>::double_map>().data());
    frequency_table<S> result(frequencies::custom(number_array<double>::over(inv_freq, pairs(), axes()),
                                                  frequencies_.attention_factor()),
                              fingerprint_, number_array<S>::over(entries, rotary_dim(), rows),
                              number_array<unsigned char>::over(at_origin, rows, 1));
    result.write_rows(number_array<double>::over(numbers, rows, axes()), angles_);
    return result;
  }

 private:
  template <class Derived>
  void check_coordinates(const Eigen::DenseBase<Derived>& coordinates) const {
    static_assert(!detail::is_matrix_product<Derived>,
                  "row_maker: evaluate a matrix product into memory of your own first; its coefficients are "
                  "read one at a time");
    detail::check_row_coordinates("row_maker", axes(), coordinates.rows(), coordinates.cols(),
                                  [&](Index r, Index a) { return coordinates.derived().coeff(r, a); });
  }
  void check_entries(Index rows, std::span<S> given) const {
    const std::uint64_t entries = static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(rotary_dim());
    if (given.size() != entries)
      detail::throw_invalid("row_maker::write", "", rows, " rows of ", pairs(), " pairs have ", entries,
                            " entries, got memory of ", given.size());
  }
  template <class Row>
  void write_row(const Row& coordinates, S* cos) const {
    detail::write_row(angles_, coordinates, frequencies_.attention_factor(), cos, cos + pairs());
  }

  frequencies frequencies_;
  std::uint64_t fingerprint_;
  detail::row_angles angles_;
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_ROW_MAKER_HPP
