// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_NARROW_PRODUCTS_HPP
#define ROPE_TESTS_NARROW_PRODUCTS_HPP

/// The expected error of narrow products compared with full precision: weights, and for integers also
/// queries, are rounded before they are multiplied.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/quantized.hpp"
#include "support/tolerance.hpp"

namespace narrow_products {

using attention_call::extents;
using attention_call::operands;
using reference::tensor;

/// Adds the expected error of rounding weights to bfloat16: each by at most 2^-8 of itself, independently,
/// while the sum of weights is not rounded. The error of an output sum_j w_j x_j is then sum_j w_j e_j x_j.
inline void add_bfloat16_weights(const features::setting& s, const operands& x, features::result& exact) {
  const auto [batch, queries, keys, heads, kv_heads, dim, value_dim] = s.e;
  const double in_u = std::ldexp(1.0, -8) / static_cast<double>(tolerance::unit_roundoff<float>());
  std::vector<double> squares(static_cast<std::size_t>(value_dim));
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        std::fill(squares.begin(), squares.end(), 0.0);
        const auto row = static_cast<std::size_t>(((b * heads + h) * queries + i) * keys);
        for (long j = 0; j < keys; ++j) {
          const double weight = exact.weights[row + static_cast<std::size_t>(j)];
          if (weight == 0) continue;
          const double* value = &x.v.values[static_cast<std::size_t>(
              ((b * keys + j) * kv_heads + h / (heads / kv_heads)) * value_dim)];
          for (double& sum : squares) {
            sum += weight * weight * *value * *value;
            ++value;
          }
        }
        double* deviation =
            &exact.out_deviation[static_cast<std::size_t>(((b * queries + i) * heads + h) * value_dim)];
        for (const double sum : squares) {
          *deviation = std::sqrt(*deviation * *deviation + in_u * in_u / 3 * sum);
          ++deviation;
        }
      }
}

inline constexpr double integer_steps = 32767;  // of the largest number of 16 bits

/// The step of the integers of a query head with this largest channel.
inline double step_of(double largest, long dim) {
  return largest / std::min(integer_steps, std::floor(2147483647.0 / 128 / static_cast<double>(dim)));
}

/// Queries of float, and quantized keys and values, for integer products.
struct integer_operands {
  tensor q;
  quantized::heads k, v;

  integer_operands(std::mt19937& generator, const extents& e)
      : q(attention_call::random<float>(generator, {e.batch, e.queries, e.heads, e.dim})),
        k(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.dim)),
        v(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.value_dim)) {
    // No channel is close enough to the midpoint of two integers for a rounding to decide.
    for_each_channel([](double step, double& channel) {
      const double distance = std::abs(channel / step - std::nearbyint(channel / step));
      if (distance > 0.48) channel = static_cast<double>(static_cast<float>(channel - 0.1 * step));
    });
  }

  /// Calls visit(step, channel) for every channel of the queries except the largest of its head.
  template <class Visit>
  void for_each_channel(const Visit& visit) {
    for (long b = 0; b < q.batch; ++b)
      for (long t = 0; t < q.tokens; ++t)
        for (long h = 0; h < q.heads; ++h) {
          double largest = 0;
          for (long d = 0; d < q.dim; ++d) largest = std::max(largest, std::abs(q(b, t, h, d)));
          for (long d = 0; d < q.dim; ++d)
            if (std::abs(q(b, t, h, d)) < largest) visit(step_of(largest, q.dim), q(b, t, h, d));
        }
  }

  /// The operands of the products: the dequantized keys and values, and queries rounded to integers times a
  /// step.
  operands numbers() const {
    integer_operands rounded = *this;
    rounded.for_each_channel(
        [](double step, double& channel) { channel = step * std::nearbyint(channel / step); });
    return {rounded.q, k.numbers(), v.numbers()};
  }
};

/// Adds the expected error of rounding a weight w_j times the scale of its value. Within a tile of 128 keys
/// every such number has an independent error of a step of the largest over sqrt(12), multiplied by the
/// integers of its value.
inline void add_integer_weights(const features::setting& s, const integer_operands& x,
                                features::result& exact) {
  constexpr long tile = 128;
  const auto [batch, queries, keys, heads, kv_heads, dim, value_dim] = s.e;
  const auto u = static_cast<double>(tolerance::unit_roundoff<float>());
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        const long kv = h / (heads / kv_heads);
        const double* weights =
            &exact.weights[static_cast<std::size_t>(((b * heads + h) * queries + i) * keys)];
        std::vector<double> squares(static_cast<std::size_t>(value_dim));
        for (long begin = 0; begin < keys; begin += tile) {
          const long end = std::min(begin + tile, keys);
          double largest = 0;
          for (long j = begin; j < end; ++j)
            largest = std::max(largest, weights[j] * std::abs(x.v.scales(b, j, kv, 0)));
          const double step = largest / integer_steps;
          for (long j = begin; j < end; ++j) {
            if (!(weights[j] > 0)) continue;
            const double* value =
                &x.v.integers.values[static_cast<std::size_t>(((b * keys + j) * kv_heads + kv) * value_dim)];
            for (double& sum : squares) {
              sum += step * step / 12 * *value * *value;
              ++value;
            }
          }
        }
        for (long c = 0; c < value_dim; ++c) {
          double& deviation =
              exact.out_deviation[static_cast<std::size_t>(((b * queries + i) * heads + h) * value_dim + c)];
          deviation = std::sqrt(deviation * deviation + squares[static_cast<std::size_t>(c)] / (u * u));
        }
      }
}

}  // namespace narrow_products

#endif  // ROPE_TESTS_NARROW_PRODUCTS_HPP
