// SPDX-License-Identifier: MIT
// EXPECT: error: .*permute_channels: x must be a head_view; name the order of its axes

#include <vector>

#include <rope/rope.hpp>

void test(std::vector<float>& x) {
#ifdef SHOULD_FAIL
  rope::permute_channels<rope::interleaved, rope::half_split>(x);
#else
  rope::permute_channels<rope::interleaved, rope::half_split>(rope::thd(x.data(), 1, 1, 8));
#endif
}
