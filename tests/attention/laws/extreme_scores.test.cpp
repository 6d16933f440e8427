// SPDX-License-Identifier: MIT
// Scores, biases, options and positions at the ends of their ranges give right results, or throw with the
// rule.
#include <rope/attention/attention.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <rope/attention/gradient.hpp>
#include <rope/attention/weights.hpp>
#include <stdexcept>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/tape.hpp"

using rope::bshd;
using rope::Index;

namespace {

/// One head of one channel, so score_ij = q k_j. Values have two channels, and the second is 1.
struct row_of_keys {
  std::vector<float> keys, values;
  float query = 1;
  Index queries = 1;  // all equal: 1 is decoding, 20 a prefill

  Index size() const { return static_cast<Index>(keys.size()); }
  std::vector<float> q() const { return std::vector<float>(static_cast<std::size_t>(queries), query); }
  std::vector<float> v() const {
    std::vector<float> both;
    for (const float value : values) both.insert(both.end(), {value, 1});
    return both;
  }

  struct result {
    std::vector<float> out, weights;
    std::vector<double> sums;
  };
  result attend(rope::attention_options options = {}) const {
    options.causal = false;
    if (options.scale == 0) options.scale = 1;
    const std::vector<float> rows = q(), both = v();
    result r;
    r.out.resize(static_cast<std::size_t>(2 * queries));
    r.weights.resize(static_cast<std::size_t>(queries * size()));
    r.sums.resize(static_cast<std::size_t>(queries));
    rope::attention_weights(bshd(rows.data(), 1, queries, 1, 1), bshd(keys.data(), 1, size(), 1, 1),
                            r.weights, options);
    options.log_sum_exp = r.sums;
    rope::attention(bshd(rows.data(), 1, queries, 1, 1), bshd(keys.data(), 1, size(), 1, 1),
                    bshd(both.data(), 1, size(), 1, 2), bshd(r.out.data(), 1, queries, 1, 2), options);
    // Gradients, with and without the given log-sum-exp.
    const std::vector<float> g(r.out.size(), 0.5f);
    std::vector<float> d_q(rows.size()), d_k(keys.size()), d_v(both.size());
    for (const bool given : {false, true}) {
      options.log_sum_exp = given ? std::span<double>(r.sums) : std::span<double>();
      rope::attention_gradient(
          testing::tape(bshd(rows.data(), 1, queries, 1, 1), bshd(keys.data(), 1, size(), 1, 1),
                        bshd(both.data(), 1, size(), 1, 2), bshd(r.out.data(), 1, queries, 1, 2),
                        bshd(g.data(), 1, queries, 1, 2), bshd(d_q.data(), 1, queries, 1, 1),
                        bshd(d_k.data(), 1, size(), 1, 1), bshd(d_v.data(), 1, size(), 1, 2)),
          options);
      // The second channel of d_v is half the sum of the weights over the queries.
      double weights = 0;
      for (std::size_t j = 0; j < keys.size(); ++j) weights += 2 * static_cast<double>(d_v[2 * j + 1]);
      CAPTURE(given);
      CHECK(std::abs(weights - static_cast<double>(r.out[1]) * static_cast<double>(queries)) <= 1e-3);
      // Gradients with respect to queries and keys have keys and queries as factors, and may themselves
      // overflow.
      if (std::abs(query) > 1e30f) continue;
      std::size_t numbers = 0;
      for (const std::vector<float>* x : {&d_q, &d_k, &d_v})
        for (const float value : *x) numbers += !std::isnan(value);
      CHECK(numbers == d_q.size() + d_k.size() + d_v.size());
    }
    return r;
  }
};

/// `count` keys of score `low`, then one of score `high`. The value of a key is its index.
row_of_keys step(Index count, float low, float high, Index queries) {
  row_of_keys x;
  x.queries = queries;
  for (Index j = 0; j <= count; ++j) {
    x.keys.push_back(j < count ? low : high);
    x.values.push_back(static_cast<float>(j));
  }
  return x;
}

constexpr double u = 0x1p-24;

}  // namespace

TEST_CASE("a key with a score far below the maximum does not change the output", "[attention]") {
  const Index queries = GENERATE(1, 20);
  const float below = GENERATE(-90.0f, -104.0f, -1000.0f, -1e30f);
  row_of_keys x;
  x.queries = queries;
  x.keys = {0, below};
  x.values = {1, 3e38f};
  const auto r = x.attend();
  CAPTURE(queries, below);
  // exp(-90) 3e38 = 2.5: a weight below 2^-125 may be taken as 0.
  CHECK(static_cast<double>(r.out[0]) >= 1);
  CHECK(static_cast<double>(r.out[0]) <= 1 + std::exp(static_cast<double>(below)) * 3e38 + 4 * u);
  if (below < -100) CHECK(r.out[0] == 1);
}

TEST_CASE("scores beyond the range of float count as the largest float of their sign", "[attention]") {
  const Index queries = GENERATE(1, 20), before = GENERATE(1, 130, 1300);
  const float beyond = GENERATE(1e20f, 2e38f);
  CAPTURE(queries, before, beyond);
  const auto check = [&](const row_of_keys& x, double mean, double sum,
                         const rope::attention_options& options = {}) {
    const auto r = x.attend(options);
    for (std::size_t i = 0; i < static_cast<std::size_t>(queries); ++i) {
      CHECK(std::abs(static_cast<double>(r.out[2 * i]) - mean) <= 400 * u * mean);
      CHECK(std::abs(static_cast<double>(r.out[2 * i + 1]) - 1) <= 400 * u);
      CHECK(std::abs(r.sums[i] - sum) <= 1e-6 * std::abs(sum));
      double total = 0;
      for (Index j = 0; j < x.size(); ++j)
        total += static_cast<double>(r.weights[i * x.keys.size() + static_cast<std::size_t>(j)]);
      CHECK(std::abs(total - 1) <= 400 * u);
    }
  };
  const auto n = static_cast<double>(before);
  const double largest = static_cast<double>(std::numeric_limits<float>::max()) * std::log(2.0);
  row_of_keys x = step(before, -beyond, 0.5f, queries);
  x.query = beyond;  // -infinity in the first tiles, a number (or more) in the last
  x.keys.back() = 0;
  check(x, n, 0);
  x.keys.back() = 0.5f;
  check(x, n, (std::min)(static_cast<double>(beyond) / 2, largest));
  x.keys.back() = -beyond;  // only -infinity
  check(x, n / 2, -largest);
  for (float& key : x.keys) key = beyond;  // only infinity
  check(x, n / 2, largest);
  x.keys.front() = 0;
  check(x, (n + 1) / 2, largest);

  // The same holds for a bias.
  row_of_keys biased = step(before, 1, 1, queries);
  std::vector<float> bias(static_cast<std::size_t>(before + 1), 0.0f);
  const rope::attention_options options = {.bias = rope::score_matrix(bias.data(), 1, 1, 1, before + 1)};
  bias.back() = 3e38f;
  check(biased, n, largest, options);
  for (float& entry : bias) entry = 3e38f;
  check(biased, n / 2, largest, options);

  // A sink of the largest float takes all of the weight. A sink of the lowest float takes none.
  const std::vector<float> most = {3e38f}, least = {-3e38f};
  row_of_keys plain = step(before, 1, 1, queries);
  const auto taken = plain.attend({.sink_logits = most});
  CHECK(taken.out[0] == 0);
  check(plain, n / 2, 1 + std::log(n + 1), {.sink_logits = least});
}

TEST_CASE("a query that overflows when it is scaled gives no NaN with keys of zero", "[attention]") {
  row_of_keys x;
  x.query = 3e38f;  // times log2(e) it would be infinite, and infinity times 0 is NaN
  x.keys = {0, 1, 0};
  x.values = {1, 2, 4};
  for (const Index queries : {Index{1}, Index{20}}) {
    x.queries = queries;
    CHECK(x.attend().out[0] == 2);
  }
}

TEST_CASE("a scale and a softcap whose quotient overflows throw", "[attention]") {
  std::vector<float> x = {0.5f, -1, 2, 3}, out(4, 7.0f);
  const auto tokens = rope::thd(x.data(), 2, 1, 2);
  const auto rejected = [&](rope::attention_options options) {
    return testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention(tokens, tokens, tokens, rope::thd(out.data(), 2, 1, 2), options); },
        "rope::attention: scale / softcap must be of a magnitude in [2^-63, 2^63], got ", "");
  };
  CHECK(rejected({.scale = 1e20, .softcap = 1e-20}));
  CHECK(rejected({.scale = -1e20, .softcap = 1e-20}));
  CHECK(rejected({.scale = 1e-20, .softcap = 1e20}));
  CHECK(rejected({.softcap = 1e-25}));
  CHECK(rejected({.softcap = 1e25}));
  for (const float value : out) CHECK(value == 7.0f);
  rope::attention(tokens, tokens, tokens, rope::thd(out.data(), 2, 1, 2), {.scale = 1e-30, .softcap = 1e-30});
  for (const float value : out) CHECK(std::isfinite(value));
}

TEST_CASE("keys at the ends of the position range are visible by their positions", "[attention]") {
  using limits = std::numeric_limits<std::int64_t>;
  const std::int64_t last = (limits::max)(), first = (limits::min)();
  const auto mean = [](std::vector<std::int64_t> keys, std::int64_t query, rope::attention_options options) {
    std::vector<float> q = {0}, k(keys.size(), 0.0f), v, out(1);
    for (std::size_t j = 0; j < keys.size(); ++j) v.push_back(std::ldexp(1.0f, static_cast<int>(j)));
    const std::vector<std::int64_t> at = {query};
    options.query_positions = at;
    options.key_positions = keys;
    const auto n = static_cast<Index>(keys.size());
    rope::attention(bshd(q.data(), 1, 1, 1, 1), bshd(k.data(), 1, n, 1, 1), bshd(v.data(), 1, n, 1, 1),
                    bshd(out.data(), 1, 1, 1, 1), options);
    return out[0];
  };
  // Values are 1, 2, 4, ..., so the mean shows which keys were visible.
  CHECK(mean({last, first}, first, {}) == 2);
  CHECK(mean({last, first}, 0, {}) == 2);
  CHECK(mean({last, first}, last, {}) == 1.5f);
  CHECK(mean({last, first}, first, {.window = 5}) == 2);
  CHECK(mean({last - 1, last}, last, {}) == 1.5f);
  CHECK(mean({last - 1, last}, last - 1, {}) == 1);
  CHECK(mean({last - 1, last}, last, {.window = 1}) == 2);
  // On ARMv7 with NEON the sum is multiplied by a rounded third.
  const float thirds = mean({last - 2, last - 1, last}, last - 1, {.causal = false, .window = 2});
  CHECK(std::abs(thirds - 7 / 3.0f) <= 2 * std::numeric_limits<float>::epsilon());
  CHECK(mean({last - 2, last - 1, last}, last - 2, {.causal = false, .window = 2}) == 1.5f);
  CHECK(mean({first, first + 1}, first, {}) == 1);
  CHECK(mean({first, first + 1}, first, {.causal = false, .window = 2}) == 1.5f);
  CHECK(mean({first, first + 1}, last, {.window = 2}) == 0);
}
