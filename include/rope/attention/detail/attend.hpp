// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ATTEND_HPP
#define ROPE_ATTENTION_DETAIL_ATTEND_HPP

#include <algorithm>  // std::min, std::max

#include <rope/attention/detail/decode_kernel.hpp>
#include <rope/attention/detail/prefill_kernel.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/base/channels.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/workspace.hpp>
#include <rope/config.hpp>

/// Cuts a call of attention into tasks. The cut depends on the shapes alone, so the result does not depend on
/// the number of threads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

// The two functions that hold the kernels are not inline and know no threads, so that programs can have them
// compiled once (`extern template`).
template <class T, class Turn, class C>
void attend_block(const attention_call<T, Turn, C>& call, Index b, Index kv, Index first, Index tokens) {
  prefill_block<T, Turn, C>(call, b, kv, first, tokens).run();
}

template <class T, class Turn, class C>
void attend_split(const attention_call<T, Turn, C>& call, Index b,
                  const decode_results<arithmetic<T>>& results, Index split) {
  decode_split<T, Turn, C>(call, b, results, split).run();
}

template <class T, class Turn, class C, class Threads>
void attend_blocks(const attention_call<T, Turn, C>& call, const Threads& threads) {
  const Index block = (std::min)(call.q.tokens, prefill_block<T, Turn, C>::tokens_of(call.group()));
  const Index blocks = (call.q.tokens + block - 1) / block, heads = call.k.heads;
  const Index tasks = call.q.batch * heads * blocks;
  const Index keys = (std::max)(Index{1}, call.k.tokens);
  parallel_tasks(threads, tasks, block * call.group() * keys * (call.k.head_dim + call.v.head_dim),
                 [&](Index task) {
                   // The last tokens of a sequence see the most keys: they come first, and the short tasks
                   // fill the gaps.
                   const Index first = (blocks - 1 - task / (call.q.batch * heads)) * block;
                   const Index b = task / heads % call.q.batch, kv = task % heads;
                   attend_block(call, b, kv, first, (std::min)(block, call.q.tokens - first));
                 });
}

template <class T, class Turn, class C, class Threads>
void attend_splits(const attention_call<T, Turn, C>& call, const Threads& threads) {
  using A = arithmetic<T>;
  using results = decode_results<A>;
  struct decode_sums {};
  const Index rows = call.q.tokens * call.q.heads, channels = call.v.head_dim;
  const Index splits = (std::max)(Index{1}, (call.k.tokens + results::split - 1) / results::split);
  const Index size = splits * rows * (channels + 2);
  A* memory = workspace<decode_sums, A>(call.q.batch * size);
  const auto results_of = [&](Index b) {
    A* sums = memory + b * size;
    A* maximum = sums + splits * rows * channels;
    return results{rows, channels, sums, {maximum, maximum + splits * rows}};
  };
  const Index keys = (std::min)(results::split, call.k.tokens);
  parallel_tasks(threads, call.q.batch * splits, rows * keys * (call.k.head_dim + channels), [&](Index task) {
    const Index b = task / splits;
    attend_split(call, b, results_of(b), task % splits);
  });
  for (Index b = 0; b < call.q.batch; ++b)
    for (Index row = 0; row < rows; ++row) merge_splits(call, b, results_of(b), splits, row);
}

template <class T, class Turn, class C, class Threads>
void attend(const attention_call<T, Turn, C>& call, const Threads& threads) {
  if (call.q.batch == 0 || call.q.tokens == 0 || call.q.heads == 0) return;
  if (call.q.tokens * call.group() <= panel_shape<arithmetic<T>>::rows)
    attend_splits(call, threads);
  else
    attend_blocks(call, threads);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_ATTEND_HPP
