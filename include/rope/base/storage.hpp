// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_STORAGE_HPP
#define ROPE_BASE_STORAGE_HPP

#include <cstddef>
#include <new>
#include <type_traits>
#include <vector>

#include <rope/base/number_array.hpp>
#include <rope/config.hpp>

/// Vectors in memory that is aligned to a cache line and not initialised, and counts that move together with
/// such memory.

namespace rope::inline ROPE_ABI::detail {

/// Allocates blocks that begin at a cache line, and does not initialise elements without an initial value.
template <class T>
struct cache_line_allocator {
  using value_type = T;
  // All allocators are equal, so containers always take over memory and never move element by element.
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::true_type;

  cache_line_allocator() = default;
  template <class U>
  constexpr cache_line_allocator(const cache_line_allocator<U>& /*other*/) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(allocate_block("storage", count, sizeof(T))); }
  void deallocate(T* data, std::size_t /*count*/) noexcept { free_block(data); }

  /// Leaves the element indeterminate, because the owner writes all elements. std::allocator would zero it.
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

/// A vector whose new elements are indeterminate until written.
template <class T>
using storage = std::vector<T, cache_line_allocator<T>>;

/// An Index that is moved with the memory it counts. It is 0 in an object that was moved from.
class moved_index {
 public:
  moved_index(Index value) noexcept : value_(value) {}
  moved_index(const moved_index&) = default;
  moved_index(moved_index&& other) noexcept : value_(other.value_) { other.value_ = 0; }
  moved_index& operator=(const moved_index&) = default;
  moved_index& operator=(moved_index&& other) noexcept {
    const Index value = other.value_;
    other.value_ = 0;
    value_ = value;
    return *this;
  }
  ~moved_index() = default;

  operator Index() const noexcept { return value_; }

 private:
  Index value_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BASE_STORAGE_HPP
