// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_PLACED_TABLE_HPP
#define ROPE_TABLES_PLACED_TABLE_HPP

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// A table together with the channels of a head that it rotates.

namespace rope::inline ROPE_ABI {

template <class S>
class frequency_table;

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

/// A table that heads rotate by: a frequency_table or a placed_table.
template <class Table>
concept rotation_table = requires(const Table& table) {
  detail::placed(table);
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_PLACED_TABLE_HPP
