// SPDX-License-Identifier: MIT
// Products in bfloat16 and of integers: the operands that they reject, their rounding errors, and all
// properties that they share with full precision.
#include <rope/attention/options.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/attention/attention.hpp>
#include <rope/frequencies/frequencies.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/tables/table.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/narrow_products.hpp"
#include "support/own_threads.hpp"
#include "support/quantized.hpp"
#include "support/random.hpp"
#include "support/wide.hpp"

namespace {

using rope::product_precision;
using testing::throws_saying;

/// Random setting `number` with narrow products. Every sixth setting of bfloat16 and every fourth of integers
/// has up to 3000 keys, the others up to 300.
features::setting draw(features::dice& dice, int number, product_precision products) {
  const bool narrow = products == product_precision::bfloat16, even = number % 2 == 0;
  const int seldom = narrow ? 6 : 4;
  const long largest = number % seldom == seldom - 1 ? 3000 : 300;
  features::setting s = narrow ? features::draw(dice, largest, {150, even ? 41 : 150})
                               : features::draw(dice, largest, {even ? 3 : 70, 70});
  s.options.products = products;
  return s;
}

}  // namespace

TEST_CASE("integer products need quantized keys and values", "[attention]") {
  const std::vector<float> x(3 * 2 * 8, 1);
  std::vector<float> out(3 * 2 * 8, 99);
  const auto q = rope::bshd(x.data(), 1, 3, 2, 8);
  const auto to = rope::bshd(out.data(), 1, 3, 2, 8);
  CHECK(throws_saying<std::invalid_argument>(
      [&] { rope::attention(q, q, q, to, {.products = product_precision::integers}); },
      "attention: integer products need quantized keys and values; set products to "
      "product_precision::full"));
  CHECK(out == std::vector<float>(out.size(), 99));
}

TEST_CASE(
    "integer products need keys that were rotated before quantization, and heads of at most 65536 channels",
    "[attention]") {
  std::vector<float> x(65538, 1), out(65538, 99), scales(2, 0.1f);
  const std::vector<std::int8_t> integers(65538, 3);
  const rope::attention_options options = {.products = product_precision::integers};
  const auto attend = [&](rope::Index dim, auto... table) {
    const auto q = rope::bshd(static_cast<const float*>(x.data()), 1, 1, 1, dim);
    const auto k = rope::bshd(integers.data(), scales.data(), 1, 1, 1, dim);
    if constexpr (sizeof...(table) > 0)
      rope::attention<rope::half_split>(q, k, k, rope::bshd(out.data(), 1, 1, 1, dim), table..., options);
    else
      rope::attention(q, k, k, rope::bshd(out.data(), 1, 1, 1, dim), options);
  };
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attend(8, rope::frequency_table<float>(rope::frequencies(8), 1)); },
      "attention: integer products need keys that were rotated before quantization"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { attend(65537); }, "attention: integer products need a head_dim of at most 65536, got 65537"));
  CHECK(out == std::vector<float>(out.size(), 99));
  attend(65536);
  CHECK(out[0] < 1);
}

TEST_CASE("integers have no bfloat16 products", "[attention]") {
  const std::vector<float> x(8, 1), scales(1, 0.1f);
  std::vector<float> out(8, 99);
  const std::vector<std::int8_t> integers(8, 3);
  const auto k = rope::bshd(integers.data(), scales.data(), 1, 1, 1, 8);
  CHECK(throws_saying<std::invalid_argument>(
      [&] {
        rope::attention(rope::bshd(x.data(), 1, 1, 1, 8), k, k, rope::bshd(out.data(), 1, 1, 1, 8),
                        {.products = product_precision::bfloat16});
      },
      "attention: products in bfloat16 need queries, keys, values and outputs of bfloat16"));
  CHECK(out == std::vector<float>(8, 99));
}

// The error of bfloat16 products, and all properties that they share with full precision.

using namespace attention_call;

namespace {

using bfloat16 = Eigen::bfloat16;

tensor run(const features::setting& s, const operands& x, std::vector<double>& sums,
           axes order = axes::bshd) {
  sums.assign(static_cast<std::size_t>(s.e.batch * s.e.queries * s.e.heads), unwritten);
  return output_of<bfloat16>(x, order, [&](auto q, auto k, auto v, auto out) {
    rope::attention(q, k, v, out, s.with(sums), testing::own_threads(order == axes::bshd ? 1 : 2));
  });
}

}  // namespace

TEST_CASE("bfloat16 products follow the definition of attention for all options together", "[attention]") {
  const std::uint32_t seed = 161;
  features::dice dice(seed);
  double worst = 0;
  for (int number = 0; number < testing::draws(120); ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number, product_precision::bfloat16);
    const operands x = random_operands<bfloat16>(dice.generator(), s.e);
    features::result exact = features::definition(s, x);
    narrow_products::add_bfloat16_weights(s, x, exact);
    std::vector<double> sums, sums_of_two;
    const tensor got = run(s, x, sums);
    const double error = features::out_error<bfloat16>(exact, got);
    testing::raise_to(worst, error);
    CHECK(error <= 1);
    CHECK(features::log_sum_error<bfloat16>(exact, sums) <= 1);
    CHECK(same_bits(run(s, x, sums_of_two, axes::bhsd), got));
    CHECK(same_bits(sums_of_two, sums));
  }
  CHECK(worst > 0.5);  // the last rounding alone takes most of the bound
}

TEST_CASE("bfloat16 products are exact where weights and sums are", "[attention]") {
  // Keys are zero, so every score is 0 and every weight is 1 before the division. Values are small integers.
  const std::uint32_t seed = 162;
  std::mt19937 generator(seed);
  for (const long keys : {100L, 128L, 777L}) {
    CAPTURE(seed, keys);
    features::setting s;
    s.e = {1, 40, keys, 1, 1, 64, 70};
    s.options.causal = false;
    operands x = random_operands<bfloat16>(generator, s.e);
    for (double& value : x.k.values) value = 0;
    for (double& value : x.v.values) value = std::round(8 * value);
    std::vector<double> sums, full_sums;
    const tensor full = run(s, x, full_sums);
    s.options.products = product_precision::bfloat16;
    CHECK(same_bits(run(s, x, sums), full));
    CHECK(same_bits(sums, full_sums));
  }
}

TEST_CASE("bfloat16 products: hidden keys and values do not change any bit of a query's output",
          "[attention]") {
  const std::uint32_t seed = 163;
  features::dice dice(seed);
  long spoiled_calls = 0;
  for (int number = 0; number < testing::draws(120); ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number, product_precision::bfloat16);
    const operands x = random_operands<bfloat16>(dice.generator(), s.e);
    if (s.e.keys == 0) continue;
    std::vector<double> sums;
    const tensor clean = run(s, x, sums);
    operands spoiled = x;
    const long bad = dice.up_to(s.e.keys - 1);
    for (long b = 0; b < s.e.batch; ++b)
      for (long h = 0; h < s.e.kv_heads; ++h) {
        for (long c = 0; c < s.e.dim; ++c) spoiled.k(b, bad, h, c) = std::numeric_limits<double>::quiet_NaN();
        for (long c = 0; c < s.e.value_dim; ++c)
          spoiled.v(b, bad, h, c) =
              c % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
      }
    const tensor got = run(s, spoiled, sums);
    bool same = true, reached = true;
    for_each_element(got, [&](long b, long i, long h, long c) {
      if (!features::sees(s, b, h, i, bad))
        same = same && got(b, i, h, c) == clean(b, i, h, c);
      else if (s.options.dropout == 0)
        reached = reached && !(std::abs(got(b, i, h, c)) < std::numeric_limits<double>::infinity());
    });
    CHECK(same);
    CHECK(reached);
    ++spoiled_calls;
  }
  CHECK(spoiled_calls > testing::draws(100));
}

TEST_CASE("bfloat16 products: sequences that share a pair of keys do not affect each other", "[attention]") {
  const std::uint32_t seed = 166;
  std::mt19937 generator(seed);
  CAPTURE(seed);
  features::setting s;
  s.e = {1, 97, 97, 1, 1, 16, 40};
  s.query_offsets = s.key_offsets = {0, 49, 97};  // many strips of queries attend to keys [0, 49) only
  s.options = {.causal = false, .query_offsets = s.query_offsets};
  s.options.products = product_precision::bfloat16;
  const operands x = random_operands<bfloat16>(generator, s.e);
  std::vector<double> sums;
  const tensor clean = run(s, x, sums);
  for (const long bad : {48L, 49L}) {
    operands spoiled = x;
    for (long c = 0; c < s.e.value_dim; ++c)
      spoiled.v(0, bad, 0, c) = std::numeric_limits<double>::infinity();
    const tensor got = run(s, spoiled, sums);
    bool same = true;
    for_each_element(got, [&](long b, long i, long h, long c) {
      if ((i < 49) != (bad < 49)) same = same && got(b, i, h, c) == clean(b, i, h, c);
    });
    CHECK(same);
  }
}

TEMPLATE_TEST_CASE("bfloat16 products rotate queries and keys as rotate does, with the same bits",
                   "[attention]", rope::half_split, rope::interleaved) {
  const std::uint32_t seed = 164;
  std::mt19937 generator(seed);
  for (const long queries : {3L, 40L, 200L})
    for (const long dim : {64L, 34L, 96L}) {
      CAPTURE(seed, queries, dim);
      const operands x = random_operands<bfloat16>(generator, {2, queries, 201, 4, 2, dim, 33});
      const rope::frequency_table<float> table(rope::frequencies(dim), 0, 201);
      const rope::attention_options options = {.window = 90, .products = product_precision::bfloat16};
      auto q = stored<bfloat16>(x.q), k = stored<bfloat16>(x.k);
      rope::rotate<TestType>(view(q, x.q), table, 201 - queries);
      rope::rotate<TestType>(view(k, x.k), table);
      const tensor expected = output_of<bfloat16>({loaded(q, x.q), loaded(k, x.k), x.v}, axes::bshd,
                                                  [&](auto q_view, auto k_view, auto v, auto out) {
                                                    rope::attention(q_view, k_view, v, out, options);
                                                  });
      const tensor got = output_of<bfloat16>(x, axes::bhsd, [&](auto q_view, auto k_view, auto v, auto out) {
        rope::attention<TestType>(q_view, k_view, v, out, table, options);
      });
      CHECK(same_bits(got, expected));
    }
}

TEMPLATE_TEST_CASE("channels of another type have no bfloat16 products", "[attention]", float, double,
                   Eigen::half) {
  std::mt19937 generator(165);
  const operands x = random_operands<TestType>(generator, {1, 2, 5, 2, 1, 8, 8});
  const rope::attention_options options = {.products = product_precision::bfloat16};
  const tensor out = output_of<TestType>(x, axes::bshd, [&](auto q, auto k, auto v, auto out_view) {
    CHECK(throws_saying<std::invalid_argument>(
        [&] { rope::attention(q, k, v, out_view, options); },
        "attention: products in bfloat16 need queries, keys, values and outputs of bfloat16"));
  });
  const auto as_stored = static_cast<double>(static_cast<TestType>(unwritten));
  for (const double value : out.values) CHECK(value == as_stored);
  if constexpr (std::is_same_v<TestType, float>) {
    const operands narrow = random_operands<bfloat16>(generator, {1, 2, 5, 2, 1, 8, 8});
    const auto k = stored<bfloat16>(narrow.k), v = stored<bfloat16>(narrow.v);
    output_of<float>(narrow, axes::bshd, [&](auto q, auto, auto, auto out_view) {
      CHECK(throws_saying<std::invalid_argument>(
          [&] { rope::attention(q, view(k, narrow.k), view(v, narrow.v), out_view, options); },
          "set products to product_precision::full"));
    });
  }
}

// The error of rounding queries and weights to 16 bits for integer products, and all properties that they
// share with full precision.

using narrow_products::integer_operands;

namespace {

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
  for (int number = 0; number < testing::draws(160); ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number, product_precision::integers);
    const integer_operands x(dice.generator(), s.e);
    features::result exact = features::definition(s, x.numbers());
    narrow_products::add_integer_weights(s, x, exact);
    std::vector<double> sums, same_sums;
    const tensor got = attended(s, x, sums);
    const double error = features::out_error<float>(exact, got),
                 sum_error = features::log_sum_error<float>(exact, sums);
    testing::raise_to(worst, error);
    testing::raise_to(worst_sum, sum_error);
    CHECK(error <= 1);
    CHECK(sum_error <= 1);
    CHECK(same_bits(attended(s, x, same_sums, axes::bhsd), got));
    CHECK(same_bits(same_sums, sums));
    CHECK(same_bits(attended(s, x, same_sums, axes::sbhd, 3), got));
    CHECK(same_bits(same_sums, sums));
    calls += s.e.keys > 0 && s.e.queries > 0;
  }
  CAPTURE(worst, worst_sum);
  CHECK(calls > testing::draws(100));
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
  s.options.products = product_precision::integers;
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
  s.options.products = product_precision::integers;
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
    s.options.products = product_precision::integers;
    const tensor got = attended(s, x, sums);
    CHECK(same_bits(sums, full_sums));
    // Sums are exact. The mean of them and the scale of the weights are rounded.
    const auto tiles = static_cast<double>(1 + keys / 128);
    CHECK(testing::largest_difference(got, full) <=
          (4 + tiles) * static_cast<double>(tolerance::unit_roundoff<float>()) * 64);
  }
}

TEST_CASE("integer products: hidden keys and values do not change any bit of a query's output",
          "[attention]") {
  const std::uint32_t seed = 175;
  features::dice dice(seed);
  long unseen = 0, seen = 0, wrong = 0, missed = 0;
  for (int number = 0; number < testing::draws(160); ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number, product_precision::integers);
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
  CHECK(unseen > testing::draws(10000));
  CHECK(seen > testing::draws(1000));
  CHECK(missed == 0);
  CHECK(wrong == 0);
}

TEST_CASE("integer products: a query that is NaN affects only its own output", "[attention]") {
  const std::uint32_t seed = 176;
  std::mt19937 generator(seed);
  features::setting s;
  s.e = {1, 1, 150, 6, 2, 40, 33};
  s.options.products = product_precision::integers;
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
