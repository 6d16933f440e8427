// SPDX-License-Identifier: MIT
// EXPECT: error: .*projection: a weight is row-major \[out_features, in_features\]

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
constexpr int order = Eigen::ColMajor;
#else
constexpr int order = Eigen::RowMajor;
#endif

rope::multi_head_weights<float> test(const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, order>& w) {
  return {.q = w};
}
