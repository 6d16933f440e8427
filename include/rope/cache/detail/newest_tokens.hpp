// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_NEWEST_TOKENS_HPP
#define ROPE_CACHE_DETAIL_NEWEST_TOKENS_HPP

#include <algorithm>  // std::fill, std::max, std::min
#include <limits>
#include <span>
#include <string>
#include <utility>  // std::swap

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/config.hpp>

/// The tokens of a cache that are the queries of a call without counts.

namespace rope::inline ROPE_ABI::detail {

/// Lost tokens of a row: the `removed` tokens just before its `newer` newest tokens.
struct lost_tokens {
  Index newer, removed;

  /// The number of lost tokens among the newest `newest` tokens of the row.
  Index among(Index newest) const { return (std::max)(Index{0}, (std::min)(newest - newer, removed)); }
  friend bool operator==(const lost_tokens&, const lost_tokens&) = default;
};

/// Records which tokens of the last appends each row of a cache still has. If every row takes all tokens of
/// every append, and all rows lose the same tokens, the newest n tokens of all rows have the same indices in
/// the appended views. Otherwise only the number of tokens that each row took in the last append is recorded.
///
/// Invariant: the newest `even_` tokens of every row have the same indices in the appended views. If even_ is
///            not 0, width_ is at most even_. If even_ is 0, the newest tokens of row b are the first
///            counts_[b] of the `width_` tokens of the last append. If width_ is `unknown`, they are not
///            known, because a row lost tokens from between them or was copied from another cache, or every
///            row lost all of them.
class newest_tokens {
 public:
  explicit newest_tokens(Index batch) : counts_(batch, 1, 0) {}

  void append(const row_tokens& added) {
    width_ = added.width();
    bool full = true;
    for (Index b = 0; b < counts_.rows(); ++b) {
      counts_(b) = added.count(b);
      full = full && counts_(b) == width_;
    }
    even_ = !full ? 0 : even_ > all - width_ ? all : even_ + width_;
  }

  /// Records that rows [first, last) lose tokens: row b loses lost_of(b).
  template <class LostOf>
  void forget(Index first, Index last, const LostOf& lost_of) {
    bool alike = first == 0 && last == counts_.rows(), any = false, recent = false;
    for (Index b = first; b < last; ++b) {
      const lost_tokens lost = lost_of(b);
      alike = alike && lost == lost_of(first);
      any = any || lost.removed > 0;
      recent = recent || lost.among(width_) > 0;
    }
    if (!any) return;
    if (even_ > 0) {
      if (alike) {
        width_ -= lost_of(first).among(width_);
        if (even_ != all) even_ -= lost_of(first).among(even_);
        if (even_ == 0) width_ = unknown;
        return;
      }
      even_ = recent ? 0 : width_;
      std::fill(counts_.begin(), counts_.end(), width_);
    }
    for (Index b = first; b < last; ++b) {
      Index& count = counts_(b);
      const lost_tokens lost = lost_of(b);
      const Index gone = lost.among(count);
      if (gone > 0 && lost.newer > 0) width_ = unknown;
      count -= gone;
    }
  }

  /// Makes row `to` a copy of row `from` of this record or of the record of another cache. After a copy from
  /// another cache, the newest tokens of row `to` and of the other rows come from different calls, unless
  /// there are no other rows. even_ and width_ hold for every row, so copying and swapping rows of one record
  /// keep them valid.
  void copy_row(const newest_tokens& other, Index from, Index to) {
    counts_(to) = other.counts_(from);
    if (&other == this) return;
    const bool only = counts_.rows() == 1;
    even_ = only ? other.even_ : 0;
    width_ = only ? other.width_ : unknown;
  }
  void swap_rows(Index a, Index b) { std::swap(counts_(a), counts_(b)); }

  void clear() {
    width_ = 0;
    even_ = all;
  }

  /// The number of queries of each row, [batch], in a call without counts, in which q has `queries` tokens.
  /// They are the newest tokens of the row. Empty if all rows have `queries` queries.
  ///
  /// Throws:  std::invalid_argument if the record does not determine this
  std::span<const Index> counts(const char* function, Index queries) const {
    if (queries <= even_) return {};
    if (even_ == 0 && queries == width_) return {counts_.begin(), counts_.end()};
    const char* rule =
        "the rows differ in the tokens that they took or lost; give counts, how many queries each row has";
    if (even_ == 0 && width_ == unknown)
      throw_invalid(function, rule, ", got none, for q.tokens = ", queries);
    throw_invalid(function, rule, ", or q.tokens of ", even_ > 0 ? "at most " : "",
                  even_ > 0 ? even_ : width_, ", got ", queries);
  }

  /// Describes the queries of row b in a call without counts; empty if any number is valid.
  std::string described(Index b) const {
    if (even_ == all) return {};
    if (even_ > 0) return "up to " + std::to_string(even_) + " queries without counts";
    if (width_ == unknown) return "queries need counts";
    return std::to_string(counts_(b)) + " of " + std::to_string(width_) + " queries without counts";
  }

 private:
  static constexpr Index all = (std::numeric_limits<Index>::max)(), unknown = -1;

  number_array<Index> counts_;  // [batch]
  Index width_ = 0, even_ = all;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_NEWEST_TOKENS_HPP
