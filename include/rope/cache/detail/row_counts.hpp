// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ROW_COUNTS_HPP
#define ROPE_CACHE_DETAIL_ROW_COUNTS_HPP

#include <cstddef>

#include <rope/base/integer_list.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/tensor_shape.hpp>  // owns_memory
#include <rope/config.hpp>

/// Lists with a number for each row of a batch: of tokens, or of the row that it becomes a copy of.

namespace rope::inline ROPE_ABI::detail {

/// A list of any integers, [batch], or an empty one, which means that every row has all tokens.
///
/// Requires:  the list outlives the call
class row_counts : public any_integers {
 public:
  row_counts() = default;
  template <integers_in_memory X>
  row_counts(const X& list) : any_integers("counts", list) {}
  template <integers_in_memory X>
  requires owns_memory<X> row_counts(const X& list ROPE_DETAIL_LIFETIMEBOUND)
      : any_integers("counts", list) {}
};

/// A list of any integers, [batch]: for each row, the row that it becomes a copy of.
class row_list : public any_integers {
 public:
  template <integers_in_memory X>
  row_list(const X& list) : any_integers("rows", list) {}
};

/// Checks that counts are empty, or are [batch] and each in [0, tokens].
///
/// Throws:  std::invalid_argument
inline void check_counts(const char* function, const row_counts& counts, Index batch, Index tokens) {
  if (counts.empty()) return;
  if (static_cast<Index>(counts.size()) != batch)
    throw_invalid(function, "counts must be [batch] = ", batch, ", got ", counts.size());
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > tokens)
      throw_invalid(function, "counts must be in [0, tokens] = [0, ", tokens, "], got ", counts[b]);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_ROW_COUNTS_HPP
