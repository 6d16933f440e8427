// SPDX-License-Identifier: MIT
// Products of integers: what rounding queries and weights to 16 bits does, and all that they have in common
// with full ones.
#include <rope/attention/quantized_attention.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/own_threads.hpp"
#include "support/quantized.hpp"

using namespace attention_call;

namespace {

constexpr double steps = 32767;  // of the largest number of 16 bits

/// The step of the integers of a query head with this largest channel.
double step_of(double largest, long dim) {
  return largest / std::min(steps, std::floor(2147483647.0 / 128 / static_cast<double>(dim)));
}

struct narrow_operands {
  tensor q;
  quantized::heads k, v;

  narrow_operands(std::mt19937& generator, const extents& e)
      : q(random<float>(generator, {e.batch, e.queries, e.heads, e.dim})),
        k(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.dim)),
        v(quantized::random_heads(generator, e.batch, e.keys, e.kv_heads, e.value_dim)) {
    // No channel is so close to the middle between two integers that a rounding of it decides.
    for_each_channel([](double step, double& channel) {
      const double distance = std::abs(channel / step - std::nearbyint(channel / step));
      if (distance > 0.48) channel = static_cast<double>(static_cast<float>(channel - 0.1 * step));
    });
  }

  /// Calls visit(step, channel) for every channel of the queries but the largest of its head.
  template <class Visit>
  void for_each_channel(const Visit& visit) {
    for (long b = 0; b < q.batch; ++b)
      for (long t = 0; t < q.tokens; ++t)
        for (long h = 0; h < q.heads; ++h) {
          double largest = 0;
          for (long d = 0; d < q.dim; ++d) largest = std::max(largest, std::abs(q(b, t, h, d)));
          for (long d = 0; d < q.dim; ++d)
            if (std::abs(q(b, t, h, d)) < largest) visit(step_of(largest, q.dim), q(b, t, h, d));
        }
  }

  /// What is multiplied: the numbers of keys and values, and queries rounded to integers times a step.
  operands numbers() const {
    narrow_operands rounded = *this;
    rounded.for_each_channel(
        [](double step, double& channel) { channel = step * std::nearbyint(channel / step); });
    return {rounded.q, k.numbers(), v.numbers()};
  }
};

/// With so few queries that they read keys from where they are.
features::setting draw(features::dice& dice, int number) {
  for (;;) {
    features::setting s = features::draw(dice, number % 4 == 3 ? 3000 : 300, {3, 70});
    s.options.products = rope::product_precision::integers;
    const long rows = s.e.queries * (s.e.heads / s.e.kv_heads);
    if (rows <= rope::detail::most_decode_rows<float, std::int8_t>(s.options)) return s;
  }
}

tensor attended(const features::setting& s, const narrow_operands& x, std::vector<double>& sums,
                axes order = axes::bshd, long threads = 1) {
  const auto q = stored<float>(x.q);
  const quantized::memory k(x.k, order, axes::bshd, order == axes::sbhd), v(x.v, order, order);
  const tensor shape(x.q.batch, x.q.tokens, x.q.heads, x.v.integers.dim, unwritten);
  std::vector<float> out = stored<float>(shape);
  sums.assign(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads), unwritten);
  rope::attention(view(q, x.q), k.view(), v.view(), view(out, shape), s.with(sums),
                  testing::own_threads(threads));
  return loaded(out, shape);
}

/// Adds what rounding a weight w_j times the scale of its value is expected to add. Within a tile of 128 keys
/// every such number is off by a step of the largest over sqrt(12), independent of the others, and meets the
/// integers of its value.
void add_rounded_weights(const features::setting& s, const narrow_operands& x, features::result& exact) {
  constexpr long tile = 128;
  const auto [batch, queries, keys, heads, kv_heads, dim, value_dim] = s.e;
  const auto u = static_cast<double>(tolerance::unit_roundoff<float>());
  for (long b = 0; b < batch; ++b)
    for (long h = 0; h < heads; ++h)
      for (long i = 0; i < queries; ++i) {
        const long kv = h / (heads / kv_heads);
        const double* weights =
            &exact.weights[static_cast<std::size_t>(((b * heads + h) * queries + i) * keys)];
        std::vector<double> squares(static_cast<std::size_t>(value_dim));
        for (long begin = 0; begin < keys; begin += tile) {
          const long end = std::min(begin + tile, keys);
          double largest = 0;
          for (long j = begin; j < end; ++j)
            largest = std::max(largest, weights[j] * std::abs(x.v.scales(b, j, kv, 0)));
          const double step = largest / steps;
          for (long j = begin; j < end; ++j)
            for (long c = 0; c < value_dim && weights[j] > 0; ++c)
              squares[static_cast<std::size_t>(c)] +=
                  step * step / 12 * x.v.integers(b, j, kv, c) * x.v.integers(b, j, kv, c);
        }
        for (long c = 0; c < value_dim; ++c) {
          double& deviation =
              exact.out_deviation[static_cast<std::size_t>(((b * queries + i) * heads + h) * value_dim + c)];
          deviation = std::sqrt(deviation * deviation + squares[static_cast<std::size_t>(c)] / (u * u));
        }
      }
}

}  // namespace

TEST_CASE("products of integers follow the definition of attention for all options together", "[attention]") {
  const std::uint32_t seed = 171;
  features::dice dice(seed);
  double worst = 0, worst_sum = 0;
  long calls = 0;
  for (int number = 0; number < 160; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
    const narrow_operands x(dice.generator(), s.e);
    features::result exact = features::definition(s, x.numbers());
    add_rounded_weights(s, x, exact);
    std::vector<double> sums, same_sums;
    const tensor got = attended(s, x, sums);
    const double error = features::out_error<float>(exact, got),
                 sum_error = features::log_sum_error<float>(exact, sums);
    worst = std::max(worst, error);
    worst_sum = std::max(worst_sum, sum_error);
    CHECK(error <= 1);
    CHECK(sum_error <= 1);
    CHECK(same_bits(attended(s, x, same_sums, axes::bhsd), got));
    CHECK(same_bits(same_sums, sums));
    CHECK(same_bits(attended(s, x, same_sums, axes::sbhd, 3), got));
    CHECK(same_bits(same_sums, sums));
    calls += s.e.keys > 0 && s.e.queries > 0;
  }
  CAPTURE(worst, worst_sum);
  CHECK(calls > 100);
  CHECK(worst > 0.2);
  CHECK(worst_sum > 0.05);
}

TEST_CASE("integers of 16 bits are few steps where head_dim is large, and sums stay below 2^31",
          "[attention]") {
  const std::uint32_t seed = 172;
  std::mt19937 generator(seed);
  const long dim = GENERATE(511, 512, 513, 1000, 5000);
  features::setting s;
  s.e = {1, 1, 40, 2, 1, dim, 5};
  s.options.products = rope::product_precision::integers;
  CAPTURE(seed, dim);
  narrow_operands x(generator, s.e);
  const auto check = [&] {
    features::result exact = features::definition(s, x.numbers());
    add_rounded_weights(s, x, exact);
    std::vector<double> sums;
    CHECK(features::out_error<float>(exact, attended(s, x, sums)) <= 1);
    CHECK(features::log_sum_error<float>(exact, sums) <= 1);
  };
  check();
  // The largest sum there is: every product has the largest magnitude and the same sign.
  for (double& value : x.q.values) value = -0.75;
  for (double& value : x.k.integers.values) value = -128;
  s.options.scale = 1e-4;
  check();
}

TEST_CASE("products of integers are full ones where queries are many", "[attention]") {
  const std::uint32_t seed = 173;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {2, 70, 210, 4, 2, 33, 40};
  s.options.window = 90;
  const narrow_operands x(generator, s.e);
  std::vector<double> sums, full_sums;
  const tensor full = attended(s, x, full_sums);
  s.options.products = rope::product_precision::integers;
  CAPTURE(seed);
  CHECK(same_bits(attended(s, x, sums), full));
  CHECK(same_bits(sums, full_sums));
}

TEST_CASE("products of integers have no error where queries and weights are whole", "[attention]") {
  // Keys are zero, so that every weight is 1; scales of values are powers of two.
  const std::uint32_t seed = 174;
  std::mt19937 generator(seed);
  for (const long keys : {1L, 100L, 128L, 777L}) {
    CAPTURE(seed, keys);
    features::setting s;
    s.e = {1, 1, keys, 3, 1, 64, 70};
    s.options.causal = false;
    narrow_operands x(generator, s.e);
    for (double& value : x.k.integers.values) value = 0;
    for (double& value : x.v.scales.values) value = 0.5;
    std::vector<double> sums, full_sums;
    const tensor full = attended(s, x, full_sums);
    s.options.products = rope::product_precision::integers;
    const tensor got = attended(s, x, sums);
    CHECK(same_bits(sums, full_sums));
    // Sums are exact; a mean of them and the scale of the weights are rounded.
    double worst = 0;
    for (std::size_t i = 0; i < got.values.size(); ++i)
      worst = std::max(worst, std::abs(got.values[i] - full.values[i]));
    const auto tiles = static_cast<double>(1 + keys / 128);
    CHECK(worst <= (4 + tiles) * static_cast<double>(tolerance::unit_roundoff<float>()) * 64);
  }
}

TEST_CASE("with products of integers what a query does not see changes no bit of it", "[attention]") {
  const std::uint32_t seed = 175;
  features::dice dice(seed);
  long unseen = 0, seen = 0, wrong = 0, missed = 0;
  for (int number = 0; number < 160; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
    if (s.e.keys == 0 || s.e.queries == 0) continue;
    const narrow_operands clean(dice.generator(), s.e);
    narrow_operands x = clean;
    const long bad = dice.up_to(s.e.keys - 1), b = dice.up_to(s.e.batch - 1),
               kv = dice.up_to(s.e.kv_heads - 1);
    const float spoiled[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()};
    (number % 2 == 0 ? x.k : x.v).scales(b, bad, kv, 0) = static_cast<double>(spoiled[number / 2 % 3]);
    for (long d = 0; d < s.e.value_dim; ++d) x.v.integers(b, bad, kv, d) = 127;
    std::vector<double> sums, spoiled_sums;
    const tensor before = attended(s, clean, sums), after = attended(s, x, spoiled_sums);
    for_each_element(after, [&](long row, long i, long h, long c) {
      const bool sees = row == b && h / (s.e.heads / s.e.kv_heads) == kv && features::sees(s, b, h, i, bad);
      (sees ? seen : unseen) += 1;
      const auto bits = std::bit_cast<std::uint64_t>(after(row, i, h, c));
      if (sees)
        missed += (bits & 0x7fffffffffffffffu) <= 0x7ff0000000000000u;
      else
        wrong += bits != std::bit_cast<std::uint64_t>(before(row, i, h, c));
    });
  }
  CHECK(unseen > 10000);
  CHECK(seen > 1000);
  CHECK(missed == 0);
  CHECK(wrong == 0);
}

TEST_CASE("with products of integers a query that is no number reaches itself alone", "[attention]") {
  const std::uint32_t seed = 176;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {1, 1, 150, 6, 2, 40, 33};
  s.options.products = rope::product_precision::integers;
  const narrow_operands clean(generator, s.e);
  std::vector<double> sums;
  const tensor before = attended(s, clean, sums);
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  narrow_operands x = clean;
  x.q(0, 0, 2, 7) = static_cast<double>(bad);
  const tensor after = attended(s, x, sums);
  bool same = true, reached = true;
  for_each_element(after, [&](long b, long i, long h, long c) {
    const auto bits = std::bit_cast<std::uint64_t>(after(b, i, h, c));
    if (h == 2)
      reached = reached && (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
    else
      same = same && bits == std::bit_cast<std::uint64_t>(before(b, i, h, c));
  });
  CAPTURE(seed);
  CHECK(same);
  CHECK(reached);
}
