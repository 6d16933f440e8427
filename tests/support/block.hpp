// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_BLOCK_HPP
#define ROPE_TESTS_BLOCK_HPP

/// A random attention block, in memory of types of the library and for the reference.

#include <cstddef>
#include <cstdint>
#include <rope/block/multi_head_attention.hpp>
#include <type_traits>
#include <vector>

#include "support/block_reference.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace testing {

template <class T>
using rows_of = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using row_of = Eigen::Matrix<T, 1, Eigen::Dynamic>;

template <class T>
rows_of<T> random_rows(random& numbers, rope::Index rows, rope::Index cols, double size = 0.5) {
  rows_of<T> x(rows, cols);
  for (rope::Index r = 0; r < rows; ++r)
    for (rope::Index c = 0; c < cols; ++c) x(r, c) = static_cast<T>(size * (2 * numbers.unit() - 1));
  return x;
}

template <class X>
reference::matrix exact(const X& x) {
  reference::matrix y{static_cast<std::size_t>(x.rows()), static_cast<std::size_t>(x.cols()), {}};
  for (rope::Index r = 0; r < x.rows(); ++r)
    for (rope::Index c = 0; c < x.cols(); ++c) y.values.push_back(static_cast<reference::number>(x(r, c)));
  return y;
}

/// The optional parts of a block besides its projections.
struct block_kind {
  rope::Index heads = 4, kv_heads = 2, head_dim = 6, value_dim = 6, model_dim = 10, context_dim = 10,
              out_dim = 10;
  bool bias = false, norm = false;
  double norm_offset = 0;
};

/// Owns the weights of a block.
template <class T>
struct random_block {
  block_kind kind;
  rows_of<T> q, k, v, o;
  row_of<T> q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;

  random_block(const block_kind& of, std::uint64_t seed) : kind(of) {
    random numbers(seed);
    q = random_rows<T>(numbers, of.heads * of.head_dim, of.model_dim);
    k = random_rows<T>(numbers, of.kv_heads * of.head_dim, of.context_dim);
    v = random_rows<T>(numbers, of.kv_heads * of.value_dim, of.context_dim);
    o = random_rows<T>(numbers, of.out_dim, of.heads * of.value_dim);
    if (of.bias) {
      q_bias = random_rows<T>(numbers, 1, q.rows());
      k_bias = random_rows<T>(numbers, 1, k.rows());
      v_bias = random_rows<T>(numbers, 1, v.rows());
      o_bias = random_rows<T>(numbers, 1, o.rows());
    }
    if (of.norm) {
      q_norm = random_rows<T>(numbers, 1, of.head_dim);
      k_norm = random_rows<T>(numbers, 1, of.head_dim);
    }
  }

  static rope::projection<const T> linear(const rows_of<T>& weight, const row_of<T>& bias) {
    return {weight.data(), weight.rows(), weight.cols(), bias.size() == 0 ? nullptr : bias.data()};
  }
  rope::multi_head_weights<T> weights() const {
    return {.q = linear(q, q_bias),
            .k = linear(k, k_bias),
            .v = linear(v, v_bias),
            .o = linear(o, o_bias),
            .q_norm = {q_norm.data(), q_norm.size()},
            .k_norm = {k_norm.data(), k_norm.size()}};
  }
  rope::multi_head_options options() const {
    return {.heads = kind.heads,
            .kv_heads = kind.kv_heads,
            .norm_epsilon = 1e-5,
            .norm_offset = kind.norm_offset};
  }

  reference::block reference() const {
    reference::block m;
    const auto size = [](rope::Index x) { return static_cast<std::size_t>(x); };
    m.heads = size(kind.heads);
    m.kv_heads = size(kind.kv_heads);
    m.head_dim = size(kind.head_dim);
    m.value_dim = size(kind.value_dim);
    m.q = {exact(q), exact(q_bias).values};
    m.k = {exact(k), exact(k_bias).values};
    m.v = {exact(v), exact(v_bias).values};
    m.o = {exact(o), exact(o_bias).values};
    m.q_norm = exact(q_norm).values;
    m.k_norm = exact(k_norm).values;
    m.epsilon = 1e-5L;
    m.offset = kind.norm_offset;
    return m;
  }
  /// This block, with rotation.
  template <class Layout>
  reference::block reference(const rope::frequencies& f) const {
    reference::block m = reference();
    for (rope::Index i = 0; i < f.pairs(); ++i) m.inv_freq.push_back(f.inv_freq()(i, 0));
    m.factor = f.attention_factor();
    m.pair_map = std::is_same_v<Layout, rope::interleaved> ? reference::interleaved : reference::half_split;
    return m;
  }
};

/// The bound of the error of an output, in units of the largest output: a channel is the end of sums of
/// model_dim, head_dim, keys and heads * value_dim terms, at most 100 roundings together. Those before the
/// softmax are amplified by twice the largest score, which is below 20 for weights in [-0.5, 0.5).
template <class T>
double block_bound() {
  return 100 * 40 * static_cast<double>(tolerance::unit_roundoff<T>());
}

/// The largest difference of the output of a row of the batch from the reference, in units of the bound.
/// Infinite if a number is NaN.
template <class T>
double worst(const rows_of<T>& out, rope::Index first, const reference::matrix& expected) {
  reference::number largest = 0, error = 0;
  for (std::size_t r = 0; r < expected.rows; ++r)
    for (std::size_t c = 0; c < expected.cols; ++c) {
      largest = (std::max)(largest, testing::abs(expected(r, c)));
      const reference::number difference =
          testing::abs(static_cast<reference::number>(
                           out(first + static_cast<rope::Index>(r), static_cast<rope::Index>(c))) -
                       expected(r, c));
      error = difference <= error ? error : difference >= 0 ? difference : reference::number(1e30);
    }
  return static_cast<double>(error) / (block_bound<T>() * static_cast<double>(largest));
}

}  // namespace testing

#endif  // ROPE_TESTS_BLOCK_HPP
