// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_NORMED_TABLE_HPP
#define ROPE_ROTATION_NORMED_TABLE_HPP

#include <rope/config.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/tables/table.hpp>

/// A norm and the table of the rotation that follows it, as one argument.

namespace rope::inline ROPE_ABI {

/// A norm and a table for new keys. The append functions of caches and pages accept a normed_table in place
/// of a table. They then normalise, rotate and write the keys in one pass.
///
///     cache.append<half_split>(k, v, normed_table(k_norm, table));
///
/// The stored keys have the bits of `normalize_and_rotate(k, k_norm, table, ...)` followed by `append(k, v)`.
/// Pass attention only the table. A normed_table does not own the table or the weights of the norm.
///
/// \tparam S  float or double: the type of a table entry
/// \tparam W  the type of a weight
template <class S, class W>
class normed_table {
 public:
  /// The type of a table entry.
  using scalar = S;

  /// The norm, and the table of the rotation that follows it.
  ///
  /// \param table  a frequency_table, or table.at_channel(first)
  template <rotation_table Table>
  normed_table(const head_norm<W>& norm, const Table& table) : norm_(norm), table_(detail::placed(table)) {}
  normed_table(const head_norm<W>& norm, const frequency_table<S>& table ROPE_DETAIL_LIFETIMEBOUND)
      : norm_(norm), table_(table) {}

  /// The norm of a key.
  const head_norm<W>& norm() const { return norm_; }
  /// The table that rotates a normalised key.
  const placed_table<S>& table() const { return table_; }

 private:
  head_norm<W> norm_;
  placed_table<S> table_;
};

template <class W, rotation_table Table>
normed_table(const head_norm<W>&, const Table&) -> normed_table<typename Table::scalar, W>;

namespace detail {

/// Used in place of a norm if there is none.
struct no_norm {};

template <class T>
no_norm checked_norm(const char* /*function*/, no_norm /*norm*/, const head_view<T>& /*x*/) {
  return {};
}

/// The rotation and norm that are applied to new keys of a cache.
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

/// The tables that rotate new keys: a frequency_table, a placed_table, or either in a normed_table.
template <class Table>
concept key_table = requires(const Table& table) {
  detail::key_transform_of(table);
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_NORMED_TABLE_HPP
