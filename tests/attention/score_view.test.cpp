// SPDX-License-Identifier: MIT
#include <rope/attention/score_view.hpp>

#include <limits>
#include <stdexcept>
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
  const auto refuses = [&](rope::Index b, rope::Index h, rope::Index q, rope::Index k) {
    return testing::throws_saying<std::length_error>([&] { rope::score_matrix(&number, b, h, q, k); },
                                                     "rope::score_matrix: [", "exceeds the address space");
  };
  CHECK(refuses(1, 1, large, 5));
  CHECK(refuses(5, large, 1, 1));
  CHECK(refuses(0, large, 5, 1));  // the stride of a batch is a product, too
  CHECK(testing::throws_saying<std::invalid_argument>([&] { rope::score_matrix(&number, 1, -1, 1, 1); },
                                                      "got [1, -1, 1, 1]"));
  CHECK(rope::score_matrix(&number, large, 1, 4, 1).query_stride == 1);
}

TEST_CASE("a view of which only data and strides are given is one entry for all scores", "[attention]") {
  const float bias = 0.5f;
  const rope::score_view<float> one = {
      .data = &bias, .batch_stride = 1, .head_stride = 1, .query_stride = 1, .key_stride = 1};
  CHECK(one.at(3, 4, 5) == &bias);
  CHECK(one.key_step() == 0);
}

TEST_CASE("a view of which no stride is given is one entry for every row, head and query", "[attention]") {
  const float bias = 0.5f;
  const rope::score_view<float> one = {.data = &bias, .batch = 9, .heads = 9, .queries = 9, .keys = 9};
  CHECK(one.at(3, 4, 5) == &bias);
  CHECK(one.key_step() == 0);
}
