// SPDX-License-Identifier: MIT
// EXPECT: error: .*thd: the matrix must be row-major.*copy a column-major \[tokens, heads \* head_dim\]

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
constexpr int order = Eigen::ColMajor;
#else
constexpr int order = Eigen::RowMajor;
#endif

auto test(Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, order>& x) { return rope::thd(x, 4); }
