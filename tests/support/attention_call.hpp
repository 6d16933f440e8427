// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ATTENTION_CALL_HPP
#define ROPE_TESTS_ATTENTION_CALL_HPP

/// Calls the library on tensors of the reference: puts them in memory in any order of axes, and reads the
/// result back.

#include <cstring>  // std::memcmp
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include <rope/attention/attention.hpp>

#include "support/attention_reference.hpp"

namespace attention_call {

using reference::tensor;

/// The axes of a tensor in memory, from slowest to fastest.
enum class axes { bshd, bhsd, sbhd };

/// The place of an element among those of the tensor, spelled out so that a wrong stride of a view shows.
inline std::size_t place(const tensor& x, axes order, long b, long t, long h, long d) {
  switch (order) {
    case axes::bshd:
      return static_cast<std::size_t>(((b * x.tokens + t) * x.heads + h) * x.dim + d);
    case axes::bhsd:
      return static_cast<std::size_t>(((b * x.heads + h) * x.tokens + t) * x.dim + d);
    case axes::sbhd:
      return static_cast<std::size_t>(((t * x.batch + b) * x.heads + h) * x.dim + d);
  }
  return 0;
}

template <class Visit>
void for_each_element(const tensor& x, Visit visit) {
  for (long b = 0; b < x.batch; ++b)
    for (long t = 0; t < x.tokens; ++t)
      for (long h = 0; h < x.heads; ++h)
        for (long d = 0; d < x.dim; ++d) visit(b, t, h, d);
}

template <class T>
std::vector<T> stored(const tensor& x, axes order = axes::bshd) {
  std::vector<T> memory(x.values.size());
  for_each_element(x, [&](long b, long t, long h, long d) {
    memory[place(x, order, b, t, h, d)] = static_cast<T>(x(b, t, h, d));
  });
  return memory;
}

/// `memory` as a tensor of the shape of `shape`.
template <class T>
tensor loaded(const std::vector<T>& memory, tensor shape, axes order = axes::bshd) {
  for_each_element(shape, [&](long b, long t, long h, long d) {
    shape(b, t, h, d) = static_cast<double>(memory[place(shape, order, b, t, h, d)]);
  });
  return shape;
}

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
  for (double& value : shape.values)
    value = static_cast<double>(static_cast<T>(static_cast<double>(generator()) * 0x1p-31 - 1));
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

/// What an output holds before a call: a number that no test computes.
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

template <class T>
tensor attention(const operands& x, const reference::attention_rule& rule, axes order = axes::bshd) {
  return output_of<T>(
      x, order, [&](auto q, auto k, auto v, auto out) { rope::attention(q, k, v, out, options_of(rule)); });
}

/// What arithmetic on channels of type T is done in.
template <class T>
using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The largest error of the library against the reference, as a multiple of what is allowed.
template <class T>
double attention_error(const operands& x, const reference::attention_rule& rule, const tensor& got) {
  return reference::worst_error<T>(got, reference::attention(x.q, x.k, x.v, rule),
                                   reference::attention_bound<arithmetic<T>>(x.q, x.k, x.v, rule));
}

template <class X>
bool same_bits(const std::vector<X>& a, const std::vector<X>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(X)) == 0);
}
inline bool same_bits(const tensor& a, const tensor& b) { return same_bits(a.values, b.values); }

}  // namespace attention_call

#endif  // ROPE_TESTS_ATTENTION_CALL_HPP
