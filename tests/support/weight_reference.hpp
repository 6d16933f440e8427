// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_WEIGHT_REFERENCE_HPP
#define ROPE_TESTS_WEIGHT_REFERENCE_HPP

/// Attention weights by their definition in double, bounds of the errors of those of the library, and the
/// comparison of the two. Shares no code with the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/config.hpp>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace weight_reference {

using rope::Index;

/// Channels in [-1.5, 1.5).
template <class T>
std::vector<T> random_heads(Index size, std::uint64_t seed) {
  testing::random random(seed);
  std::vector<T> x(static_cast<std::size_t>(size));
  for (T& channel : x) channel = static_cast<T>(static_cast<float>(3 * random.unit() - 1.5));
  return x;
}

/// Channels of a head, as doubles.
template <class View>
std::vector<double> head_of(const View& x, Index b, Index t, Index h) {
  std::vector<double> head(static_cast<std::size_t>(x.head_dim));
  for (Index d = 0; d < x.head_dim; ++d) {
    head[static_cast<std::size_t>(d)] = static_cast<double>(x.at(b, t, h)[d]);
    if constexpr (requires { x.scale_at(b, t, h); })
      head[static_cast<std::size_t>(d)] *= static_cast<double>(*x.scale_at(b, t, h));
  }
  return head;
}

/// A head [dim] as doubles, rotated to `position` as half_split does, by frequencies base^(-2 i / dim).
inline std::vector<double> rotated(std::vector<double> head, double position, double base) {
  const std::size_t pairs = head.size() / 2;
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle =
        position * std::pow(base, -2 * static_cast<double>(i) / static_cast<double>(head.size()));
    const double u = head[i], v = head[i + pairs];
    head[i] = u * std::cos(angle) - v * std::sin(angle);
    head[i + pairs] = v * std::cos(angle) + u * std::sin(angle);
  }
  return head;
}

struct extents {
  Index batch, queries, keys, heads, kv_heads;

  std::size_t weight(Index b, Index h, Index i, Index j) const {
    return static_cast<std::size_t>(((b * heads + h) * queries + i) * keys + j);
  }
  std::size_t all() const { return static_cast<std::size_t>(batch * heads * queries * keys); }
};

/// How scores are computed, and how exactly: `unit` is the unit roundoff of the arithmetic, and `channel`
/// times the length of a head is the error of each of its channels from rotation and rounding to 16 bits.
struct scoring {
  double scale, unit, channel = 0, softcap = 0, sink = 0;
  bool has_sink = false;
};

/// The type of weights of queries of T.
template <class T>
using weight_type = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The scores of heads of queries of T, not rotated or with `rounded_heads` heads, of a query and a key, that
/// are rounded to T after their rotation.
template <class T>
scoring scoring_of(Index dim, bool rotates, Index rounded_heads = 0) {
  scoring how = {.scale = 1 / std::sqrt(double(dim)),
                 .unit = static_cast<double>(tolerance::unit_roundoff<weight_type<T>>())};
  const double narrow = tolerance::is_16_bit<T> ? static_cast<double>(tolerance::unit_roundoff<T>()) : 0;
  // A rotated channel has an error of 2.75 u times its pair (tests/README.md).
  if (rotates) how.channel = 2 * 2.75 * std::sqrt(2.0) * how.unit + double(rounded_heads) * narrow;
  return how;
}

inline const auto no_bias = [](Index, Index, Index, Index) { return 0.0; };

struct weights {
  extents of;
  std::vector<double> weight, error;  // [batch, heads, queries, keys]
};

/// \param query  query(b, i, h) is a head
/// \param key    key(b, i, j, kv) is a head, which may depend on the query
/// \param sees   sees(b, h, i, j)
/// \param bias   bias(b, h, i, j) is added to the capped score
template <class Query, class Key, class Sees, class Bias>
weights expected(const extents& of, const scoring& how, const Query& query, const Key& key, const Sees& sees,
                 const Bias& bias) {
  weights result = {of, std::vector<double>(of.all()), std::vector<double>(of.all())};
  for (Index b = 0; b < of.batch; ++b)
    for (Index h = 0; h < of.heads; ++h)
      for (Index i = 0; i < of.queries; ++i) {
        const std::vector<double> q = query(b, i, h);
        std::vector<double> scores(static_cast<std::size_t>(of.keys));
        double largest = how.has_sink ? how.sink : -std::numeric_limits<double>::max(), error = 0;
        for (Index j = 0; j < of.keys; ++j) {
          if (!sees(b, h, i, j)) continue;
          const std::vector<double> k = key(b, i, j, h / (of.heads / of.kv_heads));
          double sum = 0, q_squares = 0, k_squares = 0;
          for (std::size_t d = 0; d < q.size(); ++d) {
            sum += q[d] * k[d];
            q_squares += q[d] * q[d];
            k_squares += k[d] * k[d];
          }
          double score = sum * how.scale;
          // The error of a sum of n products is at most n + 2 roundings of the sum of their magnitudes.
          double off = std::sqrt(q_squares * k_squares) * how.scale *
                       ((static_cast<double>(q.size()) + 4) * how.unit + how.channel);
          if (how.softcap > 0) {
            score = how.softcap * std::tanh(score / how.softcap);
            off += 16 * how.unit * how.softcap;
          }
          score += bias(b, h, i, j);
          off += 8 * how.unit * (std::abs(score) + std::abs(bias(b, h, i, j)));
          error = (std::max)(error, off);
          largest = (std::max)(largest, score);
          scores[static_cast<std::size_t>(j)] = score;
        }
        double total = how.has_sink ? std::exp(how.sink - largest) : 0;
        for (Index j = 0; j < of.keys; ++j)
          if (sees(b, h, i, j)) total += std::exp(scores[static_cast<std::size_t>(j)] - largest);
        for (Index j = 0; j < of.keys; ++j) {
          if (!sees(b, h, i, j)) continue;
          const double w = std::exp(scores[static_cast<std::size_t>(j)] - largest) / total;
          result.weight[of.weight(b, h, i, j)] = w;
          // exp multiplies by a factor within exp(+-error), and so does the sum. Exponentials, the sum of
          // keys and the product round too. Weights far below the largest become 0.
          result.error[of.weight(b, h, i, j)] =
              w * (std::expm1(2 * error) + (16 + static_cast<double>(of.keys) / 8) * how.unit) + 1e-36;
        }
      }
  return result;
}

/// The largest difference of weights of the library from the reference, in units of their bounds.
template <class A>
double distance(const weights& reference, const std::vector<A>& got) {
  double worst = 0;
  for (std::size_t n = 0; n < reference.weight.size(); ++n) {
    const double off = std::abs(static_cast<double>(got[n]) - reference.weight[n]);
    testing::raise_to(worst, off <= reference.error[n] ? 0 : off / (reference.error[n] + 1e-300));
    if (!(off >= 0)) return std::numeric_limits<double>::max();
  }
  return worst;
}

/// Compares sums [batch, heads or kv_heads, keys].
template <class A>
double distance_of_sums(const weights& reference, const std::vector<A>& got) {
  const extents& of = reference.of;
  const Index heads = static_cast<Index>(got.size()) / (of.batch * of.keys), group = of.heads / heads;
  double worst = 0;
  for (Index b = 0; b < of.batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index j = 0; j < of.keys; ++j) {
        double sum = 0, error = 0;
        for (Index g = h * group; g < (h + 1) * group; ++g)
          for (Index i = 0; i < of.queries; ++i) {
            sum += reference.weight[of.weight(b, g, i, j)];
            error += reference.error[of.weight(b, g, i, j)];
          }
        error += sum * static_cast<double>(std::numeric_limits<A>::epsilon());
        const double off =
            std::abs(static_cast<double>(got[static_cast<std::size_t>((b * heads + h) * of.keys + j)]) - sum);
        if (!(off >= 0)) return std::numeric_limits<double>::max();
        testing::raise_to(worst, off <= error ? 0 : off / (error + 1e-300));
      }
  return worst;
}

/// Calls run(weights, threads) and compares with the reference. Threads give the same bits.
template <class A, class Run>
void check_weights(const weights& reference, const Run& run) {
  std::vector<A> all(reference.of.all(), A(-7)), shared = all;
  run(all, testing::own_threads(1));
  CHECK(distance(reference, all) == 0);
  run(shared, testing::own_threads(3));
  CHECK(shared == all);
}

/// Calls run(sums, threads) and compares with the sums of the reference, for both kinds of sums.
template <class A, class Run>
void check_sums(const weights& reference, const Run& run) {
  const extents& of = reference.of;
  for (const Index heads : {of.heads, of.kv_heads}) {
    CAPTURE(heads);
    std::vector<A> sums(static_cast<std::size_t>(of.batch * heads * of.keys), A(-7)), shared = sums;
    run(sums, testing::own_threads(1));
    CHECK(distance_of_sums(reference, sums) == 0);
    run(shared, testing::own_threads(3));
    CHECK(shared == sums);
  }
}

/// Writes weights [batch, heads, queries, keys] to a tensor of Eigen and to a list: they are equal.
template <class Write>
void check_tensor(const extents& of, const Write& write) {
  Eigen::Tensor<float, 4> tensor(of.batch, of.heads, of.queries, of.keys);
  std::vector<float> list(of.all());
  write(tensor), write(list);
  for (Index b = 0; b < of.batch; ++b)
    for (Index h = 0; h < of.heads; ++h)
      for (Index i = 0; i < of.queries; ++i)
        for (Index j = 0; j < of.keys; ++j) CHECK(tensor(b, h, i, j) == list[of.weight(b, h, i, j)]);
}

}  // namespace weight_reference

#endif  // ROPE_TESTS_WEIGHT_REFERENCE_HPP
