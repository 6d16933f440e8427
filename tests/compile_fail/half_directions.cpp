// SPDX-License-Identifier: MIT
// EXPECT: error: .*along_directions: directions are float or double

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using direction = Eigen::half;
#else
using direction = float;
#endif

rope::frequencies test(const Eigen::Array<direction, Eigen::Dynamic, 2>& directions) {
  return rope::along_directions(rope::frequencies(8), directions);
}
