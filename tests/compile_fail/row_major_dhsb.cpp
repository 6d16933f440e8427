// SPDX-License-Identifier: MIT
// EXPECT: error: .*dhsb: channels must be the fastest index; this tensor is row-major: declare it without Eigen::RowMajor, order it \(batch, tokens, heads, head_dim\) and call bshd\(x\)

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

#ifdef SHOULD_FAIL
constexpr int order = Eigen::RowMajor;
#else
constexpr int order = Eigen::ColMajor;
#endif

auto test(Eigen::Tensor<float, 4, order>& x) { return rope::dhsb(x); }
