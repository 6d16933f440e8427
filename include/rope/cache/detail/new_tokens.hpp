// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_NEW_TOKENS_HPP
#define ROPE_CACHE_DETAIL_NEW_TOKENS_HPP

#include <algorithm>  // std::min, std::max

#include <rope/base/parallel.hpp>
#include <rope/cache/detail/cache_rows.hpp>  // positions_of_row
#include <rope/cache/detail/row_counts.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The new tokens of a batch, row by row, and on threads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether the new tokens of every row can be rotated.
///
/// Throws:  as check_rotation
template <class Layout, class K, class S, class Source>
void check_new_rotation(const char* function, const head_view<K>& k, const row_counts& counts,
                        const placed_table<S>& table, const Source& positions) {
  for (Index b = 0; b < k.batch; ++b)
    check_rotation<Layout>(function, k.batch_range(b, 1).token_range(0, count_of(b, k.tokens, counts)), table,
                           positions_of_row(positions, b));
}

/// Calls write(b, first, count) for runs of tokens that cover the new ones of every row, on the caller's
/// threads.
///
/// \param bytes  that all of them take in the cache
template <class Threads, class Write>
void for_each_run(const Threads& threads, Index batch, Index tokens, const row_counts& counts, double bytes,
                  const Write& write) {
  parallel_pieces(threads, batch * tokens, bytes, [&](Index begin, Index end) {
    for (Index b = begin / tokens; b * tokens < end; ++b) {
      const Index first = (std::max)(begin - b * tokens, Index{0}),
                  last = (std::min)(end - b * tokens, count_of(b, tokens, counts));
      if (first < last) write(b, first, last - first);
    }
  });
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_NEW_TOKENS_HPP
