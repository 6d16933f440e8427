// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_QUANTIZE_HPP
#define ROPE_ROTATION_QUANTIZE_HPP

#include <type_traits>

#include <rope/base/channels.hpp>
#include <rope/base/message.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/channels_16_bit.hpp>  // rounded
#include <rope/base/workspace.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/view_checks.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>

/// Heads rounded to integers of 8 bits with one scale per token and head, and back.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Views of one shape, with memory where it has elements.
///
/// Throws:  std::invalid_argument, std::length_error
template <class X, class T>
void check_quantization(const char* function, const head_view<X>& x, const quantized_view<T>& integers) {
  check_view(function, x);
  check_quantized(function, integers);
  if (x.batch != integers.batch || x.tokens != integers.tokens || x.heads != integers.heads ||
      x.head_dim != integers.head_dim)
    ROPE_THROW(std::invalid_argument,
               message(function, ": both views must have the same shape, got [", x.batch, ", ", x.tokens,
                       ", ", x.heads, ", ", x.head_dim, "] and [", integers.batch, ", ", integers.tokens,
                       ", ", integers.heads, ", ", integers.head_dim, "]"));
  check_memory(function, x);
}

/// One head of a checked view.
template <class X>
void quantize_head(const X* x, Index count, std::int8_t* integers, float* scale) {
  if constexpr (std::is_same_v<X, float>) {
    *scale = quantize_channels(x, count, integers);
  } else {
    struct quantized_numbers {};
    float* wide = workspace<quantized_numbers, float>(count);
    widen(x, count, wide);
    *scale = quantize_channels(wide, count, integers);
  }
}

/// Views of one shape that are checked.
template <class X>
void quantize_checked(const head_view<X>& x, const quantized_view<std::int8_t>& out) {
  for (Index b = 0; b < x.batch; ++b)
    for (Index t = 0; t < x.tokens; ++t)
      for (Index h = 0; h < x.heads; ++h)
        quantize_head<std::remove_const_t<X>>(x.at(b, t, h), x.head_dim, out.at(b, t, h),
                                              out.scale_at(b, t, h));
}

}  // namespace detail

/// Rounds every head to integers times one scale.
///
///     scale = max_d |x_d| / 127,   i_d = x_d / scale to the nearest, ties to even
///
/// \param x    [batch, tokens, heads, head_dim], of float or a 16-bit type, which is widened
/// \param out  of the same shape
///
/// A head with a NaN or an infinity gets a scale of NaN: in attention it reaches exactly the queries that see
/// it. A head below 2^-118 in magnitude gets zeros and a scale of 0, as does one of zeros.
///
/// Requires:  x and out share no memory
/// Throws:    std::invalid_argument if the shapes differ or a view has no memory; out is then unchanged
/// Accuracy:  |x_d - scale i_d| <= scale (1/2 + 2^-15), so at most max |x| / 253.9; below 2^-118 in magnitude
///            at most that (tests/rotation/quantize.test.cpp)
/// Source:    symmetric rounding per token and head, as in Xiao et al. 2023, SmoothQuant, arXiv:2211.10438
template <class X, class T>
void quantize(head_view<X> x, quantized_view<T> out) {
  static_assert(!std::is_same_v<std::remove_const_t<X>, double>,
                "quantize: channels are float, Eigen::half or Eigen::bfloat16");
  static_assert(!std::is_const_v<T>, "quantize: out is read-only");
  detail::check_quantization("quantize", x, out);
  detail::quantize_checked(x, out);
}

/// The numbers that integers and scales stand for.
///
///     out_d = scale i_d
///
/// \param x    [batch, tokens, heads, head_dim]
/// \param out  of the same shape, of float or a 16-bit type
///
/// Requires:  x and out share no memory
/// Throws:    as quantize
/// Accuracy:  one rounding to float, and one to the type of out
template <class X, class T>
void dequantize(quantized_view<X> x, head_view<T> out) {
  static_assert(!std::is_same_v<T, double>, "dequantize: channels are float, Eigen::half or Eigen::bfloat16");
  static_assert(!std::is_const_v<T>, "dequantize: out is read-only");
  detail::check_quantization("dequantize", out, x);
  struct dequantized_numbers {};
  float* wide = detail::workspace<dequantized_numbers, float>(std::is_same_v<T, float> ? 0 : x.head_dim);
  for (Index b = 0; b < x.batch; ++b)
    for (Index t = 0; t < x.tokens; ++t)
      for (Index h = 0; h < x.heads; ++h) {
        const float scale = detail::usable_scale(*x.scale_at(b, t, h));
        if constexpr (std::is_same_v<T, float>) {
          detail::dequantize_channels(x.at(b, t, h), x.head_dim, scale, out.at(b, t, h));
        } else {
          detail::dequantize_channels(x.at(b, t, h), x.head_dim, scale, wide);
          for (Index d = 0; d < x.head_dim; ++d) out.at(b, t, h)[d] = detail::rounded<T>(wide[d]);
        }
      }
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_QUANTIZE_HPP
