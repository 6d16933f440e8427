// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ATTENTION_CALL_HPP
#define ROPE_TESTS_ATTENTION_CALL_HPP

/// Calls the library on tensors of the reference: copies them to memory in any order of axes, and reads the
/// result back.

#include <cstdint>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/attention/attention.hpp>

#include "support/attention_reference.hpp"
#include "support/tensor.hpp"

namespace attention_call {

using reference::tensor;

using testing::axes, testing::for_each_element, testing::loaded, testing::place, testing::same_bits,
    testing::stored;

template <class Memory>
auto view(Memory& memory, const tensor& shape, axes order = axes::bshd) {
  switch (order) {
    case axes::bhsd:
      return rope::bhsd(memory.data(), shape.batch, shape.heads, shape.tokens, shape.dim);
    case axes::sbhd:
      return rope::sbhd(memory.data(), shape.tokens, shape.batch, shape.heads, shape.dim);
    default:
      return rope::bshd(memory.data(), shape.batch, shape.tokens, shape.heads, shape.dim);
  }
}

/// Numbers in [-1, 1) that T represents.
template <class T>
tensor random(std::mt19937& generator, tensor shape) {
  for (double& value : shape.values) value = static_cast<double>(static_cast<T>(testing::uniform(generator)));
  return shape;
}

/// Queries, keys and values of one call.
struct operands {
  tensor q, k, v;
};

struct extents {
  long batch, queries, keys, heads, kv_heads, dim, value_dim;
};

template <class T>
operands random_operands(std::mt19937& generator, const extents& e) {
  tensor q = random<T>(generator, {e.batch, e.queries, e.heads, e.dim});
  tensor k = random<T>(generator, {e.batch, e.keys, e.kv_heads, e.dim});
  tensor v = random<T>(generator, {e.batch, e.keys, e.kv_heads, e.value_dim});
  return {std::move(q), std::move(k), std::move(v)};
}

inline rope::attention_options options_of(const reference::attention_rule& rule) {
  return {.scale = rule.scale, .causal = rule.causal, .window = rule.window, .softcap = rule.softcap};
}

/// The contents of an output before a call: a number that no test computes.
inline constexpr double unwritten = -12345;

/// Runs `call` on views of q, k, v and a fresh output, and returns the output.
template <class T, class Call>
tensor output_of(const operands& x, axes order, Call call) {
  const std::vector<T> q = stored<T>(x.q, order), k = stored<T>(x.k, order), v = stored<T>(x.v, order);
  const tensor shape(x.q.batch, x.q.tokens, x.q.heads, x.v.dim, unwritten);
  std::vector<T> out = stored<T>(shape, order);
  call(view(q, x.q, order), view(k, x.k, order), view(v, x.v, order), view(out, shape, order));
  return loaded(out, shape, order);
}

/// The positions of queries whose last one is aligned with the last key. They are listed if the first ones
/// are before key 0, because the library does not count them there.
inline std::vector<std::int64_t> positions_before_keys(long queries, long keys) {
  std::vector<std::int64_t> positions;
  for (long i = 0; i < queries && queries > keys; ++i) positions.push_back(keys - queries + i);
  return positions;
}

template <class T>
tensor attention(const operands& x, const reference::attention_rule& rule, axes order = axes::bshd) {
  const std::vector<std::int64_t> positions = positions_before_keys(x.q.tokens, x.k.tokens);
  rope::attention_options options = options_of(rule);
  options.query_positions = positions;
  return output_of<T>(x, order,
                      [&](auto q, auto k, auto v, auto out) { rope::attention(q, k, v, out, options); });
}

/// The arithmetic type of channels of type T.
template <class T>
using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The largest error of the library against the reference, as a multiple of the allowed error, for randomly
/// drawn operands.
template <class T>
double attention_error(const operands& x, const reference::attention_rule& rule, const tensor& got) {
  std::vector<double> deviation;
  const tensor exact = reference::attention(x.q, x.k, x.v, rule, &deviation);
  return reference::worst_deviation<T, arithmetic<T>>(got.values, exact.values, deviation,
                                                      static_cast<double>(x.k.tokens));
}

}  // namespace attention_call

#endif  // ROPE_TESTS_ATTENTION_CALL_HPP
