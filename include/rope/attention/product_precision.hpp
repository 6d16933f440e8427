// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_PRODUCT_PRECISION_HPP
#define ROPE_ATTENTION_PRODUCT_PRECISION_HPP

#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/config.hpp>

/// In which numbers attention multiplies.

namespace rope::inline ROPE_ABI {

/// The numbers in which attention multiplies queries with keys, and weights with values. Sums are in the
/// arithmetic type where nothing else is said.
enum class product_precision {
  /// The arithmetic type: float, or double for double.
  full,
  /// bfloat16, where queries, keys and values are bfloat16: with AVX512_BF16 a prefill takes 0.55 to 0.7 of
  /// the time, with AVX2 1.2 to 1.4 of it. Scores are as exact as in full; each weight is rounded, by at most
  /// 2^-8 of itself, which adds at most 2^-8 sum_j w_ij |v_j| to the error of an output. Numbers below 2^-126
  /// may count as 0. Gradients and probabilities are computed in full.
  bfloat16,
  /// Integers of 16 bits times those of 8 that keys and values are stored as, where these are quantized and
  /// no table turns them. Of the time that full products take: 0.5 to 0.9 for a step with AVX512_VNNI, and
  /// for many queries 0.7 with SSE2 and 0.73 to 0.77 with AVX2. A channel of a query is off by at most
  /// 2^-15.9 of the largest of its head (2^-24.9 head_dim from head_dim 513 on), and a weight times the scale
  /// of its value by at most 2^-15.9 of the largest of 128 keys: far below what storing 8 bits rounds. Sums
  /// of products are exact integers for every 128 keys. head_dim is at most 65536.
  integers,
};

namespace detail {

/// The most channels of a head for products of integers: queries have some 256 steps of either sign then, and
/// more where channels are fewer.
inline constexpr Index max_integer_products = 65536;

/// \tparam T        channels of queries and outputs
/// \tparam C        channels of keys and values
/// \tparam rotates  whether keys are turned while they are read
///
/// Throws:  std::invalid_argument if such channels, or heads of this size, have no such products
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
