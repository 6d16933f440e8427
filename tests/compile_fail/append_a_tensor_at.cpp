// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_at: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, rope::head_view<float> k, Eigen::Tensor<float, 4>& v) {
#ifdef SHOULD_FAIL
  cache.append_at(k, v, 3);
#else
  cache.append_at(k, rope::dhsb(v), 3);
#endif
}
