// SPDX-License-Identifier: MIT
#include <rope/attention/weights.hpp>

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/attention_call.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace attention_call;
using rope::Index;

// tests/attention/laws/attention_features.test.cpp compares every option with the definition.

TEST_CASE("weights are a row of probabilities per query, in the order batch, head, query, key",
          "[attention]") {
  // Head 0 scores every key equally. Head 1 scores key j by j log 2, so its weights double from key to key.
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

TEST_CASE("weights of the wrong length throw before anything is written", "[attention]") {
  const std::vector<float> x(2 * 3 * 4);
  std::vector<float> w(17, -1);
  const auto heads = rope::thd(x.data(), 3, 2, 4);
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::attention_weights(heads, heads, std::span<float>(w)); },
      "attention_weights: weights must have length batch * heads * queries * keys = 18, got 17"));
  CHECK(testing::throws_saying<std::invalid_argument>(
      [&] { rope::attention_weights(heads, heads, std::span<float>(w), {.window = -1}); },
      "rope::attention_weights: window must not be negative, got -1"));
  CHECK(w == std::vector<float>(17, -1));
}

TEMPLATE_TEST_CASE("weights in tensors and matrices of any storage order are those in a list", "[attention]",
                   float, double, Eigen::bfloat16) {
  using T = TestType;
  using A = arithmetic<T>;
  constexpr Index B = 2, H = 4, I = 5, J = 70;  // keys of two blocks, the first query attends to 66 of them
  std::mt19937 generator(66);
  const operands x = random_operands<T>(generator, {B, I, J, H, 2, 8, 1});
  const rope::frequency_table<> table(rope::frequencies(8), J);
  const auto q_memory = stored<T>(x.q), k_memory = stored<T>(x.k);
  const auto q = view(q_memory, x.q), k = view(k_memory, x.k);
  const std::vector<float> sinks = {0.5f, -1, 2, 0};
  const rope::attention_options options = {.window = 9, .sink_logits = sinks};
  std::vector<A> list(B * H * I * J);
  const auto same = [&](const auto& written) {
    bool equal = true;
    for (Index b = 0, n = 0; b < B; ++b)
      for (Index h = 0; h < H; ++h)
        for (Index i = 0; i < I; ++i)
          for (Index j = 0; j < J; ++j, ++n)
            equal = equal && written(b, h, i, j) == list[static_cast<std::size_t>(n)];
    return equal;
  };
  Eigen::Tensor<A, 4> columns(B, H, I, J);
  Eigen::Tensor<A, 4, Eigen::RowMajor> rows(B, H, I, J);
  std::vector<A> memory(list.size());
  Eigen::TensorMap<Eigen::Tensor<A, 4>> map(memory.data(), B, H, I, J);
  rope::attention_weights(q, k, list, options);
  CHECK(list[8] == 0);
  columns.setConstant(A(-1));
  rope::attention_weights(q, k, columns, options, rope::this_thread{});
  rope::attention_weights(q, k, rows, options);
  rope::attention_weights(q, k, map, options);
  CHECK(same(columns));
  CHECK(same(rows));
  CHECK(same(map));
  rope::attention_weights<rope::half_split>(q, k, list, table, options);
  CHECK_FALSE(same(columns));
  rope::attention_weights<rope::half_split>(q, k, columns, table, options);
  rope::attention_weights<rope::half_split>(q, k, rows, table, options);
  CHECK(same(columns));
  CHECK(same(rows));

  // One row and one head: matrices, a part of one, and a tensor of two indices.
  const auto one = q.batch_range(1, 1).head_range(3, 1), its_keys = k.batch_range(1, 1).head_range(1, 1);
  list.resize(I * J);
  rope::attention_weights(one, its_keys, list);
  Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic> m(I, J), large = m.Constant(I + 2, J + 1, A(-5));
  Eigen::Array<A, int(I), int(J), Eigen::RowMajor> fixed;
  Eigen::Tensor<A, 2> plane(I, J);
  rope::attention_weights(one, its_keys, m);
  rope::attention_weights(one, its_keys, large.block(1, 1, I, J));
  rope::attention_weights(one, its_keys, fixed);
  rope::attention_weights(one, its_keys, plane);
  for (Index i = 0; i < I; ++i)
    for (Index j = 0; j < J; ++j) {
      const A expected = list[static_cast<std::size_t>(i * J + j)];
      CHECK(m(i, j) == expected);
      CHECK(large(i + 1, j + 1) == expected);
      CHECK(fixed(i, j) == expected);
      CHECK(plane(i, j) == expected);
    }
  large.block(1, 1, I, J).setConstant(A(-5));
  CHECK((large.array() == A(-5)).all());
  // Queries without visible keys.
  rope::attention_weights(one, its_keys, m, {.key_counts = std::vector<std::int64_t>{0}});
  CHECK((m.array() == A(0)).all());
}

TEST_CASE("weights in an object of other extents throw before anything is written", "[attention]") {
  const std::vector<float> x(2 * 3 * 4);
  const auto heads = rope::thd(x.data(), 3, 2, 4);
  const auto rejected = [&](auto weights, const char* got) {
    weights.setConstant(-1.0f);
    CHECK(testing::throws_saying<std::invalid_argument>(
        [&] { rope::attention_weights(heads, heads, weights); },
        "attention_weights: weights must be [batch, heads, queries, keys] = [1, 2, 3, 3], got ", got,
        ", where a matrix is of one row and one head"));
    for (const float* w = weights.data(); w != weights.data() + weights.size(); ++w) CHECK(*w == -1);
  };
  rejected(Eigen::MatrixXf(3, 3), "[1, 1, 3, 3]");
  rejected(Eigen::MatrixXf(6, 3), "[1, 1, 6, 3]");
  rejected(Eigen::Tensor<float, 4>(2, 1, 3, 3), "[2, 1, 3, 3]");
  rejected(Eigen::Tensor<float, 4>(1, 2, 4, 3), "[1, 2, 4, 3]");
  rejected(Eigen::Tensor<float, 4>(1, 2, 3, 2), "[1, 2, 3, 2]");
}
