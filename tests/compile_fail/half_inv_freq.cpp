// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequencies::custom: inv_freq is float or double

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using frequency = Eigen::bfloat16;
#else
using frequency = float;
#endif

rope::frequencies test(const Eigen::Array<frequency, Eigen::Dynamic, 1>& inv_freq) {
  return rope::frequencies::custom(inv_freq);
}
