// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_FUZZ_BLOCK_WEIGHTS_HPP
#define ROPE_TESTS_FUZZ_BLOCK_WEIGHTS_HPP

/// The weights of a block of attention, and its steps before and after attention, with every product written
/// out.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <rope/block/weights.hpp>

#include "fuzz/support/bytes.hpp"
#include "fuzz/support/check.hpp"
#include "fuzz/support/tokens.hpp"

namespace fuzz {

template <class T>
using token_matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Multiples of 1/64 below 1/2 in magnitude, so that a projection is exact in float.
template <class T>
token_matrix<T> draw_rows(bytes& b, Index rows, Index columns) {
  token_matrix<T> x(rows, columns);
  std::uint64_t state = b.bits(2) + 1;
  for (Index i = 0; i < x.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x(i) = static_cast<T>(static_cast<int>(state >> 58) - 32) / 64;
  }
  return x;
}

/// The weights of a block, which refers to them.
template <class T>
struct block_weights {
  rope::multi_head_shape shape;
  token_matrix<T> q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
  bool norm, bias;

  block_weights(bytes& b, Index heads, Index kv_heads, Index head_dim, Index value_dim, bool self = false)
      : shape(draw_shape(b, heads, kv_heads, head_dim, value_dim, self)),
        q(draw_rows<T>(b, heads * head_dim, shape.model_dim)),
        k(draw_rows<T>(b, kv_heads * head_dim, shape.context_dim)),
        v(draw_rows<T>(b, kv_heads * value_dim, shape.context_dim)),
        o(draw_rows<T>(b, shape.out_dim, heads * value_dim)),
        q_bias(draw_rows<T>(b, 1, q.rows())),
        k_bias(draw_rows<T>(b, 1, k.rows())),
        v_bias(draw_rows<T>(b, 1, v.rows())),
        o_bias(draw_rows<T>(b, 1, o.rows())),
        q_norm(draw_rows<T>(b, 1, head_dim)),
        k_norm(draw_rows<T>(b, 1, head_dim)),
        norm(b.one_in(3)),
        bias(b.coin()) {}

  static rope::multi_head_shape draw_shape(bytes& b, Index heads, Index kv_heads, Index head_dim,
                                           Index value_dim, bool self) {
    rope::multi_head_shape one = {b.between(1, 4), b.between(1, 4), b.between(1, 3), heads,
                                  kv_heads,        head_dim,        value_dim};
    if (self) one.context_dim = one.model_dim;
    return one;
  }

  rope::multi_head_weights<T> weights() const {
    const auto map = [&](const token_matrix<T>& w, const token_matrix<T>& own) {
      return rope::projection<const T>(w.data(), w.rows(), w.cols(), bias ? own.data() : nullptr);
    };
    rope::multi_head_weights<T> all = {
        .q = map(q, q_bias), .k = map(k, k_bias), .v = map(v, v_bias), .o = map(o, o_bias)};
    using norm_map = typename rope::multi_head_weights<T>::norm_map;
    if (norm) {
      new (&all.q_norm) norm_map(q_norm.data(), q_norm.size());
      new (&all.k_norm) norm_map(k_norm.data(), k_norm.size());
    }
    return all;
  }
  rope::multi_head_options options() const {
    return {.heads = shape.heads, .kv_heads = shape.kv_heads, .norm_epsilon = 0.125};
  }
};

/// Row r of x through a weight and a bias.
template <class T>
channels project(const token_matrix<T>& x, Index r, const token_matrix<T>& w, const token_matrix<T>& own,
                 bool bias) {
  channels y;
  for (Index i = 0; i < w.rows(); ++i) {
    wide sum = bias ? static_cast<wide>(own(i)) : wide(0);
    for (Index j = 0; j < w.cols(); ++j) sum += static_cast<wide>(w(i, j)) * static_cast<wide>(x(r, j));
    y.push_back(sum);
  }
  return y;
}

/// Heads over their root mean square. The error is that of float or double, times the error factor of the
/// division.
template <class T>
void normalize(key& k, Index head_dim, const token_matrix<T>& weight) {
  const auto dim = static_cast<std::size_t>(head_dim);
  for (std::size_t head = 0; head < k.exact.size(); head += dim) {
    wide squares = 0;
    for (std::size_t d = 0; d < dim; ++d) squares += k.exact[head + d] * k.exact[head + d];
    const wide root = testing::sqrt(squares / static_cast<wide>(dim) + 0.125L);
    for (std::size_t d = 0; d < dim; ++d)
      k.exact[head + d] *= static_cast<wide>(weight(static_cast<Index>(d))) / root;
  }
  k.error = 16 * tolerance::unit_roundoff<T>();
}

/// The heads of a query against keys and values of kv_heads heads, next to each other.
inline channels attend_heads(const key& query, const std::vector<key>& keys,
                             const std::vector<channels>& values, Index heads, Index kv_heads,
                             std::size_t value_dim) {
  const std::size_t head_dim = query.exact.size() / static_cast<std::size_t>(heads);
  channels attended;
  for (Index h = 0; h < heads; ++h) {
    const auto own = static_cast<std::size_t>(h / (heads / kv_heads));
    std::vector<const wide*> k, v;
    for (std::size_t j = 0; j < keys.size(); ++j) {
      k.push_back(keys[j].exact.data() + own * head_dim);
      v.push_back(values[j].data() + own * value_dim);
    }
    const channels one =
        attend(query.exact.data() + static_cast<std::size_t>(h) * head_dim, head_dim, k, v, value_dim);
    attended.insert(attended.end(), one.begin(), one.end());
  }
  return attended;
}

/// Row i of an output compared with attended heads after the projection.
template <class T>
void check_output(const char* claim, const token_matrix<T>& out, Index i, const block_weights<T>& own,
                  const channels& attended, wide bound) {
  for (Index d = 0; d < own.shape.out_dim; ++d) {
    wide exact = own.bias ? static_cast<wide>(own.o_bias(d)) : wide(0);
    for (std::size_t j = 0; j < attended.size(); ++j)
      exact += static_cast<wide>(own.o(d, static_cast<Index>(j))) * attended[j];
    check(testing::abs(static_cast<wide>(out(i, d)) - exact) <= bound, claim);
  }
}

}  // namespace fuzz

#endif  // ROPE_TESTS_FUZZ_BLOCK_WEIGHTS_HPP
