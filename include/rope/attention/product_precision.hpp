// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_PRODUCT_PRECISION_HPP
#define ROPE_ATTENTION_PRODUCT_PRECISION_HPP

#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/config.hpp>

/// The precision of the products in attention.

namespace rope::inline ROPE_ABI {

/// The precision in which attention multiplies queries by keys, and weights by values. Sums are in the
/// arithmetic type unless stated otherwise.
enum class product_precision {
  /// The arithmetic type: float, or double for double.
  full,
  /// bfloat16, if queries, keys and values are bfloat16. A prefill takes 0.55 to 0.7 of the time of full with
  /// AVX512_BF16, but 1.2 to 1.4 with AVX2. Scores are as exact as in full. Each weight is rounded, by at
  /// most 2^-8 of itself, which adds at most 2^-8 sum_j w_ij |v_j| to the error of an output. Numbers below
  /// 2^-126 may count as 0. Gradients and probabilities are computed in full.
  bfloat16,
  /// 16-bit queries and weights times the stored 8-bit keys and values, if these are quantized and no table
  /// rotates them. Time relative to full: 0.5 to 0.9 for a decoding step with AVX512_VNNI, and 0.7 with SSE2
  /// or 0.73 to 0.77 with AVX2 for many queries. The error of a query channel is at most 2^-15.9 of the
  /// largest channel of its head (2^-24.9 head_dim from head_dim 513 on). The error of a weight times the
  /// scale of its value is at most 2^-15.9 of the largest such product of 128 keys. Both are far below the
  /// rounding to 8 bits. Sums of products are exact integers for every 128 keys. head_dim is at most 65536.
  integers,
};

namespace detail {

/// The largest head_dim for integer products. Queries then have about 256 steps of either sign, and more with
/// a smaller head_dim.
inline constexpr Index max_integer_products = 65536;

/// \tparam T        channels of queries and outputs
/// \tparam C        channels of keys and values
/// \tparam rotates  whether keys are rotated while they are read
///
/// Throws:  std::invalid_argument if these channel types or this head_dim do not support the products
template <class T, class C, bool rotates>
void check_products(const char* function, product_precision products, Index head_dim) {
  if (products == product_precision::full) return;
  if (products == product_precision::integers) {
    if (!is_quantized<C>)
      throw_invalid(
          function,
          "products of integers need quantized keys and values; set products to product_precision::full");
    if (rotates)
      throw_invalid(function,
                    "products of integers need keys that were turned before they were quantized; set "
                    "products to product_precision::full");
    if (head_dim > max_integer_products)
      throw_invalid(function, "products of integers need a head_dim of at most ", max_integer_products,
                    ", got ", head_dim);
  } else if (!std::is_same_v<T, Eigen::bfloat16> || !std::is_same_v<C, Eigen::bfloat16>)
    throw_invalid(function,
                  "products in bfloat16 need queries, keys, values and outputs of bfloat16; set products to "
                  "product_precision::full");
}

}  // namespace detail
}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_PRODUCT_PRECISION_HPP
