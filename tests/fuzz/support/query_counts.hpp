// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_QUERY_COUNTS_HPP
#define ROPE_TESTS_FUZZ_QUERY_COUNTS_HPP

/// The tokens to which a call of attention without counts refers: the same columns of the last append, in
/// every row.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include <rope/rotation/view.hpp>

#include "fuzz/support/check.hpp"

namespace fuzz {

using rope::Index;

/// The appends to a cache so far.
struct append_record {
  long count = 0;
  Index last_width = 0;  // tokens per row of the last one, counted or not
};

/// \tparam Row      a list of tokens, each with the number of its append and its column in it
/// \param forgot   whether rows have lost tokens since the last append
template <class Cache, class Row>
void check_query_counts(const Cache& cache, const std::vector<Row>& rows, const append_record& appends,
                        bool forgot) {
  using Token = typename Row::value_type;
  const auto from_end = [](const Row& row, Index i) -> const Token& {
    return row[row.size() - static_cast<std::size_t>(i)];
  };
  for (Index queries = 0; queries <= appends.last_width + 2; ++queries) {
    bool same_columns = true, enough = true;
    for (const auto& row : rows) {
      enough = enough && static_cast<Index>(row.size()) >= queries;
      for (Index i = 1; enough && i <= queries; ++i) {
        const Token &a = from_end(row, i), &first = from_end(rows[0], i);
        same_columns = same_columns && a.append == first.append && a.column == first.column;
      }
    }
    std::span<const Index> counts;
    try {
      counts = cache.query_counts(queries);
    } catch (const std::invalid_argument&) {
      check(forgot || queries != appends.last_width,
            "a call for the tokens of the last append needs no counts");
      continue;
    }
    if (counts.empty()) {
      check(rows.empty() || !enough || same_columns,
            "queries without counts are the same columns of every row");
      continue;
    }
    check(queries <= appends.last_width && counts.size() == rows.size(),
          "counts are those of the last append");
    std::vector<long> columns(static_cast<std::size_t>(queries), -1);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Index of_last = 0;
      for (const Token& t : rows[r]) of_last += t.append == appends.count;
      check(counts[r] == of_last && of_last <= queries,
            "a row has the queries that it kept of the last append");
      for (Index i = 0; i < of_last; ++i) {
        long& column = columns[static_cast<std::size_t>(i)];
        const long own = from_end(rows[r], of_last - i).column;
        check(column < 0 || column == own,
              "a query is the same column of the last append in every row that has it");
        column = own;
      }
    }
  }
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_QUERY_COUNTS_HPP
