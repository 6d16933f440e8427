// SPDX-License-Identifier: MIT
// Gradients with respect to the weights of a block over many equal tokens. Sums over tokens lose a digit for
// every factor of ten in their number if they are added one by one. The exact results are closed forms.
#include <rope/block/gradient.hpp>

#include <cstddef>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tensor.hpp"
#include "support/tolerance.hpp"
#include "support/wide.hpp"

using rope::Index;
using testing::wide;

TEST_CASE("gradients of weights and biases over many equal tokens keep their accuracy", "[block]") {
  testing::random numbers(testing::seed());
  const Index tokens = 65536, dim = 8, matrix = dim * dim;
  const auto size = [](Index n) { return static_cast<std::size_t>(n); };
  const auto random = [&](Index count) { return testing::random_channels<float>(numbers, count, -2, 0); };
  const auto repeated = [&](const std::vector<float>& row) {
    std::vector<float> x;
    for (Index t = 0; t < tokens; ++t) x.insert(x.end(), row.begin(), row.end());
    return x;
  };
  const std::vector<float> w_q = random(matrix), w_k = random(matrix), w_v = random(matrix),
                           w_o = random(matrix), b_v = random(dim), b_o = random(dim), x = random(dim),
                           d_out = random(dim);
  const rope::multi_head_attention<float> block({.q = {w_q.data(), dim, dim},
                                                 .k = {w_k.data(), dim, dim},
                                                 .v = {w_v.data(), dim, dim, b_v.data()},
                                                 .o = {w_o.data(), dim, dim, b_o.data()}},
                                                {.heads = 2});
  std::vector<float> d_w_v(size(matrix)), d_w_o(size(matrix)), d_b_v(size(dim)), d_b_o(size(dim));
  const std::vector<float> all_x = repeated(x), all_d = repeated(d_out);
  using rows = Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
  // Every token is a row of the batch, and attends to itself only: out = W_o (W_v x + b_v) + b_o.
  multi_head_attention_gradient(
      block,
      {.x = rows(all_x.data(), tokens, dim), .batch = tokens, .d_out = rows(all_d.data(), tokens, dim)},
      rope::multi_head_gradients<float>{.weights = {.v = {d_w_v.data(), dim, dim, d_b_v.data()},
                                                    .o = {d_w_o.data(), dim, dim, d_b_o.data()}}});

  // A sum over 256 tokens, a sum of 256 of these, and about 30 roundings of their terms, relative to the sum
  // of magnitudes.
  const double allowed = (256 + 256 + 30) * static_cast<double>(tolerance::unit_roundoff<float>());
  const auto n = static_cast<wide>(tokens);
  const auto check = [&](float got, wide term, wide magnitude) {
    CHECK(static_cast<double>(testing::abs(static_cast<wide>(got) / n - term) / magnitude) <= allowed);
  };
  for (Index r = 0; r < dim; ++r) {
    wide value = static_cast<wide>(b_v[size(r)]), value_size = testing::abs(value), back = 0, back_size = 0;
    for (Index c = 0; c < dim; ++c) {
      const wide term = static_cast<wide>(w_v[size(r * dim + c)]) * static_cast<wide>(x[size(c)]),
                 back_term = static_cast<wide>(w_o[size(c * dim + r)]) * static_cast<wide>(d_out[size(c)]);
      value += term;
      value_size += testing::abs(term);
      back += back_term;
      back_size += testing::abs(back_term);
    }
    check(d_b_o[size(r)], static_cast<wide>(d_out[size(r)]), testing::abs(static_cast<wide>(d_out[size(r)])));
    check(d_b_v[size(r)], back, back_size);
    for (Index c = 0; c < dim; ++c) {
      const auto of_x = static_cast<wide>(x[size(c)]), of_d = static_cast<wide>(d_out[size(c)]);
      check(d_w_v[size(r * dim + c)], back * of_x, testing::abs(back_size * of_x));
      check(d_w_o[size(c * dim + r)], of_d * value, testing::abs(of_d) * value_size);
    }
  }
}
