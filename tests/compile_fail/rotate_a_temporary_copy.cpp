// SPDX-License-Identifier: MIT
// EXPECT: rotate: x is read-only

// A rotated copy that nothing keeps.

#include <rope/rope.hpp>

#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& x, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate<rope::half_split>(rope::staged<"bshd">(x).view(), table);
#else
  auto s = rope::staged<"bshd">(x);
  rope::rotate<rope::half_split>(s.view(), table);
  s.store(x);
#endif
}
