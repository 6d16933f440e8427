// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_QUIET_HPP
#define ROPE_BASE_SIMD_QUIET_HPP

#include <rope/config.hpp>

/// What GCC says of code on SIMD registers without a reason, switched off from ROPE_DETAIL_QUIET_BEGIN to
/// ROPE_DETAIL_QUIET_END.
///
/// A register type loses its may_alias attribute as a template argument. It is read and written through
/// Eigen's loads and stores only, so nothing depends on the attribute. GCC 12 takes the undefined lanes of
/// its own AVX-512 intrinsics for uninitialised variables (GCC bug 105593). Without optimisation some
/// intrinsics are macros, and their conversions count as ours.

#if defined(__GNUC__) && !defined(__clang__)
#define ROPE_DETAIL_QUIET_BEGIN                                                             \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wignored-attributes\"") \
      _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")                           \
          _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")                             \
              _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")
#define ROPE_DETAIL_QUIET_END _Pragma("GCC diagnostic pop")
#else
#define ROPE_DETAIL_QUIET_BEGIN
#define ROPE_DETAIL_QUIET_END
#endif

#endif  // ROPE_BASE_SIMD_QUIET_HPP
