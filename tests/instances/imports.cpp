// SPDX-License-Identifier: MIT
#ifdef ROPE_TEST_JSON
#define ROPE_TEST_DEFINE_INSTANCES
#define ROPE_TEST_DEFINE_IMPORTS
#include "instances.hpp"

ROPE_TEST_IMPORTS(template)
#endif
