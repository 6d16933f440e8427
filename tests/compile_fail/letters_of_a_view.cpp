// SPDX-License-Identifier: MIT
// EXPECT: error: .*view_as: channels must be the fastest index

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

#ifdef SHOULD_FAIL
auto test(Eigen::Tensor<float, 3, Eigen::RowMajor>& x) { return rope::view_as<"dss">(x); }
#else
auto test(Eigen::Tensor<float, 3, Eigen::RowMajor>& x) { return rope::view_as<"ssd">(x); }
#endif
