// SPDX-License-Identifier: MIT
#ifndef ROPE_CONFIG_HPP
#define ROPE_CONFIG_HPP

/// What the library asks of the compiler and of Eigen, how it reports errors, and the namespace it lives in.

#if defined(_MSVC_LANG)
#define ROPE_DETAIL_CPLUSPLUS _MSVC_LANG
#else
#define ROPE_DETAIL_CPLUSPLUS __cplusplus
#endif
#if ROPE_DETAIL_CPLUSPLUS < 202002L
#error "rope needs C++20: compile with -std=c++20 (MSVC: /std:c++20)"
// Only a file that is not there stops every compiler; what it went on to would bury the sentence above.
#include <rope_needs_cpp20>
#endif

#include <Eigen/Core>
#include <cassert>
#include <cstdio>   // std::fputs, where exceptions are off
#include <cstdlib>  // std::abort, where exceptions are off
#include <stdexcept>
#include <string>

#include <rope/version.hpp>

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "rope needs Eigen 3.4 or newer"
#endif

/// The duty of a caller, checked in debug builds only. Define it before the first include to use another
/// handler.
#ifndef ROPE_ASSERT
#define ROPE_ASSERT(condition) assert(condition)
#endif

/// Reports bad input: throws `exception(message)`; without exceptions prints the same text to stderr and
/// aborts. Define it before the first include to use another handler, which must not return.
#ifndef ROPE_THROW
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define ROPE_THROW(exception, message) throw exception(message)
#else
#define ROPE_THROW(exception, message) \
  (std::fputs((std::string(#exception ": ") + (message) + "\n").c_str(), stderr), std::abort())
#endif
#endif

// Code compiled for two instruction sets must never meet under one name: the linker would keep one of the two
// for both callers. The inline namespace therefore carries the version, the instruction set and the
// floating-point model, and two differently compiled translation units see different types.
#if defined(EIGEN_DONT_VECTORIZE)
#define ROPE_DETAIL_ISA scalar
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#define ROPE_DETAIL_ISA avx512bf16
#define ROPE_DETAIL_BFLOAT16_INSTRUCTIONS 1
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define ROPE_DETAIL_ISA avx512bw
#elif defined(__AVX512F__)
#define ROPE_DETAIL_ISA avx512f
#elif defined(__AVX2__)
#define ROPE_DETAIL_ISA avx2
#elif defined(__AVX__)
#define ROPE_DETAIL_ISA avx
#elif defined(__SSE4_1__)
#define ROPE_DETAIL_ISA sse4
#elif defined(__SSE3__)
#define ROPE_DETAIL_ISA sse3
#else
#define ROPE_DETAIL_ISA baseline
#endif

#ifndef ROPE_DETAIL_BFLOAT16_INSTRUCTIONS
#define ROPE_DETAIL_BFLOAT16_INSTRUCTIONS 0
#endif

// Whether Eigen's packets multiply and add in one rounding; the scalar code then does the same.
#if defined(EIGEN_VECTORIZE_FMA) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) || defined(__VSX__)
#define ROPE_DETAIL_FMA fma
#define ROPE_DETAIL_FUSED 1
#else
#define ROPE_DETAIL_FMA nofma
#define ROPE_DETAIL_FUSED 0
#endif

#if defined(__F16C__)
#define ROPE_DETAIL_F16C f16c
#else
#define ROPE_DETAIL_F16C nof16c
#endif

#if defined(__FAST_MATH__)
#define ROPE_DETAIL_MATH fast
#else
#define ROPE_DETAIL_MATH ieee
#endif

#define ROPE_DETAIL_JOIN(a, b, c, d) v0_##a##_##b##_##c##_##d
#define ROPE_DETAIL_EXPAND(a, b, c, d) ROPE_DETAIL_JOIN(a, b, c, d)
#define ROPE_ABI ROPE_DETAIL_EXPAND(ROPE_DETAIL_ISA, ROPE_DETAIL_FMA, ROPE_DETAIL_F16C, ROPE_DETAIL_MATH)

namespace rope {
inline namespace ROPE_ABI {

/// Sizes, strides and channel numbers: signed, as wide as a pointer.
using Index = Eigen::Index;

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CONFIG_HPP
