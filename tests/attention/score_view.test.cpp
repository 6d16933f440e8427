// SPDX-License-Identifier: MIT
#include <rope/attention/score_view.hpp>

#include <limits>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"

TEST_CASE("a shared axis of a score view has no stride", "[attention]") {
  const std::vector<float> x = {0, 1, 2, 3, 4, 5};
  const auto by_head_and_key = rope::score_matrix(x.data(), 1, 2, 1, 3);
  CHECK(by_head_and_key.at(7, 1, 9)[2 * by_head_and_key.key_step()] == 5);
  const auto by_query = rope::score_matrix(x.data(), 1, 1, 6, 1);
  CHECK(by_query.at(3, 2, 4)[8 * by_query.key_step()] == 4);
}

TEST_CASE("a matrix of scores has as many entries as an index counts", "[attention]") {
  constexpr rope::Index large = std::numeric_limits<rope::Index>::max() / 4;
  const float number = 0;
  const auto rejects = [&](rope::Index b, rope::Index h, rope::Index q, rope::Index k) {
    return testing::throws_saying<std::length_error>([&] { rope::score_matrix(&number, b, h, q, k); },
                                                     "rope::score_matrix: [", "exceeds the address space");
  };
  CHECK(rejects(1, 1, large, 5));
  CHECK(rejects(5, large, 1, 1));
  CHECK(rejects(0, large, 5, 1));  // the stride of a batch is a product, too
  CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::score_matrix(&number, 1, -1, 1, 1); },
                                                      "got [1, -1, 1, 1]"));
  CHECK(rope::score_matrix(&number, large, 1, 4, 1).query_stride == 1);
}

TEST_CASE("a view with only data and strides is one entry for all scores", "[attention]") {
  const float bias = 0.5f;
  const rope::score_view<float> one = {
      .data = &bias, .batch_stride = 1, .head_stride = 1, .query_stride = 1, .key_stride = 1};
  CHECK(one.at(3, 4, 5) == &bias);
  CHECK(one.key_step() == 0);
}

TEST_CASE("a view without any stride is one entry for every row, head and query", "[attention]") {
  const float bias = 0.5f;
  const rope::score_view<float> one = {.data = &bias, .batch = 9, .heads = 9, .queries = 9, .keys = 9};
  CHECK(one.at(3, 4, 5) == &bias);
  CHECK(one.key_step() == 0);
}

TEST_CASE("an Eigen matrix or tensor is read by its indices in either storage order", "[attention]") {
  using rope::Index;
  using rope::score_matrix;
  constexpr Index B = 2, H = 3, Q = 4, K = 5;
  const auto is = [](const auto& view, Index batch, Index heads, const auto& address_of) {
    bool same = view.batch == batch && view.heads == heads && view.queries == Q && view.keys == K;
    for (Index b = 0; b < B; ++b)
      for (Index h = 0; h < H; ++h)
        for (Index i = 0; i < Q; ++i)
          for (Index j = 0; j < K; ++j)
            same = same && view.at(b, h, i) + j * view.key_step() == address_of(b, h, i, j);
    return same;
  };
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> columns(Q, K);
  const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows(Q, K);
  const Eigen::MatrixXf large(Q + 3, 2 * K);
  CHECK(is(score_matrix(columns), 1, 1, [&](Index, Index, Index i, Index j) { return &columns(i, j); }));
  CHECK(is(score_matrix(rows), 1, 1, [&](Index, Index, Index i, Index j) { return &rows(i, j); }));
  CHECK(is(score_matrix(large.block(2, 1, Q, K)), 1, 1,
           [&](Index, Index, Index i, Index j) { return &large(2 + i, 1 + j); }));
  CHECK(is(score_matrix(large.topRows(K).leftCols(Q).transpose()), 1, 1,
           [&](Index, Index, Index i, Index j) { return &large(j, i); }));
  const Eigen::Tensor<float, 4> t(B, H, Q, K);
  const Eigen::Tensor<float, 4, Eigen::RowMajor> r(B, H, Q, K);
  const Eigen::Tensor<bool, 2> m(Q, K);
  CHECK(is(score_matrix(t), B, H, [&](Index b, Index h, Index i, Index j) { return &t(b, h, i, j); }));
  CHECK(is(score_matrix(r), B, H, [&](Index b, Index h, Index i, Index j) { return &r(b, h, i, j); }));
  CHECK(is(score_matrix(m), 1, 1, [&](Index, Index, Index i, Index j) { return &m(i, j); }));
  const Eigen::VectorXf keys(K);  // [queries, 1] by its indices
  CHECK(score_matrix(keys).queries == K);
  CHECK(score_matrix(keys.transpose()).keys == K);
  CHECK(testing::throws_saying<std::invalid_argument>([] { score_matrix(Eigen::MatrixXf()); },
                                                      "rope::score_matrix: the matrix must have entries, got "
                                                      "[batch, heads, queries, keys] = [1, 1, 0, 0]; leave"));
}

TEST_CASE("a matrix of all rows of a batch is read in either storage order", "[attention]") {
  using rope::Index;
  using rope::score_matrix;
  constexpr Index B = 2, H = 3, Q = 4, K = 5;
  const auto check = [](const auto& m, Index heads, Index queries, const auto& all, Index first_key) {
    const auto view = score_matrix(m, B, heads, queries, K);
    bool same = view.batch == B && view.heads == heads && view.queries == queries && view.keys == K;
    for (Index b = 0; b < B; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < queries; ++i)
          for (Index j = 0; j < K; ++j)
            same = same && view.at(b, h, i) + j * view.key_step() ==
                               &all((b * heads + h) * queries + i, first_key + j);
    CHECK(same);
  };
  using Eigen::Dynamic;
  const Eigen::Array<bool, Dynamic, Dynamic> columns(B, K);
  const Eigen::Array<bool, Dynamic, Dynamic, Eigen::RowMajor> rows(B, K);
  const Eigen::MatrixXf of_heads(B * H * Q, K), large(B * Q + 1, K + 2);
  check(columns, 1, 1, columns, 0);
  check(rows, 1, 1, rows, 0);
  check(of_heads, H, Q, of_heads, 0);
  check(large.block(0, 2, B * Q, K), 1, Q, large, 2);

  using testing::throws_saying;
  CHECK(
      throws_saying<std::invalid_argument>([&] { score_matrix(large, B, 1, Q, K); },
                                           "rope::score_matrix: the matrix must be [batch * heads * queries, "
                                           "keys] = [8, 5], got [9, 7]"));
  CHECK(throws_saying<std::invalid_argument>(
      [&] { score_matrix(large, -1, 1, Q, K); },
      "rope::score_matrix: extents must not be negative, got [-1, 1, 4, 5]"));
}
