// SPDX-License-Identifier: MIT

#include <rope/rope.hpp>

#include <cstddef>
#include <vector>

using rope::frequencies;

void schedules(const Eigen::ArrayXf& values, const Eigen::ArrayXXf& directions) {
  frequencies(128, 500000.0);
#ifdef BASE_BEFORE_ROTARY_DIM
  // EXPECT: error: .*frequencies: rotary_dim is an integer and comes first, then the base
  rope::frequencies(500000.0, 128);
#endif
  frequencies(128, 1e6, rope::yarn_scaling{.factor = 4, .original_max_position = 4096, .beta_fast = 16});
#ifdef UNKNOWN_OPTION
  // EXPECT: error: .*yarn_scaling.*beta_fats|error: .*beta_fats.*yarn_scaling
  frequencies(128, 1e6, rope::yarn_scaling{.factor = 4, .original_max_position = 4096, .beta_fats = 16});
#endif
  frequencies::custom(values);
#ifdef HALF_INV_FREQ
  // EXPECT: error: .*frequencies::custom: inv_freq is float or double
  frequencies::custom(values.cast<Eigen::bfloat16>().eval());
#endif
  rope::along_directions(frequencies(8), directions);
#ifdef HALF_DIRECTIONS
  // EXPECT: error: .*along_directions: directions are float or double
  rope::along_directions(frequencies(8), directions.cast<Eigen::half>().eval());
#endif
}

void positions(const Eigen::ArrayXd& axis) {
  rope::grid_coordinates(axis, axis);
#ifdef GRID_OF_MATRICES
  // EXPECT: error: .*grid_coordinates: an axis is an Eigen vector
  rope::grid_coordinates(Eigen::ArrayXXd(axis), Eigen::ArrayXXd(axis));
#endif
}

void tables(const Eigen::ArrayXf& coordinates, const Eigen::ArrayXXf& angles) {
  rope::frequency_table<float>(frequencies(8), 64);
#ifdef TABLE_WITHOUT_FREQUENCIES
  // EXPECT: error: .*frequency_table: frequencies come first, frequency_table\(frequencies\(rotary_dim, base\), count\)
  rope::frequency_table<float>(8, 64);
#endif
#ifdef INTEGER_TABLE
  // EXPECT: error: .*frequency_table: a table type is float or double
  rope::frequency_table<int>(frequencies(8), 64);
#endif
  rope::frequency_table<float>(frequencies(8), coordinates);
#ifdef HALF_COORDINATES
  // EXPECT: error: .*frequency_table.*: coordinates are integers, float or double
  rope::frequency_table<float>(frequencies(8), coordinates.cast<Eigen::half>().eval());
#endif
  const rope::row_maker<float> maker(frequencies(8));
  std::vector<float> rows(static_cast<std::size_t>(8 * angles.rows()));
  maker.write(angles.matrix() + angles.matrix(), rows);
#ifdef MATRIX_PRODUCT_OF_COORDINATES
  // EXPECT: error: .*row_maker: evaluate a matrix product into memory of your own first
  maker.write(angles.matrix() * angles.matrix(), rows);
#endif
  rope::table_of_angles(angles, rope::table_form::half_width);
#ifdef HALF_ANGLES
  // EXPECT: error: .*table_of_angles: angles are float or double
  rope::table_of_angles(angles.cast<Eigen::half>().eval(), rope::table_form::half_width);
#endif
}
