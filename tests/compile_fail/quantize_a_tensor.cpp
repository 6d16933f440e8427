// SPDX-License-Identifier: MIT
// EXPECT: error: .*quantize: x must be a head_view; name the order of its axes

#include <cstdint>

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(Eigen::Tensor<float, 4>& x, rope::quantized_view<std::int8_t> out) {
#ifdef SHOULD_FAIL
  rope::quantize(x, out);
#else
  rope::quantize(rope::dhsb(x), out);
#endif
}
