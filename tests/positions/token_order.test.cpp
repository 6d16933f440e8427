// SPDX-License-Identifier: MIT
#include <rope/positions/token_order.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <rope/frequencies/axes.hpp>
#include <rope/positions/grid_positions.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <utility>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::half_split;
using rope::Index;
using rope::integer_coordinates;
using testing::same_bits;
using testing::spelled;
using testing::throws_saying;
using ids = std::vector<std::int64_t>;

}  // namespace

// Golden: `rot_pos_emb` of Hugging Face transformers (Qwen2-VL) for a grid of 4 x 4 patches, merge 2.
TEST_CASE("merged patches are adjacent", "[positions][token_order]") {
  const ids order = rope::spatial_merge_order(1, 4, 4, 2);
  const auto patches = rope::rows_in_order(rope::grid_positions({4, 4}), order);
  CHECK(spelled(patches) ==
        "(0,0)(0,1)(1,0)(1,1)(0,2)(0,3)(1,2)(1,3)(2,0)(2,1)(3,0)(3,1)(2,2)(2,3)(3,2)(3,3)");
  // Every frame of a video repeats the plane, and every patch occurs once.
  ids video = rope::spatial_merge_order(3, 4, 6, 2);
  const auto coordinates = rope::rows_in_order(rope::grid_positions({3, 4, 6}), video);
  for (Index r = 0; r < 72; ++r) CHECK(coordinates(r, 0) == r / 24);
  CHECK((coordinates.block(24, 1, 24, 2) == coordinates.block(0, 1, 24, 2)).all());
  std::sort(video.begin(), video.end());
  for (std::size_t r = 0; r < 72; ++r) CHECK(video[r] == static_cast<std::int64_t>(r));
  CHECK(spelled(rope::rows_in_order(rope::grid_positions({2, 2}), rope::spatial_merge_order(1, 2, 2, 1))) ==
        "(0,0)(0,1)(1,0)(1,1)");
}

TEST_CASE("a grid without a cell has no order", "[positions][token_order]") {
  CHECK(rope::spatial_merge_order(0, 4, 4, 2).empty());
  CHECK(rope::spatial_merge_order(2, 0, 4, 2).empty());
  CHECK(rope::spatial_merge_order(2, 4, 0, 2).empty());
}

TEST_CASE("prefix tokens keep their bits", "[positions][token_order]") {
  const frequencies f = rope::axial(frequencies(8), 2);
  const Index registers = 5, last = 1, patches = 6, heads = 2, tokens = registers + patches + last;
  const auto grid = rope::grid_positions({2, 3}, {1, 1});
  const auto coordinates = rope::with_unrotated_tokens(grid, registers, last);
  REQUIRE(coordinates.rows() == tokens);
  CHECK((coordinates.middleRows(registers, patches) == grid).all());
  const auto extended = rope::with_unrotated_tokens(grid, 0, last);  // as Llama 4
  REQUIRE(extended.rows() == patches + last);
  CHECK((extended.topRows(patches) == grid).all());
  CHECK((extended.bottomRows(last) == 0).all());
  CHECK((rope::with_unrotated_tokens(grid, 0) == grid).all());
  testing::guarded_memory<float> memory(tokens * heads * 16);  // NaN: arithmetic would show
  const auto x = rope::thd(memory.data(), tokens, heads, 16);
  memory.fill(x.token_range(registers, patches), 41);
  rope::rotate<half_split>(x, frequency_table<float>(f, coordinates));
  CHECK(memory.untouched_outside(x.token_range(registers, patches)));
  // It equals a rotation of these tokens alone.
  std::vector<float> window = testing::random_channels<float>(patches * heads * 16, 41);
  rope::rotate<half_split>(rope::thd(window.data(), patches, heads, 16), frequency_table<float>(f, grid));
  CHECK(same_bits(window.data(), memory.data() + registers * heads * 16, patches * heads * 16));
}

TEST_CASE("concatenated images restart at their own origin", "[positions][token_order]") {
  const frequencies f = rope::axial(frequencies(8), 2);
  const Index heads = 3;
  const std::vector<integer_coordinates> images = {rope::grid_positions({2, 3}), rope::grid_positions({4, 1}),
                                                   rope::grid_positions({3, 3})};
  const integer_coordinates all = rope::stacked_rows(images);
  REQUIRE(all.rows() == 19);
  const std::vector<float> before = testing::random_channels<float>(19 * heads * 16, 42);
  std::vector<float> together = before, separate = before, ragged = before;
  rope::rotate<half_split>(rope::thd(together.data(), 19, heads, 16), frequency_table<float>(f, all));
  Index first = 0;
  for (const integer_coordinates& image : images) {
    rope::rotate<half_split>(rope::thd(separate.data() + first * heads * 16, image.rows(), heads, 16),
                             frequency_table<float>(f, image));
    first += image.rows();
  }
  CHECK(same_bits(together, separate));

  // Images of one width are ragged segments of the rows of one grid. Each restarts at its row 0.
  const frequency_table<float> tall(f, rope::grid_positions({5, 3}));
  const ids offsets = {0, 6, 6, 15, 18};
  std::vector<float> x(before.begin(), before.begin() + 18 * heads * 16), y = x;
  rope::rotate<half_split>(rope::thd(x.data(), 18, heads, 16), tall, rope::segments{offsets});
  for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
    const Index tokens = offsets[s + 1] - offsets[s];
    rope::rotate<half_split>(rope::thd(y.data() + offsets[s] * heads * 16, tokens, heads, 16),
                             frequency_table<float>(f, rope::grid_positions({tokens / 3, 3})));
  }
  CHECK(same_bits(x, y));
}

// Golden: NVIDIA Transformer Engine, `get_pos_emb_on_this_cp_rank`, 16 tokens on 4 ranks.
TEST_CASE("a rank of context parallelism has a chunk and its mirror image", "[positions][token_order]") {
  CHECK(rope::context_parallel_ids(16, 4, 0) == ids{0, 1, 14, 15});
  CHECK(rope::context_parallel_ids(16, 4, 1) == ids{2, 3, 12, 13});
  CHECK(rope::context_parallel_ids(16, 4, 2) == ids{4, 5, 10, 11});
  CHECK(rope::context_parallel_ids(16, 4, 3) == ids{6, 7, 8, 9});
  CHECK(rope::context_parallel_ids(6, 1, 0) == ids{0, 1, 2, 3, 4, 5});
  CHECK(rope::context_parallel_ids(0, 3, 1).empty());
}

TEST_CASE("the rotations of all ranks are those of one device", "[positions][token_order]") {
  const frequency_table<float> table(frequencies(32), 24);
  const std::vector<float> before = testing::random_channels<float>(24 * 32, 43);
  std::vector<float> whole = before;
  rope::rotate<half_split>(rope::thd(whole.data(), 24, 1, 32), table);
  for (Index rank = 0; rank < 3; ++rank) {
    const ids own = rope::context_parallel_ids(24, 3, rank);
    REQUIRE(own.size() == 8);
    std::vector<float> slice;
    for (const std::int64_t id : own)
      slice.insert(slice.end(), before.begin() + id * 32, before.begin() + (id + 1) * 32);
    rope::rotate<half_split>(rope::thd(slice.data(), 8, 1, 32), table, own);
    for (std::size_t i = 0; i < own.size(); ++i)
      CHECK(same_bits(slice.data() + i * 32, whole.data() + own[i] * 32, 32));
  }
}

TEST_CASE("orders of more tokens than an index counts throw", "[positions][token_order]") {
  constexpr Index most = std::numeric_limits<Index>::max();
  CHECK(rope::spatial_merge_order(most, most, 0, 1).empty());
  CHECK(
      throws_saying<std::length_error>([] { rope::spatial_merge_order(most, 2, 2, 2); },
                                       "rope::spatial_merge_order: the grid exceeds the address space, got [",
                                       std::to_string(most) + ", 2, 2]"));
  const integer_coordinates patches = rope::grid_positions({2});
  CHECK(throws_saying<std::length_error>([&] { rope::with_unrotated_tokens(patches, most - 1); },
                                         "rope::with_unrotated_tokens"));
  CHECK(throws_saying<std::length_error>([&] { rope::with_unrotated_tokens(patches, 1, most - 2); },
                                         "rope::with_unrotated_tokens"));
  const integer_coordinates no_axes(most, Index{0});
  CHECK(rope::with_unrotated_tokens(no_axes, 0).rows() == most);
  CHECK(throws_saying<std::length_error>(
      [&] {
        rope::stacked_rows(std::vector{no_axes, no_axes});
      },
      "rope::stacked"));
}

TEST_CASE("orders that do not fit throw", "[positions][token_order]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  for (const auto& [height, width] : {std::pair<Index, Index>(4, 5), {5, 4}})
    CHECK(rejects([h = height, w = width] { rope::spatial_merge_order(1, h, w, 2); },
                  "rope::spatial_merge_order: merge must be positive and divide height and width, got 2"));
  CHECK(rejects([] { rope::spatial_merge_order(1, 4, 4, 0); }, "got 0"));
  CHECK(rejects([] { rope::spatial_merge_order(1, 4, 4, -2); }, "got -2"));
  CHECK(rejects([] { rope::spatial_merge_order(1, -4, 4, 2); }, "an extent must not be negative"));
  CHECK(rejects([] { rope::spatial_merge_order(-1, 4, 4, 2); }, "an extent must not be negative"));
  CHECK(throws_saying<std::out_of_range>(
      [] {
        rope::rows_in_order(rope::grid_positions({2, 2}), ids{0, 4});
      },
      "rope::rows_in_order: a row must be in [0, 4), got 4"));
  CHECK(throws_saying<std::out_of_range>(
      [] {
        rope::rows_in_order(rope::grid_positions({2, 2}), ids{-1});
      },
      "got -1"));
  CHECK(rejects([] { rope::with_unrotated_tokens(rope::grid_positions({2}), -1); },
                "rope::with_unrotated_tokens: counts must not be negative, got -1 and 0"));
  CHECK(rejects([] { rope::with_unrotated_tokens(rope::grid_positions({2}), 0, -7); }, "got 0 and -7"));
  CHECK(rejects([] { rope::stacked_rows(std::vector<integer_coordinates>{}); }, "rope::stacked_rows: "));
  CHECK(rejects(
      [] {
        rope::stacked_rows(std::vector{rope::grid_positions({2}), rope::grid_positions({2, 2})});
      },
      "all parts must have the same axes, got 1 and 2"));
  for (const auto& [length, ranks] : {std::pair<Index, Index>(15, 1), {12, 4}, {20, 4}, {-16, 4}})
    CHECK(rejects([l = length, n = ranks] { rope::context_parallel_ids(l, n, 0); },
                  "rope::context_parallel_ids: the length must be a multiple of 2 * ranks",
                  "got " + std::to_string(length)));
  for (const auto& [ranks, rank] : {std::pair<Index, Index>(4, 4), {4, -1}, {0, 0}, {-2, -3}})
    CHECK(rejects([n = ranks, r = rank] { rope::context_parallel_ids(16, n, r); },
                  "rank must be in [0, ranks)",
                  "got " + std::to_string(rank) + " of " + std::to_string(ranks)));
}
