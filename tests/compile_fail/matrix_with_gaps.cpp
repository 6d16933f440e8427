// SPDX-License-Identifier: MIT
// EXPECT: error: .*thd: the matrix must be row-major in memory with an inner stride of 1

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
#else
using stride = Eigen::OuterStride<>;
#endif

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

auto test(Eigen::Map<matrix, Eigen::Unaligned, stride>& x) { return rope::thd(x, 4); }
