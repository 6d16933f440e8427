// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_ATTENTION_OPERANDS_HPP
#define ROPE_BENCH_ATTENTION_OPERANDS_HPP

#include "../support.hpp"

#include <functional>
#include <string>

/// The shapes and the memory of timed calls of attention.

namespace bench {

struct shape {
  Index queries, keys, heads, kv_heads, head_dim;

  /// Multiply-adds of the visible half: scores and weighted values.
  double flops() const {
    const double seen =
        static_cast<double>(queries) * (static_cast<double>(keys) - static_cast<double>(queries) / 2 + 0.5);
    return 4.0 * static_cast<double>(heads * head_dim) * seen;
  }
  /// Multiply-adds of the backward pass: scores, and gradients with respect to weights, queries, keys and
  /// values.
  double backward_flops() const { return 2.5 * flops(); }
  std::string name() const {
    return std::to_string(queries) + "x" + std::to_string(keys) + "x" + std::to_string(heads) + "+" +
           std::to_string(kv_heads) + "x" + std::to_string(head_dim);
  }
};

/// The memory of one call. If `cached`, keys and values have the order of kv_cache, [batch, heads, tokens,
/// head_dim], otherwise the order of activations.
struct operands {
  operands(const shape& of, bool cached)
      : s(of),
        q_(channels(s.queries * s.heads * s.head_dim)),
        k_(channels(s.keys * s.kv_heads * s.head_dim)),
        v_(channels(s.keys * s.kv_heads * s.head_dim)),
        out_(channels(s.queries * s.heads * s.head_dim)),
        q(rope::bshd(q_.data(), 1, s.queries, s.heads, s.head_dim)),
        k(cached ? rope::bhsd(k_.data(), 1, s.kv_heads, s.keys, s.head_dim)
                 : rope::bshd(k_.data(), 1, s.keys, s.kv_heads, s.head_dim)),
        v(k),
        out(rope::bshd(out_.data(), 1, s.queries, s.heads, s.head_dim)),
        table(rope::frequencies(s.head_dim), s.keys) {
    v.data = v_.data();
  }

  template <class Threads = rope::this_thread>
  void attend(const Threads& threads = {}) const {
    rope::attention(q, k, v, out, {}, threads);
  }
  void rotate_and_attend() const { rope::attention<rope::half_split>(q, k, v, out, table); }

  /// A read of every key and value.
  void read() const {
    bench::read(k_.data(), k_.size());
    bench::read(v_.data(), v_.size());
  }

  shape s;
  rope::number_array<float> q_, k_, v_, out_;
  rope::head_view<float> q, k, v, out;
  rope::frequency_table<float> table;
};

/// A row called what/shape/threads.
inline void add(const std::string& group, const std::string& what, const shape& s, int threads,
                const std::function<void(row&)>& body) {
  add(group, what + "/" + s.name() + "/" + std::to_string(threads) + (threads == 1 ? " thread" : " threads"),
      body);
}

}  // namespace bench

#endif  // ROPE_BENCH_ATTENTION_OPERANDS_HPP
