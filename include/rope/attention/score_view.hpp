// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_SCORE_VIEW_HPP
#define ROPE_ATTENTION_SCORE_VIEW_HPP

#include <algorithm>  // std::max

#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// A number for every score of a call of attention, in the memory of the caller: a mask or a bias.

namespace rope {
inline namespace ROPE_ABI {

/// One number per score, [batch, heads, queries, keys], heads being those of the queries. An extent of 1
/// stands for any extent: the entry is shared along that axis. Element (b, h, i, j) is at
///
///     data[b * batch_stride + h * head_stride + i * query_stride + j * key_stride]
///
/// with the stride of an extent of 1 taken as 0. Owns nothing; no data means that there is no such matrix.
///
///     const score_view<bool> mask = score_matrix(seen, batch, 1, queries, keys);  // one mask for all heads
///     attention(q, k, v, out, {.mask = mask});
template <class X>
struct score_view {
  const X* data = nullptr;  // element (0, 0, 0, 0); nullptr: there is no matrix
  Index batch = 1;          // rows of the batch, or 1
  Index heads = 1;          // query heads, or 1
  Index queries = 1;        // queries of a row, or 1
  Index keys = 1;           // keys of a row, or 1
  Index batch_stride = 0;   // elements from one row to the next
  Index head_stride = 0;    // elements from one query head to the next
  Index query_stride = 0;   // elements from one query to the next
  Index key_stride = 0;     // elements from one key to the next

  /// Whether there is a matrix.
  explicit operator bool() const { return data != nullptr; }

  /// The entry of key 0 for query i of head h in row b; that of key j is j * key_step() elements behind it.
  const X* at(Index b, Index h, Index i) const {
    return data + (batch == 1 ? 0 : b * batch_stride) + (heads == 1 ? 0 : h * head_stride) +
           (queries == 1 ? 0 : i * query_stride);
  }
  /// key_stride, or 0 where all keys share one entry.
  Index key_step() const { return keys == 1 ? 0 : key_stride; }
};

/// A view of `data`, contiguous [batch, heads, queries, keys]; an extent of 1 is shared.
///
/// Throws:  std::invalid_argument if an extent is negative; std::length_error if an Index does not count the
///          entries
template <class X>
score_view<X> score_matrix(const X* data, Index batch, Index heads, Index queries, Index keys) {
  // Strides are products of extents even where another one is zero.
  const Index h = (std::max)(heads, Index{1}), i = (std::max)(queries, Index{1}),
              j = (std::max)(keys, Index{1});
  if (batch < 0 || heads < 0 || queries < 0 || keys < 0)
    ROPE_THROW(std::invalid_argument, detail::message("score_matrix: extents must not be negative, got [",
                                                      batch, ", ", heads, ", ", queries, ", ", keys, "]"));
  if (!detail::product_fits({h, i, j}) || !detail::product_fits({batch, h, i, j}))
    ROPE_THROW(std::length_error, detail::message("score_matrix: [", batch, ", ", heads, ", ", queries, ", ",
                                                  keys, "] exceeds the address space"));
  return {data, batch, heads, queries, keys, heads * queries * keys, queries * keys, keys, 1};
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_SCORE_VIEW_HPP
