// SPDX-License-Identifier: MIT
// EXPECT: error: .*rotate: x must be a head_view; name the order of its axes

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(x, table);
#else
  rope::rotate<rope::half_split>(rope::dhsb(x), table);
#endif
}
