// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequency_table: coordinates are integers, float or double

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using coordinate = Eigen::half;
#else
using coordinate = float;
#endif

rope::frequency_table<float> test(const Eigen::Array<coordinate, Eigen::Dynamic, 1>& positions) {
  return {rope::frequencies(8), positions};
}
