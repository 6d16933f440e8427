// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_SCORE_VIEW_HPP
#define ROPE_ATTENTION_SCORE_VIEW_HPP

#include <cstddef>
#include <type_traits>

#include <rope/base/integer_list.hpp>  // dense_of
#include <rope/base/message.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>  // extents_fit

/// Views of a mask or a bias in the caller's memory: one entry per score of attention.

namespace rope::inline ROPE_ABI {

/// One number per score, [batch, query heads, queries, keys]. An axis of extent 1 is shared: all rows, heads,
/// queries or keys have the same entry. Element (b, h, i, j) is at
///
///     data[b * batch_stride + h * head_stride + i * query_stride + j * key_stride]
///
/// The stride of an axis of extent 1 counts as 0. A view does not own memory. If data is null, there is no
/// matrix.
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
  /// Reports a bias that is passed as a mask, or a mask that is passed as a bias.
  template <class Other>
  operator score_view<Other>() const {
    static_assert(!std::is_same_v<X, bool> && !std::is_same_v<X, float>,
                  "score_matrix: the entries of a mask are bool, those of a bias are float");
    return {};
  }

  /// Points to the entry of key 0 for query i of head h in row b. The entry of key j is j * key_step()
  /// elements later.
  const X* at(Index b, Index h, Index i) const {
    return data + (batch == 1 ? 0 : b * batch_stride) + (heads == 1 ? 0 : h * head_stride) +
           (queries == 1 ? 0 : i * query_stride);
  }
  /// key_stride, or 0 if all keys share one entry.
  Index key_step() const { return keys == 1 ? 0 : key_stride; }
};

namespace detail {

/// Checks the type and the extents of a matrix of scores.
template <class X>
void check_score_matrix(Index batch, Index heads, Index queries, Index keys) {
  static_assert(
      std::is_same_v<X, bool> || std::is_same_v<X, float>,
      "score_matrix: entries are bool (a mask) or float (a bias); write others to an Eigen::Array<bool, ...> "
      "or Eigen::Array<float, ...> first");
  if (batch < 0 || heads < 0 || queries < 0 || keys < 0)
    throw_invalid("score_matrix", "extents must not be negative, got ",
                  shape_text({batch, heads, queries, keys}));
  if (!extents_fit(batch, heads, queries, keys, 1))
    throw_length("score_matrix", shape_text({batch, heads, queries, keys}), " exceeds the address space");
}

}  // namespace detail

/// A view of `data`, contiguous [batch, heads, queries, keys]; an extent of 1 is shared.
///
/// Throws:  std::invalid_argument if an extent is negative; std::length_error if the number of entries
///          exceeds an Index
template <class X>
score_view<X> score_matrix(const X* data, Index batch, Index heads, Index queries, Index keys) {
  detail::check_score_matrix<X>(batch, heads, queries, keys);
  return {data, batch, heads, queries, keys, heads * queries * keys, queries * keys, keys, 1};
}

namespace detail {

/// An Eigen matrix, array, Map, Ref or Block with direct access to memory and strides.
template <class X>
concept dense_in_any_order = requires(const X& x) {
  dense_of(x).data();
  x.rowStride();
  requires bool(unsigned(std::remove_cvref_t<X>::Flags) & Eigen::DirectAccessBit);
};

/// An object that score_matrix accepts.
template <class X>
concept scores_in_memory =
    dense_in_any_order<X> || numbers_by_index<const X, 2> || numbers_by_index<const X, 4>;

/// A view, by its indices, of an object that score_matrix accepts.
template <scores_in_memory X>
auto scores_by_index(const X& x) {
  if constexpr (dense_in_any_order<X>) {
    return score_view<typename X::Scalar>{.data = x.data(),
                                          .queries = x.rows(),
                                          .keys = x.cols(),
                                          .query_stride = x.rowStride(),
                                          .key_stride = x.colStride()};
  } else {
    constexpr std::size_t rank = numbers_by_index<const X, 2> ? 2 : 4;
    const auto memory = indexed_memory_of<int(rank)>(x);
    score_view<std::remove_cvref_t<decltype(*memory.data)>> view = {.data = memory.data};
    Index* const extents[] = {&view.batch, &view.heads, &view.queries, &view.keys};
    Index* const strides[] = {&view.batch_stride, &view.head_stride, &view.query_stride, &view.key_stride};
    for (std::size_t i = 0; i < rank; ++i) {
      *extents[4 - rank + i] = memory.extents[i];
      *strides[4 - rank + i] = memory.strides[i];
    }
    return view;
  }
}

}  // namespace detail

/// A view of an object by its indices, of any storage order and strides: an Eigen matrix, array, Map, Ref or
/// Block [queries, keys], shared by rows and heads, or an Eigen::Tensor, TensorMap or std::mdspan [queries,
/// keys] or [batch, heads, queries, keys]. An extent of 1 is shared.
///
///     attention(q, k, v, out, {.mask = score_matrix(seen_by)});  // seen_by(query, key), in any order
///
/// Requires:  the memory of the object outlives the view
/// Throws:    std::invalid_argument if it has no entry
template <class X>
auto score_matrix(const X& x) {
  static_assert(detail::scores_in_memory<X>,
                "score_matrix: give an Eigen matrix or array [queries, keys] in memory, an Eigen::Tensor "
                "[queries, keys] or [batch, heads, queries, keys], or a pointer and four extents; evaluate "
                "an expression first");
  if constexpr (detail::scores_in_memory<X>) {
    const auto view = detail::scores_by_index(x);
    detail::check_score_matrix<std::remove_cvref_t<decltype(*view.data)>>(view.batch, view.heads,
                                                                          view.queries, view.keys);
    if (view.data == nullptr)
      detail::throw_invalid("score_matrix",
                            "the matrix must have entries, got [batch, heads, queries, keys] = ",
                            detail::shape_text({view.batch, view.heads, view.queries, view.keys}),
                            "; leave the option out where there is no matrix");
    return view;
  } else {
    return score_view<int>{};  // converts to every view, so that no other errors follow
  }
}
template <detail::owns_memory X>
auto score_matrix(const X& x ROPE_DETAIL_LIFETIMEBOUND) {
  return score_matrix<const X&>(x);
}

/// A view of a matrix of any storage order, [batch * heads * queries, keys]. An extent of 1 is shared.
///
///     {.mask = score_matrix(is_token, batch, 1, 1, keys)}  // is_token [batch, keys]
///
/// Requires:  the memory of the object outlives the view
/// Throws:    as above, and std::invalid_argument if the matrix has other extents
template <detail::dense_in_any_order X>
auto score_matrix(const X& x, Index batch, Index heads, Index queries, Index keys) {
  using entry = typename std::remove_cvref_t<X>::Scalar;
  detail::check_score_matrix<entry>(batch, heads, queries, keys);
  if (x.rows() != batch * heads * queries || x.cols() != keys)
    detail::throw_invalid("score_matrix", "the matrix must be [batch * heads * queries, keys] = ",
                          detail::shape_text({batch * heads * queries, keys}), ", got ",
                          detail::shape_text({x.rows(), x.cols()}));
  const Index row = x.rowStride();
  return score_view<entry>{x.data(),      batch, heads,        queries, keys, heads * queries * row,
                           queries * row, row,   x.colStride()};
}
template <detail::owns_memory X>
requires detail::dense_in_any_order<X>
auto score_matrix(const X& x ROPE_DETAIL_LIFETIMEBOUND, Index batch, Index heads, Index queries, Index keys) {
  return score_matrix<const X&>(x, batch, heads, queries, keys);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_SCORE_VIEW_HPP
