// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_WORKSPACE_HPP
#define ROPE_BASE_WORKSPACE_HPP

#include <cstddef>

#include <rope/base/storage.hpp>
#include <rope/config.hpp>

/// Scratch memory that a thread keeps from call to call, so that only the first call of a size allocates.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A piece of the calling thread's scratch. A thread's pieces form a list, so that all can be released.
class scratch_piece {
 public:
  scratch_piece(const scratch_piece&) = delete;
  scratch_piece& operator=(const scratch_piece&) = delete;

  static void release_all() {
    for (scratch_piece* piece = first(); piece != nullptr; piece = piece->next_) piece->release_(*piece);
  }

 protected:
  /// \param release  gives back the memory of a piece; a virtual function would put a table in every object
  ///                 file
  explicit scratch_piece(void (*release)(scratch_piece&)) : release_(release), next_(first()) {
    first() = this;
  }
  /// A thread that ends destroys its pieces one by one, and what it destroys after them may still release.
  ~scratch_piece() {
    scratch_piece** at = &first();
    while (*at != this) at = &(*at)->next_;
    *at = next_;
  }

 private:
  static scratch_piece*& first() {
    thread_local scratch_piece* piece = nullptr;
    return piece;
  }

  void (*release_)(scratch_piece&);
  scratch_piece* next_;
};

template <class T>
class scratch_memory : scratch_piece {
 public:
  scratch_memory()
      : scratch_piece(
            [](scratch_piece& piece) { storage<T>().swap(static_cast<scratch_memory&>(piece).memory_); }) {}

  T* at_least(std::size_t count) {
    if (memory_.size() < count) memory_ = storage<T>(count);
    return memory_.data();
  }

 private:
  storage<T> memory_;
};

/// At least `count` elements, indeterminate; valid until the next call with the same T and User on the same
/// thread, or until the thread releases its scratch.
///
/// \tparam User  a tag that keeps two users of the same T apart
template <class User, class T>
T* workspace(Index count) {
  thread_local scratch_memory<T> memory;
  return memory.at_least(static_cast<std::size_t>(count));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_WORKSPACE_HPP
