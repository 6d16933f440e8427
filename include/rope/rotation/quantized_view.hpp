// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_QUANTIZED_VIEW_HPP
#define ROPE_ROTATION_QUANTIZED_VIEW_HPP

#include <concepts>
#include <cstdint>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>

/// Views of int8 heads in memory, with one scale per token and head.

namespace rope::inline ROPE_ABI {

/// int8 heads [batch, tokens, heads, head_dim]. Channel (b, t, h, d) is
///
///     scales(b, t, h) * data[b * batch_stride + t * token_stride + h * head_stride + d]
///
///     const quantized_view<std::int8_t> keys = bhsd(integers, scales, batch, kv_heads, tokens, head_dim);
///     quantize(k, keys);
///
/// A NaN or infinite scale makes every channel of its head NaN. Values may be anything in [-128, 127], so
/// heads that other programs quantized with a symmetric scale can be read directly.
///
/// \tparam T  std::int8_t, const for inputs
///
/// Requires:  as head_view; scales have the same batch, tokens and heads, in any order of axes
template <class T>
struct quantized_view {
  static_assert(std::is_same_v<std::remove_const_t<T>, std::int8_t>,
                "quantized_view: channels are std::int8_t");
  /// std::int8_t.
  using value_type = std::remove_const_t<T>;
  /// float, const if T is.
  using scale_type = std::conditional_t<std::is_const_v<T>, const float, float>;

  T* data;                       // the integer of element (0, 0, 0, 0)
  Index batch;                   // sequences
  Index tokens;                  // of a sequence
  Index heads;                   // of a token
  Index head_dim;                // channels of a head
  Index batch_stride;            // integers from a sequence to the next
  Index token_stride;            // integers from a token to the next
  Index head_stride;             // integers from a head to the next
  head_view<scale_type> scales;  // [batch, tokens, heads, 1]

  /// The int8 values of one head of one token, [head_dim].
  T* at(Index b, Index t, Index h) const {
    return data + b * batch_stride + t * token_stride + h * head_stride;
  }
  /// The scale of one head of one token.
  scale_type* scale_at(Index b, Index t, Index h) const { return scales.at(b, t, h); }

  /// Number of channels in the view.
  Index size() const { return batch * tokens * heads * head_dim; }

  /// A read-only view of this memory.
  operator quantized_view<const T>() const requires(!std::is_const_v<T>) {
    return {data, batch, tokens, heads, head_dim, batch_stride, token_stride, head_stride, scales};
  }

  /// Sequences [first, first + count) of the batch.  Throws: std::out_of_range
  quantized_view batch_range(Index first, Index count) const {
    quantized_view window = *this;
    window.scales = scales.batch_range(first, count);
    if (data != nullptr) window.data += first * batch_stride;  // null stays null
    window.batch = count;
    return window;
  }
  /// Heads [first, first + count) of every token.  Throws: std::out_of_range
  quantized_view head_range(Index first, Index count) const {
    quantized_view window = *this;
    window.scales = scales.head_range(first, count);
    if (data != nullptr) window.data += first * head_stride;  // null stays null
    window.heads = count;
    return window;
  }
  /// Tokens [first, first + count) of every sequence.  Throws: std::out_of_range
  quantized_view token_range(Index first, Index count) const {
    quantized_view window = *this;
    window.scales = scales.token_range(first, count);
    if (data != nullptr) window.data += first * token_stride;  // null stays null
    window.tokens = count;
    return window;
  }
};

namespace detail {

/// The view type of heads whose channels are stored as T.
template <class T>
using stored_view =
    std::conditional_t<std::is_same_v<std::remove_const_t<T>, std::int8_t>, quantized_view<T>, head_view<T>>;

/// The type that channels stored as T are dequantized to and quantized from: float for int8, otherwise T.
template <class T>
using numbers_of = std::conditional_t<std::is_same_v<T, std::int8_t>, float, T>;

/// Contiguous int8 values whose axes have the order of their contiguous scales.
template <class T>
quantized_view<T> beside_scales(T* data, const head_view<typename quantized_view<T>::scale_type>& scales,
                                Index head_dim) {
  return {data,
          scales.batch,
          scales.tokens,
          scales.heads,
          head_dim,
          scales.batch_stride * head_dim,
          scales.token_stride * head_dim,
          scales.head_stride * head_dim,
          scales};
}

/// A view with the extents of x, for checks only: for quantized heads it has no data.
template <class T>
head_view<T> shape_of(const head_view<T>& x) {
  return x;
}
template <class T>
head_view<const Eigen::half> shape_of(const quantized_view<T>& x) {
  return {nullptr, x.batch, x.tokens, x.heads, x.head_dim, x.batch_stride, x.token_stride, x.head_stride};
}

/// Throws if an extent is invalid, the scales have another shape, or a pointer to elements is null.
///
/// Throws:  std::invalid_argument, std::length_error
template <class T>
void check_quantized(const char* function, const quantized_view<T>& x) {
  check_view(function, shape_of(x));
  if (x.scales.batch != x.batch || x.scales.tokens != x.tokens || x.scales.heads != x.heads ||
      x.scales.head_dim != 1)
    throw_invalid(function, "scales must be [", x.batch, ", ", x.tokens, ", ", x.heads, ", 1], got ",
                  shape_text(x.scales));
  if (x.batch != 0 && x.tokens != 0 && x.heads != 0 &&
      (x.scales.data == nullptr || (x.data == nullptr && x.head_dim != 0)))
    throw_invalid(function, "a quantized view must have data and scales, got null for ", shape_text(x));
}

/// Checks heads of any stored type.
template <class T>
void check_stored(const char* function, const head_view<T>& x) {
  check_view(function, x);
  check_memory(function, x);
}
template <class T>
void check_stored(const char* function, const quantized_view<T>& x) {
  check_quantized(function, x);
}

}  // namespace detail

/// int8 values [batch, tokens, heads, head_dim] and their scales [batch, tokens, heads], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
requires std::same_as<std::remove_const_t<T>, std::int8_t> quantized_view<T> bshd(
    T* data, typename quantized_view<T>::scale_type* scales, Index batch, Index tokens, Index heads,
    Index head_dim) {
  detail::check_extents("bshd", data, batch, tokens, heads, head_dim);
  return detail::beside_scales(data, bshd(scales, batch, tokens, heads, Index{1}), head_dim);
}
/// int8 values [batch, heads, tokens, head_dim] and their scales [batch, heads, tokens], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
requires std::same_as<std::remove_const_t<T>, std::int8_t> quantized_view<T> bhsd(
    T* data, typename quantized_view<T>::scale_type* scales, Index batch, Index heads, Index tokens,
    Index head_dim) {
  detail::check_extents("bhsd", data, batch, heads, tokens, head_dim);
  return detail::beside_scales(data, bhsd(scales, batch, heads, tokens, Index{1}), head_dim);
}
/// int8 values [tokens, batch, heads, head_dim] and their scales [tokens, batch, heads], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
requires std::same_as<std::remove_const_t<T>, std::int8_t> quantized_view<T> sbhd(
    T* data, typename quantized_view<T>::scale_type* scales, Index tokens, Index batch, Index heads,
    Index head_dim) {
  detail::check_extents("sbhd", data, tokens, batch, heads, head_dim);
  return detail::beside_scales(data, sbhd(scales, tokens, batch, heads, Index{1}), head_dim);
}
/// int8 values [tokens, heads, head_dim] and their scales [tokens, heads], both contiguous; batch is 1.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
requires std::same_as<std::remove_const_t<T>, std::int8_t> quantized_view<T> thd(
    T* data, typename quantized_view<T>::scale_type* scales, Index tokens, Index heads, Index head_dim) {
  detail::check_extents("thd", data, 1, tokens, heads, head_dim);
  return detail::beside_scales(data, thd(scales, tokens, heads, Index{1}), head_dim);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_QUANTIZED_VIEW_HPP
