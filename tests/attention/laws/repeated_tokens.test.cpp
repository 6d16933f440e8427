// SPDX-License-Identifier: MIT
// Many equal tokens: a sum of n equal terms that are added one by one loses a digit for every factor of ten
// in n. The exact results are closed forms.
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <rope/attention/attention.hpp>
#include <rope/attention/gradient.hpp>
#include <vector>

#include "support/catch.hpp"
#include "support/tape.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::bshd;
using rope::Index;

namespace {

constexpr Index dim = 4, value_dim = 19;  // a full panel of channels and a part of one
constexpr float query = 0.5f, key = 0.25f;
constexpr double scale = 0.5, score = scale * 4 * 0.5 * 0.25;

/// Channels without a short binary expansion, so that each rounds differently when it is added up.
std::vector<float> channels(Index count, Index rows) {
  std::vector<float> x;
  for (Index n = 0; n < count * rows; ++n) x.push_back(0.1f + 0.037f * static_cast<float>(n % count));
  return x;
}

/// The documented bound, for any number of keys up to 262,144. Sums over tiles of 128 keys, over runs of 32
/// tiles (8 in decoding) and over 64 runs (256) are rounded at most 392 times, both those of values and those
/// of weights: 2 * 392 u = 4.7e-5 if every rounding were the largest and in one direction. In a sum of equal
/// terms they average at most a third of that.
constexpr double published = 3e-5;

/// The largest relative error of outputs whose exact channel is `share` times the value.
double worst(const std::vector<float>& out, testing::wide share, const std::vector<float>& values) {
  testing::wide result = 0;
  for (std::size_t n = 0; n < out.size(); ++n) {
    const testing::wide exact = share * static_cast<testing::wide>(values[n % value_dim]);
    const testing::wide error = testing::abs(static_cast<testing::wide>(out[n]) - exact) / exact;
    result = error <= result ? result : error >= 0 ? error : std::numeric_limits<testing::wide>::infinity();
  }
  return static_cast<double>(result);
}

}  // namespace

TEST_CASE("attention to many equal keys keeps its accuracy, in prefill and in decoding", "[attention]") {
  const Index keys = GENERATE(8192, 65536, 262144), queries = GENERATE(1, 60);  // decoding, prefill
  const std::vector<float> q(static_cast<std::size_t>(queries * dim), query),
      k(static_cast<std::size_t>(keys * dim), key), v = channels(value_dim, keys);
  std::vector<float> out(static_cast<std::size_t>(queries * value_dim));
  std::vector<double> sums(static_cast<std::size_t>(queries));
  const auto attend = [&](const std::vector<float>& values, rope::attention_options options) {
    options.causal = false;
    options.log_sum_exp = sums;
    rope::attention(bshd(q.data(), 1, queries, 1, dim), bshd(k.data(), 1, keys, 1, dim),
                    bshd(values.data(), 1, keys, 1, value_dim), bshd(out.data(), 1, queries, 1, value_dim),
                    options);
  };
  CAPTURE(keys, queries);
  attend(v, {});
  CHECK(worst(out, 1, v) <= published);

  // A sink with the largest score makes weights that are not powers of two.
  const auto n = static_cast<testing::wide>(keys);
  const std::vector<float> logit = {static_cast<float>(testing::log(n))};
  attend(v, {.sink_logits = logit});
  const testing::wide of_keys = n * testing::exp(score),
                      of_all = of_keys + testing::exp(static_cast<testing::wide>(logit[0]));
  CHECK(worst(out, of_keys / of_all, v) <= published);
  for (const double sum : sums)
    CHECK(testing::abs(static_cast<double>(sum - testing::log(of_all))) <= published);

  // NaN values under a mask are skipped key by key.
  std::vector<float> holes = v;
  const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(keys));
  for (std::size_t j = 0; j < static_cast<std::size_t>(keys); ++j) {
    mask[j] = j % 100 != 7;
    if (!mask[j]) holes[j * value_dim + 3] = std::numeric_limits<float>::quiet_NaN();
  }
  attend(holes, {.mask = rope::score_matrix(mask.get(), 1, 1, 1, keys)});
  CHECK(worst(out, 1, v) <= published);
}

namespace {

/// Gradients of `queries` equal queries and `keys` equal keys with a learned sink, against closed forms:
///
///     w = e^s / (e^sink + keys e^s),   slope = w g . v (1 - keys w)
///     d_q = scale keys slope k,   d_k = scale queries slope q,   d_v = queries w g
///
/// `hole`: a hidden query and key that are not numbers, so that pairs are taken one by one.
void check_gradients(Index queries, Index keys, bool given, bool hole) {
  const auto size = [](Index n) { return static_cast<std::size_t>(n); };
  const std::vector<float> values = channels(value_dim, 1);
  std::vector<float> q(size(queries * dim), query), k(size(keys * dim), key),
      v = channels(value_dim, keys), g = channels(value_dim, queries), out(g.size());
  std::vector<float> d_q(q.size()), d_k(k.size()), d_v(v.size());
  const Index seen_keys = hole ? keys - 1 : keys, seen_queries = hole ? queries - 1 : queries;
  const auto mask = std::make_unique<bool[]>(size(queries * keys));
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0; j < keys; ++j) mask[size(i * keys + j)] = i < seen_queries && j < seen_keys;
  if (hole) k.back() = q.back() = std::numeric_limits<float>::quiet_NaN();
  const auto n = static_cast<testing::wide>(seen_keys), m = static_cast<testing::wide>(seen_queries);
  const std::vector<float> logit = {static_cast<float>(testing::log(n))};
  const testing::wide share =
      testing::exp(score) / (testing::exp(static_cast<testing::wide>(logit[0])) + n * testing::exp(score));
  testing::wide product = 0;
  for (const float value : values) product += static_cast<testing::wide>(value) * value;
  for (std::size_t c = 0; c < out.size(); ++c)
    out[c] = static_cast<float>(n * share * static_cast<testing::wide>(values[c % value_dim]));
  std::vector<double> sums(
      size(queries), static_cast<double>(testing::log(testing::exp(static_cast<testing::wide>(logit[0])) +
                                                      n * testing::exp(score))));
  rope::attention_options options = {.causal = false, .sink_logits = logit};
  if (hole) options.mask = rope::score_matrix(mask.get(), 1, 1, queries, keys);
  if (given) options.log_sum_exp = sums;
  const auto heads = [&](auto& x, Index tokens, Index channels_of) {
    return bshd(x.data(), 1, tokens, 1, channels_of);
  };
  rope::attention_gradient(
      testing::tape(heads(q, queries, dim), heads(k, keys, dim), heads(v, keys, value_dim),
                    heads(out, queries, value_dim), heads(g, queries, value_dim), heads(d_q, queries, dim),
                    heads(d_k, keys, dim), heads(d_v, keys, value_dim)),
      options);
  const testing::wide slope = share * product * (1 - n * share);
  const auto error = [](float got, testing::wide exact) {
    return static_cast<double>(testing::abs(static_cast<testing::wide>(got) - exact) / exact);
  };
  double of_q = 0, of_k = 0, of_v = 0;
  for (Index i = 0; i < seen_queries * dim; ++i)
    of_q = (std::max)(of_q, error(d_q[size(i)], scale * n * slope * static_cast<testing::wide>(key)));
  for (Index j = 0; j < seen_keys * dim; ++j)
    of_k = (std::max)(of_k, error(d_k[size(j)], scale * m * slope * static_cast<testing::wide>(query)));
  for (Index j = 0; j < seen_keys * value_dim; ++j)
    of_v = (std::max)(
        of_v, error(d_v[size(j)], m * share * static_cast<testing::wide>(values[size(j % value_dim)])));
  // The sum of a tile of 96 keys or a block of 240 queries, the sum of these sums, and 30 roundings of their
  // terms.
  const auto u = static_cast<double>(tolerance::unit_roundoff<float>());
  const auto roundings = [](Index terms, Index part) {
    return static_cast<double>(part + terms / part + 30);
  };
  CAPTURE(queries, keys, given, hole);
  CHECK(of_q <= roundings(keys, 96) * u);
  CHECK(of_k <= roundings(queries, 240) * u);
  CHECK(of_v <= roundings(queries, 240) * u);
}

}  // namespace

TEST_CASE("gradients of many equal tokens keep their accuracy", "[attention]") {
  for (const bool given : {false, true})
    for (const bool hole : {false, true}) {
      check_gradients(5, 65536, given, hole);
      check_gradients(65536, 5, given, hole);
    }
}
