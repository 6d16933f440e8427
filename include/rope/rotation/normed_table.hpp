// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_NORMED_TABLE_HPP
#define ROPE_ROTATION_NORMED_TABLE_HPP

#include <rope/config.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/table.hpp>

/// A norm and the table of the rotation that follows it, as one argument.

namespace rope::inline ROPE_ABI {

/// A norm and a table for new keys. Where a cache or pages take a table to append keys, they take one of
/// these too: keys are then normalised, rotated and written in one pass.
///
///     cache.append<half_split>(k, v, normed_table(k_norm, table));
///
/// What is stored has the bits of `normalize_and_rotate(k, k_norm, table, ...)` followed by `append(k, v)`.
/// Attention takes the table alone. Refers to the table and to the weight of the norm, as these do.
///
/// \tparam S  float or double: the type of a table entry
/// \tparam W  the type of a weight
template <class S, class W>
class normed_table {
 public:
  /// The type of a table entry.
  using scalar = S;

  /// The norm that comes first and the table behind it.
  ///
  /// \param table  a frequency_table, or one that is placed in the head
  template <rotation_table Table>
  normed_table(const head_norm<W>& norm, const Table& table) : norm_(norm), table_(detail::placed(table)) {}
  normed_table(const head_norm<W>& norm, const frequency_table<S>& table ROPE_DETAIL_LIFETIMEBOUND)
      : norm_(norm), table_(table) {}

  /// The norm of a key.
  const head_norm<W>& norm() const { return norm_; }
  /// What a normalised key rotates by.
  const placed_table<S>& table() const { return table_; }

 private:
  head_norm<W> norm_;
  placed_table<S> table_;
};

template <class W, rotation_table Table>
normed_table(const head_norm<W>&, const Table&) -> normed_table<typename Table::scalar, W>;

namespace detail {

/// In place of a norm: none.
struct no_norm {};

template <class T>
no_norm checked_norm(const char* /*function*/, no_norm /*norm*/, const head_view<T>& /*x*/) {
  return {};
}

/// What is done to new keys on their way into a cache.
template <class S, class Norm>
struct key_transform {
  placed_table<S> table;
  Norm norm;
};

template <rotation_table Table>
auto key_transform_of(const Table& table) {
  return key_transform<typename Table::scalar, no_norm>{placed(table), {}};
}
template <class S, class W>
auto key_transform_of(const normed_table<S, W>& table) {
  return key_transform<S, head_norm<W>>{table.table(), table.norm()};
}

}  // namespace detail

/// What new keys rotate by: a frequency_table, one that is placed in the head, or one of these behind a norm.
template <class Table>
concept key_table = requires(const Table& table) {
  detail::key_transform_of(table);
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_NORMED_TABLE_HPP
