// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ATTENTION_GRADIENT_REFERENCE_HPP
#define ROPE_TESTS_ATTENTION_GRADIENT_REFERENCE_HPP

/// Attention with every option, and its gradients, from their definitions: long double loops over whole score
/// matrices, without tiles, views or a running softmax. Shares no code with the library except the dropout
/// mask, which is a definition.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <rope/attention/dropout.hpp>
#include <rope/attention/options.hpp>

#include "support/attention_reference.hpp"
#include "support/tensor.hpp"
#include "support/wide.hpp"

namespace reference {

/// [batch, heads, queries, keys] in long double.
struct score_matrix {
  long heads, queries, keys;
  std::vector<testing::wide> values;

  score_matrix(long b, long h, long i, long j)
      : heads(h), queries(i), keys(j), values(static_cast<std::size_t>(b * h * i * j)) {}
  testing::wide& operator()(long b, long h, long i, long j) {
    return values[static_cast<std::size_t>(((b * heads + h) * queries + i) * keys + j)];
  }
  testing::wide operator()(long b, long h, long i, long j) const {
    return values[static_cast<std::size_t>(((b * heads + h) * queries + i) * keys + j)];
  }
};

using wide_tensor = testing::tensor<testing::wide>;

/// The options of one call with their own memory.
struct full_rule {
  attention_rule basic = {};
  long sinks = 0;
  std::vector<float> sink_logits = {};  // [heads]
  std::vector<float> bias = {};         // in the shape of bias_extents
  std::vector<long> bias_extents = {1, 1, 1, 1};
  std::vector<char> mask = {};                                         // [queries * keys]
  std::vector<std::int64_t> query_positions = {}, key_positions = {};  // [tokens]
  std::vector<std::int64_t> query_counts = {}, key_counts = {};        // [batch]
  std::vector<std::int64_t> offsets = {};                              // of queries and keys
  double dropout = 0;
  std::uint64_t seed = 0;
  std::vector<rope::key_range> key_ranges = {};  // [queries] or [batch * queries]

  long segment(long t) const {
    long s = 0;
    while (static_cast<std::size_t>(s + 2) < offsets.size() && offsets[static_cast<std::size_t>(s + 1)] <= t)
      ++s;
    return s;
  }
  long start(long t) const {
    return offsets.empty() ? 0 : static_cast<long>(offsets[static_cast<std::size_t>(segment(t))]);
  }
  long key_position(long j) const {
    return key_positions.empty() ? j - start(j)
                                 : static_cast<long>(key_positions[static_cast<std::size_t>(j)]);
  }
  long query_position(long b, long i, long queries, long keys) const {
    if (!query_positions.empty()) return static_cast<long>(query_positions[static_cast<std::size_t>(i)]);
    if (!offsets.empty()) return i - start(i);
    return i + (key_counts.empty() ? keys : static_cast<long>(key_counts[static_cast<std::size_t>(b)])) -
           (query_counts.empty() ? queries : static_cast<long>(query_counts[static_cast<std::size_t>(b)]));
  }
  testing::wide bias_at(long b, long h, long i, long j) const {
    return bias.empty() ? 0.0L : static_cast<testing::wide>(bias[bias_index(b, h, i, j)]);
  }
  std::size_t bias_index(long b, long h, long i, long j) const {
    const std::vector<long>& e = bias_extents;
    const auto in = [](long at, long extent) { return extent == 1 ? 0 : at; };
    return static_cast<std::size_t>(((in(b, e[0]) * e[1] + in(h, e[1])) * e[2] + in(i, e[2])) * e[3] +
                                    in(j, e[3]));
  }
  bool sees(long b, long h, long i, long j, long queries, long keys) const {
    if (!query_counts.empty() && i >= query_counts[static_cast<std::size_t>(b)]) return false;
    if (!key_counts.empty() && j >= key_counts[static_cast<std::size_t>(b)]) return false;
    if (!offsets.empty() && segment(i) != segment(j)) return false;
    if (!mask.empty() && mask[static_cast<std::size_t>(i * keys + j)] == 0) return false;
    if (bias_at(b, h, i, j) < -1e30L) return false;
    if (!key_ranges.empty()) {
      const bool shared = static_cast<long>(key_ranges.size()) == queries;
      const rope::key_range r = key_ranges[static_cast<std::size_t>(shared ? i : b * queries + i)];
      return j >= r.first && j < r.first + r.count;
    }
    const long q = query_position(b, i, queries, keys), k = key_position(j);
    if (basic.causal && k > q) return false;
    return basic.window == 0 || testing::abs(q - k) < basic.window || (k >= 0 && k < sinks);
  }

  /// The options as passed to the library. Valid while this object and `mask_bits` live.
  rope::attention_options options(std::vector<unsigned char>& mask_bits, long queries, long keys) const {
    rope::attention_options o = {
        .scale = basic.scale, .causal = basic.causal, .window = basic.window, .softcap = basic.softcap};
    o.sinks = sinks;
    o.sink_logits = sink_logits;
    if (!bias.empty())
      o.bias =
          rope::score_matrix(bias.data(), bias_extents[0], bias_extents[1], bias_extents[2], bias_extents[3]);
    if (!mask.empty()) {
      static_assert(sizeof(bool) == 1, "the mask is stored as bytes");
      mask_bits.assign(mask.begin(), mask.end());
      o.mask = rope::score_matrix(reinterpret_cast<const bool*>(mask_bits.data()), 1, 1, queries, keys);
    }
    o.query_positions = query_positions;
    o.key_positions = key_positions;
    o.query_counts = query_counts;
    o.key_counts = key_counts;
    o.query_offsets = offsets;
    o.dropout = dropout;
    o.dropout_seed = seed;
    o.key_ranges = key_ranges;
    return o;
  }
};

/// All intermediate values between q, k, v and the output.
struct attention_state {
  score_matrix weights, bends, gains;  // softmax, slope of the softcap, 0 or 1 / (1 - dropout)
  wide_tensor out;
  std::vector<testing::wide> log_sum_exp;   // [batch, queries, heads]
  std::vector<testing::wide> sink_weights;  // the same, for the sink logit
};

/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
attention_state attend(const wide_tensor& q, const wide_tensor& k, const wide_tensor& v,
                       const full_rule& rule) {
  const long batch = q.batch, heads = q.heads, queries = q.tokens, keys = k.tokens;
  attention_state s = {score_matrix(batch, heads, queries, keys),
                       score_matrix(batch, heads, queries, keys),
                       score_matrix(batch, heads, queries, keys),
                       wide_tensor(batch, queries, heads, v.dim),
                       {},
                       {}};
  s.log_sum_exp.assign(static_cast<std::size_t>(batch * queries * heads), 0);
  s.sink_weights = s.log_sum_exp;
  const rope::dropout_mask kept(rule.dropout, rule.seed);
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        const long kv = h / (heads / k.heads), position = rule.query_position(b, i, queries, keys);
        const auto n = static_cast<std::size_t>((b * queries + i) * heads + h);
        const testing::wide sink =
            rule.sink_logits.empty()
                ? 0
                : static_cast<testing::wide>(rule.sink_logits[static_cast<std::size_t>(h)]);
        testing::wide largest = rule.sink_logits.empty() ? -std::numeric_limits<testing::wide>::max() : sink;
        for (long j = 0; j < keys; ++j) {
          if (!rule.sees(b, h, i, j, queries, keys)) continue;
          testing::wide score = 0;
          for (long d = 0; d < q.dim; ++d) score += q(b, i, h, d) * k(b, j, kv, d);
          score *= scale_of(q.dim, rule.basic);
          s.bends(b, h, i, j) = 1;
          if (rule.basic.softcap > 0) {
            const testing::wide t = testing::tanh(score / rule.basic.softcap);
            score = rule.basic.softcap * t;
            s.bends(b, h, i, j) = 1 - t * t;
          }
          s.weights(b, h, i, j) = score + rule.bias_at(b, h, i, j);
          largest = (std::max)(largest, s.weights(b, h, i, j));
        }
        testing::wide sum = rule.sink_logits.empty() ? 0 : testing::exp(sink - largest);
        for (long j = 0; j < keys; ++j) {
          if (!rule.sees(b, h, i, j, queries, keys)) continue;
          s.weights(b, h, i, j) = testing::exp(s.weights(b, h, i, j) - largest);
          sum += s.weights(b, h, i, j);
        }
        s.log_sum_exp[n] = sum > 0 ? largest + testing::log(sum) : std::numeric_limits<double>::lowest();
        s.sink_weights[n] = rule.sink_logits.empty() ? 0 : testing::exp(sink - largest) / sum;
        for (long j = 0; j < keys; ++j) {
          if (!rule.sees(b, h, i, j, queries, keys)) continue;
          s.weights(b, h, i, j) /= sum;
          s.gains(b, h, i, j) = rule.dropout == 0 ? 1
                                : kept.keeps(b, h, position, rule.key_position(j))
                                    ? 1 / (1 - static_cast<testing::wide>(rule.dropout))
                                    : 0;
          for (long d = 0; d < v.dim; ++d)
            s.out(b, i, h, d) += s.weights(b, h, i, j) * s.gains(b, h, i, j) * v(b, j, kv, d);
        }
      }
  return s;
}

/// Gradients, and for each of them the sum of the magnitudes of its terms.
struct attention_gradients {
  wide_tensor q, k, v, q_size, k_size, v_size;
  std::vector<testing::wide> sink_logits, sink_sizes, bias, bias_sizes;
};

/// The gradient of sum g . out. `out` is the output that a caller would pass, which may be rounded.
///
/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
attention_gradients differentiate(const wide_tensor& q, const wide_tensor& k, const wide_tensor& v,
                                  const wide_tensor& g, const wide_tensor& out, const full_rule& rule) {
  const long batch = q.batch, heads = q.heads, queries = q.tokens, keys = k.tokens;
  const attention_state s = attend(q, k, v, rule);
  const auto zero = [](const wide_tensor& x) { return wide_tensor(x.batch, x.tokens, x.heads, x.dim); };
  attention_gradients d = {zero(q), zero(k), zero(v), zero(q), zero(k), zero(v), {}, {}, {}, {}};
  d.sink_logits.assign(rule.sink_logits.size(), 0);
  d.sink_sizes = d.sink_logits;
  d.bias.assign(rule.bias.size(), 0);
  d.bias_sizes = d.bias;
  const testing::wide scale = scale_of(q.dim, rule.basic);
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        const long kv = h / (heads / k.heads);
        const auto n = static_cast<std::size_t>((b * queries + i) * heads + h);
        testing::wide along = 0, along_size = 0;
        for (long e = 0; e < v.dim; ++e) {
          along += g(b, i, h, e) * out(b, i, h, e);
          along_size += testing::abs(g(b, i, h, e) * out(b, i, h, e));
        }
        if (!rule.sink_logits.empty()) {
          d.sink_logits[static_cast<std::size_t>(h)] -= s.sink_weights[n] * along;
          d.sink_sizes[static_cast<std::size_t>(h)] += s.sink_weights[n] * along_size;
        }
        for (long j = 0; j < keys; ++j) {
          if (!rule.sees(b, h, i, j, queries, keys)) continue;
          const testing::wide w = s.weights(b, h, i, j), gain = s.gains(b, h, i, j);
          testing::wide product = 0, size = 0;
          for (long e = 0; e < v.dim; ++e) {
            product += g(b, i, h, e) * v(b, j, kv, e);
            size += testing::abs(g(b, i, h, e) * v(b, j, kv, e));
            d.v(b, j, kv, e) += w * gain * g(b, i, h, e);
            d.v_size(b, j, kv, e) += w * gain * testing::abs(g(b, i, h, e));
          }
          const testing::wide slope = w * (product * gain - along),
                              slope_size = w * (size * gain + along_size);
          if (!rule.bias.empty()) {
            d.bias[rule.bias_index(b, h, i, j)] += slope;
            d.bias_sizes[rule.bias_index(b, h, i, j)] += slope_size;
          }
          for (long e = 0; e < q.dim; ++e) {
            d.q(b, i, h, e) += scale * slope * s.bends(b, h, i, j) * k(b, j, kv, e);
            d.q_size(b, i, h, e) += testing::abs(scale * slope_size * k(b, j, kv, e));
            d.k(b, j, kv, e) += scale * slope * s.bends(b, h, i, j) * q(b, i, h, e);
            d.k_size(b, j, kv, e) += testing::abs(scale * slope_size * q(b, i, h, e));
          }
        }
      }
  return d;
}

}  // namespace reference

#endif  // ROPE_TESTS_ATTENTION_GRADIENT_REFERENCE_HPP
