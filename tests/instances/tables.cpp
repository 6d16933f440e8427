// SPDX-License-Identifier: MIT
#define ROPE_TEST_DEFINE_INSTANCES
#include "instances.hpp"

ROPE_TEST_TABLES(template)
