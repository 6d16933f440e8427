// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_VIEW_HPP
#define ROPE_ROTATION_VIEW_HPP

#include <algorithm>  // std::max
#include <concepts>
#include <limits>
#include <type_traits>

#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/base/tensor_shape.hpp>
#include <rope/config.hpp>

/// Where in memory the heads of a batch of sequences are. A view owns nothing and copies nothing.
///
/// The four letters of a factory name the axes from the slowest to the fastest in memory: B batch, S tokens
/// of a sequence, H heads, D channels of a head; T is the tokens of a ragged batch laid end to end.

namespace rope {
inline namespace ROPE_ABI {

/// The types a channel can have. Eigen::half and Eigen::bfloat16 are storage: arithmetic on them is in float.
template <class T>
concept channel = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Eigen::half> ||
    std::same_as<T, Eigen::bfloat16>;

/// Heads [batch, tokens, heads, head_dim]; element (b, t, h, d) is at
///
///     data[b * batch_stride + t * token_stride + h * head_stride + d]
///
///     const head_view<float> q = bshd(data, batch, tokens, heads, head_dim);
///     rotate<half_split>(q.channels(64, 64), table);  // the second half of every head
///
/// \tparam T  a channel type, const for inputs
///
/// Requires:  the extents are not negative and every element is inside one allocation. Strides count
///            elements.
template <class T>
struct head_view {
  static_assert(channel<std::remove_const_t<T>>,
                "head_view: a channel type is float, double, Eigen::half or Eigen::bfloat16");
  /// The channel type.
  using value_type = std::remove_const_t<T>;

  T* data;             // element (0, 0, 0, 0)
  Index batch;         // sequences
  Index tokens;        // of a sequence
  Index heads;         // of a token
  Index head_dim;      // channels of a head
  Index batch_stride;  // elements from a sequence to the next
  Index token_stride;  // elements from a token to the next
  Index head_stride;   // elements from a head to the next

  /// The channels of one head of one token, [head_dim].
  T* at(Index b, Index t, Index h) const {
    return data + b * batch_stride + t * token_stride + h * head_stride;
  }

  /// Number of channels in the view.
  Index size() const { return batch * tokens * heads * head_dim; }

  /// The same memory, read only.
  operator head_view<const T>() const requires(!std::is_const_v<T>) {
    return {data, batch, tokens, heads, head_dim, batch_stride, token_stride, head_stride};
  }

  /// Channels [first, first + count) of every head.  Throws: std::out_of_range
  head_view channels(Index first, Index count) const {
    check_window("channels", first, count, head_dim);
    head_view window = *this;
    window.advance(first);
    window.head_dim = count;
    return window;
  }
  /// Sequences [first, first + count) of the batch.  Throws: std::out_of_range
  head_view batch_range(Index first, Index count) const {
    check_window("batch_range", first, count, batch);
    head_view window = *this;
    window.advance(first * batch_stride);
    window.batch = count;
    return window;
  }
  /// Heads [first, first + count) of every token.  Throws: std::out_of_range
  head_view head_range(Index first, Index count) const {
    check_window("head_range", first, count, heads);
    head_view window = *this;
    window.advance(first * head_stride);
    window.heads = count;
    return window;
  }
  /// Tokens [first, first + count) of every sequence.  Throws: std::out_of_range
  head_view token_range(Index first, Index count) const {
    check_window("token_range", first, count, tokens);
    head_view window = *this;
    window.advance(first * token_stride);
    window.tokens = count;
    return window;
  }

 private:
  /// Moves data on, unless it is null as it may be in a view without elements.
  void advance(Index elements) {
    if (data != nullptr) data += elements;
  }
  static void check_window(const char* name, Index first, Index count, Index extent) {
    if (first < 0 || count < 0 || first > extent || count > extent - first)
      ROPE_THROW(std::out_of_range, detail::message("head_view::", name, ": first ", first, " and count ",
                                                    count, " must stay inside [0, ", extent, ")"));
  }
};

namespace detail {

/// Whether X is T, or float where T has 16 bits. A T is then exact in X, and an X stored as T is rounded at
/// most once.
template <class X, class T>
inline constexpr bool is_or_widens = std::is_same_v<X, T> ||
                                     (std::is_same_v<X, float> && !std::is_same_v<T, double>);

/// Whether an Index holds the number of bytes of elements [a, b, c, d], `bytes` each, with an extent of 0
/// counted as 1: strides are products of some of the extents.
constexpr bool extents_fit(Index a, Index b, Index c, Index d, Index bytes) {
  return product_fits(
      {(std::max)(a, Index{1}), (std::max)(b, Index{1}), (std::max)(c, Index{1}), (std::max)(d, Index{1})},
      (std::numeric_limits<Index>::max)() / bytes);
}

/// Refuses extents that are negative, or whose elements exceed the address space.
///
/// Throws:  std::invalid_argument, std::length_error
template <class T>
void check_extents(const char* name, const T* /*data*/, Index a, Index b, Index c, Index d) {
  if (a < 0 || b < 0 || c < 0 || d < 0)
    ROPE_THROW(std::invalid_argument,
               message(name, ": extents must not be negative, got [", a, ", ", b, ", ", c, ", ", d, "]"));
  if (!extents_fit(a, b, c, d, Index(sizeof(T))))
    ROPE_THROW(std::length_error, message(name, ": extents must not exceed the address space, got [", a, ", ",
                                          b, ", ", c, ", ", d, "]"));
}

}  // namespace detail

/// [batch, tokens, heads, head_dim], contiguous: the usual activation order of a transformer.
///
/// Throws:  std::invalid_argument if an extent is negative; std::length_error if the extents, an extent of 0
///          counted as 1, exceed the address space
template <class T>
head_view<T> bshd(T* data, Index batch, Index tokens, Index heads, Index head_dim) {
  detail::check_extents("bshd", data, batch, tokens, heads, head_dim);
  return {data, batch, tokens, heads, head_dim, tokens * heads * head_dim, heads * head_dim, head_dim};
}

/// [batch, heads, tokens, head_dim], contiguous: the order of attention kernels and caches.
///
/// Throws:  as bshd
template <class T>
head_view<T> bhsd(T* data, Index batch, Index heads, Index tokens, Index head_dim) {
  detail::check_extents("bhsd", data, batch, heads, tokens, head_dim);
  return {data, batch, tokens, heads, head_dim, heads * tokens * head_dim, head_dim, tokens * head_dim};
}

/// [tokens, batch, heads, head_dim], contiguous: the order of Megatron and Transformer Engine.
///
/// Throws:  as bshd
template <class T>
head_view<T> sbhd(T* data, Index tokens, Index batch, Index heads, Index head_dim) {
  detail::check_extents("sbhd", data, tokens, batch, heads, head_dim);
  return {data, batch, tokens, heads, head_dim, heads * head_dim, batch * heads * head_dim, head_dim};
}

/// [tokens, heads, head_dim], contiguous: one sequence, or the tokens of many laid end to end; batch is 1.
///
/// Throws:  as bshd
template <class T>
head_view<T> thd(T* data, Index tokens, Index heads, Index head_dim) {
  detail::check_extents("thd", data, 1, tokens, heads, head_dim);
  return {data, 1, tokens, heads, head_dim, tokens * heads * head_dim, heads * head_dim, head_dim};
}

/// [batch, tokens, heads, head_dim] of an Eigen::Tensor or TensorMap of rank 4. The letters name the axes
/// from slowest to fastest in memory, so a row-major tensor (B, S, H, D) and a column-major tensor (D, H, S,
/// B) are both `bshd`.
///
/// Throws:  std::length_error as bshd of a pointer
template <class X>
requires detail::tensor<X, 4>
auto bshd(X&& x) {
  return bshd(x.data(), detail::extent<0>(x), detail::extent<1>(x), detail::extent<2>(x),
              detail::extent<3>(x));
}
/// [batch, heads, tokens, head_dim] of such a tensor of rank 4.  Throws: as above
template <class X>
requires detail::tensor<X, 4>
auto bhsd(X&& x) {
  return bhsd(x.data(), detail::extent<0>(x), detail::extent<1>(x), detail::extent<2>(x),
              detail::extent<3>(x));
}
/// [tokens, batch, heads, head_dim] of such a tensor of rank 4.  Throws: as above
template <class X>
requires detail::tensor<X, 4>
auto sbhd(X&& x) {
  return sbhd(x.data(), detail::extent<0>(x), detail::extent<1>(x), detail::extent<2>(x),
              detail::extent<3>(x));
}
/// [tokens, heads, head_dim] of such a tensor of rank 3.  Throws: as above
template <class X>
requires detail::tensor<X, 3>
auto thd(X&& x) { return thd(x.data(), detail::extent<0>(x), detail::extent<1>(x), detail::extent<2>(x)); }

/// A row-major Eigen matrix [tokens, heads * head_dim], or a Map or Block of one: what a projection layer
/// returns.
///
/// Throws:  std::invalid_argument unless heads is positive and divides the columns
template <class Matrix>
requires std::derived_from<std::remove_cvref_t<Matrix>, Eigen::DenseBase<std::remove_cvref_t<Matrix>>>
auto thd(Matrix&& matrix, Index heads) {
  using type = std::remove_cvref_t<Matrix>;
  static_assert(bool(type::IsRowMajor) && int(type::InnerStrideAtCompileTime) == 1,
                "thd: the matrix must be row-major with contiguous rows: [tokens, heads * head_dim]");
  if (heads <= 0 || matrix.cols() % heads != 0)
    ROPE_THROW(std::invalid_argument, detail::message("thd: heads must be positive and divide the ",
                                                      matrix.cols(), " columns of the matrix, got ", heads));
  auto* data = matrix.data();
  const Index head_dim = matrix.cols() / heads, row = matrix.outerStride();
  return head_view<std::remove_pointer_t<decltype(data)>>{
      data, 1, matrix.rows(), heads, head_dim, matrix.rows() * row, row, head_dim};
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_VIEW_HPP
