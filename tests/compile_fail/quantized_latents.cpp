// SPDX-License-Identifier: MIT
// EXPECT: error: .*kv_cache: a channel type is float, double, Eigen::half, Eigen::bfloat16 or, where values have

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using channel = std::int8_t;
#else
using channel = Eigen::bfloat16;
#endif

rope::latent_cache<channel> test() { return {1, 8, 16, 4}; }
