// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_HYGIENE_MACROS_HPP
#define ROPE_TESTS_HYGIENE_MACROS_HPP

/// Macros that other headers define before those of the library are read, as text that no compiler accepts: a
/// header of the library that uses such a word does not compile. Eigen and the standard library come first,
/// because many of these words would stop them as well. A standard header that is missing below shows as an
/// error inside it.

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cfloat>
#include <climits>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#define ROPE_GARBAGE @a macro of another header @

// C's <complex.h>, which <complex> includes with -std=gnu++20.
#undef I
#define I ROPE_GARBAGE
#define imaginary ROPE_GARBAGE

// Windows: windef.h, rpcndr.h, wingdi.h, winerror.h. min and max take arguments.
#define near ROPE_GARBAGE
#define far ROPE_GARBAGE
#define small ROPE_GARBAGE
#define hyper ROPE_GARBAGE
#define pascal ROPE_GARBAGE
#define cdecl ROPE_GARBAGE
#define interface ROPE_GARBAGE
#define IN ROPE_GARBAGE
#define OUT ROPE_GARBAGE
#define CONST ROPE_GARBAGE
#define VOID ROPE_GARBAGE
#define TRUE ROPE_GARBAGE
#define FALSE ROPE_GARBAGE
#define ERROR ROPE_GARBAGE
#define NO_ERROR ROPE_GARBAGE
#define OPTIONAL ROPE_GARBAGE
#define DELETE ROPE_GARBAGE
#define STRICT ROPE_GARBAGE
#define RGB ROPE_GARBAGE
#define OPAQUE ROPE_GARBAGE
#define TRANSPARENT ROPE_GARBAGE
#define ABSOLUTE ROPE_GARBAGE
#define RELATIVE ROPE_GARBAGE
#define DIFFERENCE ROPE_GARBAGE
#define IGNORE ROPE_GARBAGE
#define min(a, b) ROPE_GARBAGE
#define max(a, b) ROPE_GARBAGE

// <math.h> of old Unix.
#undef DOMAIN
#undef OVERFLOW
#undef UNDERFLOW
#define DOMAIN ROPE_GARBAGE
#define OVERFLOW ROPE_GARBAGE
#define UNDERFLOW ROPE_GARBAGE
#define PLOSS ROPE_GARBAGE
#define TLOSS ROPE_GARBAGE
#define SING ROPE_GARBAGE
#define HUGE ROPE_GARBAGE

// Qt.
#define slots ROPE_GARBAGE
#define signals ROPE_GARBAGE
#define emit ROPE_GARBAGE
#define foreach ROPE_GARBAGE
#define forever ROPE_GARBAGE

// X11.
#define None ROPE_GARBAGE
#define Bool ROPE_GARBAGE
#define Status ROPE_GARBAGE
#define Success ROPE_GARBAGE
#define Always ROPE_GARBAGE
#define Complex ROPE_GARBAGE
#define Convex ROPE_GARBAGE
#define Unsorted ROPE_GARBAGE
#define True ROPE_GARBAGE
#define False ROPE_GARBAGE
#define Above ROPE_GARBAGE
#define Below ROPE_GARBAGE
#define CurrentTime ROPE_GARBAGE
#define CursorShape ROPE_GARBAGE
#define FocusIn ROPE_GARBAGE
#define KeyPress ROPE_GARBAGE

// Apple: AssertMacros.h, MacTypes.h, objc.h.
#define check ROPE_GARBAGE
#define require ROPE_GARBAGE
#define verify ROPE_GARBAGE
#define nil ROPE_GARBAGE
#define Nil ROPE_GARBAGE
#define YES ROPE_GARBAGE
#define NO ROPE_GARBAGE

// <ctype.h> of newlib, termios, sys/sysmacros.h, predefined names of compilers.
#undef _U
#undef _L
#undef _N
#undef _S
#undef _P
#undef _C
#undef _X
#undef _B
#define _U ROPE_GARBAGE
#define _L ROPE_GARBAGE
#define _N ROPE_GARBAGE
#define _S ROPE_GARBAGE
#define _P ROPE_GARBAGE
#define _C ROPE_GARBAGE
#define _X ROPE_GARBAGE
#define _B ROPE_GARBAGE
#undef B0
#define B0 ROPE_GARBAGE
#undef major
#undef minor
#define major ROPE_GARBAGE
#define minor ROPE_GARBAGE
#undef unix
#undef linux
#define unix ROPE_GARBAGE
#define linux ROPE_GARBAGE

// Arduino: macros with arguments, and macros without.
#define F(text) ROPE_GARBAGE
#define abs(x) ROPE_GARBAGE
#define round(x) ROPE_GARBAGE
#define radians(degrees) ROPE_GARBAGE
#define degrees(radians) ROPE_GARBAGE
#define sq(x) ROPE_GARBAGE
#define bit(b) ROPE_GARBAGE
#define word(...) ROPE_GARBAGE
#define constrain(x, low, high) ROPE_GARBAGE
#define PI ROPE_GARBAGE
#define HALF_PI ROPE_GARBAGE
#define TWO_PI ROPE_GARBAGE
#define DEFAULT ROPE_GARBAGE
#define EULER ROPE_GARBAGE
#define HIGH ROPE_GARBAGE
#define LOW ROPE_GARBAGE

// Single letters that other headers define: E for a unit matrix or Euler's number.
#define E ROPE_GARBAGE

#endif  // ROPE_TESTS_HYGIENE_MACROS_HPP
