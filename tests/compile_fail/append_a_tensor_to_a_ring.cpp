// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::ring_cache<float>& cache, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& v) {
#ifdef SHOULD_FAIL
  cache.append(k, v);
#else
  cache.append(rope::dhsb(k), rope::dhsb(v));
#endif
}
