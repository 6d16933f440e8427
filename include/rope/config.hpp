// SPDX-License-Identifier: MIT
#ifndef ROPE_CONFIG_HPP
#define ROPE_CONFIG_HPP

/// Requirements on the compiler and on Eigen, the reporting of errors, and the namespace of the library.

#if defined(_MSVC_LANG)
#define ROPE_DETAIL_CPLUSPLUS _MSVC_LANG
#else
#define ROPE_DETAIL_CPLUSPLUS __cplusplus
#endif
#if ROPE_DETAIL_CPLUSPLUS < 202002L
#error "rope needs C++20: compile with -std=c++20 (MSVC: /std:c++20)"
// Some compilers continue after #error, and their later errors would hide the sentence above. Every compiler
// stops at a missing file.
#include <rope_needs_cpp20>
#endif

#include <Eigen/Core>
#include <cassert>
#include <cstddef>  // std::ptrdiff_t
#include <cstdio>   // std::fputs, where exceptions are off
#include <cstdlib>  // std::abort, where exceptions are off
#include <stdexcept>
#include <string>

#include <rope/version.hpp>

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "rope needs Eigen 3.4 or newer"
#endif

/// Checks a requirement of a call, in debug builds only. To use another handler, define this macro before the
/// first include.
#ifndef ROPE_ASSERT
#define ROPE_ASSERT(condition) assert(condition)
#endif

/// Reports invalid input: throws `exception(message)`. If exceptions are disabled, it prints the message to
/// stderr and aborts. To use another handler, which must not return, define this macro before the first
/// include. All translation units must define the same handler.
#ifndef ROPE_THROW
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define ROPE_THROW(exception, message) throw exception(message)
#define ROPE_DETAIL_ERRORS throws
#else
#define ROPE_THROW(exception, message) \
  (std::fputs((std::string(#exception ": ") + (message) + "\n").c_str(), stderr), std::abort())
#define ROPE_DETAIL_ERRORS aborts
#endif
#else
#define ROPE_DETAIL_ERRORS handler
#endif

// If code that is compiled in two ways had one name, the linker would keep one version for all callers. The
// name of the inline namespace therefore contains the version, the instruction set, the floating-point model,
// how errors are reported and the width of an Index. Translation units that differ in one of these have
// different types. Other settings change neither types nor results. No type depends on Eigen's alignment or
// default storage order, and assertions only report undefined behaviour, so a debug program may call a
// release library.
#if defined(EIGEN_DONT_VECTORIZE)
#define ROPE_DETAIL_ISA scalar
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#define ROPE_DETAIL_BFLOAT16_INSTRUCTIONS 1
#if defined(__AVX512VNNI__)
#define ROPE_DETAIL_ISA avx512bf16vnni
#define ROPE_DETAIL_INTEGER_INSTRUCTIONS 1
#else
#define ROPE_DETAIL_ISA avx512bf16
#endif
#elif defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define ROPE_DETAIL_ISA avx512vnni
#define ROPE_DETAIL_INTEGER_INSTRUCTIONS 1
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
#ifndef ROPE_DETAIL_INTEGER_INSTRUCTIONS  // AVX512_VNNI
#define ROPE_DETAIL_INTEGER_INSTRUCTIONS 0
#endif

// Whether packets of Eigen multiply and add with one rounding (fused). If they do, scalar code fuses too.
// Processors that have the instruction but no packets (RISC-V, z/Architecture, x86 with EIGEN_DONT_VECTORIZE)
// also fuse, because a compiler would otherwise fuse in some places only.
#if defined(EIGEN_VECTORIZE_FMA) || defined(__ARM_FEATURE_FMA) || defined(__aarch64__) ||     \
    defined(_M_ARM64) || defined(__VSX__) || (defined(__riscv_flen) && __riscv_flen >= 64) || \
    (defined(__s390x__) && !defined(__VEC__)) || (defined(EIGEN_DONT_VECTORIZE) && defined(__FMA__))
#define ROPE_DETAIL_FMA fma
#define ROPE_DETAIL_FUSED 1
#else
#define ROPE_DETAIL_FMA nofma
#define ROPE_DETAIL_FUSED 0
#endif

// Whether the processor has instructions that convert half. MSVC has no macro for these instructions, and
// uses them with AVX2.
#if defined(__F16C__) || (defined(_MSC_VER) && !defined(__clang__) && defined(__AVX2__))
#define ROPE_DETAIL_F16C f16c
#define ROPE_DETAIL_HALF_INSTRUCTIONS 1
#else
#define ROPE_DETAIL_F16C nof16c
#define ROPE_DETAIL_HALF_INSTRUCTIONS 0
#endif

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(_M_FP_FAST)  // the second: g++
#define ROPE_DETAIL_FAST_MATH 1
#else
#define ROPE_DETAIL_FAST_MATH 0
#endif

#if ROPE_DETAIL_FAST_MATH
#define ROPE_DETAIL_MATH fast
#elif defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#define ROPE_DETAIL_MATH finite
#else
#define ROPE_DETAIL_MATH ieee
#endif

// Selects `intindex` if EIGEN_DEFAULT_DENSE_INDEX_TYPE is `int`, otherwise `index`. The name of the type may
// have several words. Its first word is appended to ROPE_DETAIL_INDEX_OF_. Only if that word is `int` is the
// result the name of a macro, and its expansion selects `intindex`.
#define ROPE_DETAIL_INDEX_OF_int ~, intindex
#define ROPE_DETAIL_SECOND(a, b, ...) b
#define ROPE_DETAIL_SAME(x) x  // makes MSVC's own preprocessor count the arguments again
#define ROPE_DETAIL_SECOND_OF(...) ROPE_DETAIL_SAME(ROPE_DETAIL_SECOND(__VA_ARGS__))
#define ROPE_DETAIL_INDEX_OF(type) ROPE_DETAIL_SECOND_OF(ROPE_DETAIL_INDEX_OF_##type, index, ~)
#define ROPE_DETAIL_INDEX_NAME(type) ROPE_DETAIL_INDEX_OF(type)
#define ROPE_DETAIL_INDEX ROPE_DETAIL_INDEX_NAME(EIGEN_DEFAULT_DENSE_INDEX_TYPE)

#define ROPE_DETAIL_JOIN(a, b, c, d, e, f) v0_##a##_##b##_##c##_##d##_##e##_##f
#define ROPE_DETAIL_EXPAND(a, b, c, d, e, f) ROPE_DETAIL_JOIN(a, b, c, d, e, f)
#define ROPE_ABI                                                                           \
  ROPE_DETAIL_EXPAND(ROPE_DETAIL_ISA, ROPE_DETAIL_FMA, ROPE_DETAIL_F16C, ROPE_DETAIL_MATH, \
                     ROPE_DETAIL_ERRORS, ROPE_DETAIL_INDEX)

// Between ROPE_DETAIL_QUIET_BEGIN and ROPE_DETAIL_QUIET_END, false warnings of GCC and MSVC about code on
// SIMD registers are disabled.
//
// GCC warns that a register type loses its may_alias attribute as a template argument. Only Eigen's loads and
// stores access memory through such a type, so nothing depends on the attribute. GCC 12 warns that undefined
// lanes of its own AVX-512 intrinsics are uninitialised variables (GCC bug 105593). Without optimisation some
// intrinsics are macros, so GCC attributes their conversions to this library.

#if defined(__GNUC__) && !defined(__clang__)
#define ROPE_DETAIL_QUIET_BEGIN                                                             \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wignored-attributes\"") \
      _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")                           \
          _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")                             \
              _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")
#define ROPE_DETAIL_QUIET_END _Pragma("GCC diagnostic pop")
#elif defined(_MSC_VER)  // functions that are not inlined, conditions that a template makes constant
#define ROPE_DETAIL_QUIET_BEGIN __pragma(warning(push)) __pragma(warning(disable : 4714 4127))
#define ROPE_DETAIL_QUIET_END __pragma(warning(pop))
#else
#define ROPE_DETAIL_QUIET_BEGIN
#define ROPE_DETAIL_QUIET_END
#endif

// Precedes loops that must not be unrolled. clang would unroll them eight times, which costs more than it
// saves if there are few iterations, or if each needs several addresses. g++ -O3 would unroll a loop over at
// most 15 heads completely, and update 30 addresses for every token.
#if defined(__clang__)
#define ROPE_DETAIL_NOT_UNROLLED _Pragma("clang loop unroll(disable)")
#elif defined(__GNUC__)
#define ROPE_DETAIL_NOT_UNROLLED _Pragma("GCC unroll 1")
#else
#define ROPE_DETAIL_NOT_UNROLLED
#endif

// Begins each iteration of a loop that needs many registers. With AVX-512, g++ keeps pointers and counts in
// vector registers, and the iteration waits until they are moved back. This statement has no instructions,
// but says that it changes all vector registers, so g++ keeps these numbers in memory. Rows of the rotation
// benchmark that need it: half_split, 16 tokens and more, 8 heads of 64 to 128 channels, g++ -O2.
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__) && defined(__x86_64__)
#define ROPE_DETAIL_NO_VECTOR_KEPT                                                                    \
  asm volatile("" ::                                                                                  \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",  \
                     "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", \
                     "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", \
                     "xmm28", "xmm29", "xmm30", "xmm31")
#else
#define ROPE_DETAIL_NO_VECTOR_KEPT static_cast<void>(0)
#endif

// Marks a parameter to which the result refers. clang then warns if a variable keeps a result that refers to
// a temporary. It does not warn if the result is only used within the same expression.
#if defined(__clang__) && __has_cpp_attribute(clang::lifetimebound)
#define ROPE_DETAIL_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define ROPE_DETAIL_LIFETIMEBOUND
#endif

// Marks a member that takes no memory if its type is empty.
#if defined(_MSC_VER)
#define ROPE_DETAIL_NO_UNIQUE_ADDRESS [[msvc::no_unique_address]]
#else
#define ROPE_DETAIL_NO_UNIQUE_ADDRESS [[no_unique_address]]
#endif

namespace rope::inline ROPE_ABI {

/// The type of sizes, strides and channel numbers. It is signed, and as wide as a pointer unless Eigen is
/// configured otherwise.
using Index = Eigen::Index;

namespace detail {
enum class bytes_of : std::size_t { index = sizeof(std::ptrdiff_t), intindex = sizeof(int) };
static_assert(sizeof(Index) == static_cast<std::size_t>(bytes_of::ROPE_DETAIL_INDEX),
              "rope: EIGEN_DEFAULT_DENSE_INDEX_TYPE is `int`, or as wide as a pointer");
}  // namespace detail

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CONFIG_HPP
