// SPDX-License-Identifier: MIT
#ifndef ROPE_VERSION_HPP
#define ROPE_VERSION_HPP

/// The version of the library. CMake and the package files read it from here.

#define ROPE_VERSION_MAJOR 0
#define ROPE_VERSION_MINOR 3
#define ROPE_VERSION_PATCH 0
#define ROPE_VERSION_STRING "0.3.0"

#endif  // ROPE_VERSION_HPP
