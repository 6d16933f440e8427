// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP
#define ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP

#include <cstdint>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/view.hpp>

/// Assigns the tokens of a call to rows. The tokens are padded ([rows, tokens]) or concatenated with offsets.

namespace rope::inline ROPE_ABI::detail {

/// The tokens of a call that belong to each row. Without offsets, row b has the first count(b) tokens of row
/// b of the call. With offsets the call has one row, of which row b has tokens [offsets[b], offsets[b + 1]).
class row_queries {
 public:
  /// \param rows  the number of rows with queries. They are the first rows
  row_queries(Index rows, Index tokens, const row_counts& counts)
      : rows_(rows), tokens_(tokens), counts_(counts) {}
  row_queries(Index rows, Index tokens, const any_integers& offsets)
      : rows_(rows), tokens_(tokens), offsets_(offsets) {}

  Index asking() const { return rows_; }
  /// The number of tokens of row b.
  Index count(Index b) const {
    return offsets_.empty() ? count_of(b, tokens_, counts_) : to_index(offset(b + 1) - offset(b));
  }
  /// The index of the first token of row b within its row of the call (with offsets: within the only row).
  Index first(Index b) const { return offsets_.empty() ? 0 : to_index(offset(b)); }
  /// The index of token i of row b among all tokens of the call.
  Index place(Index b, Index i) const { return (offsets_.empty() ? b * tokens_ : first(b)) + i; }
  /// The number of tokens of row b of the call that are padding.
  Index padding(Index b) const { return offsets_.empty() ? tokens_ - count(b) : 0; }

  /// The tokens of rows [b, b + number), which have equal counts, [number, count(b), heads, head_dim].
  template <class X>
  head_view<X> rows(const head_view<X>& x, Index b, Index number) const {
    if (offsets_.empty()) return x.batch_range(b, number).token_range(0, count(b));
    return {x.at(0, first(b), 0),      number,         count(b),     x.heads, x.head_dim,
            count(b) * x.token_stride, x.token_stride, x.head_stride};
  }

 protected:
  const any_integers& offsets() const { return offsets_; }
  std::int64_t offset(Index b) const { return offsets_[static_cast<std::size_t>(b)]; }
  Index tokens() const { return tokens_; }

 private:
  Index rows_, tokens_;
  row_counts counts_;
  any_integers offsets_;
};

/// The tokens of a call that are the newest tokens of each sequence in pages.
template <class T>
class newest_in_pages : public row_queries {
 public:
  newest_in_pages(const page_view<T>& pages, Index tokens, const any_integers& offsets)
      : row_queries(pages.sequences(), tokens, offsets), pages_(pages) {}

  /// Throws:  std::invalid_argument unless a view [batch, tokens, ...] has the new tokens of every sequence,
  ///          and no sequence has more new tokens than its length
  void check_counts(const char* function, Index batch) const {
    const auto given = static_cast<Index>(offsets().size());
    if (given == 0) {
      if (batch != sequences())
        throw_invalid(function, "without query_offsets there is a row for each of the ", sequences(),
                      " sequences, got ", batch);
    } else {
      if (batch != 1 || given != sequences() + 1)
        throw_invalid(function, "query_offsets are sequences + 1 = ", sequences() + 1,
                      " numbers for a batch of 1, got ", given, " for a batch of ", batch);
      check_offsets(function, "query_offsets", given, tokens(), [&](Index s) { return offset(s); });
    }
    for (Index s = 0; s < sequences(); ++s)
      if (count(s) > pages_.length(s))
        throw_invalid(function, "lengths include the new tokens: sequence ", s, " has a length of ",
                      pages_.length(s), " and ", count(s), " new tokens");
  }

  Index sequences() const { return pages_.sequences(); }
  /// The position of the first new token of a sequence.
  Index start(Index s) const { return pages_.length(s) - count(s); }

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
  const page_view<T>& pages_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_RAGGED_QUERIES_HPP
