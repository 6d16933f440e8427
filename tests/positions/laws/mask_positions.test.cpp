// SPDX-License-Identifier: MIT
#include <rope/positions/key_ranges.hpp>

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/span_of_strides.hpp"

using rope::Index;
using testing::span_of_strides;
using testing::throws_saying;

namespace {

using matrix = Eigen::Matrix<std::int64_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using positions = std::vector<std::int64_t>;

/// Whether the ranges contain the keys that the mask describes: real tokens, up to the query if causal.
bool admit(const rope::padded_rows& rows, const matrix& mask, bool causal) {
  for (Index b = 0; b < mask.rows(); ++b)
    for (Index i = 0; i < mask.cols(); ++i)
      for (Index j = 0; j < mask.cols(); ++j) {
        const rope::key_range r = rows.key_ranges[static_cast<std::size_t>(b * mask.cols() + i)];
        if ((j >= r.first && j < r.first + r.count) !=
            (mask(b, i) == 1 && mask(b, j) == 1 && (!causal || j <= i)))
          return false;
      }
  return true;
}

}  // namespace

TEST_CASE("tokens count from 0 on either side of the padding of their row", "[positions]") {
  matrix mask(5, 4);
  mask << 0, 0, 1, 1,  // left
      1, 1, 1, 0,      // right
      1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0;
  const rope::padded_rows rows = rope::positions_of_mask(mask);
  CHECK(rows.positions == positions{0, 0, 0, 1, 0, 1, 2, 0, 0, 1, 2, 3, 0, 0, 1, 0, 0, 0, 0, 0});
  CHECK(rows.counts == positions{2, 3, 4, 2, 0});
  CHECK(rows.key_ranges.size() == 20);
  CHECK(admit(rows, mask, true));
  CHECK(admit(rope::positions_of_mask(mask, false), mask, false));
}

TEST_CASE("a mask of any order, type and extent gives the same rows", "[positions]") {
  matrix mask(3, 4);
  mask << 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1;
  const rope::padded_rows rows = rope::positions_of_mask(mask);
  const auto same = [&](const rope::padded_rows& other) {
    bool ranges = other.key_ranges.size() == rows.key_ranges.size();
    for (std::size_t n = 0; ranges && n < rows.key_ranges.size(); ++n)
      ranges = other.key_ranges[n].first == rows.key_ranges[n].first &&
               other.key_ranges[n].count == rows.key_ranges[n].count;
    return ranges && other.positions == rows.positions && other.counts == rows.counts;
  };
  const Eigen::Matrix<std::uint8_t, 3, 4> column_major = mask.cast<std::uint8_t>();
  CHECK(same(rope::positions_of_mask(column_major)));
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> bools = mask.array() == 1;
  CHECK(same(rope::positions_of_mask(bools.cast<int>())));
  CHECK(same(rope::positions_of_mask(bools)));
  CHECK(same(rope::positions_of_mask(mask.array() == 1)));
  const Eigen::TensorMap<const Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor>> tensor(mask.data(), 3, 4);
  CHECK(same(rope::positions_of_mask(tensor)));

  // Three rows of one token differ from one row of three tokens.
  CHECK(rope::positions_of_mask(matrix(mask.col(0))).positions == positions{0, 0, 0});
  CHECK(rope::positions_of_mask(matrix(mask.col(0))).counts == positions{0, 1, 1});
  CHECK(rope::positions_of_mask(std::vector{0, 1, 1}).positions == positions{0, 0, 1});
  CHECK(rope::positions_of_mask(mask.row(1)).counts == positions{2});
  CHECK(rope::positions_of_mask(matrix(0, 4)).counts.empty());
  CHECK(rope::positions_of_mask(matrix(2, 0)).counts.size() == 2);
}

TEST_CASE("a mask may be an mdspan of any strides", "[positions]") {
  const matrix mask = (matrix(2, 3) << 0, 1, 1, 1, 1, 0).finished();
  const rope::padded_rows rows = rope::positions_of_mask(mask);
  std::vector<int> entries = {0, 1, 1, -1, 1, 1, 0, -1}, rotated = {0, 1, 1, 1, 1, 0};
  for (const auto& span : {span_of_strides<int, 2>(entries.data(), {2, 3}, {4, 1}),
                           span_of_strides<int, 2>(rotated.data(), {2, 3}, {1, 2})}) {
    const rope::padded_rows same = rope::positions_of_mask(span);
    CHECK(same.positions == rows.positions);
    CHECK(same.counts == rows.counts);
    CHECK(admit(same, mask, true));
  }
  const span_of_strides<int, 2> column(entries.data(), {2, 1}, {4, 1});
  CHECK(rope::positions_of_mask(column).counts == positions{0, 1});
}

TEST_CASE("masks with holes or other numbers throw", "[positions]") {
  const auto reports = [](const std::vector<int>& mask, const char* rule) {
    return throws_saying<std::invalid_argument>([&] { static_cast<void>(rope::positions_of_mask(mask)); },
                                                rule);
  };
  CHECK(reports({1, 0, 1},
                "give a mask with holes as attention_options::mask, got padding before token 2 of row 0"));
  CHECK(reports({0, 1, 2}, "a mask is 1 for tokens and 0 for padding, got 2 for token 2 of row 0"));
  CHECK(reports({-1, 1, 1}, "got -1 for token 0 of row 0"));
}
