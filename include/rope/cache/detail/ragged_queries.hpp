// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP
#define ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP

#include <cstdint>
#include <span>

#include <rope/base/integer_range.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/view.hpp>

/// The newest tokens of sequences in pages: as many of each, or laid end to end.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Which tokens of a call are the newest ones of which sequence. Without offsets the call has a row for each
/// sequence; with them it is one row, in which those of sequence s are [offsets[s], offsets[s + 1]).
template <class T>
class newest_in_pages {
 public:
  newest_in_pages(const page_view<T>& pages, Index tokens, std::span<const std::int64_t> offsets)
      : pages_(pages), tokens_(tokens), offsets_(offsets) {}

  /// Throws:  std::invalid_argument unless a view [batch, tokens, ...] holds new tokens of every sequence,
  ///          and no more of any than it has
  void check_counts(const char* function, Index batch) const {
    const Index sequences = pages_.sequences();
    if (offsets_.empty()) {
      if (batch != sequences)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": without query_offsets there is a row for each of the ", sequences,
                           " sequences, got ", batch));
    } else {
      if (batch != 1 || static_cast<Index>(offsets_.size()) != sequences + 1)
        ROPE_THROW(std::invalid_argument,
                   message(function, ": query_offsets are sequences + 1 = ", sequences + 1,
                           " numbers for a batch of 1, got ", offsets_.size(), " for a batch of ", batch));
      check_offsets(function, "query_offsets", sequences + 1, tokens_,
                    [&](Index s) { return offsets_[static_cast<std::size_t>(s)]; });
    }
    for (Index s = 0; s < sequences; ++s)
      if (count(s) > pages_.length(s))
        ROPE_THROW(std::invalid_argument,
                   message(function, ": lengths include the new tokens: sequence ", s, " has a length of ",
                           pages_.length(s), " and ", count(s), " new tokens"));
  }

  Index sequences() const { return pages_.sequences(); }
  /// New tokens of a sequence; the first of them in its row of the call; its position.
  Index count(Index s) const { return offsets_.empty() ? tokens_ : to_index(offset(s + 1) - offset(s)); }
  Index first(Index s) const { return offsets_.empty() ? 0 : to_index(offset(s)); }
  Index start(Index s) const { return pages_.length(s) - count(s); }

  /// Sequences from s on that have as many new tokens as it has: one rectangular call serves them.
  Index alike(Index s) const {
    Index last = s + 1;
    while (last < sequences() && count(last) == count(s)) ++last;
    return last - s;
  }
  /// The new tokens of `number` sequences alike from s on, [number, count(s), heads, head_dim].
  template <class X>
  head_view<X> rows(const head_view<X>& x, Index s, Index number) const {
    if (offsets_.empty()) return x.batch_range(s, number);
    return {x.at(0, first(s), 0),      number,         count(s),     x.heads, x.head_dim,
            count(s) * x.token_stride, x.token_stride, x.head_stride};
  }

  /// The positions of all new tokens.
  position_range range() const {
    position_range all;
    for (Index s = 0; s < sequences(); ++s)
      if (count(s) > 0) {
        all.include(start(s));
        all.include(pages_.length(s) - 1);
      }
    return all;
  }

 private:
  std::int64_t offset(Index s) const { return offsets_[static_cast<std::size_t>(s)]; }

  const page_view<T>& pages_;
  Index tokens_;
  std::span<const std::int64_t> offsets_;
};

/// The positions of new tokens of sequences alike from `first` on.
template <class T>
struct positions_in_pages {
  const newest_in_pages<T>& newest;
  Index first;
  std::int64_t operator()(Index b, Index t) const { return newest.start(first + b) + t; }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP
