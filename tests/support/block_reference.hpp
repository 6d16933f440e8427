// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_BLOCK_REFERENCE_HPP
#define ROPE_TESTS_BLOCK_REFERENCE_HPP

/// An attention block in long double loops from its definition, for one row of a batch. Shares no code with
/// the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <vector>

#include "support/reference.hpp"
#include "support/wide.hpp"

namespace reference {

using number = testing::wide;
using list = std::vector<number>;

/// [rows, cols], row-major.
struct matrix {
  std::size_t rows = 0, cols = 0;
  list values;

  number& operator()(std::size_t r, std::size_t c) { return values[r * cols + c]; }
  number operator()(std::size_t r, std::size_t c) const { return values[r * cols + c]; }
};

struct linear {
  matrix weight;  // [out, in]
  list bias;      // [out] or empty

  matrix operator()(const matrix& x) const;
};

/// x W^T + bias.
///
/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
matrix projected(const linear& m, const matrix& x) {
  matrix y{x.rows, m.weight.rows, list(x.rows * m.weight.rows)};
  for (std::size_t t = 0; t < x.rows; ++t)
    for (std::size_t o = 0; o < m.weight.rows; ++o) {
      number sum = m.bias.empty() ? 0 : m.bias[o];
      for (std::size_t i = 0; i < m.weight.cols; ++i) sum += m.weight(o, i) * x(t, i);
      y(t, o) = sum;
    }
  return y;
}

inline matrix linear::operator()(const matrix& x) const { return projected(*this, x); }

struct block {
  std::size_t heads = 1, kv_heads = 1, head_dim = 0, value_dim = 0;
  linear q, k, v, o;
  list q_norm, k_norm;
  number epsilon = 0, offset = 0, softcap = 0;
  std::vector<double> inv_freq;  // empty: no rotation
  std::function<channels(std::size_t, std::size_t)> pair_map = half_split;
  number factor = 1;
  /// The factor of dropout for the weight of (row of the batch, head, query, key), or empty: 1.
  std::function<number(std::size_t, std::size_t, std::size_t, std::size_t)> gain;
};

using sees_key = std::function<bool(std::size_t, std::size_t)>;

/// Heads of x after the norm and the rotation: a list of [heads] of [head_dim] per token.
inline matrix rotated_heads(const block& m, const matrix& x, const list& norm,
                            const std::vector<long long>& positions) {
  matrix y = x;
  for (std::size_t t = 0; t < x.rows; ++t)
    for (std::size_t h = 0; h < x.cols / m.head_dim; ++h) {
      list head(m.head_dim);
      number squares = 0;
      for (std::size_t d = 0; d < m.head_dim; ++d) {
        head[d] = x(t, h * m.head_dim + d);
        squares += head[d] * head[d];
      }
      if (!norm.empty())
        for (std::size_t d = 0; d < m.head_dim; ++d)
          head[d] *=
              (m.offset + norm[d]) / testing::sqrt(squares / static_cast<number>(m.head_dim) + m.epsilon);
      if (!m.inv_freq.empty())
        head = rotate(head, m.inv_freq, static_cast<number>(positions[t]), m.pair_map, m.factor);
      for (std::size_t d = 0; d < m.head_dim; ++d) y(t, h * m.head_dim + d) = head[d];
    }
  return y;
}

/// The scores of query i in head h, [keys], from rotated heads. Those of hidden keys are 0.
inline list scores(const block& m, const matrix& q, const matrix& k, const sees_key& sees, std::size_t i,
                   std::size_t h) {
  list result(k.rows);
  for (std::size_t j = 0; j < k.rows; ++j) {
    if (!sees(i, j)) continue;
    for (std::size_t d = 0; d < m.head_dim; ++d)
      result[j] += q(i, h * m.head_dim + d) * k(j, h / (m.heads / m.kv_heads) * m.head_dim + d);
    result[j] /= testing::sqrt(static_cast<number>(m.head_dim));
    if (m.softcap > 0) result[j] = m.softcap * testing::tanh(result[j] / m.softcap);
  }
  return result;
}

/// Weights without dropout, [heads, queries, keys], and log-sum-exps, [queries, heads], of rotated heads with
/// scores that do not overflow. Every query sees a key.
struct weights_and_sums {
  list weights, log_sums;

  weights_and_sums(const block& m, const matrix& q, const matrix& k, const sees_key& sees)
      : log_sums(q.rows * m.heads) {
    for (std::size_t h = 0; h < m.heads; ++h)
      for (std::size_t i = 0; i < q.rows; ++i) {
        list row = scores(m, q, k, sees, i, h);
        number sum = 0;
        for (std::size_t j = 0; j < k.rows; ++j) sum += row[j] = sees(i, j) ? testing::exp(row[j]) : 0;
        for (const number term : row) weights.push_back(term / sum);
        log_sums[i * m.heads + h] = testing::log(sum);
      }
  }
};

/// The output for queries of `x` and keys of `context`, of one row of the batch. Positions are read only if
/// heads rotate.
inline matrix forward(const block& m, const matrix& x, const matrix& context,
                      const std::vector<long long>& query_positions,
                      const std::vector<long long>& key_positions, const sees_key& sees,
                      std::size_t row = 0) {
  const matrix q = rotated_heads(m, m.q(x), m.q_norm, query_positions),
               k = rotated_heads(m, m.k(context), m.k_norm, key_positions), v = m.v(context);
  matrix attended{x.rows, m.heads * m.value_dim, list(x.rows * m.heads * m.value_dim)};
  for (std::size_t i = 0; i < x.rows; ++i)
    for (std::size_t h = 0; h < m.heads; ++h) {
      const std::size_t kv = h / (m.heads / m.kv_heads);
      const list row_scores = scores(m, q, k, sees, i, h);
      // A hidden key counts as a score of 0.
      const number largest = row_scores.empty() ? 0 : *std::max_element(row_scores.begin(), row_scores.end());
      number sum = 0;
      for (std::size_t j = 0; j < context.rows; ++j)
        if (sees(i, j)) sum += testing::exp(row_scores[j] - largest);
      for (std::size_t j = 0; j < context.rows; ++j) {
        if (!sees(i, j)) continue;
        const number weight =
            testing::exp(row_scores[j] - largest) / sum * (m.gain ? m.gain(row, h, i, j) : 1);
        for (std::size_t d = 0; d < m.value_dim; ++d)
          attended(i, h * m.value_dim + d) += weight * v(j, kv * m.value_dim + d);
      }
    }
  return m.o(attended);
}

}  // namespace reference

#endif  // ROPE_TESTS_BLOCK_REFERENCE_HPP
