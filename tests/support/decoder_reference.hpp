// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_DECODER_REFERENCE_HPP
#define ROPE_TESTS_DECODER_REFERENCE_HPP

/// Attention of one query to tokens in a plain list, each with its unrotated key, its value and its position:
/// long double loops from the definition. Shares no code with the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <type_traits>
#include <vector>

#include "support/attention_reference.hpp"
#include "support/reference.hpp"
#include "support/tensor.hpp"
#include "support/wide.hpp"

namespace reference {

/// One token of one row: channels are [heads * head_dim].
struct token {
  std::vector<double> q, k, v;
  long long position = 0;
};

/// The heads of a model, and how they rotate.
struct model {
  std::size_t heads, kv_heads, dim, value_dim;
  std::vector<double> inv_freq;
  std::function<channels(std::size_t, std::size_t)> pair_map;
  testing::wide attention_factor = 1;
  double softcap = 0;
};

/// Numbers in [-1, 1) that C represents.
template <class C>
token random_token(std::mt19937& generator, const model& m, long long position) {
  const auto channels_of = [&](std::size_t count) {
    std::vector<double> x(count);
    for (double& value : x) value = static_cast<double>(static_cast<C>(testing::uniform(generator)));
    return x;
  };
  return {channels_of(m.heads * m.dim), channels_of(m.kv_heads * m.dim),
          channels_of(m.kv_heads * m.value_dim), position};
}

/// A key that is visible to a query, and the position by which it is rotated.
struct visible {
  const token* of;
  long long position;
};

/// [heads * value_dim]: head h of a query at `position` attends to key head h / (heads / kv_heads).
///
/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
std::vector<testing::wide> attend(const model& m, const std::vector<double>& q, long long position,
                                  const std::vector<visible>& keys) {
  const auto rotated = [&](const std::vector<double>& x, std::size_t head, long long at) {
    std::vector<testing::wide> head_channels;
    for (std::size_t d = 0; d < m.dim; ++d) head_channels.push_back(x[head * m.dim + d]);
    return rotate(head_channels, m.inv_freq, static_cast<testing::wide>(at), m.pair_map, m.attention_factor);
  };
  std::vector<testing::wide> out(m.heads * m.value_dim);
  for (std::size_t h = 0; h < m.heads; ++h) {
    const std::size_t kv = h / (m.heads / m.kv_heads);
    const std::vector<testing::wide> query = rotated(q, h, position);
    std::vector<testing::wide> scores;
    for (const visible& key : keys) {
      const std::vector<testing::wide> key_channels = rotated(key.of->k, kv, key.position);
      testing::wide score = 0;
      for (std::size_t d = 0; d < m.dim; ++d) score += query[d] * key_channels[d];
      score /= testing::sqrt(static_cast<testing::wide>(m.dim));
      if (m.softcap > 0) score = m.softcap * testing::tanh(score / m.softcap);
      scores.push_back(score);
    }
    if (keys.empty()) continue;
    const testing::wide largest = *std::max_element(scores.begin(), scores.end());
    testing::wide sum = 0;
    for (testing::wide& score : scores) {
      score = testing::exp(score - largest);
      sum += score;
    }
    for (std::size_t j = 0; j < keys.size(); ++j)
      for (std::size_t d = 0; d < m.value_dim; ++d)
        out[h * m.value_dim + d] += scores[j] / sum * keys[j].of->v[kv * m.value_dim + d];
  }
  return out;
}

/// The bound of the difference of a channel from `attend` if channels are below 1 in magnitude:
/// attention_bound for rotated channels, below sqrt(2) m, and the errors of the rotation, 3.2 u times the
/// norm of q and of k each (tolerance::norm_bound, and an attention_factor adds u), once more for every later
/// rotation of the key. With S = |q| |k| / sqrt(dim) <= 2 m^2 sqrt(dim) the largest score, an error e of the
/// norm changes a score by e S, and the weighted mean by at most 2 e S. Rotated heads are rounded to their
/// type: a query and a raw key to T, a rotated key to C after each rotation. A 16-bit type then adds its own
/// unit of roundoff to e.
template <class T, class C>
double decoder_bound(const model& m, std::size_t keys, long rotations, bool rotated_storage) {
  using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto factor = static_cast<double>(m.attention_factor);
  const auto dim = static_cast<long>(m.dim), n = static_cast<long>(keys);
  const double channel = testing::sqrt(2.0) * factor;
  const tensor head(1, 1, 1, dim, channel), key(1, n, 1, dim, channel), value(1, n, 1, 1, 1.0);
  const auto u = static_cast<double>(tolerance::unit_roundoff<arithmetic>());
  const auto narrow = [](auto type) {
    using X = decltype(type);
    return tolerance::is_16_bit<X> ? static_cast<double>(tolerance::unit_roundoff<X>()) : 0.0;
  };
  const double times = static_cast<double>(rotations);
  const double key_error = rotated_storage ? (1 + times) * narrow(C{}) : narrow(T{});
  const double largest_score = 2 * factor * factor * testing::sqrt(static_cast<double>(m.dim));
  return attention_bound<arithmetic>(head, key, value, {.softcap = m.softcap}) +
         2 * 1.02 * largest_score * ((8.4 + 4.2 * times) * u + narrow(T{}) + key_error);
}

}  // namespace reference

#endif  // ROPE_TESTS_DECODER_REFERENCE_HPP
