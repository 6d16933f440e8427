// SPDX-License-Identifier: MIT
// EXPECT: error: .*table_of_angles: angles are float or double

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using angle = Eigen::half;
#else
using angle = float;
#endif

rope::frequency_table<float> test(const Eigen::Array<angle, Eigen::Dynamic, Eigen::Dynamic>& angles) {
  return rope::table_of_angles(angles, rope::table_form::half_width);
}
