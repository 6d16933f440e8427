// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ATTEND_HPP
#define ROPE_ATTENTION_DETAIL_ATTEND_HPP

#include <algorithm>  // std::min, std::max
#include <type_traits>

#include <rope/attention/detail/decode_kernel.hpp>
#include <rope/attention/detail/pair_operands.hpp>
#include <rope/attention/detail/plain_decode.hpp>
#include <rope/attention/detail/prefill.hpp>
#include <rope/attention/detail/selected_query.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/integer_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Splits a call of attention into tasks. The order of all sums depends only on the shapes. With spare
/// threads, heads and queries are split more finely, which does not change any bit.

namespace rope::inline ROPE_ABI::detail {

/// The products in pairs of queries T and keys C, or void if there are none.
template <class T, class Rotation, class C>
using products_in_pairs = std::conditional_t<
    is_quantized<C> && !Rotation::rotates, integer_products<integer_floats>,
    std::conditional_t<std::is_same_v<T, Eigen::bfloat16> && std::is_same_v<T, C>, bfloat16_products, void>>;

// The two functions that run the kernels are not inline and do not depend on the type of the threads, so that
// programs can compile them once (`extern template`). check_products ensures that `products` is full if
// products_in_pairs is void.
template <class T, class Rotation, class C>
void attend_block(const attention_call<T, Rotation, C>& call, const query_block& block) {
  using pairs = products_in_pairs<T, Rotation, C>;
  if constexpr (!std::is_void_v<pairs>)
    if (call.rules.options().products != product_precision::full)
      return prefill_block<T, Rotation, C, paired_operands<T, Rotation, C, pairs>>(call, block).run();
  prefill_block<T, Rotation, C>(call, block).run();
}

/// \param results  null if is_plain(call) and all keys are in one split: outputs are then written directly
template <class T, class Rotation, class C>
void attend_split(const attention_call<T, Rotation, C>& call, const decode_results<arithmetic<T>>* results,
                  const key_split& part) {
  using pairs = products_in_pairs<T, Rotation, C>;
  if constexpr (!std::is_void_v<pairs>)
    if (call.rules.options().products != product_precision::full)
      return decode_split<T, Rotation, C, paired_decode_operands<T, Rotation, C, pairs>>(call, *results, part)
          .run();
  if constexpr (is_read_in_place<C>)
    if (is_plain(call)) return plain_split<T, Rotation, C>(call, results, part).run();
  decode_split<T, Rotation, C>(call, *results, part).run();
}

/// Tasks per thread: enough that one slow task does not leave the other threads idle.
inline constexpr Index tasks_per_thread = 4;

/// The size of a piece if `all` is split into at most `pieces` equal pieces. The last piece may be smaller.
inline Index piece_of(Index all, Index pieces) { return pieces_of(all, (std::max)(Index{1}, pieces)); }

template <class T, class Rotation, class C, class Threads>
void attend_blocks(const attention_call<T, Rotation, C>& call, const Threads& threads) {
  const Index group = call.group(), pairs = call.q.batch * call.k.heads, all = call.q.tokens * group * pairs,
              available = available_threads(threads);
  // Every block packs the keys that are visible to it, which takes as long as about 28 more rows, so small
  // blocks are slow. Blocks have fewer than 96 rows only if some threads would otherwise have no work.
  const Index rows =
      available <= 1
          ? all
          : (std::max)({all / (tasks_per_thread * available), (std::min)(Index{96}, all / available),
                        Index{panel_shape<arithmetic<T>>::rows}});
  const Index block = (std::min)(
      {call.q.tokens, prefill_block<T, Rotation, C>::tokens_of(group), (std::max)(Index{1}, rows / group)});
  const Index heads = piece_of(group, group / rows);
  const Index blocks = pieces_of(call.q.tokens, block), parts = pieces_of(group, heads);
  const Index keys = (std::max)(Index{1}, call.k.tokens);
  parallel_tasks(threads, pairs * parts * blocks,
                 cost_of(block, heads, keys, call.k.head_dim + call.v.head_dim), [&](Index task) {
                   // The last tokens of a sequence attend to the most keys, so their long tasks start first.
                   // Short tasks at the end keep all threads busy.
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

/// The division of the query rows of all key heads into pieces: a few heads each or, if `available` threads
/// would not have enough tasks, a few rows of one head each.
struct row_pieces {
  Index heads, rows, all_heads, all_rows;

  /// \param of_head  query rows of each of `all` key heads
  /// \param splits   tasks of each piece
  template <class A>
  static row_pieces of(Index all, Index of_head, Index splits, Index available) {
    constexpr Index strip = panel_shape<A>::rows;
    const Index wanted = available <= 1 ? 1 : tasks_per_thread * available,
                heads = piece_of(all, (std::min)(all, pieces_of(wanted, splits))),
                parts = pieces_of(all, heads),
                cuts = (std::min)(pieces_of(of_head, strip), pieces_of(wanted, splits * parts));
    return {heads, pieces_of(piece_of(of_head, cuts), strip) * strip, all, of_head};
  }
  Index parts() const { return pieces_of(all_heads, heads); }
  Index count() const { return parts() * pieces_of(all_rows, rows); }
  decode_queries queries(Index b, Index piece) const {
    const Index head = piece % parts() * heads, row = piece / parts() * rows;
    return {.b = b,
            .first_head = head,
            .heads = (std::min)(heads, all_heads - head),
            .first_row = row,
            .rows = (std::min)(rows, all_rows - row)};
  }
};

template <class T, class Rotation, class C, class Threads>
void attend_splits(const attention_call<T, Rotation, C>& call, const Threads& threads) {
  using results_type = decode_results<arithmetic<T>>;
  const Index rows = call.q.tokens * call.q.heads, of_head = call.q.tokens * call.group(),
              available = available_threads(threads), keys = (std::min)(results_type::split, call.k.tokens);
  const auto run = [&](Index splits, const row_pieces& pieces, const auto& body) {
    parallel_tasks(threads, splits * pieces.count(),
                   cost_of(rows / pieces.count(), keys, call.k.head_dim + call.v.head_dim), body);
  };
  if (is_read_in_place<C> && call.k.tokens <= results_type::split && is_plain(call)) {
    const auto pieces = row_pieces::of<arithmetic<T>>(call.k.heads, of_head, call.q.batch, available);
    return run(call.q.batch, pieces, [&, count = pieces.count()](Index task) {
      attend_split(call, nullptr, {pieces.queries(task / count, task % count), 0, 0});
    });
  }
  seen_splits splits(call.rules, results_type::split);
  const results_type results(splits.count(), rows, call.v.head_dim);
  const auto pieces = row_pieces::of<arithmetic<T>>(call.k.heads, of_head, splits.count(), available);
  splits.divide(pieces.count());
  run(splits.count(), pieces, [&, count = pieces.count()](Index task) {
    const Index place = task / count;
    const auto [b, split] = splits[place];
    const decode_queries queries = pieces.queries(b, task % count);
    attend_split(call, &results, {queries, split, place});
    if (!splits.complete(b, task % count)) return;
    for (Index kv = queries.first_head; kv < queries.first_head + queries.heads; ++kv)
      for (Index row = queries.first_row; row < queries.first_row + queries.rows; ++row)
        merge_splits(call, results, splits, b, kv * of_head + row);
  });
}

/// The largest number of query rows, tokens * group, for which attention is faster without packing keys and
/// values. The number is smaller for int8 and for products in bfloat16, which are widened again for every
/// four rows. For float and 16-bit keys it is the same, because both must give the same bits.
template <class A, class C>
Index max_decode_rows(const attention_options& options) {
  constexpr Index strip = panel_shape<A>::rows;
  return is_quantized<C> || options.products != product_precision::full ? 3 * strip / 2 : 4 * strip;
}

/// Attention of a checked call to all keys that its rules admit.
template <class T, class Rotation, class C, class Threads>
void attend_keys(const attention_call<T, Rotation, C>& call, const Threads& threads) {
  if (call.q.tokens * call.group() <= max_decode_rows<arithmetic<T>, C>(call.rules.options()))
    attend_splits(call, threads);
  else
    attend_blocks(call, threads);
}

/// Attention of a checked call. If keys are selected, every query and key head is a call of its own. If there
/// are fewer such calls than threads, the threads share each call.
template <class T, class Rotation, class C, class Threads>
void attend(const attention_call<T, Rotation, C>& call, const Threads& threads) {
  if (call.q.batch == 0 || call.q.tokens == 0 || call.q.heads == 0) return;
  const selected_keys& selected = call.rules.options().selected;
  if (!selected) return attend_keys(call, threads);
  const Index tasks = selected_query_count(call);
  if (tasks < available_threads(threads))
    for (Index task = 0; task < tasks; ++task) attend_keys(selected_query(call, task).call(), threads);
  else
    parallel_tasks(threads, tasks, cost_of(call.group(), selected.keys(), call.k.head_dim + call.v.head_dim),
                   [&](Index task) { attend_keys(selected_query(call, task).call(), this_thread{}); });
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_ATTEND_HPP
