// SPDX-License-Identifier: MIT
#include <rope/positions/grid_positions.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <rope/frequencies/axes.hpp>
#include <rope/rotation/rotate.hpp>
#include <string>
#include <vector>

#include "support/axes.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "support/heads.hpp"

namespace {

using rope::frequencies;
using rope::frequency_table;
using rope::Index;
using rope::patch_normalisation;
using testing::agrees_with;
using testing::angles;
using testing::throws_saying;

constexpr Index too_many = std::numeric_limits<Index>::max();

}  // namespace

TEST_CASE("a grid is enumerated in row-major order", "[positions][grid_positions]") {
  const std::vector<Index> extents = {3, 2, 4};
  const auto grid = rope::grid_positions(extents);
  const auto shifted = rope::grid_positions(extents, {-1, 10, 0});
  REQUIRE(grid.rows() == 24);
  REQUIRE(grid.cols() == 3);
  Index row = 0;
  for (Index t = 0; t < 3; ++t)
    for (Index h = 0; h < 2; ++h)
      for (Index w = 0; w < 4; ++w, ++row) {
        CAPTURE(t, h, w);
        CHECK((grid(row, 0) == t && grid(row, 1) == h && grid(row, 2) == w));
        CHECK((shifted(row, 0) == t - 1 && shifted(row, 1) == h + 10 && shifted(row, 2) == w));
      }
  CHECK((rope::grid_positions({5}).col(0) == Eigen::Array<std::int64_t, 5, 1>(0, 1, 2, 3, 4)).all());
  CHECK(rope::grid_positions({5, 0, 7}).rows() == 0);
  CHECK(rope::grid_positions({5, 0, 7}).cols() == 3);
  CHECK(rope::grid_positions({0, too_many, too_many}).rows() == 0);
}

TEST_CASE("a grid of real coordinates is the product of its axes", "[positions][grid_positions]") {
  const Eigen::ArrayXd a = rope::evenly_spaced(3, 0.5, 2.5), b = rope::evenly_spaced(2, -7, 9);
  const Eigen::ArrayXXd grid = rope::grid_coordinates(a, b);
  REQUIRE(grid.rows() == 6);
  for (Index i = 0; i < 3; ++i)
    for (Index j = 0; j < 2; ++j) {
      CHECK(grid(2 * i + j, 0) == a(i));
      CHECK(grid(2 * i + j, 1) == b(j));
    }
  // Rows, expressions and other scalar types are axes too.
  const Eigen::RowVector2f row(-7, 9);
  CHECK((rope::grid_coordinates(Eigen::Array3i(1, 3, 5), row).col(0) == 2 * grid.col(0)).all());
  CHECK((rope::grid_coordinates(2 * a, row).col(1) == grid.col(1)).all());
  CHECK(rope::grid_coordinates(Eigen::ArrayXd(0), a).rows() == 0);
}

// Golden: lucidrains/rotary-embedding-torch, `get_axial_freqs(2, 3)` with dim 4, in fp64. A frequency is
// listed once here and twice there.
TEST_CASE("axial frequencies on a grid are those of lucidrains", "[positions][grid_positions]") {
  const double pi = 3.14159265358979;
  SECTION("freqs_for = 'lang'") {
    const frequencies f = rope::axial(frequencies(4), 2);
    const Eigen::ArrayXXd angle = angles(f, rope::grid_positions({2, 3}));
    REQUIRE(angle.rows() == 6);
    CHECK(agrees_with(angle.row(0), {0, 0, 0, 0}, 9));
    CHECK(agrees_with(angle.row(1), {0, 0, 1, 0.01}, 9));
    CHECK(agrees_with(angle.row(5), {1, 0.01, 2, 0.02}, 9));
  }
  SECTION("freqs_for = 'lang' with offsets") {
    const frequencies f = rope::axial(frequencies(4), 2);
    const Eigen::ArrayXXd angle = angles(f, rope::grid_positions({2, 3}, {10, 20}));
    CHECK(agrees_with(angle.row(0), {10, 0.1, 20, 0.2}, 9));
    CHECK(agrees_with(angle.row(5), {11, 0.11, 22, 0.22}, 9));
  }
  SECTION("freqs_for = 'pixel'") {
    const frequencies f = rope::axial(frequencies::pixel(4, 10), 2);
    const Eigen::ArrayXXd angle =
        angles(f, rope::grid_coordinates(rope::evenly_spaced(2), rope::evenly_spaced(3)));
    CHECK(agrees_with(angle.row(0), {-pi, -5 * pi, -pi, -5 * pi}, 13));
    CHECK(agrees_with(angle.row(4), {pi, 5 * pi, 0, 0}, 13));
  }
}

TEST_CASE("ids of a smaller grid select its rows in the table of a larger one",
          "[positions][grid_positions]") {
  const frequencies f = rope::axial(frequencies(8), 2);
  const frequency_table<float> whole(f, rope::grid_positions({7, 9})), own(f, rope::grid_positions({4, 5}));
  const std::vector<std::int64_t> ids = rope::grid_ids({4, 5}, {7, 9});
  REQUIRE(ids.size() == 20);
  CHECK(ids[7] == 1 * 9 + 2);
  std::vector<float> x = testing::random_channels<float>(20 * 2 * 16, 31), y = x;
  rope::rotate<rope::half_split>(rope::thd(x.data(), 20, 2, 16), whole, ids);
  rope::rotate<rope::half_split>(rope::thd(y.data(), 20, 2, 16), own);
  CHECK(testing::same_bits(x, y));

  const std::vector<std::int64_t> video = rope::grid_ids({2, 1, 2}, {3, 4, 5});
  CHECK(video == std::vector<std::int64_t>{0, 1, 20, 21});
}

TEST_CASE("evenly spaced coordinates include both ends and mirror exactly", "[positions][grid_positions]") {
  CHECK(agrees_with(rope::evenly_spaced(5), {-1, -0.5, 0, 0.5, 1}, 15));
  for (const Index count : {7, 13, 25, 49}) {
    const Eigen::ArrayXd tenth = rope::evenly_spaced(count, -0.1, 0.1);
    CHECK((tenth == -tenth.reverse()).all());
  }
  CHECK(rope::evenly_spaced(1)(0) == -1);
  CHECK(rope::evenly_spaced(0).size() == 0);
  for (const Index count : {2, 3, 10, 49, 224}) {
    const Eigen::ArrayXd axis = rope::evenly_spaced(count);
    CAPTURE(count);
    CHECK(axis(0) == -1);
    CHECK(axis(count - 1) == 1);
    CHECK((axis == -axis.reverse()).all());
    for (Index i = 0; i < count; ++i)
      CHECK(std::abs(axis(i) - static_cast<double>(2 * i - count + 1) / static_cast<double>(count - 1)) <=
            0x1p-52);
  }
}

// Golden: `scale_rope` of Qwen-Image, the spatial positions of Mochi, `ref_feat_shape` of timm and the time
// of Cosmos at 30 frames per second (24 positions per second), each by its formula.
TEST_CASE("coordinates of released models", "[positions][grid_positions]") {
  const auto qwen_image = [](Index count) {
    const auto grid = rope::grid_positions({count}, {rope::centered_first(count)});
    return std::vector<std::int64_t>(grid.data(), grid.data() + grid.size());
  };
  CHECK(qwen_image(4) == std::vector<std::int64_t>{-2, -1, 0, 1});
  CHECK(qwen_image(5) == std::vector<std::int64_t>{-3, -2, -1, 0, 1});
  CHECK(agrees_with(rope::cell_centers(8, -4, 4), {-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5}, 15));
  CHECK(agrees_with(rope::evenly_spaced_before(4, 0, 30), {0, 7.5, 15, 22.5}, 15));
  CHECK(agrees_with(rope::evenly_spaced_before(4, 0, 4 * 24.0 / 30), {0, 0.8, 1.6, 2.4}, 15));
}

// Golden: `grid_h` of get_3d_rotary_pos_embed of Hugging Face diffusers, for crops_coords of 3 and 27.
TEST_CASE("cells of a crop that does not begin at 0 have the coordinates of diffusers",
          "[positions][grid_positions]") {
  CHECK(agrees_with(rope::evenly_spaced_in_crop(12, 3, 27),
                    {3, 4.977272727, 6.954545455, 8.931818182, 10.90909091, 12.88636364, 14.86363636,
                     16.84090909, 18.81818182, 20.79545455, 22.77272727, 24.75},
                    10));
  CHECK(agrees_with(rope::evenly_spaced_in_crop(4, 2, 7), {2, 3.0833333333, 4.1666666667, 5.25}, 10));
  // A crop that begins at 0 has those of evenly_spaced_before.
  CHECK(agrees_with(rope::evenly_spaced_in_crop(4, 0, 30), {0, 7.5, 15, 22.5}, 15));
  CHECK(rope::evenly_spaced_in_crop(1, 4, 9)(0) == 4);
  CHECK(rope::evenly_spaced_in_crop(0, 4, 9).size() == 0);
}

// Golden: get_resize_crop_region_for_grid and get_3d_rotary_pos_embed of Hugging Face diffusers: the first
// two and the last coordinate of the rows and of the columns, over a base grid of 30 x 45.
TEST_CASE("CogVideoX places a video of any proportions over the middle of its base grid",
          "[positions][grid_positions]") {
  struct golden {
    Index height, width;
    std::vector<double> rows, columns;
  };
  for (const golden& expected : std::vector<golden>{
           {30, 45, {0, 1, 29}, {0, 1, 44}},
           {30, 44, {0, 1, 29}, {0, 1, 43}},
           {20, 45, {5, 5.986842105, 23.75}, {0, 1, 44}},
           {48, 48, {0, 0.625, 29.375}, {8, 8.621453901, 37.208333333}},  // 7.5 cells are left: half to even
           {60, 30, {0, 0.5, 29.5}, {15, 15.482758621, 29}},
           {10, 45, {10, 10.888888889, 18}, {0, 1, 44}},
           {7, 9, {0, 4.285714286, 25.714285714}, {3, 7.291666667, 37.333333333}},
           {33, 14, {0, 0.909090909, 29.090909091}, {16, 16.840659341, 26.928571429}}}) {
    CAPTURE(expected.height, expected.width);
    const Index cells = expected.height * expected.width;
    const Eigen::ArrayXXd grid =
        rope::cogvideox_positions({.frames = 2, .height = expected.height, .width = expected.width});
    REQUIRE(grid.rows() == 2 * cells);
    REQUIRE(grid.cols() == 3);
    CHECK((grid.col(0).head(cells) == 0).all());
    CHECK((grid.col(0).tail(cells) == 1).all());
    const auto row_at = [&](Index i) { return grid(i * expected.width, 1); };
    CHECK(agrees_with(Eigen::Array3d(row_at(0), row_at(1), row_at(expected.height - 1)), expected.rows, 8));
    CHECK(agrees_with(Eigen::Array3d(grid(0, 2), grid(1, 2), grid(cells - 1, 2)), expected.columns, 8));
    CHECK((grid.topRows(cells).rightCols(2) == grid.bottomRows(cells).rightCols(2)).all());
  }
  CHECK(rope::cogvideox_positions({.frames = 3, .height = 0, .width = 5}).rows() == 0);
  CHECK(rope::cogvideox_positions({.frames = 0, .height = 4, .width = 5}).rows() == 0);
  CHECK(rope::cogvideox_positions({.frames = 1, .height = 1, .width = 1}).rows() == 1);
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, "rope::cogvideox_positions: ", parts...);
  };
  CHECK(rejects([] { rope::cogvideox_positions({.frames = 1, .height = -2, .width = 3}); },
                "an extent must not be negative, got -2"));
  for (const Index bad : {Index{0}, Index{-4}}) {
    CHECK(rejects(
        [&] { rope::cogvideox_positions({.frames = 1, .height = 2, .width = 3, .base_height = bad}); },
        "the base grid must be positive"));
    CHECK(
        rejects([&] { rope::cogvideox_positions({.frames = 1, .height = 2, .width = 3, .base_width = bad}); },
                "the base grid must be positive", "30 and " + std::to_string(bad)));
  }
  CHECK(throws_saying<std::length_error>(
      [] { rope::cogvideox_positions({.frames = too_many, .height = 2, .width = 2}); },
      "rope::cogvideox_positions: the grid exceeds the address space, got [",
      std::to_string(too_many) + ", 2, 2]"));
}

TEST_CASE("the centers of patches are normalised in three ways", "[positions][grid_positions]") {
  const auto centers = [](patch_normalisation n) { return rope::patch_centers(2, 3, n); };
  const Eigen::ArrayXXd separate = centers(patch_normalisation::separate),
                        largest = centers(patch_normalisation::largest),
                        smallest = centers(patch_normalisation::smallest);
  REQUIRE(separate.rows() == 6);
  REQUIRE(separate.cols() == 2);
  // Golden: DINOv3, `make_axis` for a 2 x 3 grid: cell (0, 0) of "separate" is at (-0.5, -0.666667).
  CHECK(agrees_with(separate.row(0), {-0.5, -0.666667}, 6));
  CHECK(agrees_with(separate.row(5), {0.5, 2.0 / 3}, 15));
  CHECK(agrees_with(separate.row(1), {-0.5, 0}, 15));
  CHECK(agrees_with(largest.row(0), {1.0 / 3 - 1, 1.0 / 3 - 1}, 15));
  CHECK(agrees_with(largest.row(5), {0, 2.0 / 3}, 15));
  CHECK(agrees_with(smallest.row(0), {-0.5, -0.5}, 15));
  CHECK(agrees_with(smallest.row(5), {0.5, 1.5}, 15));
  CHECK(agrees_with(rope::patch_centers(3, 2, patch_normalisation::largest).row(5), {2.0 / 3, 0}, 15));
}

TEST_CASE("a grid whose coordinates would overflow throws", "[positions][grid_positions]") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(rope::grid_positions({2, 3}, {0, most - 2})(5, 1) == most);
  CHECK(rope::grid_positions({0, 3}, {0, most}).rows() == 0);
  CHECK(throws_saying<std::out_of_range>(
      [] {
        rope::grid_positions({2, 3}, {0, most - 1});
      },
      "rope::grid_positions: positions must fit", "got 9223372036854775806 + 2"));
}

TEST_CASE("a grid must have valid extents", "[positions][grid_positions]") {
  const auto rejects = [](auto call, const auto&... parts) {
    return throws_saying<std::invalid_argument>(call, parts...);
  };
  CHECK(rejects([] { rope::grid_positions({}); }, "rope::grid_positions: give one extent per axis"));
  CHECK(rejects([] { rope::grid_positions({2, -3}); }, "an extent must not be negative", "got -3"));
  CHECK(rejects([] { rope::grid_positions({0, -3}); }, "got -3"));
  CHECK(rejects([] { rope::grid_positions({2, 3}, {1}); }, "first must be empty or one per axis, 2, got 1"));
  CHECK(rejects([] { rope::patch_centers(-1, 2, patch_normalisation::largest); },
                "rope::patch_centers: ", "got -1"));
  for (const std::vector<Index>& huge :
       {std::vector<Index>{too_many}, {too_many, 2}, {too_many / 4, too_many / 4}})
    CHECK(throws_saying<std::length_error>([&] { rope::grid_positions(huge); }, "exceeds the address space"));
  CHECK(throws_saying<std::length_error>(
      [&] {
        rope::grid_positions({2, too_many, 3});
      },
      "got [2, " + std::to_string(too_many) + ", 3]"));
  CHECK(rejects([] { rope::grid_ids({2, 3}, {4}); }, "rope::grid_ids: both grids must have the same axes"));
  CHECK(throws_saying<std::out_of_range>(
      [] {
        rope::grid_ids({2, 5}, {4, 4});
      },
      "rope::grid_ids: axis 1 of the table has 4 cells, got 5"));
  CHECK(throws_saying<std::length_error>(
      [] {
        rope::grid_ids({2, 2}, {too_many, too_many});
      },
      "rope::grid_ids"));
  CHECK(rejects([] { rope::evenly_spaced(-1); }, "rope::evenly_spaced: count must not be negative, got -1"));
  CHECK(rejects([] { rope::evenly_spaced_before(-2, 0, 1); }, "rope::evenly_spaced_before: ", "got -2"));
  CHECK(rejects([] { rope::evenly_spaced_in_crop(-5, 0, 1); }, "rope::evenly_spaced_in_crop: ", "got -5"));
  CHECK(rejects([] { rope::cell_centers(-3, 0, 1); }, "rope::cell_centers: ", "got -3"));
  CHECK(rejects([] { rope::centered_first(-4); }, "rope::centered_first: ", "got -4"));
}
