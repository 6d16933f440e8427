// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_MEMORY_HPP
#define ROPE_BASE_MEMORY_HPP

#include <cstddef>
#include <new>  // std::align_val_t

#include <rope/base/message.hpp>
#include <rope/config.hpp>

/// Memory of tables, caches and scratch. It is aligned to a cache line under all compiler flags, and is not
/// initialised.

namespace rope::inline ROPE_ABI::detail {

inline constexpr std::size_t cache_line = 64;

/// Rejects a block that exceeds the address space.
///
/// Throws:  std::length_error
inline void check_block(const char* name, std::size_t count, std::size_t size) {
  if (count > static_cast<std::size_t>(-1) / size)
    throw_length(name, count, " elements of ", size, " bytes exceed the address space");
}

/// `count` elements of `size` bytes each.
///
/// Throws:  std::length_error if they exceed the address space
inline void* allocate_block(const char* name, std::size_t count, std::size_t size) {
  check_block(name, count, size);
  return ::operator new (count* size, std::align_val_t{cache_line});
}

/// Frees a block of allocate_block, or none if `block` is null.
inline void free_block(void* block) noexcept { ::operator delete (block, std::align_val_t{cache_line}); }

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_MEMORY_HPP
