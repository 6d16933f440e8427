// SPDX-License-Identifier: MIT
// EXPECT: error: .*dequantize: x must be a head_view; name the order of its axes

#include <cstdint>

#include <unsupported/Eigen/CXX11/Tensor>

#include <rope/rope.hpp>

void test(rope::quantized_view<std::int8_t> x, Eigen::Tensor<float, 4>& out) {
#ifdef SHOULD_FAIL
  rope::dequantize(x, out);
#else
  rope::dequantize(x, rope::dhsb(out));
#endif
}
