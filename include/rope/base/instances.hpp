// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_INSTANCES_HPP
#define ROPE_BASE_INSTANCES_HPP

#include <rope/config.hpp>

/// Compiles the usual kernels once in a program, in place of once in every file that calls them.
///
/// Define ROPE_EXTERN_TEMPLATES before the first include of the library in every file of a target (or with
/// -D), and write ROPE_INSTANTIATE in one source file of the same target:
///
///     #include <rope/rope.hpp>  // or rope_single.hpp
///     ROPE_INSTANTIATE
///
/// With CMake, `target_link_libraries(app PRIVATE rope::instantiations)` does both. Usual are channels of
/// float, half and bfloat16, interleaved and half_split, tables of float, and keys of the type of the
/// queries: `rotate`, `unrotate`, `attention`, and `kv_cache` with `append` and `attention`. All other calls
/// are compiled where they are made.
///
/// The macro instantiates what the headers before it declare: with <rope/attention.hpp> alone, rotations and
/// attention. All files need the flags of that source file, because the instruction set is part of every
/// name: a file with others does not link. Results have the same bits as without the two macros.

#define ROPE_DETAIL_FOR_USUAL_CHANNELS(list, declared) \
  namespace rope::inline ROPE_ABI::detail {            \
  list(declared, float);                               \
  list(declared, Eigen::half);                         \
  list(declared, Eigen::bfloat16);                     \
  }

#define ROPE_DETAIL_INSTANTIATE(list) ROPE_DETAIL_FOR_USUAL_CHANNELS(list, template)

#ifdef ROPE_EXTERN_TEMPLATES
#define ROPE_DETAIL_DECLARE_INSTANCES(list) ROPE_DETAIL_FOR_USUAL_CHANNELS(list, extern template)
#else
#define ROPE_DETAIL_DECLARE_INSTANCES(list) static_assert(true)
#endif

#endif  // ROPE_BASE_INSTANCES_HPP
