// SPDX-License-Identifier: MIT
#ifndef ROPE_TESTS_HYGIENE_AS_MSVC_HPP
#define ROPE_TESTS_HYGIENE_AS_MSVC_HPP

/// clang pretending to be MSVC, included before everything else: the library's questions about the compiler
/// get the answers of MSVC 19.35 with /std:c++20, and names that only GCC and clang know stop the
/// compilation. The standard library and Eigen are included here with the true compiler.
///
/// The flags for it: `long` of 32 bits (--target=x86_64-w64-windows-gnu), -fms-extensions, and
/// -flax-vector-conversions=none, because registers of MSVC are classes that do not convert into each other,
/// and -Wno-unknown-attributes, because clang has [[msvc::no_unique_address]] for the ABI of MSVC only.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cctype>
#include <cfloat>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <Eigen/Core>

static_assert(sizeof(long) == 4, "MSVC has a long of 32 bits: compile with --target=x86_64-w64-windows-gnu");

#undef __GNUC__
#undef __GNUC_MINOR__
#undef __GNUG__
#undef __clang__
#undef __MINGW32__
#undef __MINGW64__
#undef __EXCEPTIONS
#undef __FAST_MATH__
#undef __FINITE_MATH_ONLY__
#undef __SIZEOF_INT128__
#undef __SSE3__
#undef __SSE4_1__
#undef __FMA__
#undef __F16C__
#define _MSC_VER 1935
#define _MSVC_LANG 202002L
#define _CPPUNWIND 1

#pragma clang poison __attribute__ __attribute __asm__ asm __typeof__ __int128 __extension__ __restrict__
#pragma clang poison __builtin_prefetch __builtin_expect __builtin_unreachable __builtin_memcpy __builtin_fma
#pragma clang poison __builtin_clz __builtin_clzll __builtin_ctz __builtin_ctzll __builtin_popcount
#pragma clang poison __builtin_isnan __builtin_isinf __builtin_nan __builtin_inf __builtin_assume_aligned
#pragma clang poison __builtin_add_overflow __builtin_mul_overflow __builtin_sub_overflow

#endif  // ROPE_TESTS_HYGIENE_AS_MSVC_HPP
