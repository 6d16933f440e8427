// SPDX-License-Identifier: MIT
// A source file of every target that links rope::instantiations, compiled with the flags of that target.
#include <rope/rope.hpp>

ROPE_INSTANTIATE
