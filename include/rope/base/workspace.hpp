// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_WORKSPACE_HPP
#define ROPE_BASE_WORKSPACE_HPP

#include <cstddef>
#include <type_traits>

#include <rope/base/storage.hpp>
#include <rope/config.hpp>

/// Scratch memory that a thread keeps from call to call, so that only the first call of a size allocates.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A piece of the calling thread's scratch. A thread's pieces form a list, so that all can be released.
class scratch_piece {
 public:
  scratch_piece() : next_(first()) { first() = this; }
  scratch_piece(const scratch_piece&) = delete;
  scratch_piece& operator=(const scratch_piece&) = delete;
  /// A thread that ends destroys its pieces one by one, and what it destroys after them may still release.
  ~scratch_piece() {
    release();
    scratch_piece** at = &first();
    while (*at != this) at = &(*at)->next_;
    *at = next_;
  }

  static void release_all() {
    for (scratch_piece* piece = first(); piece != nullptr; piece = piece->next_) piece->release();
  }

  /// At least `count` elements of `size` bytes, indeterminate.
  void* at_least(std::size_t count, std::size_t size) {
    check_block("scratch", count, size);
    if (bytes_ < count * size) {
      release();
      memory_ = cache_line_allocator<unsigned char>{}.allocate(count * size);
      bytes_ = count * size;
    }
    return memory_;
  }

 private:
  static scratch_piece*& first() {
    thread_local scratch_piece* piece = nullptr;
    return piece;
  }
  void release() {
    cache_line_allocator<unsigned char>{}.deallocate(memory_, bytes_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  unsigned char* memory_ = nullptr;
  std::size_t bytes_ = 0;
  scratch_piece* next_;
};

/// At least `count` elements, indeterminate; valid until the next call with the same T and User on the same
/// thread, or until the thread releases its scratch.
///
/// \tparam User  a tag that keeps two users of the same T apart
/// \tparam T     a type that needs neither constructor nor destructor: the memory is bytes
template <class User, class T>
T* workspace(Index count) {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= cache_line);
  thread_local scratch_piece memory;
  return static_cast<T*>(memory.at_least(static_cast<std::size_t>(count), sizeof(T)));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_WORKSPACE_HPP
