// SPDX-License-Identifier: MIT
#define ROPE_TEST_DEFINE_INSTANCES
#define ROPE_TEST_EXTERN
#include "instances.hpp"

namespace rope::inline ROPE_ABI::detail {

ROPE_TEST_INSTANCES_OF_BFLOAT16

}  // namespace rope::inline ROPE_ABI::detail
