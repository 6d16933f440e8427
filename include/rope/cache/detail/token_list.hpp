// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_TOKEN_LIST_HPP
#define ROPE_CACHE_DETAIL_TOKEN_LIST_HPP

#include <cstddef>
#include <cstdint>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>

/// Lists of tokens of a row.

namespace rope::inline ROPE_ABI::detail {

/// Indices of tokens, any integers, as the caller passes them.
class token_indices : public any_integers {
 public:
  template <integers_in_memory X>
  token_indices(const X& list) : any_integers("indices", list) {}
};

/// Different tokens of a row in ascending order: a run, or a list. A list is in the scratch memory of the
/// thread, and valid until the next list on this thread.
class token_list {
 public:
  /// Throws:  std::out_of_range if an index is not in [0, held), std::invalid_argument if one is given twice
  token_list(const char* function, const token_indices& given, Index held)
      : size_(static_cast<Index>(given.size())) {
    tokens_ = workspace<struct listed_tokens, Index>(size_);
    for (Index i = 0; i < size_; ++i) {
      const std::int64_t index = given[static_cast<std::size_t>(i)];
      if (index < 0 || index >= held)
        throw_out_of_range(function, "an index must be in [0, ", held, "), the tokens that are held, got ",
                           index);
      tokens_[i] = to_index(index);
    }
    sort(tokens_, tokens_ + size_);
    for (Index i = 1; i < size_; ++i)
      if (tokens_[i] == tokens_[i - 1])
        throw_invalid(function, "indices must differ, got ", tokens_[i], " twice");
  }
  /// Tokens [first, last).
  token_list(Index first, Index last) : first_(first), size_(last - first) {}

  Index size() const { return size_; }
  /// Requires:  size() > 0
  Index first() const { return is_run() ? first_ : tokens_[0]; }

  /// Calls visit(first, last) for each run [first, last) of listed tokens, in ascending order.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    if (is_run()) return visit(first_, first_ + size_);
    for (Index i = 0, next; i < size_; i = next) {
      for (next = i + 1; next < size_ && tokens_[next] == tokens_[next - 1] + 1;) ++next;
      visit(tokens_[i], tokens_[next - 1] + 1);
    }
  }
  /// Calls visit(from, to, count) for each run of remaining tokens after the first listed one, in ascending
  /// order. The row has `size` tokens. The run moves from index `from` to the lower index `to`.
  template <class Visit>
  void for_each_kept(Index size, const Visit& visit) const {
    if (is_run()) {
      if (first_ + size_ < size) visit(first_ + size_, first_, size - first_ - size_);
      return;
    }
    for (Index i = 0; i < size_; ++i) {
      const Index from = tokens_[i] + 1, end = i + 1 < size_ ? tokens_[i + 1] : size;
      if (from < end) visit(from, tokens_[i] - i, end - from);
    }
  }

 private:
  /// A run is visited at once, however many tokens it has.
  bool is_run() const { return tokens_ == nullptr; }

  Index* tokens_ = nullptr;  // null for a run
  Index first_ = 0;          // of a run
  Index size_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_TOKEN_LIST_HPP
