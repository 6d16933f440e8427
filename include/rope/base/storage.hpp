// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_STORAGE_HPP
#define ROPE_BASE_STORAGE_HPP

#include <cstddef>
#include <new>          // std::align_val_t
#include <type_traits>  // std::is_trivially_default_constructible_v
#include <vector>

#include <rope/config.hpp>

/// Memory of tables, caches and scratch: aligned to a cache line whatever the compiler flags are, and not
/// written before its owner writes it.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

inline constexpr std::size_t cache_line = 64;

template <class T>
struct cache_line_allocator {
  using value_type = T;
  // All are equal, so containers always take each other's memory and never move element by element.
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::true_type;

  cache_line_allocator() = default;
  template <class U>
  constexpr cache_line_allocator(const cache_line_allocator<U>& /*other*/) noexcept {}

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T))
      ROPE_THROW(std::length_error, "rope: a block of memory larger than the address space was asked for");
    return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{cache_line}));
  }
  void deallocate(T* data, std::size_t /*count*/) noexcept {
    ::operator delete (data, std::align_val_t{cache_line});
  }

  /// std::vector would zero its elements first; they are all written by the owner, so that pass is left out.
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U, class... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(static_cast<Arguments&&>(arguments)...);
  }

  friend bool operator==(const cache_line_allocator&, const cache_line_allocator&) { return true; }
};

/// Elements are indeterminate until written.
template <class T>
using storage = std::vector<T, cache_line_allocator<T>>;

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_STORAGE_HPP
