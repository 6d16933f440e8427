// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SCRATCH_HPP
#define ROPE_BASE_SCRATCH_HPP

#include <cstddef>
#include <type_traits>
#include <utility>  // std::exchange

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/config.hpp>

// GCC for MinGW emulates thread_local, and frees such objects before it calls their destructors.
#if defined(__MINGW32__) && !defined(__clang__)
#include <bits/gthr.h>  // the keys that GCC itself emulates thread_local with
#define ROPE_DETAIL_SCRATCH_IN_KEY 1
#else
#define ROPE_DETAIL_SCRATCH_IN_KEY 0
#endif

/// The scratch memory that a thread keeps between calls: its size, and how to free it.
///
/// A call allocates memory only if it needs more than all earlier calls on the same thread. The thread keeps
/// this memory until `release_scratch()` or the thread's end. include/rope/README.md lists the buffers of
/// each call, and which of them grow with the number of tokens.

namespace rope::inline ROPE_ABI {
namespace detail {

/// A piece of the calling thread's scratch. The pieces of a thread form a list, so that the thread can
/// release all of them.
///
/// If thread_local is emulated, the pieces are on the heap. A thread-specific key has the first piece of each
/// thread, and the destructor of the key frees all pieces when the thread ends.
class scratch_piece {
 public:
  scratch_piece(const scratch_piece&) = delete;
  scratch_piece& operator=(const scratch_piece&) = delete;

#if ROPE_DETAIL_SCRATCH_IN_KEY
  ~scratch_piece() { release(); }

  /// The piece of the calling thread for one user. Its address identifies the user.
  static scratch_piece& of(const void* user) {
    scratch_piece* const newest = first();
    for (scratch_piece* piece = newest; piece != nullptr; piece = piece->next_)
      if (piece->user_ == user) return *piece;
    scratch_piece* const piece = new scratch_piece(user, newest);
    if (__gthread_setspecific(key(), piece) == 0) return *piece;
    delete piece;
    throw_length("scratch", "no memory for the thread's value of a key");
  }
#else
  scratch_piece() : next_(first()) { first() = this; }
  /// A thread that ends destroys its pieces one by one. Objects destroyed later may still call
  /// release_scratch(), so the piece removes itself from the list.
  ~scratch_piece() {
    release();
    scratch_piece** at = &first();
    while (*at != this) at = &(*at)->next_;
    *at = next_;
  }
#endif

  static void release_all() {
    for (scratch_piece* piece = first(); piece != nullptr; piece = piece->next_) piece->release();
  }

  /// At least `count` elements of `size` bytes, indeterminate.
  void* at_least(std::size_t count, std::size_t size) {
    check_block("scratch", count, size);
    if (bytes_ < count * size) {
      release();
      memory_ = allocate_block(count * size);
      bytes_ = count * size;
    }
    return memory_;
  }

 private:
#if ROPE_DETAIL_SCRATCH_IN_KEY
  scratch_piece(const void* user, scratch_piece* next) : next_(next), user_(user) {}

  static __gthread_key_t key() {
    static const __gthread_key_t made = [] {
      __gthread_key_t result{};
      if (__gthread_key_create(&result, delete_list) != 0)
        throw_length("scratch", "the process has no further key for values of threads");
      return result;
    }();
    return made;
  }
  static void delete_list(void* newest) {
    for (auto* piece = static_cast<scratch_piece*>(newest); piece != nullptr;)
      delete std::exchange(piece, piece->next_);
  }
  static scratch_piece* first() { return static_cast<scratch_piece*>(__gthread_getspecific(key())); }
#else
  static scratch_piece*& first() {
    thread_local scratch_piece* piece = nullptr;
    return piece;
  }
#endif
  void release() {
    free_block(memory_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  scratch_piece* next_;
#if ROPE_DETAIL_SCRATCH_IN_KEY
  const void* user_;
#endif
};

#if ROPE_DETAIL_SCRATCH_IN_KEY
/// Identifies a user of scratch by its address.
template <class User, class T>
inline char scratch_user = 0;
#endif

/// At least `count` elements, indeterminate. They are valid until the next call with the same T and User on
/// the same thread, or until the thread releases its scratch.
///
/// \tparam User  a tag that separates two users of the same T
/// \tparam T     a type that needs neither constructor nor destructor, because the memory is only bytes
template <class User, class T>
T* workspace(Index count) {
  static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= cache_line);
#if ROPE_DETAIL_SCRATCH_IN_KEY
  scratch_piece& memory = scratch_piece::of(&scratch_user<User, T>);
#else
  thread_local scratch_piece memory;
#endif
  return static_cast<T*>(memory.at_least(static_cast<std::size_t>(count), sizeof(T)));
}

}  // namespace detail

/// Frees the calling thread's scratch memory. Later calls on this thread allocate it again.
///
/// Other threads keep their memory, even if calls on this thread used a pool. Each thread of a pool keeps its
/// own scratch memory and frees it when the thread ends. To free it earlier, run a task on each thread. A
/// latch ensures that no thread runs two of these tasks. The tasks share ownership of the latch, because the
/// last one may still use it when this thread continues:
///
///     const auto all = std::make_shared<std::latch>(pool_size + 1);
///     for (int i = 0; i < pool_size; ++i)
///       pool.Schedule([all] { rope::release_scratch(); all->arrive_and_wait(); });
///     all->arrive_and_wait();
///
/// Except on Linux, the latch of libstdc++ 12 may wait forever: use a condition variable.
///
/// Requires:  no call of this library is running on the thread. So do not call it in the body of a parallel
///            loop that such a call has started. Parts of a program that are compiled for other instruction
///            sets or floating-point models have their own scratch and their own release_scratch()
inline void release_scratch() { detail::scratch_piece::release_all(); }

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_SCRATCH_HPP
