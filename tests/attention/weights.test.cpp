// SPDX-License-Identifier: MIT
#include <rope/attention/weights.hpp>

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace attention_call;

// Against the definition, with every option: tests/attention/laws/attention_features.test.cpp.

TEST_CASE("weights are a row of probabilities per query, in the order batch, head, query, key",
          "[attention]") {
  // Head 0 scores every key alike; head 1 scores key j by j log 2, so its weights double from key to key.
  const std::vector<float> q = {0, 1, 0, 1, 0, 1};
  const auto log2 = static_cast<float>(std::log(2.0));
  const std::vector<float> k = {0, log2, 2 * log2};
  std::vector<float> w(2 * 3 * 3, -1);
  rope::attention_weights(rope::thd(q.data(), 3, 2, 1), rope::thd(k.data(), 3, 1, 1), std::span<float>(w),
                          {.scale = 1});
  const std::vector<double> expected = {1, 0, 0, 1.0 / 2, 1.0 / 2, 0, 1.0 / 3, 1.0 / 3, 1.0 / 3,
                                        1, 0, 0, 1.0 / 3, 2.0 / 3, 0, 1.0 / 7, 2.0 / 7, 4.0 / 7};
  for (std::size_t i = 0; i < w.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(static_cast<double>(w[i]) - expected[i]) <= 4 * 0x1p-24);
  }
}

TEST_CASE("weights times values are the output of attention, rotated or not", "[attention]") {
  const std::uint32_t seed = 64;
  CAPTURE(seed);
  std::mt19937 generator(seed);
  const operands x = random_operands<double>(generator, {2, 9, 13, 4, 2, 8, 5});
  const rope::frequency_table<double> table(rope::frequencies(6), 13);
  const auto q = stored<double>(x.q), k = stored<double>(x.k);
  for (const bool rotates : {false, true}) {
    CAPTURE(rotates);
    std::vector<double> w(2 * 4 * 9 * 13);
    if (rotates)
      rope::attention_weights<rope::interleaved>(view(q, x.q), view(k, x.k), std::span<double>(w), table,
                                                 {.window = 7});
    else
      rope::attention_weights(view(q, x.q), view(k, x.k), std::span<double>(w), {.window = 7});
    const tensor out = output_of<double>(x, axes::bshd, [&](auto qv, auto kv, auto vv, auto ov) {
      if (rotates)
        rope::attention<rope::interleaved>(qv, kv, vv, ov, table, {.window = 7});
      else
        rope::attention(qv, kv, vv, ov, {.window = 7});
    });
    for_each_element(out, [&](long b, long i, long h, long c) {
      double sum = 0;
      for (long j = 0; j < 13; ++j)
        sum += w[static_cast<std::size_t>(((b * 4 + h) * 9 + i) * 13 + j)] * x.v(b, j, h / 2, c);
      CHECK(std::abs(sum - out(b, i, h, c)) <= 200 * 0x1p-53);
    });
  }
}

TEST_CASE("weights of the wrong length are refused before anything is written", "[attention]") {
  const std::vector<float> x(2 * 3 * 4);
  std::vector<float> w(17, -1);
  const auto heads = rope::thd(x.data(), 3, 2, 4);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::attention_weights(heads, heads, std::span<float>(w)); },
      "attention_weights: weights must have length batch * heads * queries * keys = 18, got 17"));
  CHECK(w == std::vector<float>(17, -1));
}
