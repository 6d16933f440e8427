// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_QUERY_KEY_TABLES_HPP
#define ROPE_TABLES_QUERY_KEY_TABLES_HPP

#include <rope/config.hpp>
#include <rope/tables/table.hpp>

/// The tables by which queries and keys are rotated: one for both, or one for each.

namespace rope::inline ROPE_ABI {

/// A table for the queries and another one for the keys. Attention accepts it in place of one table.
///
///     attention<half_split>(q, k, v, out, query_key_tables(query_table, key_table));
///
/// Either table may be placed in the head. query_key_tables refers to both, and they must outlive it.
///
/// \tparam S  float or double: the type of a table entry
template <class S>
class query_key_tables {
 public:
  /// The type of a table entry.
  using scalar = S;

  /// Two tables, each a frequency_table or a placed_table.
  query_key_tables(const placed_table<S>& queries, const placed_table<S>& keys)
      : queries_(queries), keys_(keys) {}
  query_key_tables(const frequency_table<S>& queries ROPE_DETAIL_LIFETIMEBOUND,
                   const frequency_table<S>& keys ROPE_DETAIL_LIFETIMEBOUND)
      : queries_(queries), keys_(keys) {}

  /// The table of the queries.
  const placed_table<S>& queries() const { return queries_; }
  /// The table of the keys.
  const placed_table<S>& keys() const { return keys_; }

 private:
  placed_table<S> queries_, keys_;
};
template <rotation_table Queries, rotation_table Keys>
query_key_tables(const Queries&, const Keys&) -> query_key_tables<typename Queries::scalar>;

namespace detail {

template <rotation_table Table>
query_key_tables<typename Table::scalar> tables_of(const Table& both) {
  return {placed(both), placed(both)};
}
template <class Tables>
requires requires(const Tables& tables) { query_key_tables(tables.queries(), tables.keys()); }
auto tables_of(const Tables& tables) { return query_key_tables(tables.queries(), tables.keys()); }

}  // namespace detail

/// The tables of a call of attention: a frequency_table, a placed_table, or a type whose `queries()` and
/// `keys()` each return one of these two, such as query_key_tables and xpos.
template <class Tables>
concept attention_tables = requires(const Tables& tables) {
  detail::tables_of(tables);
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_TABLES_QUERY_KEY_TABLES_HPP
