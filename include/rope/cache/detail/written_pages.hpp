// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_WRITTEN_PAGES_HPP
#define ROPE_CACHE_DETAIL_WRITTEN_PAGES_HPP

#include <algorithm>  // std::lower_bound
#include <vector>

#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>

/// Pages that a call changes belong to one sequence.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Tokens [first(s), first(s) + count(s)) of sequence s change, for every s.
///
/// Throws:  std::invalid_argument if a page that holds such a token stands in the table twice, among the
///          blocks that hold tokens
template <class T, class First, class Count>
void check_pages_are_own(const char* function, const page_view<T>& pages, const First& first,
                         const Count& count) {
  const Index size = pages.page_size();
  Index written = 0;
  const auto for_each_written = [&](const auto& visit) {
    for (Index s = 0; s < pages.sequences(); ++s)
      if (count(s) > 0)
        for (Index block = first(s) / size; block <= (first(s) + count(s) - 1) / size; ++block)
          visit(pages.blocks().page(s, block));
  };
  for_each_written([&](Index) { ++written; });
  struct changed_pages {};
  Index* changed = workspace<changed_pages, Index>(2 * written);
  Index* seen = changed + written;
  written = 0;
  for_each_written([&](Index page) { changed[written++] = page; });
  sort(changed, changed + written);
  std::fill(seen, seen + written, Index{0});
  for (Index s = 0; s < pages.sequences(); ++s)
    for (Index block = 0; block * size < pages.length(s); ++block) {
      const Index page = pages.blocks().page(s, block);
      const Index* at = std::lower_bound(changed, changed + written, page);
      if (at != changed + written && *at == page && ++seen[at - changed] > 1)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": a page that is written must belong to one sequence; page ", page,
                           " stands in the table twice, give sequence ", s, " a copy"));
    }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_WRITTEN_PAGES_HPP
