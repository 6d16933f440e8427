// SPDX-License-Identifier: MIT
#include <rope/positions/key_ranges.hpp>

#include <Eigen/Core>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/span_of_strides.hpp"

using rope::Index;
using rope::key_range;
using testing::throws_saying;

namespace {

/// Whether the ranges of the newest `queries` of `keys` tokens contain exactly the keys for which sees(token,
/// key) holds.
template <class Sees>
bool admit(const std::vector<key_range>& ranges, Index queries, Index keys, const Sees& sees) {
  if (static_cast<Index>(ranges.size()) != queries) return false;
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0; j < keys; ++j) {
      const key_range r = ranges[static_cast<std::size_t>(i)];
      if (r.first < 0 || r.count < 0 || r.first + r.count > keys) return false;
      if ((j >= r.first && j < r.first + r.count) != sees(keys - queries + i, j)) return false;
    }
  return true;
}

}  // namespace

TEST_CASE("ranges are the masks of prefixes, blocks and chunks, for a prompt and for its steps",
          "[positions]") {
  for (Index keys = 0; keys <= 13; ++keys)
    for (Index queries = 0; queries <= keys; ++queries)
      for (Index size = 1; size <= 15; ++size) {
        CAPTURE(keys, queries, size);
        if (size <= keys)
          CHECK(admit(rope::prefix_ranges(size, {.queries = queries, .keys = keys}), queries, keys,
                      [&](Index i, Index j) { return j <= i || j < size; }));
        CHECK(admit(rope::block_causal_ranges(size, {.queries = queries, .keys = keys}), queries, keys,
                    [&](Index i, Index j) { return j / size <= i / size; }));
        CHECK(admit(rope::chunk_ranges(size, {.queries = queries, .keys = keys}), queries, keys,
                    [&](Index i, Index j) { return j <= i && j / size == i / size; }));
      }
  CHECK(admit(rope::prefix_ranges(0, {.queries = 2, .keys = 3}), 2, 3,
              [](Index i, Index j) { return j <= i; }));
}

TEST_CASE("blocks and chunks longer than any row do not overflow", "[positions]") {
  constexpr Index longest = std::numeric_limits<Index>::max();
  const auto blocks = rope::block_causal_ranges(longest, {.queries = 1, .keys = longest}),
             chunks = rope::chunk_ranges(longest, {.queries = 1, .keys = longest});
  CHECK(blocks[0].count == longest);
  CHECK(chunks[0].count == longest);
}

TEST_CASE("segments attend to themselves, and padding neither attends nor is attended to", "[positions]") {
  const std::vector<int> offsets = {0, 4, 4, 9, 10}, lengths = {4, 0, 2, 0};
  const auto segment_of = [](Index t) { return t < 4 ? 0 : t < 9 ? 1 : 2; };
  CHECK(admit(rope::segment_ranges(offsets, true), 10, 10,
              [&](Index i, Index j) { return segment_of(i) == segment_of(j) && j <= i; }));
  CHECK(admit(rope::segment_ranges(offsets, false), 10, 10,
              [&](Index i, Index j) { return segment_of(i) == segment_of(j); }));
  const auto is_token = [](Index t) { return t < 6; };
  for (const bool causal : {true, false})
    CHECK(admit(rope::segment_ranges(offsets, causal, lengths), 10, 10, [&](Index i, Index j) {
      return segment_of(i) == segment_of(j) && is_token(i) && is_token(j) && (!causal || j <= i);
    }));
  // Lists of any integer type and stride.
  const Eigen::Matrix<std::uint16_t, 2, 3, Eigen::ColMajor> strided{{0, 2, 5}, {9, 9, 9}};
  CHECK(admit(rope::segment_ranges(strided.row(0), true), 5, 5,
              [](Index i, Index j) { return (i < 2) == (j < 2) && j <= i; }));
  CHECK(rope::segment_ranges(std::vector{0}, true).empty());
}

TEST_CASE("invalid ranges throw with the value", "[positions]") {
  const auto reports = [](const auto& make, const char* rule) {
    return throws_saying<std::invalid_argument>(make, rule);
  };
  CHECK(reports([] { static_cast<void>(rope::chunk_ranges(0, {.queries = 1, .keys = 1})); },
                "chunk_ranges: chunk must be positive, got 0"));
  CHECK(reports([] { static_cast<void>(rope::block_causal_ranges(-3, {.queries = 1, .keys = 1})); },
                "block_causal_ranges: block must be positive, got -3"));
  CHECK(reports([] { static_cast<void>(rope::prefix_ranges(4, {.queries = 1, .keys = 3})); },
                "prefix_ranges: prefix must be in [0, keys = 3], got 4"));
  CHECK(reports([] { static_cast<void>(rope::prefix_ranges(-1, {.queries = 1, .keys = 3})); }, "got -1"));
  CHECK(reports([] { static_cast<void>(rope::prefix_ranges(0, {.queries = 4, .keys = 3})); },
                "queries are the newest tokens of a row, so they must be in [0, keys = 3], got 4"));
  CHECK(reports([] { static_cast<void>(rope::chunk_ranges(1, {.queries = -1, .keys = 3})); }, "got -1"));
  const std::vector<int> none, fits = {0, 2, 5}, late = {1, 5}, falling = {0, 3, 2}, one = {2},
                               long_one = {3, 3}, negative = {-1, 3};
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(none, true)); },
                "segment_ranges: offsets must begin"));
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(late, true)); }, "must begin with 0"));
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(falling, true)); },
                "must not decrease, got 2 after 3"));
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(fits, true, one)); },
                "lengths must be empty or one per segment, 2, got 1"));
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(fits, true, long_one)); },
                "the length of segment 0 must be in [0, 2], got 3"));
  CHECK(reports([&] { static_cast<void>(rope::segment_ranges(fits, true, negative)); },
                "the length of segment 0 must be in [0, 2], got -1"));
}

using testing::span_of_strides;

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
  CHECK(rope::positions_of_mask(mask.col(1)).counts == rope::positions_of_mask(1 * mask.col(1)).counts);
  CHECK(rope::positions_of_mask(1 * mask.row(1).transpose()).counts == positions{2});
  CHECK(rope::positions_of_mask(1 * matrix(mask.col(0))).counts == positions{0, 1, 1});
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
