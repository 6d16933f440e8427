// SPDX-License-Identifier: MIT
// EXPECT: error: .*write_pages: x must be a head_view; name the order of its axes

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::page_view<float>& pages, Eigen::Tensor<float, 4>& k, Eigen::Tensor<float, 4>& v) {
#ifdef SHOULD_FAIL
  rope::write_pages(k, v, pages);
#else
  rope::write_pages(rope::dhsb(k), rope::dhsb(v), pages);
#endif
}
