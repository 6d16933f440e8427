// SPDX-License-Identifier: MIT
// The error of bfloat16 products, and all properties that they share with full precision.
#include <rope/attention/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "support/attention_call.hpp"
#include "support/attention_features.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/narrow_products.hpp"
#include "support/own_threads.hpp"

using namespace attention_call;

namespace {

using bfloat16 = Eigen::bfloat16;

features::setting draw(features::dice& dice, int number) {
  features::setting s = features::draw(dice, number % 6 == 5 ? 3000 : 300, {150, number % 2 == 0 ? 41 : 150});
  s.options.products = rope::product_precision::bfloat16;
  return s;
}

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
  for (int number = 0; number < 120; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
    const operands x = random_operands<bfloat16>(dice.generator(), s.e);
    features::result exact = features::definition(s, x);
    narrow_products::add_bfloat16_weights(s, x, exact);
    std::vector<double> sums, sums_of_two;
    const tensor got = run(s, x, sums);
    const double error = features::out_error<bfloat16>(exact, got);
    worst = std::max(worst, error);
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
    s.options.products = rope::product_precision::bfloat16;
    CHECK(same_bits(run(s, x, sums), full));
    CHECK(same_bits(sums, full_sums));
  }
}

TEST_CASE("bfloat16 products: hidden keys and values do not change any bit of a query's output",
          "[attention]") {
  const std::uint32_t seed = 163;
  features::dice dice(seed);
  long spoiled_calls = 0;
  for (int number = 0; number < 120; ++number) {
    CAPTURE(seed, number);
    const features::setting s = draw(dice, number);
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
  CHECK(spoiled_calls > 100);
}

TEST_CASE("bfloat16 products: sequences that share a pair of keys do not affect each other", "[attention]") {
  const std::uint32_t seed = 166;
  std::mt19937 generator(seed);
  CAPTURE(seed);
  features::setting s;
  s.e = {1, 97, 97, 1, 1, 16, 40};
  s.query_offsets = s.key_offsets = {0, 49, 97};  // many strips of queries attend to keys [0, 49) only
  s.options = {.causal = false, .query_offsets = s.query_offsets};
  s.options.products = rope::product_precision::bfloat16;
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
      const rope::attention_options options = {.window = 90, .products = rope::product_precision::bfloat16};
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
  const rope::attention_options options = {.products = rope::product_precision::bfloat16};
  const tensor out = output_of<TestType>(x, axes::bshd, [&](auto q, auto k, auto v, auto out_view) {
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention(q, k, v, out_view, options); },
        "attention: products in bfloat16 need queries, keys, values and outputs of bfloat16"));
  });
  const auto as_stored = static_cast<double>(static_cast<TestType>(unwritten));
  for (const double value : out.values) CHECK(value == as_stored);
  if constexpr (std::is_same_v<TestType, float>) {
    const operands narrow = random_operands<bfloat16>(generator, {1, 2, 5, 2, 1, 8, 8});
    const auto k = stored<bfloat16>(narrow.k), v = stored<bfloat16>(narrow.v);
    output_of<float>(narrow, axes::bshd, [&](auto q, auto, auto, auto out_view) {
      CHECK(testing::throws_saying<std::invalid_argument>(
          [&] { rope::attention(q, view(k, narrow.k), view(v, narrow.v), out_view, options); },
          "set products to product_precision::full"));
    });
  }
}
