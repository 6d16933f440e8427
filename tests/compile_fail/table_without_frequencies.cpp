// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequency_table: frequencies come first, frequency_table\(frequencies\(rotary_dim, base\), count\)

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
const rope::frequency_table<float> table(8, 64);
#else
const rope::frequency_table<float> table(rope::frequencies(8), 64);
#endif
