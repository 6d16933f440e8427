// SPDX-License-Identifier: MIT
// EXPECT: error: .*append_rotated: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::kv_cache<float>& cache, Eigen::Tensor<float, 4, Eigen::RowMajor>& k,
          const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  cache.append_rotated<rope::half_split>(k, k, table);
#else
  cache.append_rotated<rope::half_split>(rope::bshd(k), rope::bshd(k), table);
#endif
}
