// SPDX-License-Identifier: MIT
// EXPECT: error: .*thd: the matrix must be row-major in memory with an inner stride of 1

#include <rope/rope.hpp>

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void test(const matrix& x, const matrix& w, const rope::frequency_table<float>& table) {
#ifdef SHOULD_FAIL
  rope::rotate_to<rope::half_split>(rope::thd((x * w).eval(), 4), rope::head_view<float>{}, table);
#else
  const matrix q = x * w;
  rope::rotate_to<rope::half_split>(rope::thd(q, 4), rope::head_view<float>{}, table);
#endif
}
