// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_QUANTIZED_HPP
#define ROPE_TESTS_QUANTIZED_HPP

/// Quantized keys and values of tests: drawn or rounded, copied to memory in any order of axes, and the bound
/// of the error of attention to them.

#include <cstddef>
#include <cstdint>
#include <random>
#include <rope/rotation/quantized_view.hpp>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace quantized {

using attention_call::operands;
using reference::tensor;
using testing::axes;

/// Integers [batch, tokens, heads, dim] and scales [batch, tokens, heads, 1].
struct heads {
  testing::tensor<double> integers, scales;

  /// The numbers that they represent, exactly: a product of 8 and 24 bits.
  tensor numbers() const {
    tensor result = integers;
    testing::for_each_element(
        result, [&](long b, long t, long h, long d) { result(b, t, h, d) *= scales(b, t, h, 0); });
    return result;
  }
};

/// Integers in [-128, 127] with scales in [2^-8, 2^-7) of either sign, so that numbers are below 1.
inline heads random_heads(std::mt19937& generator, long batch, long tokens, long count, long dim) {
  heads x = {tensor(batch, tokens, count, dim), tensor(batch, tokens, count, 1)};
  for (double& value : x.integers.values) value = static_cast<double>(generator() % 256) - 128;
  for (double& value : x.scales.values) {
    const double u = testing::uniform(generator);
    value = static_cast<double>(static_cast<float>((u < 0 ? u - 1 : u + 1) / 256));
  }
  return x;
}

/// Heads in memory, in an order of axes for integers and one for scales. If `framed`, other tokens and heads
/// are around them.
class memory {
 public:
  memory(const heads& x, axes order, axes scale_order, bool framed = false)
      : integers_(frame(x.integers, framed, 77)), scales_(frame(x.scales, framed, 1e30)), framed_(framed) {
    data_ = testing::stored<std::int8_t>(integers_, order);
    scale_data_ = testing::stored<float>(scales_, scale_order);
    order_ = order;
    scale_order_ = scale_order;
  }

  rope::quantized_view<const std::int8_t> view() const {
    const auto like = attention_call::view(scale_data_, scales_, order_);
    rope::quantized_view<const std::int8_t> x = {data_.data(),
                                                 like.batch,
                                                 like.tokens,
                                                 like.heads,
                                                 integers_.dim,
                                                 like.batch_stride * integers_.dim,
                                                 like.token_stride * integers_.dim,
                                                 like.head_stride * integers_.dim,
                                                 attention_call::view(scale_data_, scales_, scale_order_)};
    return framed_ ? x.token_range(1, x.tokens - 2).head_range(2, x.heads - 3) : x;
  }

 private:
  static tensor frame(const tensor& inner, bool framed, double around) {
    if (!framed) return inner;
    tensor result(inner.batch, inner.tokens + 2, inner.heads + 3, inner.dim, around);
    testing::for_each_element(
        inner, [&](long b, long t, long h, long d) { result(b, t + 1, h + 2, d) = inner(b, t, h, d); });
    return result;
  }

  tensor integers_, scales_;
  bool framed_;
  axes order_ = axes::bshd, scale_order_ = axes::bshd;
  std::vector<std::int8_t> data_;
  std::vector<float> scale_data_;
};

/// The bound of the difference between attention of float queries to quantized heads and exact attention to
/// the numbers that they represent: the bound of attention to floats, and one more rounding of every score
/// (of the score itself, or of the channels of a key) and of every weighted value. `x` has the numbers.
inline double bound(const features::setting& s, const operands& x) {
  const auto u = static_cast<double>(tolerance::unit_roundoff<float>());
  const auto dim = static_cast<double>(s.e.dim);
  const double scale =
      s.options.scale != 0 ? testing::abs(s.options.scale) : 1 / static_cast<double>(testing::sqrt(dim));
  const double score = scale * dim * x.q.largest() * x.k.largest() * u;
  return features::bounds<float>(s, x).out + 1.01 * x.v.largest() * (4 * score + u) / (1 - s.options.dropout);
}

}  // namespace quantized

#endif  // ROPE_TESTS_QUANTIZED_HPP
