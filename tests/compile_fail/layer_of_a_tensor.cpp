// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate_layer: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/models.hpp>
#include <rope/rope.hpp>

void test(const rope::model_tables<float>& tables, rope::head_view<float> q, Eigen::Tensor<float, 4>& k) {
#ifdef SHOULD_FAIL
  rope::rotate_layer(tables, 0, q, k, 3);
#else
  rope::rotate_layer(tables, 0, q, rope::dhsb(k), 3);
#endif
}
