// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_TABLE_HPP
#define ROPE_TABLES_TABLE_HPP

#include <cmath>
#include <concepts>  // std::integral
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>  // std::move

#include <rope/base/coordinates.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/config.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/tables/detail/table_arguments.hpp>
#include <rope/tables/detail/table_rows.hpp>
#include <rope/tables/phase.hpp>

/// cos and sin of every pair's angle, for the positions a model will use.
///
/// A table together with the channels of a head that it rotates.

namespace rope::inline ROPE_ABI {

template <class S>
class frequency_table;
template <class S>
class row_maker;

/// A table placed in the head: it rotates channels [first_channel, first_channel + rotary_dim) of every head,
/// and no others. A frequency_table alone rotates channels [0, rotary_dim).
///
///     const placed_table last = table.at_channel(128);  // DeepSeek: 128 channels without position, then 64
///     rotate<interleaved>(q, k, last, start);
///
/// Every function that takes a table takes a placed_table. Rotation gives the bits of the same call on
/// `x.channels(first_channel, rotary_dim)` with the table alone. A placed_table refers to its table, which
/// must outlive it, and is as cheap to copy as a pointer.
///
/// \tparam S  float or double: the type of a table entry
template <class S>
class placed_table {
 public:
  /// The type of a table entry.
  using scalar = S;

  /// Places `table` in the head.
  ///
  /// \param first_channel  the first rotated channel of a head
  ///
  /// Throws:  std::invalid_argument if first_channel is negative. The call that rotates checks that all
  ///          rotated channels lie within head_dim
  placed_table(const frequency_table<S>& table ROPE_DETAIL_LIFETIMEBOUND, Index first_channel = 0)
      : table_(&table), first_channel_(first_channel) {
    if (first_channel < 0)
      detail::throw_invalid("placed_table", "first_channel must be at least 0, got ", first_channel);
  }

  /// The table.
  const frequency_table<S>& table() const { return *table_; }
  /// The first rotated channel of a head.
  Index first_channel() const { return first_channel_; }

 private:
  const frequency_table<S>* table_;
  Index first_channel_;
};

namespace detail {

template <class S>
placed_table<S> placed(const frequency_table<S>& table) {
  return {table};
}
template <class S>
placed_table<S> placed(const placed_table<S>& table) {
  return table;
}

}  // namespace detail

/// A table by which heads are rotated: a frequency_table or a placed_table.
template <class Table>
concept rotation_table = requires(const Table& table) {
  detail::placed(table);
};

/// The origin of a table's entries.
enum class table_source {
  positions,     ///< a range of positions: the angle of pair i at position p is exactly p * inv_freq(i)
  float_angles,  ///< a range of positions, by angles in float
  coordinates,   ///< coordinates [rows, axes], one row per token
  entries        ///< the caller (given_table.hpp); cos^2 + sin^2 may differ from pair to pair
};

/// One row of cos and sin [pairs] per position: computed once, read by every layer and every head.
///
///     cos(p)[i] = m cos(angle_i(p)),  sin(p)[i] = m sin(angle_i(p)),  m = attention_factor
///
/// A table does not depend on the layout: it has one entry per pair, and one table serves every layout.
///
///     const frequency_table table(frequencies(128, 500000.0), 8192);
///     rotate<half_split>(q, k, table, start);
///
/// \tparam S  float or double: the type of an entry
///
/// Invariant: immutable; safe to share between threads, layers and heads. Empty once it was moved from.
/// Accuracy:  relative to m cos and m sin of the exact product position * inv_freq, for |position| <= 2^31
///            (tests/oracle/). A float entry is the nearest float, except if the value is within 2^-48 ulp
///            of the middle between two floats. A normal double entry is within 0.51 ulp, with one more
///            rounding if attention_factor is not 1, for angles above 2^-1142 rad. With several axes the
///            angle has an additional error of 2^-159 rad per axis, which matters only if coordinates cancel.
///            Integer arithmetic decides all roundings: entries have the same bits on every processor, with
///            every compiler and at every optimisation level
/// Cost:      2 * pairs entries of memory per row; bench/README.md has the time to build it
template <class S = float>
class frequency_table {
  static_assert(std::is_same_v<S, float> || std::is_same_v<S, double>,
                "frequency_table: a table type is float or double");

 public:
  /// The type of an entry.
  using scalar = S;
  /// cos or sin of one position, [pairs].
  using row_map = Eigen::Map<const Eigen::Array<S, Eigen::Dynamic, 1>>;
  /// cos or sin of all positions, [rows, pairs].
  using entry_map = Eigen::Map<const Eigen::Array<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
                               Eigen::Unaligned, Eigen::OuterStride<>>;
  /// Doubles [pairs, axes] or [rows, axes].
  using double_map = number_array<double>::const_map_type;

  /// Positions 0 .. count - 1.
  ///
  /// Throws:  std::invalid_argument if count is negative, the frequencies have more than one axis, or their
  ///          attention_factor is not in the normal range of S, [2^-126, 2^128) for float;
  ///          std::length_error if the rows exceed the address space
  template <std::integral Count>
  frequency_table(const frequencies& of, Count count)
      : frequency_table(of, std::int64_t{0}, detail::checked_count("frequency_table", count)) {}

  /// Positions first .. last - 1, which may be negative.
  ///
  /// Throws:  as above; std::invalid_argument if last < first
  template <std::integral First, std::integral Last>
  frequency_table(const frequencies& of, First first, Last last)
      : frequency_table(of, static_cast<std::int64_t>(first),
                        detail::checked_rows("frequency_table", first, last), "frequency_table") {
    write_positions();
  }

  /// One row per token, at the coordinates of that token. Row r has position r. To make such a table in
  /// every decoding step without allocating memory, use row_maker::table.
  ///
  /// \param coordinates  [rows, axes] Eigen expression, integer or real; a vector is [rows, 1]
  ///
  /// Throws:    std::invalid_argument if the number of columns differs from the number of axes, or a
  ///            coordinate is infinite, NaN or above 2^53 in magnitude; std::length_error as above
  /// Accuracy:  as for positions, also for fractional and negative coordinates and up to 2^53
  ///            (tests/oracle/coordinates.test.cpp)
  /// Cost:      that of a range of positions for the first axis, and half of it for every further axis.
  ///            Tables of double take two to six times as long for coordinates that are not integers, with
  ///            one to three axes
  template <class Derived>
  frequency_table(const frequencies& of, const Eigen::DenseBase<Derived>& coordinates)
      : frequency_table(of, detail::checked_coordinates("frequency_table", of.axes(), coordinates)) {}

  /// Reports a rotary_dim or a model in place of frequencies, at compile time.
  template <class X, std::integral... Counts>
  requires(!std::is_convertible_v<const X&, const frequencies&> && sizeof...(Counts) > 0)
      frequency_table(const X& /*x*/, Counts...)
      : frequency_table(frequencies(2), 0) {
    static_assert(
        sizeof(X) == 0,
        "frequency_table: frequencies come first, frequency_table(frequencies(rotary_dim, base), count); "
        "the tables of a model are model_tables(model, count)");
  }

  /// A table computed entirely in float, for results as close as possible to those of float32 pipelines.
  ///
  ///     angle = float(position) float(inv_freq);   entries: float(m) cos(angle), float(m) sin(angle)
  ///
  /// Throws:    as for an exact table, but attention_factor must be in the normal range of float for every S
  /// Accuracy:  an error that grows with the position. Largest over 64 pairs, base 10000: 4e-6 at 255, 1.2e-4
  ///            at 4096, 9e-4 at 32768, 2.6e-3 at 131071, 2.5e-2 at 1048575. For the same angle, cos and sin
  ///            are within an ulp of PyTorch's. The inv_freq of PyTorch may itself differ by an ulp of float
  /// Source:    LlamaRotaryEmbedding of Hugging Face transformers
  template <std::integral First, std::integral Last>
  static frequency_table with_float_angles(const frequencies& of, First first, Last last) {
    detail::checked_magnitude<float>(of.attention_factor());
    frequency_table table(of, static_cast<std::int64_t>(first),
                          detail::checked_rows("frequency_table", first, last), "frequency_table");
    table.require_one_axis();
    table.fingerprint_ = detail::mix(table.fingerprint_, 1);
    table.source_ = table_source::float_angles;
    for (Index r = 0; r < table.rows(); ++r) {
      const auto position = static_cast<float>(table.first_ + r);
      S* cos = table.entries_.data() + static_cast<std::size_t>(r * table.rotary_dim());
      for (Index i = 0; i < table.pairs(); ++i) {
        const float angle = position * static_cast<float>(of.inv_freq(i, 0));
        const auto m = static_cast<float>(of.attention_factor());
        cos[i] = static_cast<S>(m * std::cos(angle));
        cos[i + table.pairs()] = static_cast<S>(m * std::sin(angle));
      }
    }
    return table;
  }

  frequency_table(const frequency_table&) = default;
  frequency_table(frequency_table&&) = default;
  /// Assigns everything or nothing.
  frequency_table& operator=(const frequency_table& other) { return *this = frequency_table(other); }
  frequency_table& operator=(frequency_table&&) = default;

  /// Number of positions.
  Index rows() const { return entries_.cols(); }
  /// Number of channel pairs.
  Index pairs() const { return frequencies_.pairs(); }
  /// Number of rotated channels: 2 * pairs.
  Index rotary_dim() const { return frequencies_.rotary_dim(); }
  /// The frequencies [pairs, axes] that the table was built from, in rad per unit of position. Zeros if the
  /// caller gave the entries.
  template <class Map = double_map>
  Map inv_freq() const {
    return frequencies_.template inv_freq<Map>();
  }
  /// inv_freq of one pair along one axis.  Requires: pair in [0, pairs), axis in [0, axes)
  double inv_freq(Index pair, Index axis) const { return frequencies_.inv_freq(pair, axis); }
  /// inv_freq of one pair.  Throws: std::invalid_argument unless there is one axis
  double inv_freq(Index pair) const { return frequencies_.inv_freq(pair); }
  /// Number of coordinates of a position.
  Index axes() const { return frequencies_.axes(); }
  /// The coordinates [rows, axes] that the table was built for. Empty for a range of positions and for given
  /// entries.
  template <class Map = double_map>
  Map coordinates() const {
    return Map(coordinates_.data(), coordinates_.rows(), coordinates_.cols());
  }
  /// The coordinate of one row on one axis.  Requires: row in [0, rows), axis in [0, axes)
  double coordinate(Index row, Index axis) const { return coordinates_(row, axis); }
  /// The position of the first row.
  std::int64_t first() const { return first_; }
  /// One more than the position of the last row: the positions of the table are first() .. last() - 1.
  std::int64_t last() const { return first_ + rows(); }
  /// The m that is multiplied into every entry.
  double attention_factor() const { return frequencies_.attention_factor(); }
  /// A hash of inv_freq, attention_factor, how angles are computed, and given coordinates or entries. Tables
  /// that differ in these have equal hashes with a probability of 2^-64. S does not count, and the range of
  /// positions counts only for given entries.
  std::uint64_t fingerprint() const { return fingerprint_; }
  /// The origin of the entries.
  table_source source() const { return source_; }
  /// Whether the table has a row for `position`.
  bool contains(std::int64_t position) const { return position >= first() && position < last(); }

  /// This table placed in the head: it rotates channels [first_channel, first_channel + rotary_dim) of every
  /// head. The table must outlive the result.
  ///
  /// Throws:  std::invalid_argument if first_channel is negative
  placed_table<S> at_channel(Index first_channel) const ROPE_DETAIL_LIFETIMEBOUND {
    return {*this, first_channel};
  }

  /// m cos of every pair's angle at `position`, [pairs].  Throws: std::out_of_range
  row_map cos(std::int64_t position) const { return {view().cos(checked(position)), pairs()}; }
  /// m sin of every pair's angle at `position`, [pairs].  Throws: std::out_of_range
  row_map sin(std::int64_t position) const { return {view().cos(checked(position)) + pairs(), pairs()}; }

  /// m cos of every angle of the table, [rows, pairs]: row r is that of position first() + r.
  entry_map cos() const { return {entries_.data(), rows(), pairs(), Eigen::OuterStride<>(2 * pairs())}; }
  /// m sin of every angle of the table, [rows, pairs].
  entry_map sin() const {
    return {entries_.data() + (rows() == 0 ? 0 : pairs()), rows(), pairs(),
            Eigen::OuterStride<>(2 * pairs())};
  }

  /// Whether the rotation at `position` is the identity: every coordinate is zero and attention_factor is 1,
  /// or every given entry is cos = 1, sin = 0.
  ///
  /// Throws:  std::out_of_range
  bool is_identity(std::int64_t position) const { return view().is_identity(checked(position)); }

  /// The rows, for loops that have already checked their positions.
  detail::table_view<S> view() const {
    const bool given = source_ == table_source::entries,
               unit = given || detail::equal(attention_factor(), 1.0);
    constexpr auto outside = (std::numeric_limits<std::int64_t>::max)();  // of every table
    const std::int64_t identity = unit && at_origin_.size() == 0 ? 0 : outside;
    return {entries_.data(), pairs(), first_, given, identity, unit ? at_origin_.data() : nullptr};
  }

 private:
  friend struct detail::given_entries;
  friend class row_maker<S>;

  /// Leaves the rows unwritten. Messages name `function`.
  frequency_table(const frequencies& of, std::int64_t first, Index rows, const char* function)
      : frequencies_(of),
        first_(first),
        fingerprint_(detail::checked_fingerprint<S>(of, function)),
        entries_(2 * pairs(), detail::checked_entries<S>(rows, pairs(), function)) {}

  frequency_table(const frequencies& of, number_array<double> coordinates)
      : frequency_table(of, 0, coordinates.rows(), "frequency_table") {
    at_origin_ = number_array<unsigned char>(rows(), 1);
    write_rows(std::move(coordinates), detail::row_angles(of));
  }

  /// Requires: fingerprint is that of the frequencies; entries [2 pairs, rows], at_origin [rows]
  frequency_table(frequencies&& of, std::uint64_t fingerprint, number_array<S>&& entries,
                  number_array<unsigned char>&& at_origin)
      : frequencies_(std::move(of)),
        first_(0),
        fingerprint_(fingerprint),
        entries_(std::move(entries)),
        at_origin_(std::move(at_origin)) {}

  void write_positions() {
    require_one_axis();
    const detail::row_angles angles(frequencies_);
    for (Index r = 0; r < rows(); ++r)
      write_row(r, angles, [position = first_ + r](Index) { return position; });
  }

  void write_rows(number_array<double> coordinates, const detail::row_angles& angles) {
    coordinates_ = std::move(coordinates);
    fingerprint_ = detail::mix(fingerprint_, coordinates_.rows(), coordinates_.cols(), coordinates_);
    source_ = table_source::coordinates;
    for (Index r = 0; r < rows(); ++r) {
      const auto coordinate = [&](Index a) { return coordinates_(r, a); };
      write_row(r, angles, coordinate);
      at_origin_(r) = 1;
      for (Index a = 0; a < frequencies_.axes(); ++a)
        if (!detail::equal(coordinate(a), 0)) at_origin_(r) = 0;
    }
  }

  template <class Row>
  void write_row(Index r, const detail::row_angles& angles, const Row& coordinates) {
    S* cos = entries_.data() + static_cast<std::size_t>(r * rotary_dim());
    detail::write_row(angles, coordinates, attention_factor(), cos, cos + pairs());
  }

  void require_one_axis() const {
    if (frequencies_.axes() != 1)
      detail::throw_invalid("frequency_table", "a range of positions needs frequencies of one axis, got ",
                            frequencies_.axes(), " axes: give coordinates [rows, axes]");
  }

  std::int64_t checked(std::int64_t position) const {
    if (!contains(position))
      detail::throw_out_of_range("frequency_table", "position ", position, " is outside the table's [",
                                 first(), ", ", last(), ")");
    return position;
  }

  frequencies frequencies_;
  std::int64_t first_;
  std::uint64_t fingerprint_;
  table_source source_ = table_source::positions;
  number_array<double> coordinates_;
  number_array<S> entries_;                // [2 pairs, rows]: column r is cos, then sin, of row r
  number_array<unsigned char> at_origin_;  // per row of coordinates or given entries; empty for a range
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_TABLE_HPP
