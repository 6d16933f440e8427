// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_WEIGHT_SUMS_HPP
#define ROPE_ATTENTION_WEIGHT_SUMS_HPP

#include <algorithm>  // std::copy_n, std::fill_n, std::max, std::min
#include <cstddef>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/prefill.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/selected_query.hpp>
#include <rope/attention/detail/softmax.hpp>  // begin_softmax
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/weights.hpp>  // checked_scores, weight_of
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// The attention that each key receives: its weights, summed over queries.

namespace rope::inline ROPE_ABI {
namespace detail {

/// The memory of the sums, in double. The sum of row b, head h and key j is at data[b * batch_stride + h *
/// head_stride + j].
struct weight_sums_view {
  double* data;
  Index batch_stride, head_stride;
  bool by_key_head;
};

/// Adds up the weights of a call in two passes over tiles of keys. The first pass finds the softmax of every
/// query. The second pass computes the same scores again and adds each weight to the sum of its key. Only one
/// task of the second pass adds to the sum of a key, so the bits do not depend on the number of threads.
template <class T, class Rotation, class C>
class weight_sums_passes {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;

 public:
  weight_sums_passes(const attention_call<T, Rotation, C>& call, const weight_sums_view& to)
      : call_(call),
        to_(to),
        factors_(call.rules),
        group_(call.group()),
        pairs_(call.q.batch * call.k.heads) {
    call_.v = call.k;
    call_.v.head_dim = call_.v.token_stride = 0;  // copies of no channels have no memory to add a stride to
    const Index tiles = pieces_of(call.k.tokens, shape::tile);
    tiles_of_run_ = (std::max)(Index{32}, pieces_of(tiles, max_runs));
    runs_ = pieces_of(tiles, tiles_of_run_);
    block_ = (std::max)(Index{1}, (std::min)(call.q.tokens, Index{512} / (std::max)(Index{1}, group_)));
    blocks_ = pieces_of(call.q.tokens, block_);
    const Index rows = pairs_ * blocks_ * rows_of_block();
    A* numbers = workspace<struct softmax_of_runs, A>(2 * (runs_ + 1) * rows);
    total_ = {numbers, numbers + rows};
    of_runs_ = {numbers + 2 * rows, numbers + (2 + runs_) * rows};
  }

  template <class Threads>
  void run(const Threads& threads) {
    if (pairs_ == 0 || group_ == 0 || call_.q.tokens == 0 || call_.k.tokens == 0) return;
    const Index depth = (std::max)(Index{1}, call_.k.head_dim), block_rows = block_ * group_;
    parallel_tasks(threads, pairs_ * blocks_ * runs_,
                   cost_of(block_rows, (std::min)(tiles_of_run_ * shape::tile, call_.k.tokens), depth),
                   [&](Index task) { find_softmax(task % runs_, task / runs_); });
    for (Index n = 0; n < pairs_ * blocks_; ++n) join_runs(n);
    const Index tasks = pieces_of(pieces_of(call_.k.tokens, shape::tile), tiles_of_task);
    parallel_tasks(
        threads, pairs_ * tasks,
        cost_of(call_.q.tokens * group_, (std::min)(tiles_of_task * shape::tile, call_.k.tokens), depth),
        [&](Index task) { add_weights(task / tasks, task % tasks * tiles_of_task); });
  }

 private:
  /// The largest number of runs. A run is a group of consecutive tiles of keys, and one task of the first
  /// pass. Each run has its own softmax for every query, and these are joined at the end. Sums of many equal
  /// terms lose fewer digits this way. Memory grows with the number of runs, so this number is limited.
  static constexpr Index max_runs = 16;
  /// The number of tiles of a task of the second pass, large enough that packing the queries is a thousandth
  /// of the work of a task.
  static constexpr Index tiles_of_task = 8;

  /// The number of rows of a block, rounded up to whole strips. (A strip is the rows that a kernel processes
  /// together, see base/simd/panels.hpp.)
  Index rows_of_block() const { return pieces_of(block_ * group_, shape::rows) * shape::rows; }
  /// Block `block` of the queries of one row and key head.
  query_block block_of(Index pair, Index block) const {
    const Index first = block * block_;
    return block_of_key_head(pair, call_.k.heads, group_, first, (std::min)(block_, call_.q.tokens - first));
  }

  /// Calls visit(softmax, scores, begin) for each of the tiles of keys [first, last) and each strip of the
  /// block to which a key of the tile may be visible. `begin` is the first key of the tile.
  template <class Visit>
  void for_each_strip(const query_block& block, Index first, Index last, const Visit& visit) const {
    block_keys keys(call_.rules, block);
    first = (std::max)(first, keys.begin() / shape::tile);
    last = (std::min)(last, pieces_of(keys.end(), shape::tile));
    if (first >= last) return;
    A* scores = workspace<struct scores_of_strip, A>(shape::rows * shape::tile);
    const Index strips = pieces_of(block.rows(), shape::rows);
    prefill_operands<T, Rotation, C> operands(call_, block, strips);
    pack_block(operands, block, keys, strips * shape::rows, factors_.query);
    for (Index n = first; n < last; ++n) {
      const Index begin = n * shape::tile, count = (std::min)(shape::tile, keys.end() - begin);
      if (keys.enter_tile(begin, count))
        score_tile(operands, block, keys, count, scores,
                   [&](tile_softmax<A>& softmax) { visit(softmax, scores, begin); });
    }
  }

  /// Finds the softmax of one run of keys for the queries of one block.
  void find_softmax(Index run, Index n) const {
    const softmax_rows<A> state = of_runs_.from((run * pairs_ * blocks_ + n) * rows_of_block());
    std::fill_n(state.sum, rows_of_block(), A(0));
    for_each_strip(block_of(n / blocks_, n % blocks_), run * tiles_of_run_, (run + 1) * tiles_of_run_,
                   [&](tile_softmax<A>& softmax, A* scores, Index /*begin*/) {
                     softmax.run(scores, factors_, state.from(softmax.strip().first_row));
                   });
  }

  /// For the queries of one block, joins the softmaxes of all runs and the sink logits.
  void join_runs(Index n) const {
    const query_block block = block_of(n / blocks_, n % blocks_);
    const softmax_rows<A> total = total_.from(n * rows_of_block());
    begin_softmax(call_.rules, {block, 0, block.rows()}, total);
    for (Index run = 0; run < runs_; ++run) {
      const softmax_rows<A> part = of_runs_.from((run * pairs_ * blocks_ + n) * rows_of_block());
      for (Index row = 0; row < block.rows(); ++row)
        if (!equal(part.sum[row], A(0))) join(total.from(row), part.from(row));
    }
  }

  /// Adds the weights of all queries of one row and key head to the sums of the keys of one task.
  void add_weights(Index pair, Index first_tile) const {
    const double gain = 1 / (1 - call_.rules.options().dropout);
    for (Index n = 0; n < blocks_; ++n) {
      const query_block block = block_of(pair, n);
      const softmax_rows<A> total = total_.from((pair * blocks_ + n) * rows_of_block());
      for_each_strip(block, first_tile, first_tile + tiles_of_task,
                     [&](tile_softmax<A>& softmax, A* scores, Index begin) {
                       // With the final maximum and a sum of 1, the weights become 2^(score - maximum).
                       const strip_rows& strip = softmax.strip();
                       const softmax_rows<A> of_strip = total.from(strip.first_row);
                       A maximum[std::size_t(shape::rows)], sum[std::size_t(shape::rows)];
                       std::copy_n(of_strip.maximum, strip.count, maximum);
                       std::fill_n(sum, strip.count, A(1));
                       softmax.run(scores, factors_, {maximum, sum});
                       const tile_range hull = softmax.hull();
                       for (Index r = 0; r < strip.count; ++r) {
                         const A of_row = of_strip.sum[r];
                         if (equal(of_row, A(0))) continue;
                         const double factor = gain / static_cast<double>(of_row);
                         double* sums = to_.data + block.b * to_.batch_stride +
                                        (to_.by_key_head ? block.kv : strip.head_of(r)) * to_.head_stride +
                                        begin;
                         const A* weights = scores + r * shape::tile;
                         const bool finite = is_finite(factor);  // if not, 0 * factor is NaN
                         for (Index j = hull.first; j < hull.last; ++j)
                           if (finite || softmax.sees(r, j))
                             sums[j] = multiply_add(static_cast<double>(weights[j]), factor, sums[j]);
                       }
                     });
    }
  }

  attention_call<T, Rotation, C> call_;
  weight_sums_view to_;
  score_factors factors_;
  Index group_, pairs_;  // pairs of a row and a key head
  Index tiles_of_run_, runs_, block_, blocks_;
  softmax_rows<A> total_, of_runs_;  // [pairs, blocks, rows], [runs, pairs, blocks, rows]
};

/// Adds the weights of a call to sums. Queries with selected keys are added one after another, because two of
/// them may have selected the same key.
template <class T, class Rotation, class C, class Threads>
void add_weight_sums(const attention_call<T, Rotation, C>& call, const weight_sums_view& to,
                     const Threads& threads) {
  const selected_keys& selected = call.rules.options().selected;
  if (!selected) return weight_sums_passes<T, Rotation, C>(call, to).run(threads);
  const Index tasks = selected_query_count(call), heads = to.by_key_head ? 1 : call.group();
  double* const of_list = workspace<struct sums_of_list, double>(heads * selected.keys());
  for (Index task = 0; task < tasks; ++task) {
    const selected_query query(call, task);
    const Index first = to.by_key_head ? query.key_head : query.first_head();
    std::fill_n(of_list, heads * query.count, 0.0);
    const weight_sums_view part = {of_list, 0, query.count, to.by_key_head};
    weight_sums_passes<T, Rotation, C>(query.call(), part).run(threads);
    double* const sums = to.data + query.row * to.batch_stride + first * to.head_stride;
    for (Index h = 0; h < heads; ++h)
      for (Index n = 0; n < query.count; ++n)
        sums[h * to.head_stride + query.keys[n]] += of_list[h * query.count + n];
  }
}

/// Scratch memory in which sums [batch, heads, keys] or [batch, key heads, keys] are added up before they are
/// written to `sums`. It is set to zero, and valid until the next call on this thread.
///
/// Throws:  std::invalid_argument unless `sums` has one of the two lengths, std::length_error if the sums
///          exceed the address space
template <class A>
weight_sums_view weight_sums_in(std::span<A> sums, const attention_shape& shape, Index kv_heads) {
  if (!extents_fit(shape.batch, (std::max)(shape.heads, kv_heads), shape.keys, 1, Index(sizeof(double))))
    throw_length("attention_weight_sums", "sums ", shape_text({shape.batch, shape.heads, shape.keys}),
                 " exceed the address space");
  const auto length = [&](Index heads) { return static_cast<std::size_t>(shape.batch * heads * shape.keys); };
  const bool by_key_head = sums.size() == length(kv_heads);
  if (!by_key_head && sums.size() != length(shape.heads))
    throw_invalid("attention_weight_sums",
                  "sums must have length batch * heads * keys = ", length(shape.heads),
                  ", or batch * key heads * keys = ", length(kv_heads), ", got ", sums.size());
  const Index heads = by_key_head ? kv_heads : shape.heads;
  double* const memory = workspace<struct sums_of_weights, double>(static_cast<Index>(sums.size()));
  std::fill_n(memory, sums.size(), 0.0);
  return {memory, heads * shape.keys, shape.keys, by_key_head};
}

template <class A>
void write_weight_sums(const double* from, std::span<A> sums) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<A>(from[i]);
}

/// Writes the sums of a checked call.
template <class T, class Rotation, class C, class Threads>
void find_weight_sums(const attention_call<T, Rotation, C>& call, std::span<arithmetic<T>> sums,
                      const Threads& threads) {
  ROPE_DETAIL_CHECK_THREADS("attention_weight_sums", Threads);
  static_assert(
      is_or_widens<T, C>,
      "attention_weight_sums: k has the channel type of q, or a 16-bit type or std::int8_t where q is float");
  const weight_sums_view to = weight_sums_in(sums, call.rules.shape(), call.k.heads);
  add_weight_sums(call, to, threads);
  write_weight_sums(to.data, sums);
}

/// The caller's list of sums. W is the type of the argument, which is a reference if the argument has a name.
template <class Q, class W>
std::span<weight_of<Q>> sums_in(std::remove_reference_t<W>& sums) {
  static_assert(
      std::is_convertible_v<W, std::span<weight_of<Q>>>,
      "attention_weight_sums: sums are a std::vector or a std::span of numbers that can be written, "
      "float, or double where q is double");
  if constexpr (std::is_convertible_v<W, std::span<weight_of<Q>>>)
    return std::span<weight_of<Q>>(sums);
  else
    return {};
}

}  // namespace detail

/// The attention that each key receives: the sum of its weights over all queries, for every query head or
/// added up over the query heads of a key head. Queries and keys are already rotated or need no rotation.
///
///     sum_j = sum_i w_ij,   w_i = softmax over visible j of  scale * q_i . k_j
///
/// H2O removes from a cache the tokens with the smallest sums over all queries so far. SnapKV and TOVA use
/// the sums over the newest queries. cache/weights.hpp has this function for caches.
///
///     std::vector<float> sums(std::size_t(batch * kv_heads * keys));
///     attention_weight_sums(q, k, sums);
///
/// \param q     [batch, queries, q.heads, head_dim]
/// \param k     [batch, keys, k.heads, head_dim]; the channel type of q, or a 16-bit type or std::int8_t with
///              scales if q is float
/// \param sums  [batch, q.heads, keys] or [batch, k.heads, keys], float (double for double); overwritten. The
///              length of sums selects one of the two shapes. A key that is visible to no query has a sum of
///              0
/// \param options  those of attention, but log_sum_exp is not written, and `products` has no effect: it is
///                 always product_precision::full
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Requires:  sums shares no element with q or k
/// Throws:    std::invalid_argument as attention does, or if sums has another length; sums is then unchanged
/// Accuracy:  scores and weights as in attention, added up in double and rounded once
///            (tests/attention/weight_sums.test.cpp)
/// Cost:      4 head_dim flops per query head and visible key, because all scores are computed twice. Keys
///            are packed, so a single query takes several times the time of attention. Scratch memory: see
///            include/rope/README.md
/// Source:    Zhang et al. 2023, H2O, arXiv:2306.14048; Li et al. 2024, SnapKV, arXiv:2404.14469; Oren et al.
///            2024, TOVA, arXiv:2401.06104
template <class Layout = detail::unnamed_layout, class Q, class K, class W = std::span<detail::weight_of<Q>>,
          class Threads = this_thread>
void attention_weight_sums(head_view<Q> q, head_view<K> k, W&& sums, const attention_options& options = {},
                           const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weight_sums", Layout);
  using T = std::remove_const_t<Q>;
  using C = std::remove_const_t<K>;
  const auto to = detail::sums_in<Q, W>(sums);
  const auto rules = detail::checked_scores<T, C>("attention_weight_sums", q, k, options, false);
  detail::find_weight_sums(
      detail::attention_call<T, detail::no_rotation_of<T, C>, C>{q, k, {}, {}, rules, {}}, to, threads);
}

/// The sums for unrotated queries and keys, which are rotated while they are read.
///
/// Throws:  as above, and as attention<Layout> does
template <class Layout = detail::unnamed_layout, class Q, class K, class W = std::span<detail::weight_of<Q>>,
          attention_tables Tables, class Threads = this_thread>
void attention_weight_sums(head_view<Q> q, head_view<K> k, W&& sums, const Tables& tables,
                           const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_LAYOUT("attention_weight_sums", Layout);
  using T = std::remove_const_t<Q>;
  using C = std::remove_const_t<K>;
  const query_key_tables pair = detail::checked_tables("attention_weight_sums", tables, options);
  const auto to = detail::sums_in<Q, W>(sums);
  const auto rules = detail::checked_scores<T, C>("attention_weight_sums", q, k, options, true);
  const auto rotation = detail::checked_rotation<Layout, T, C>("attention_weight_sums", q, k, pair, rules);
  detail::find_weight_sums(
      detail::attention_call<T, detail::read_rotation<T>, C>{q, k, {}, {}, rules, rotation}, to, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_WEIGHT_SUMS_HPP
