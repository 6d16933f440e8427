// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ROW_TOKENS_HPP
#define ROPE_CACHE_DETAIL_ROW_TOKENS_HPP

#include <algorithm>  // std::max, std::min
#include <cstdint>

#include <rope/attention/options.hpp>  // count_of_row
#include <rope/base/lists.hpp>
#include <rope/base/parallel.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Assigns the tokens of a call to rows. The tokens are padded ([rows, tokens]) or concatenated with offsets.

namespace rope::inline ROPE_ABI::detail {

/// The tokens of a call that belong to each row. Without offsets, row b has the first count(b) tokens of row
/// b of the call. With offsets the call has one row, of which row b has tokens [offsets[b], offsets[b + 1]).
class row_tokens {
 public:
  /// \param rows  the number of rows with tokens. They are the first rows
  row_tokens(Index rows, Index tokens, const row_counts& counts, const any_integers& offsets = {})
      : rows_(rows), tokens_(tokens), counts_(counts), offsets_(offsets) {}

  Index asking() const { return rows_; }
  /// The number of tokens of each row of the call, with padding.
  Index width() const { return tokens_; }
  /// The number of tokens of each row, [rows]. Empty: all of them, or those of the offsets.
  const row_counts& counts() const { return counts_; }
  /// The number of tokens of row b.
  Index count(Index b) const {
    return offsets_.empty() ? count_of_row(counts_, b, tokens_) : to_index(offset(b + 1) - offset(b));
  }
  /// The row of the call that has the tokens of row b.
  Index row(Index b) const { return offsets_.empty() ? b : 0; }
  /// The index of the first token of row b within its row of the call (with offsets: within the only row).
  Index first(Index b) const { return offsets_.empty() ? 0 : to_index(offset(b)); }
  /// The index of token i of row b among all tokens of the call.
  Index place(Index b, Index i) const { return row(b) * tokens_ + first(b) + i; }
  /// The distance in memory from row b to row b + 1, which have equal counts.
  Index row_stride(Index b, Index batch_stride, Index token_stride) const {
    return offsets_.empty() ? batch_stride : count(b) * token_stride;
  }
  /// The number of tokens of row b of the call that are padding.
  Index padding(Index b) const { return offsets_.empty() ? tokens_ - count(b) : 0; }

  /// Calls visit(b, first, count) on `threads` for runs that together cover the tokens of every row.
  ///
  /// \param bytes  the bytes that all tokens take in the cache
  template <class Threads, class Visit>
  void for_each_run(const Threads& threads, double bytes, const Visit& visit) const {
    const Index tokens = offsets_.empty() ? rows_ * tokens_ : tokens_;
    parallel_pieces(threads, tokens, bytes, [&](Index begin, Index end) {
      for (Index b = 0; b < rows_; ++b) {
        const Index first = (std::max)(begin - place(b, 0), Index{0}),
                    last = (std::min)(end - place(b, 0), count(b));
        if (first < last) visit(b, first, last - first);
      }
    });
  }

  /// The tokens of rows [b, b + number), which have equal counts, [number, count(b), heads, head_dim].
  template <class X>
  head_view<X> rows(const head_view<X>& x, Index b, Index number) const {
    if (offsets_.empty()) return x.batch_range(b, number).token_range(0, count(b));
    return {x.at(0, first(b), 0),      number,         count(b),     x.heads, x.head_dim,
            count(b) * x.token_stride, x.token_stride, x.head_stride};
  }

 protected:
  std::int64_t offset(Index b) const { return offsets_[static_cast<std::size_t>(b)]; }

 private:
  Index rows_, tokens_;
  row_counts counts_;
  any_integers offsets_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_ROW_TOKENS_HPP
