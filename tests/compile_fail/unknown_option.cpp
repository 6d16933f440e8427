// SPDX-License-Identifier: MIT
// EXPECT: error: .*yarn_scaling.*beta_fats|error: .*beta_fats.*yarn_scaling

#include <rope/rope.hpp>

#ifdef SHOULD_FAIL
const rope::yarn_scaling scaling = {.factor = 4, .original_max_position = 4096, .beta_fats = 16};
#else
const rope::yarn_scaling scaling = {.factor = 4, .original_max_position = 4096, .beta_fast = 16};
#endif

const rope::frequencies frequencies(128, 1e6, scaling);
