// SPDX-License-Identifier: MIT
// EXPECT: error: .*staged: name the indices of the tensor in its own order, staged<

#include <rope/rope.hpp>
#include <rope/rotation_extras.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

void test(Eigen::Tensor<float, 4>& x) {
#ifdef SHOULD_FAIL
  auto s = rope::staged(x);
#else
  auto s = rope::staged<"bshd">(x);
#endif
  static_cast<void>(s);
}
