// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequencies: rotary_dim is an integer and comes first, then the base

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
rope::frequencies test() { return rope::frequencies(500000.0, 128); }
#else
rope::frequencies test() { return rope::frequencies(128, 500000.0); }
#endif
