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

/// Cuts a call of attention into tasks. What is added up in which order depends on the shapes alone; where
/// there are threads to spare, heads and queries are cut finer, which changes no bit of any of them.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

// The two functions that hold the kernels are not inline and know no threads, so that programs can have them
// compiled once (`extern template`).
template <class T, class Turn, class C>
void attend_block(const attention_call<T, Turn, C>& call, const query_block& block) {
  prefill_block<T, Turn, C>(call, block).run();
}

template <class T, class Turn, class C>
void attend_split(const attention_call<T, Turn, C>& call, const decode_results<arithmetic<T>>& results,
                  const key_split& part) {
  decode_split<T, Turn, C>(call, results, part).run();
}

/// Tasks that a call should have for every thread, so that one that ends late holds nobody up.
inline constexpr Index tasks_per_thread = 4;

/// The size of a piece where `all` is cut into at most `pieces` equal ones; the last may be smaller.
inline Index piece_of(Index all, Index pieces) {
  return (all + (std::max)(Index{1}, pieces) - 1) / (std::max)(Index{1}, pieces);
}

/// Rows of a block where `all` rows are shared by threads. A block packs every key that it sees, which takes
/// as long as some 28 more rows would (4096 keys of 576 channels, float, AVX-512: 4.9 ms with 32 rows, 12.6
/// with 128). So blocks of fewer than 96 rows are made only for threads that would have none.
inline Index rows_of_block(Index all, Index available, Index strip) {
  return available <= 1 ? all
                        : (std::max)({all / (tasks_per_thread * available),
                                      (std::min)(Index{96}, all / available), strip});
}

template <class T, class Turn, class C, class Threads>
void attend_blocks(const attention_call<T, Turn, C>& call, const Threads& threads) {
  const Index group = call.group(), pairs = call.q.batch * call.k.heads;
  const Index rows = rows_of_block(call.q.tokens * group * pairs, available_threads(threads),
                                   panel_shape<arithmetic<T>>::rows);
  const Index block = (std::min)(
      {call.q.tokens, prefill_block<T, Turn, C>::tokens_of(group), (std::max)(Index{1}, rows / group)});
  const Index heads = piece_of(group, group / rows);
  const Index blocks = (call.q.tokens + block - 1) / block, parts = (group + heads - 1) / heads;
  const Index keys = (std::max)(Index{1}, call.k.tokens);
  parallel_tasks(threads, pairs * parts * blocks, block * heads * keys * (call.k.head_dim + call.v.head_dim),
                 [&](Index task) {
                   // The last tokens of a sequence see the most keys: they come first, and the short tasks
                   // fill the gaps.
                   const Index first = (blocks - 1 - task / (pairs * parts)) * block, part = task % parts,
                               kv = task / parts % call.k.heads;
                   attend_block(call, {.b = task / parts / call.k.heads % call.q.batch,
                                       .kv = kv,
                                       .first_head = kv * group + part * heads,
                                       .heads = (std::min)(heads, group - part * heads),
                                       .first_token = first,
                                       .tokens = (std::min)(block, call.q.tokens - first)});
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
  const Index keys = (std::min)(results::split, call.k.tokens), of_rows = call.q.batch * splits;
  const Index available = available_threads(threads),
              wanted = available <= 1 ? 1 : tasks_per_thread * available;
  const Index heads = piece_of(call.k.heads, (std::min)(call.k.heads, (wanted + of_rows - 1) / of_rows)),
              parts = (call.k.heads + heads - 1) / heads;
  parallel_tasks(threads, of_rows * parts, rows / parts * keys * (call.k.head_dim + channels),
                 [&](Index task) {
                   const Index part = task % parts, b = task / parts / splits;
                   attend_split(call, results_of(b),
                                {.b = b,
                                 .split = task / parts % splits,
                                 .first_head = part * heads,
                                 .heads = (std::min)(heads, call.k.heads - part * heads)});
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
