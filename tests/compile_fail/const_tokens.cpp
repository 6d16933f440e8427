// SPDX-License-Identifier: MIT
// EXPECT: error: .*multi_head_attention: the output is read-only

#include <rope/rope.hpp>

using tokens = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#ifdef SHOULD_FAIL
using output = const tokens;
#else
using output = tokens;
#endif

void test(const rope::multi_head_attention<float>& block, const tokens& x, output& out) {
  block.forward(x, 1, out);
}
