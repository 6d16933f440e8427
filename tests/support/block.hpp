// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_BLOCK_HPP
#define ROPE_TESTS_BLOCK_HPP

/// A random attention block, in memory of types of the library and for the reference, memory for its
/// gradients, the tested blocks, and small pieces of the reference's arguments.

#include <cstddef>
#include <cstdint>
#include <rope/attention/dropout.hpp>
#include <rope/block/gradient.hpp>
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

/// Memory for every gradient of a block, for self-attention if `keys` is empty.
template <class T>
struct memory_of_gradients {
  rows_of<T> x, context, q, k, v, o;
  row_of<T> q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;

  memory_of_gradients(const random_block<T>& block, const rows_of<T>& tokens, const rows_of<T>& keys) {
    const auto like = [](auto& memory, const auto& of) {
      memory = std::remove_reference_t<decltype(memory)>::Constant(of.rows(), of.cols(), -77);
    };
    like(x, tokens);
    like(context, keys);
    like(q, block.q), like(k, block.k), like(v, block.v), like(o, block.o);
    like(q_bias, block.q_bias), like(k_bias, block.k_bias), like(v_bias, block.v_bias),
        like(o_bias, block.o_bias);
    like(q_norm, block.q_norm), like(k_norm, block.k_norm);
  }
  rope::multi_head_gradients<T> all() {
    using rope::projection;
    const auto linear = [](auto& weight, auto& bias) {
      return projection<T>(typename projection<T>::weight_map(weight.data(), weight.rows(), weight.cols()),
                           typename projection<T>::bias_map(bias.data(), bias.size()));
    };
    return {.x = {x.data(), x.rows(), x.cols()},
            .context = {context.data(), context.rows(), context.cols()},
            .weights = {.q = linear(q, q_bias),
                        .k = linear(k, k_bias),
                        .v = linear(v, v_bias),
                        .o = linear(o, o_bias),
                        .q_norm = {q_norm.data(), q_norm.size()},
                        .k_norm = {k_norm.data(), k_norm.size()}}};
  }
  friend bool operator==(const memory_of_gradients&, const memory_of_gradients&) = default;
};

}  // namespace testing

namespace block_parts {

inline const testing::block_kind kinds[] = {
    {},                                                                        // grouped queries
    {.heads = 3, .kv_heads = 3, .bias = true},                                 // one key head per query head
    {.heads = 4, .kv_heads = 1, .head_dim = 8, .value_dim = 5, .out_dim = 7},  // one key head; other values
    {.bias = true, .norm = true},                                              // Qwen 3
    {.norm = true, .norm_offset = 1},                                          // Gemma 3
};

inline std::vector<long long> counted(std::size_t count, long long first = 0) {
  std::vector<long long> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(first + static_cast<long long>(i));
  return result;
}

/// The factors of dropout with this seed, for the reference.
inline auto dropout_gain(double share, std::uint64_t seed) {
  return [share, mask = rope::dropout_mask(share, seed)](std::size_t b, std::size_t h, std::size_t i,
                                                         std::size_t j) -> reference::number {
    const bool keeps = mask.keeps(static_cast<rope::Index>(b), static_cast<rope::Index>(h),
                                  static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
    return keeps ? 1 / (1 - static_cast<reference::number>(share)) : 0;
  };
}

/// Rows [first, first + count) of a matrix, for the reference.
template <class T>
reference::matrix part(const testing::rows_of<T>& x, rope::Index first, rope::Index count) {
  return testing::exact(x.middleRows(first, count));
}

inline const reference::sees_key causal = [](std::size_t i, std::size_t j) { return j <= i; };
inline const reference::sees_key everything = [](std::size_t, std::size_t) { return true; };

/// Frequencies of 4 of the channels of a head.
inline const rope::frequencies narrow(4, 50.0);

}  // namespace block_parts

#endif  // ROPE_TESTS_BLOCK_HPP
