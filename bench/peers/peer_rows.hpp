// SPDX-License-Identifier: MIT
#ifndef ROPE_BENCH_PEERS_PEER_ROWS_HPP
#define ROPE_BENCH_PEERS_PEER_ROWS_HPP

#include "../support.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

/// Shared by the programs of all peers: equal operands in the same memory, one thread, alternate calls. A
/// ratio is the peer's time divided by ours. Before they are timed, both must give the same numbers.

namespace peers {

using bench::Index;
using bench::row;

/// Numbers in [-0.48, 0.48], the same in every run.
template <class T>
void fill(T* x, Index count, int seed) {
  for (Index i = 0; i < count; ++i)
    x[i] = static_cast<T>(0.01f * static_cast<float>((i + seed) * 7919 % 97) - 0.48f);
}

/// Ends the program unless two lists are equal up to `bound`.
template <class T>
void must_agree(const std::string& name, const T* ours, const T* theirs, Index count, double bound) {
  double worst = 0;
  for (Index i = 0; i < count; ++i) {
    const double off = std::abs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]));
    if (!(off <= worst)) worst = off >= 0 ? off : INFINITY;  // a NaN counts as infinite
  }
  if (worst <= bound) return;
  std::fprintf(stderr, "%s: the peer's numbers differ by %g, more than %g\n", name.c_str(), worst, bound);
  std::exit(1);
}

/// Times a call of the peer and a call of rope.
inline void time_alternately(row& of, const auto& theirs, const auto& ours) {
  of.time({[&] { ours(); }}, {{"peer", {{[&] { theirs(); }}}}});
}

inline void add(const std::string& name, const auto& body) {
  bench::add("peer", name, [=](row& of) { body(of, name); });
}

/// Rotation of 1, 512 and 4096 tokens of 32 heads of 128.
///
/// \param rotate  rotate(row, name, tokens, heads, head_dim)
template <class Layout, class T>
void add_rotations(const auto& rotate) {
  const std::string end = std::string("/") + bench::layout_name<Layout>() + "/" + bench::type_name<T>();
  for (const Index tokens : {1, 512, 4096})
    add("rotate/" + std::to_string(tokens) + "x32x128" + end,
        [=](row& of, const std::string& name) { rotate(of, name, tokens, Index{32}, Index{128}); });
}

/// Tokens and heads of a call of causal attention. The queries are the last tokens of the keys.
struct attention_shape {
  Index queries, keys, heads, kv_heads, head_dim;
};

/// Decoding and prefill.
///
/// \param attend  attend(row, name, shape)
template <class T>
void add_attention(const auto& attend) {
  const std::string end = std::string("/") + bench::type_name<T>();
  const auto add_shape = [&](const std::string& what, const attention_shape& shape) {
    add(what + "/" + std::to_string(shape.queries) + "x" + std::to_string(shape.keys) + "x" +
            std::to_string(shape.heads) + "+" + std::to_string(shape.kv_heads) + "x" +
            std::to_string(shape.head_dim) + end,
        [=](row& of, const std::string& name) { attend(of, name, shape); });
  };
  for (const Index keys : {512, 4096, 16384}) add_shape("decode", {1, keys, 32, 8, 128});
  add_shape("prefill", {1024, 1024, 8, 8, 64});
  add_shape("prefill", {2048, 2048, 32, 8, 128});
}

}  // namespace peers

#endif  // ROPE_BENCH_PEERS_PEER_ROWS_HPP
