// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_ATTENTION_REFERENCE_HPP
#define ROPE_TESTS_ATTENTION_REFERENCE_HPP

/// Attention from its definition, in long double loops without tiles, running maxima or views, and the bound
/// of the error of arithmetic in a narrower type. Shares no code with the library.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "support/rounding.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

namespace reference {

using tensor = testing::tensor<double>;

struct attention_rule {
  double scale = 0;  // 0: 1 / sqrt(dim)
  bool causal = true;
  long window = 0;  // 0: unlimited
  double softcap = 0;
};

/// Whether key j is visible to query i: the last query is at the position of the last key.
inline bool sees(long i, long j, long queries, long keys, const attention_rule& rule) {
  const long back = (i - (queries - 1)) - (j - (keys - 1));
  if (rule.causal && back < 0) return false;
  return rule.window == 0 || testing::abs(back) < rule.window;
}

inline testing::wide scale_of(long dim, const attention_rule& rule) {
  return rule.scale != 0 || dim == 0 ? static_cast<testing::wide>(rule.scale)
                                     : 1 / testing::sqrt(static_cast<testing::wide>(dim));
}

/// \param deviation  if given, receives the standard deviation of every output in units of u (rounding.hpp)
/// \tparam None  so that tests can have it compiled once (instances/)
template <class None = void>
tensor attention(const tensor& q, const tensor& k, const tensor& v, const attention_rule& rule,
                 std::vector<double>* deviation = nullptr) {
  tensor out(q.batch, q.tokens, q.heads, v.dim);
  const auto n = static_cast<double>(k.tokens), depth = static_cast<double>(q.dim);
  query_errors errors(static_cast<std::size_t>(deviation != nullptr ? v.dim : 0));
  std::vector<double> variance(static_cast<std::size_t>(k.tokens));
  if (deviation != nullptr) deviation->assign(out.values.size(), 0);
  std::vector<testing::wide> scores(static_cast<std::size_t>(k.tokens)), weights(scores.size());
  for (long b = 0; b < q.batch; ++b)
    for (long h = 0; h < q.heads; ++h)
      for (long i = 0; i < q.tokens; ++i) {
        const long kv = h / (q.heads / k.heads);
        testing::wide largest = -std::numeric_limits<testing::wide>::max();
        for (long j = 0; j < k.tokens; ++j) {
          if (!sees(i, j, q.tokens, k.tokens, rule)) continue;
          testing::wide score = 0;
          exact_score exact;
          for (long d = 0; d < q.dim; ++d) {
            const double query = q(b, i, h, d), key = k(b, j, kv, d), product = query * key;
            score += static_cast<testing::wide>(query) * key;
            exact.squares += product * product;
          }
          score *= scale_of(q.dim, rule);
          exact.squares *= static_cast<double>(scale_of(q.dim, rule) * scale_of(q.dim, rule));
          exact.products = static_cast<double>(score);
          if (rule.softcap > 0) score = rule.softcap * testing::tanh(score / rule.softcap);
          exact.capped = static_cast<double>(score);
          variance[static_cast<std::size_t>(j)] = variance_of_score(exact, depth, rule.softcap);
          scores[static_cast<std::size_t>(j)] = score;
          largest = (std::max)(largest, score);
        }
        testing::wide sum = 0;
        for (long j = 0; j < k.tokens; ++j) {
          testing::wide& weight = weights[static_cast<std::size_t>(j)];
          weight = 0;
          if (!sees(i, j, q.tokens, k.tokens, rule)) continue;
          weight = testing::exp(scores[static_cast<std::size_t>(j)] - largest);
          sum += weight;
        }
        for (long d = 0; d < v.dim && sum > 0; ++d) {
          testing::wide weighted = 0;
          for (long j = 0; j < k.tokens; ++j)
            if (weights[static_cast<std::size_t>(j)] > 0)  // the value of a hidden key may be NaN
              weighted += weights[static_cast<std::size_t>(j)] * v(b, j, kv, d);
          out(b, i, h, d) = static_cast<double>(weighted / sum);
        }
        if (deviation == nullptr) continue;
        errors.start();
        for (long j = 0; j < k.tokens; ++j) {
          if (!sees(i, j, q.tokens, k.tokens, rule)) continue;
          const auto distance = static_cast<double>(largest - scores[static_cast<std::size_t>(j)]);
          errors.add(static_cast<double>(weights[static_cast<std::size_t>(j)] / sum),
                     variance[static_cast<std::size_t>(j)] + variance_of_exp(distance, n),
                     [&](std::size_t d) { return v(b, j, kv, static_cast<long>(d)); });
        }
        for (long d = 0; d < v.dim; ++d)
          (*deviation)[static_cast<std::size_t>(((b * q.tokens + i) * q.heads + h) * v.dim + d)] =
              errors.output(static_cast<std::size_t>(d), out(b, i, h, d), n);
      }
  return out;
}

/// The bound of the error of a channel of attention before it is rounded to its storage type, if scores,
/// weights and sums have unit roundoff u. With S = |scale| * dim * max|q| * max|k|, which no score exceeds,
/// and n keys:
///
/// - The error of a score is (dim + 2) u S: the scale, the scaled query, dim products and their sum in any
///   order.
/// - A softcap adds 19 u S: the cap, a division, a product, and tanh, whose error in Eigen is up to 7 ulp of
///   float (measured: 6.2 SSE, 4.9 AVX, 7.0 with -Ofast), that is 14 u. The bound allows 16 u.
/// - The relative error of a weight is 4 u S + 5 u (t + 1). It is a product of exp of differences of scores,
///   which add up to at most 2 S. Each difference adds its rounding and the range reduction of exp. Also,
///   each of at most t + 1 exps (t tiles and runs of tiles: tiles_of_sum) has an error of 4 u (measured over
///   x in [-87, 0]: 2.3 u SSE and AVX, 2 u + u |x| / 30 AVX-512, 2 u + u |x| with -Ofast), and is followed by
///   one product.
/// - The sums have an error of u per rounding (roundings_of_sum), and the division one of 4 u if it is a
///   reciprocal (-Ofast).
///
/// A relative error e of every weight changes a weighted mean by at most 2 e max|v|. Weights that underflow
/// may be anything below the smallest normal number. Terms of second order are covered by 1 %.
template <class A>
double attention_bound(const tensor& q, const tensor& k, const tensor& v, const attention_rule& rule) {
  const auto u = static_cast<double>(tolerance::unit_roundoff<A>());
  const auto dim = static_cast<double>(q.dim), n = static_cast<double>(k.tokens);
  const double largest_score =
      testing::abs(static_cast<double>(scale_of(q.dim, rule))) * dim * q.largest() * k.largest();
  const double score = (dim + 2 + (rule.softcap > 0 ? 19 : 0)) * largest_score;
  const double weight = 4 * largest_score + 5 * (tiles_of_sum(n) + 1);
  return v.largest() * (1.01 * u * (2 * (score + weight) + 2 * roundings_of_sum(n) + 4) +
                        n * static_cast<double>(std::numeric_limits<A>::min()));
}

/// The largest |got - exact| as a multiple of the allowed error: `bound` before rounding, and half an ulp for
/// each of the `roundings` to T. Infinite if got is NaN.
template <class T>
double worst_error(const tensor& got, const tensor& exact, double bound, int roundings = 1) {
  double worst = 0;
  for (std::size_t i = 0; i < exact.values.size(); ++i) {
    const double error = testing::abs(got.values.at(i) - exact.values[i]);
    const auto rounding =
        static_cast<double>(tolerance::ulp<T>(testing::abs(exact.values[i]) + bound) / 2) * roundings;
    const double relative = error / (bound + rounding);
    worst = relative <= worst ? worst : relative >= 0 ? relative : std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace reference

#endif  // ROPE_TESTS_ATTENTION_REFERENCE_HPP
