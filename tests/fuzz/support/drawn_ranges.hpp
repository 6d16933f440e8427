// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_DRAWN_RANGES_HPP
#define ROPE_TESTS_FUZZ_DRAWN_RANGES_HPP

/// Ranges of keys for the queries of a call to stored tokens.

#include <algorithm>
#include <cstddef>
#include <vector>

#include <rope/attention/options.hpp>
#include <rope/rotation/view.hpp>

#include "fuzz/support/bytes.hpp"

namespace fuzz {

using rope::Index;

/// A range for every query of a row, shared by the rows of a batch or not.
struct drawn_ranges {
  std::vector<rope::key_range> list;
  Index queries = 0;

  drawn_ranges() = default;
  /// \param keys  of the longest row
  drawn_ranges(bytes& b, Index batch, Index queries_of_row, Index keys) : queries(queries_of_row) {
    const Index rows = b.one_in(3) ? 1 : batch;
    for (Index n = 0; n < rows * queries; ++n) {
      const Index first = b.up_to(long(keys));
      list.push_back({first, static_cast<Index>(b.up_to(long(keys - first)))});
    }
  }
  /// Whether range n of the list is that of a query, in a call whose row r has counts[r] queries. Empty: all.
  bool is_read(std::size_t n, const std::vector<Index>& counts) const {
    const auto i = static_cast<Index>(n) % queries, row = static_cast<Index>(n) / queries;
    if (counts.empty()) return true;
    if (static_cast<Index>(list.size()) > queries) return i < counts[static_cast<std::size_t>(row)];
    return i < *std::max_element(counts.begin(), counts.end());
  }
  /// Calls f(t) for every token of row r, of `size`, to which its query i attends.
  template <class Call>
  void for_seen(Index r, Index i, Index size, const Call& f) const {
    const bool shared = static_cast<Index>(list.size()) == queries;
    const rope::key_range range = list[static_cast<std::size_t>((shared ? 0 : r * queries) + i)];
    for (Index t = range.first; t < std::min(size, range.first + range.count); ++t) f(t);
  }
};

/// Makes one thing wrong with ranges, which the options then refer to.
///
/// \param counts  as in is_read
inline void spoil_ranges(bytes& b, Index keys, drawn_ranges& ranges, rope::attention_options& options,
                         const std::vector<Index>& counts = {}) {
  const auto n = static_cast<std::size_t>(b.up_to(static_cast<long>(ranges.list.size()) - 1));
  rope::key_range& one = ranges.list[n];
  switch (ranges.is_read(n, counts) ? b.up_to(3) : 3) {
    case 0:
      one.first = -1 - b.up_to(2);
      break;
    case 1:
      one.count = keys - one.first + 1 + b.up_to(2);
      break;
    case 2:
      one.count = -1 - b.up_to(2);
      break;
    default:
      ranges.list.resize(2 * ranges.list.size() + 3 * static_cast<std::size_t>(ranges.queries) + 1);
  }
  options.key_ranges = ranges.list;
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_DRAWN_RANGES_HPP
