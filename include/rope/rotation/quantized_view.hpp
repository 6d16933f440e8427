// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_QUANTIZED_VIEW_HPP
#define ROPE_ROTATION_QUANTIZED_VIEW_HPP

#include <cstdint>
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/token_loops.hpp>
#include <rope/rotation/view.hpp>

/// Views of int8 heads in memory, with one scale per token and head. `quantize` and `dequantize` convert
/// heads to int8 and back.

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
using quantized_view = head_view<T>;

namespace detail {

/// The type that channels stored as T are dequantized to and quantized from: float for int8, otherwise T.
template <class T>
using numbers_of = std::conditional_t<is_quantized<T>, float, T>;

/// Contiguous int8 values whose axes have the order of their contiguous scales.
///
/// Requires:  the extents are checked
template <class T>
head_view<T> with_scales(T* data, const typename scales_of<T>::type& scales, Index head_dim) {
  head_view<T> x = {data, scales.batch, scales.tokens, scales.heads, head_dim, 0, 0, 0, scales};
  x.batch_stride = scales.batch_stride * head_dim;
  x.token_stride = scales.token_stride * head_dim;
  x.head_stride = scales.head_stride * head_dim;
  return x;
}

}  // namespace detail

/// int8 values [batch, tokens, heads, head_dim] and their scales [batch, tokens, heads], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
head_view<T> bshd(T* data, typename detail::scales_of<T>::scale* scales, Index batch, Index tokens,
                  Index heads, Index head_dim) {
  detail::check_extents<T>("bshd", batch, tokens, heads, head_dim);
  return detail::with_scales(data, bshd(scales, batch, tokens, heads, Index{1}), head_dim);
}
/// int8 values [batch, heads, tokens, head_dim] and their scales [batch, heads, tokens], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
head_view<T> bhsd(T* data, typename detail::scales_of<T>::scale* scales, Index batch, Index heads,
                  Index tokens, Index head_dim) {
  detail::check_extents<T>("bhsd", batch, heads, tokens, head_dim);
  return detail::with_scales(data, bhsd(scales, batch, heads, tokens, Index{1}), head_dim);
}
/// int8 values [tokens, batch, heads, head_dim] and their scales [tokens, batch, heads], both contiguous.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
head_view<T> sbhd(T* data, typename detail::scales_of<T>::scale* scales, Index tokens, Index batch,
                  Index heads, Index head_dim) {
  detail::check_extents<T>("sbhd", tokens, batch, heads, head_dim);
  return detail::with_scales(data, sbhd(scales, tokens, batch, heads, Index{1}), head_dim);
}
/// int8 values [tokens, heads, head_dim] and their scales [tokens, heads], both contiguous; batch is 1.
///
/// Throws:  as bshd of a pointer to channels
template <class T>
head_view<T> thd(T* data, typename detail::scales_of<T>::scale* scales, Index tokens, Index heads,
                 Index head_dim) {
  detail::check_extents<T>("thd", 1, tokens, heads, head_dim);
  return detail::with_scales(data, thd(scales, tokens, heads, Index{1}), head_dim);
}

namespace detail {

/// Throws if the views have different shapes or share memory, or a view with elements has a null pointer.
///
/// Throws:  std::invalid_argument, std::length_error
template <class X, class T>
void check_quantization(const char* function, const head_view<X>& x, const quantized_view<T>& integers) {
  static_assert(is_quantized<std::remove_const_t<T>>,
                "quantize and dequantize: quantized heads are std::int8_t");
  check_heads(function, x);
  check_extents(function, integers);
  check_memory(function, integers);
  if (!have_same_shape(x, integers))
    throw_invalid(function, "both views must have the same shape, got ", shape_text(x), " and ",
                  shape_text(integers));
  if (share_memory(x, integers) || share_memory(x, integers.scales))
    throw_invalid(function, "x and out must share no memory; give out other memory");
}

/// Quantizes every head of checked views.
template <class X, class T, class Threads = this_thread>
void quantize_all(const head_view<X>& x, const quantized_view<T>& out, const Threads& threads = {}) {
  for_each_head(x, threads, [&](Index b, Index t, Index h) {
    const float* const wide = widened<std::remove_const_t<X>>(x.at(b, t, h), x.head_dim);
    *out.scale_at(b, t, h) = quantize_channels(wide, x.head_dim, out.at(b, t, h));
  });
}

/// Dequantizes every head of checked views.
template <class X, class T, class Threads = this_thread>
void dequantize_all(const quantized_view<X>& x, const head_view<T>& out, const Threads& threads = {}) {
  for_each_head(out, threads, [&](Index b, Index t, Index h) {
    const float scale = usable_scale(*x.scale_at(b, t, h));
    write_rounded(out.at(b, t, h), x.head_dim,
                  [&](float* to) { dequantize_channels(x.at(b, t, h), x.head_dim, scale, to); });
  });
}

}  // namespace detail

/// Quantizes every head to int8 values times one scale.
///
///     scale = max_d |x_d| / 127,   i_d = x_d / scale to the nearest, ties to even
///
/// \param x    [batch, tokens, heads, head_dim], of float or a 16-bit type
/// \param out  of the same shape
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// A head with a NaN or an infinity gets a scale of NaN, so exactly the queries that attend to it get NaN
/// outputs. A head with all magnitudes below 2^-118 gets zeros and a scale of 0.
///
/// Requires:  x and out share no memory; throws if an overlap is detected
/// Throws:    std::invalid_argument if the shapes differ, a view has no memory, or heads of out overlap each
///            other; out is then unchanged
/// Accuracy:  |x_d - scale i_d| <= scale (1/2 + 2^-15), so at most max |x| / 253.9; at most 2^-118 for a head
///            below 2^-118 (tests/rotation/laws/quantize.test.cpp)
/// Cost:      one read of x and one write of out; no allocation for float, otherwise scratch for one head per
///            thread
/// Source:    symmetric quantization per token and head, as in Xiao et al. 2023, SmoothQuant,
///            arXiv:2211.10438
template <class X, class T, class Threads = this_thread>
void quantize(head_view<X> x, quantized_view<T> out, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("quantize", "out", T);
  ROPE_DETAIL_CHECK_THREADS("quantize", Threads);
  static_assert(!std::is_same_v<std::remove_const_t<X>, double>,
                "quantize: channels are float, Eigen::half or Eigen::bfloat16");
  detail::check_quantization("quantize", x, out);
  detail::check_written("quantize", out);
  if (detail::share_memory(out, out.scales))
    detail::throw_invalid("quantize", "the channels and the scales of out must share no memory");
  detail::quantize_all(x, out, threads);
}

/// Converts int8 values and scales back to floating-point channels.
///
///     out_d = scale i_d
///
/// \param x    [batch, tokens, heads, head_dim]
/// \param out  of the same shape, of float or a 16-bit type
///
/// Requires:  x and out share no memory; throws if an overlap is detected
/// Throws:    as quantize
/// Accuracy:  one rounding to float, and one to the type of out
/// Cost:      one read of x and one write of out; no allocation for float, otherwise scratch for one head per
///            thread
template <class X, class T, class Threads = this_thread>
void dequantize(quantized_view<X> x, head_view<T> out, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("dequantize", "out", T);
  ROPE_DETAIL_CHECK_THREADS("dequantize", Threads);
  static_assert(!std::is_same_v<T, double>, "dequantize: channels are float, Eigen::half or Eigen::bfloat16");
  detail::check_quantization("dequantize", out, x);
  detail::check_written("dequantize", out);
  detail::dequantize_all(x, out, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(quantize, 1);
ROPE_DETAIL_ASK_FOR_VIEWS_AT(dequantize, 0b10);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ROTATION_QUANTIZED_VIEW_HPP
