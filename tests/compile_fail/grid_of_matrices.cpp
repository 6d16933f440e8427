// SPDX-License-Identifier: MIT
// EXPECT: error: .*grid_coordinates: an axis is an Eigen vector

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using axis = Eigen::ArrayXXd;
#else
using axis = Eigen::ArrayXd;
#endif

Eigen::ArrayXXd test(const axis& height, const axis& width) { return rope::grid_coordinates(height, width); }
