// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_PLACED_TABLE_HPP
#define ROPE_TABLES_PLACED_TABLE_HPP

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// A table and the channels of a head that turn by it.

namespace rope {
inline namespace ROPE_ABI {

template <class S>
class frequency_table;

/// A table placed in the head: it turns channels [first_channel, first_channel + rotary_dim) of every head,
/// and no others. A table alone turns channels [0, rotary_dim).
///
///     const placed_table last = table.at_channel(128);  // DeepSeek: 128 channels without position, then 64
///     rotate<interleaved>(q, k, last, start);
///
/// What takes a table takes one that is placed, with the bits of the same call on `x.channels(first_channel,
/// rotary_dim)` where it rotates alone. It refers to the table, which must outlive it, and is as cheap to
/// copy as a pointer.
///
/// \tparam S  float or double: the type of a table entry
template <class S>
class placed_table {
 public:
  /// The type of a table entry.
  using scalar = S;

  /// Places `table` in the head.
  ///
  /// \param first_channel  of the window that turns, counted in channels of a head
  ///
  /// Throws:  std::invalid_argument if first_channel is negative. Whether the window lies in the head is
  ///          checked by the call that turns it
  placed_table(const frequency_table<S>& table, Index first_channel = 0)
      : table_(&table), first_channel_(first_channel) {
    if (first_channel < 0)
      ROPE_THROW(std::invalid_argument,
                 detail::message("placed_table: first_channel must be at least 0, got ", first_channel));
  }

  /// The table, which is referred to.
  const frequency_table<S>& table() const { return *table_; }
  /// The first channel of a head that turns.
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

/// What heads rotate by: a frequency_table, or one that is placed in the head.
template <class Table>
concept rotation_table = requires(const Table& table) {
  detail::placed(table);
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_PLACED_TABLE_HPP
