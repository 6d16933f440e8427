// SPDX-License-Identifier: MIT
// EXPECT: error: .*frequency_table: a table type is float or double

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
using entry = int;
#else
using entry = float;
#endif

rope::frequency_table<entry> test() { return {rope::frequencies(8), 10}; }
