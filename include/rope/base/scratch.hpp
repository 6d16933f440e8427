// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SCRATCH_HPP
#define ROPE_BASE_SCRATCH_HPP

#include <rope/base/workspace.hpp>
#include <rope/config.hpp>

/// The scratch memory that a thread keeps between calls, how much it is, and how to give it back.
///
/// A call asks for memory only where an earlier one on the same thread did not need as much. What it asked
/// for stays with the thread until `release_scratch()` or the thread's end. This grows with the number of
/// tokens and belongs to the thread that makes the call; each is as large as the largest call so far, and
/// there is one per channel type T (of arithmetic A), in bytes:
///
///     normalize_heads_gradient     8 norm.weight.size() ceil(batch tokens / 64), where d_weight is asked for
///     attention_gradient<Layout>   sizeof(T) (q.size() + k.size()), rotated copies, and as without a layout
///     attention_gradient           what its Cost says
///     attention with a cache       sizeof(T) q.size(), where the cache keeps rotated keys
///     append<Layout>               sizeof(T) k.size(), where the cache is narrower than T
///     attention of few queries     sizeof(A) batch q.tokens q.heads ceil(keys / 1024) (value_dim + 2)
///     multi_head_attention         sizeof(T) (n heads + c kv_heads) (head_dim + value_dim), n rows of x and
///                                  c of the context (of x again in self-attention); 8 n heads where
///                                  log_sum_exp is asked for in segments or of a ring's chunks; the
///                                  probabilities of a segment where those are
///     its gradient                 twice that, 8 n heads, what attention_gradient keeps, and with norms
///                                  sizeof(T) (n heads + c kv_heads) head_dim
///
/// with size() = batch * tokens * heads * head_dim. A thread that takes part in a call keeps a block of
/// queries and a tile of keys besides, whatever their number: for 32 heads of 128 channels some 2.5 MB in
/// float.

namespace rope {
inline namespace ROPE_ABI {

/// Gives the scratch memory of the calling thread back. The next calls on this thread ask for theirs anew.
///
/// It frees what functions of this thread have kept, whatever threads their callers gave them. The threads of
/// a pool keep their own: one that ends gives its scratch back by itself, the others are reached by a task on
/// each. With a latch no thread takes two of them; the tasks share it, for the last may still be about to
/// leave it when this thread goes on:
///
///     const auto all = std::make_shared<std::latch>(pool_size + 1);
///     for (int i = 0; i < pool_size; ++i)
///       pool.Schedule([all] { rope::release_scratch(); all->arrive_and_wait(); });
///     all->arrive_and_wait();
///
/// Requires:  no call of this library is running on the thread: it is not for the body of a parallel loop
///            that such a call has started. Program parts that are compiled for other instruction sets or
///            floating-point models have scratch of their own, and a release_scratch() of their own
inline void release_scratch() { detail::scratch_piece::release_all(); }

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_SCRATCH_HPP
