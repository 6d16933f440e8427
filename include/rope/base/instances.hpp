// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_INSTANCES_HPP
#define ROPE_BASE_INSTANCES_HPP

#include <rope/config.hpp>

/// Compiles the usual kernels once in a program, instead of once in every file that calls them.
///
/// Define ROPE_EXTERN_TEMPLATES before the first include of the library in every file of a target (or with
/// -D), and write ROPE_INSTANTIATE in one source file of the same target:
///
///     #include <rope/rope.hpp>  // or rope_single.hpp
///     ROPE_INSTANTIATE
///
/// With CMake, `target_link_libraries(app PRIVATE rope::instantiations)` does both. The usual kernels are
/// those of `rotate`, `unrotate`, `attention`, and `kv_cache` with `append` and `attention`, for channels of
/// float, half and bfloat16, interleaved and half_split, tables of float, and keys of the type of the
/// queries. All other calls are compiled in the file that makes them.
///
/// ROPE_INSTANTIATE instantiates what the headers before it declare. With <rope/attention.hpp> alone, these
/// are rotations and attention. All files need the flags of that source file. The instruction set is part of
/// every name, so a file with other flags does not link. Results have the same bits as without the two
/// macros.

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
