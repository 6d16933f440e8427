// SPDX-License-Identifier: MIT
// EXPECT: error: .*bshd: channels must be the fastest index; this tensor is column-major: declare it with Eigen::RowMajor, order it \(head_dim, heads, tokens, batch\) and call dhsb\(x\), or copy it with staged<

#include <rope/rope.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

#ifdef SHOULD_FAIL
constexpr int order = Eigen::ColMajor;
#else
constexpr int order = Eigen::RowMajor;
#endif

auto test(Eigen::Tensor<float, 4, order>& x) { return rope::bshd(x); }
