// SPDX-License-Identifier: MIT
#ifdef SINGLE_HEADER
#include SINGLE_HEADER
#else
#include <rope/rope.hpp>
#endif

#include <cmath>
#include <vector>

int main() {
  const rope::frequency_table<float> table(rope::frequencies(4), 8);
  std::vector<float> x = {1, 0, 0, 0};
  rope::rotate<rope::half_split>(rope::thd(x.data(), 1, 1, 4), table, 3);
  // Channels 0 and 2 are pair 0, which rotates by 3 radians.
  return std::abs(x[0] - std::cos(3.0f)) < 1e-6f && std::abs(x[2] - std::sin(3.0f)) < 1e-6f ? 0 : 1;
}
