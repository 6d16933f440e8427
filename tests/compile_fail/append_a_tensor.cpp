// SPDX-License-Identifier: MIT
// EXPECT: error: .*append: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& v,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append<rope::half_split>(k, v, table);
#else
  cache.append<rope::half_split>(rope::dhsb(k), rope::dhsb(v), table);
#endif
}
