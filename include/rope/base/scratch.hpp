// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SCRATCH_HPP
#define ROPE_BASE_SCRATCH_HPP

#include <cstddef>
#include <type_traits>
#include <utility>  // std::exchange

#include <rope/base/memory.hpp>
#include <rope/base/message.hpp>
#include <rope/config.hpp>

// GCC for MinGW emulates thread_local. It frees these objects before it calls their destructors.
#if defined(__MINGW32__) && !defined(__clang__)
#include <bits/gthr.h>  // the keys that GCC itself emulates thread_local with
#define ROPE_DETAIL_SCRATCH_IN_KEY 1
#else
#define ROPE_DETAIL_SCRATCH_IN_KEY 0
#endif

/// The scratch memory that a thread keeps between calls: its size, and how to free it.
///
/// A call allocates memory only if it needs more than all earlier calls on the same thread. The thread keeps
/// this memory until `release_scratch()` or the thread's end. The following buffers belong to the calling
/// thread and grow with the number of tokens. Each is as large as the largest call so far required. There is
/// one per channel type T (with arithmetic type A). Sizes are in bytes:
///
///     normalize_heads_gradient     8 norm.weight.size() ceil(batch tokens / 64), if d_weight is not empty
///     attention_gradient<Layout>   sizeof(T) (q.size() + k.size()), rotated copies, and as without a layout
///     attention_gradient           see its Cost
///     attention with a cache       sizeof(T) q.size(), if the cache stores rotated keys
///     append<Layout>               sizeof(T) k.size(), if the cache is narrower than T
///     rotate_to of float to 16 bits  the larger of 64 KiB and 4 heads head_dim, per thread
///     attention_weight_sums        8 sums.size() + 2 sizeof(A) batch q.tokens q.heads (runs + 1), with
///                                  ceil(keys / 4096) runs, at most 16
///     attention of few queries     sizeof(A) batch q.tokens q.heads ceil(keys / 1024) (value_dim + 2)
///     selected keys                per thread and entry of a list 8, 8 more with rotation, and for each
///                                  query head of a group 4 with a bias and 1 with a mask
///     multi_head_attention         sizeof(T) (n heads + c kv_heads) (head_dim + value_dim), n rows of x and
///                                  c of the context (of x again in self-attention); 8 n heads more for the
///                                  log_sum_exp of segments or of a ring's chunks; the probabilities of a
///                                  segment more if they are reported
///     its gradient                 twice that, 8 n heads, the scratch of attention_gradient, and with norms
///                                  sizeof(T) (n heads + c kv_heads) head_dim
///
/// with size() = batch * tokens * heads * head_dim. Each thread that takes part in a call also keeps a block
/// of queries and a tile of keys. Their size does not depend on the number of tokens: about 2.5 MB in float
/// for 32 heads of 128 channels.

namespace rope::inline ROPE_ABI {
namespace detail {

/// A piece of the calling thread's scratch. The pieces of a thread form a list, so that it can release all of
/// them.
///
/// Where thread_local is emulated, the pieces are on the heap. A key has the first one of each thread, and
/// the destructor of the key frees them when the thread ends.
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
      memory_ = allocate_block("scratch", count, size);
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
/// \tparam T     a type that needs neither constructor nor destructor: the memory is bytes
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
/// It frees only the calling thread's memory, even if calls on this thread used a pool. Each thread of a pool
/// keeps its own scratch memory and frees it when the thread ends. To free it earlier, run a task on each
/// thread. A latch ensures that no thread runs two of these tasks. The tasks share ownership of the latch,
/// because the last one may still use it when this thread continues:
///
///     const auto all = std::make_shared<std::latch>(pool_size + 1);
///     for (int i = 0; i < pool_size; ++i)
///       pool.Schedule([all] { rope::release_scratch(); all->arrive_and_wait(); });
///     all->arrive_and_wait();
///
/// Requires:  no call of this library is running on the thread: it is not for the body of a parallel loop
///            that such a call has started. Parts of a program compiled for other instruction sets or
///            floating-point models have their own scratch and their own release_scratch()
inline void release_scratch() { detail::scratch_piece::release_all(); }

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_BASE_SCRATCH_HPP
