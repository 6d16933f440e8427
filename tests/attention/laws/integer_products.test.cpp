// SPDX-License-Identifier: MIT
// The error of rounding queries and weights to 16 bits for integer products, and all properties that they
// share with full precision.
#include <rope/attention/attention.hpp>

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
#include "support/narrow_products.hpp"
#include "support/own_threads.hpp"
#include "support/quantized.hpp"

using namespace attention_call;
using narrow_products::integer_operands;

namespace {

features::setting draw(features::dice& dice, int number) {
  features::setting s = features::draw(dice, number % 4 == 3 ? 3000 : 300, {number % 2 == 0 ? 3 : 70, 70});
  s.options.products = rope::product_precision::integers;
  return s;
}

tensor attended(const features::setting& s, const integer_operands& x, std::vector<double>& sums,
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

}  // namespace

TEST_CASE("integer products follow the definition of attention for all options together", "[attention]") {
  const std::uint32_t seed = 171;
  features::dice dice(seed);
  double worst = 0, worst_sum = 0;
  long calls = 0;
  for (int number = 0; number < 160; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
    const integer_operands x(dice.generator(), s.e);
    features::result exact = features::definition(s, x.numbers());
    narrow_products::add_integer_weights(s, x, exact);
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

TEST_CASE("16-bit integers have fewer steps when head_dim is large, and sums stay below 2^31",
          "[attention]") {
  const std::uint32_t seed = 172;
  std::mt19937 generator(seed);
  const long dim = GENERATE(511, 512, 513, 1000, 5000);
  features::setting s;
  s.e = {1, 1, 40, 2, 1, dim, 5};
  s.options.products = rope::product_precision::integers;
  CAPTURE(seed, dim);
  integer_operands x(generator, s.e);
  const auto check = [&] {
    features::result exact = features::definition(s, x.numbers());
    narrow_products::add_integer_weights(s, x, exact);
    std::vector<double> sums;
    CHECK(features::out_error<float>(exact, attended(s, x, sums)) <= 1);
    CHECK(features::log_sum_error<float>(exact, sums) <= 1);
  };
  check();
  // The largest possible sum: every product has the largest magnitude and the same sign.
  for (double& value : x.q.values) value = -0.75;
  for (double& value : x.k.integers.values) value = -128;
  s.options.scale = 1e-4;
  check();
}

TEST_CASE("many queries are multiplied as integers, too", "[attention]") {
  // More keys than a run of tiles contains. Heads and channels that do not fill a panel.
  const std::uint32_t seed = 173;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {2, 70, GENERATE(210, 4400), 4, 2, 33, 41};
  s.options.window = GENERATE(0, 90);
  s.options.causal = GENERATE(true, false);
  const integer_operands x(generator, s.e);
  std::vector<double> sums, full_sums;
  const tensor full = attended(s, x, full_sums);
  s.options.products = rope::product_precision::integers;
  CAPTURE(seed, s.e.keys, s.options.window, s.options.causal);
  const tensor got = attended(s, x, sums);
  CHECK_FALSE(same_bits(got, full));
  features::result exact = features::definition(s, x.numbers());
  narrow_products::add_integer_weights(s, x, exact);
  const double error = features::out_error<float>(exact, got);
  CHECK(error <= 1);
  CHECK(error > 0.2);
  CHECK(features::log_sum_error<float>(exact, sums) <= 1);
}

TEST_CASE("integer products are exact if queries and weights are integers", "[attention]") {
  // Keys are zero, so every weight is 1. Scales of values are powers of two.
  const std::uint32_t seed = 174;
  std::mt19937 generator(seed);
  for (const long keys : {1L, 100L, 128L, 777L}) {
    CAPTURE(seed, keys);
    features::setting s;
    s.e = {1, 1, keys, 3, 1, 64, 70};
    s.options.causal = false;
    integer_operands x(generator, s.e);
    for (double& value : x.k.integers.values) value = 0;
    for (double& value : x.v.scales.values) value = 0.5;
    std::vector<double> sums, full_sums;
    const tensor full = attended(s, x, full_sums);
    s.options.products = rope::product_precision::integers;
    const tensor got = attended(s, x, sums);
    CHECK(same_bits(sums, full_sums));
    // Sums are exact. The mean of them and the scale of the weights are rounded.
    double worst = 0;
    for (std::size_t i = 0; i < got.values.size(); ++i)
      worst = std::max(worst, std::abs(got.values[i] - full.values[i]));
    const auto tiles = static_cast<double>(1 + keys / 128);
    CHECK(worst <= (4 + tiles) * static_cast<double>(tolerance::unit_roundoff<float>()) * 64);
  }
}

TEST_CASE("integer products: hidden keys and values do not change any bit of a query's output",
          "[attention]") {
  const std::uint32_t seed = 175;
  features::dice dice(seed);
  long unseen = 0, seen = 0, wrong = 0, missed = 0;
  for (int number = 0; number < 160; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
    if (s.e.keys == 0 || s.e.queries == 0) continue;
    const integer_operands clean(dice.generator(), s.e);
    integer_operands x = clean;
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

TEST_CASE("integer products: a query that is NaN affects only its own output", "[attention]") {
  const std::uint32_t seed = 176;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {1, 1, 150, 6, 2, 40, 33};
  s.options.products = rope::product_precision::integers;
  const integer_operands clean(generator, s.e);
  std::vector<double> sums;
  const tensor before = attended(s, clean, sums);
  const float bad = GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  integer_operands x = clean;
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
