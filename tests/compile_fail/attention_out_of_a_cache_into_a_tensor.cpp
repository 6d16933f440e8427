// SPDX-License-Identifier: MIT
// EXPECT: error: .*attention: x must be a head_view; name the order of its axes

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& q, const rope::kv_cache<float>& cache, Eigen::Tensor<float, 4>& out) {
#ifdef SHOULD_FAIL
  rope::attention(rope::dhsb(q), cache, out);
#else
  rope::attention(rope::dhsb(q), cache, rope::dhsb(out));
#endif
}
