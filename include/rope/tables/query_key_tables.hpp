// SPDX-License-Identifier: MIT
#ifndef ROPE_TABLES_QUERY_KEY_TABLES_HPP
#define ROPE_TABLES_QUERY_KEY_TABLES_HPP

#include <rope/config.hpp>
#include <rope/tables/table.hpp>

/// The tables that queries and keys rotate by: one for both, or one for each.

namespace rope {
inline namespace ROPE_ABI {

/// A table for the queries and another one for the keys. What attends takes it wherever it takes one table.
///
///     attention<half_split>(q, k, v, out, query_key_tables(query_table, key_table));
///
/// It refers to both tables, which must outlive it.
///
/// \tparam S  float or double: the type of a table entry
template <class S>
class query_key_tables {
 public:
  using scalar = S;

  query_key_tables(const frequency_table<S>& queries, const frequency_table<S>& keys)
      : queries_(&queries), keys_(&keys) {}

  const frequency_table<S>& queries() const { return *queries_; }
  const frequency_table<S>& keys() const { return *keys_; }

 private:
  const frequency_table<S>*queries_, *keys_;
};
template <class S>
query_key_tables(const frequency_table<S>&, const frequency_table<S>&) -> query_key_tables<S>;

namespace detail {

template <class S>
query_key_tables<S> tables_of(const frequency_table<S>& both) {
  return {both, both};
}
template <class Tables>
requires requires(const Tables& tables) { query_key_tables(tables.queries(), tables.keys()); }
auto tables_of(const Tables& tables) { return query_key_tables(tables.queries(), tables.keys()); }

}  // namespace detail

/// What attention rotates by: a frequency_table, or a type whose `queries()` and `keys()` are two of them, as
/// query_key_tables and xpos are.
template <class Tables>
concept attention_tables = requires(const Tables& tables) {
  detail::tables_of(tables);
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_TABLES_QUERY_KEY_TABLES_HPP
