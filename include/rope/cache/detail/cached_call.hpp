// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHED_CALL_HPP
#define ROPE_CACHE_DETAIL_CACHED_CALL_HPP

#include <algorithm>  // std::fill_n, std::min, std::max
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attend.hpp>
#include <rope/attention/product_precision.hpp>
#include <rope/attention/quantized_attention.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/detail/cached_options.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// One call of attention with a cache: its checks, and the calls of the kernels for its rows.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A call of attention with a cache.
template <class Layout, class T, class Cache, class S, class Threads>
class cached_call {
  using C = typename Cache::value_type;
  ROPE_DETAIL_CHECK_READ("attention", T, C);
  static constexpr bool rotates = !std::is_same_v<Layout, unnamed_layout>;

 public:
  cached_call(const head_view<const T>& q, const Cache& cache, const head_view<T>& out,
              const placed_table<S>* table, const attention_options& options, const row_counts& counts,
              const Threads& threads)
      : q_(q),
        cache_(cache),
        out_(out),
        table_(table),
        options_(options),
        counts_(counts),
        threads_(threads) {
    check_call();
    complete_options(options_, cache);
  }

  void run() {
    if (attend_in_one_call()) return;
    for_each_row([&](Index b, const head_view<const T>& q, const head_view<T>& out) {
      const std::span<const std::int64_t> positions = newest(cache_, b, q.tokens);
      if (counts_by_rank(cache_))
        attend_by_rank(b, q, out, positions);
      else
        attend(b, q, out, positions);
    });
  }
  /// The same with other queries of the same shape.
  void run_with(const head_view<const T>& q) {
    q_ = q;
    run();
  }

  /// How many queries row b has.
  Index queries_of(Index b) const { return count_of(b, q_.tokens, counts_); }

  /// Calls attend_row(b, q, out) for every row that has queries, with those; zeros are written for the
  /// others.
  template <class AttendRow>
  void for_each_row(const AttendRow& attend_row) const {
    for (Index b = 0; b < cache_.batch(); ++b) {
      const Index count = queries_of(b);
      for (Index t = count; t < out_.tokens; ++t)
        for (Index h = 0; h < out_.heads; ++h) std::fill_n(out_.at(b, t, h), out_.head_dim, T(0));
      if (!options_.log_sum_exp.empty())
        std::fill_n(options_.log_sum_exp.data() + (b * q_.tokens + count) * q_.heads,
                    (q_.tokens - count) * q_.heads, attention_options::no_keys);
      if (count > 0)
        attend_row(b, q_.batch_range(b, 1).token_range(0, count),
                   out_.batch_range(b, 1).token_range(0, count));
    }
  }
  /// The options of all queries of row b.
  attention_options options_of_row(Index b, Index queries, Index keys) const {
    return options_of(options_, {b, q_.tokens, 0, q_.heads, queries, keys});
  }

 private:
  struct rotated_queries {};
  struct read_keys {};
  struct read_values {};

  bool raw() const { return cache_.storage() == key_storage::raw; }

  void check_call() {
    check_view("attention", q_);
    check_view("attention", out_);
    check_memory("attention", q_, out_);
    check_rule("attention", q_.batch == cache_.batch(), "q and the cache must have the same batch", q_.batch,
               cache_.batch());
    check_rule("attention", q_.batch == out_.batch, "q and out must have the same batch", q_.batch,
               out_.batch);
    if (counts_.empty()) counts_ = cache_.query_counts(q_.tokens);
    check_counts("attention", counts_, q_.batch, q_.tokens);
    check_cache_options("attention", cache_, options_);
    if (table_ == nullptr && raw())
      ROPE_THROW(std::invalid_argument,
                 message("attention: this cache stores raw keys, give the layout and the table"));
    if constexpr (rotates) cache_.template check_table<Layout>(*table_);
    Index largest = 0;
    for (Index b = 0; b < q_.batch; ++b) largest = (std::max)(largest, cache_.keys(b).tokens);
    check_options("attention", options_, {q_.batch, q_.tokens, largest, q_.heads, q_.head_dim});
    check_magnitudes<arithmetic<T>>("attention", options_, q_.head_dim);
    // Raw keys turn while they are read.
    raw() ? check_products<T, C, true>("attention", options_.products, q_.head_dim)
          : check_products<T, C, false>("attention", options_.products, q_.head_dim);
    attention_options plain;
    for (Index b = 0; b < q_.batch; ++b) {
      const Index count = queries_of(b);
      checked_attention(q_.batch_range(b, 1), shape_of(cache_.keys(b)), shape_of(cache_.values(b)),
                        out_.batch_range(b, 1), plain);
      check_appended("attention", cache_, b, count);
      if (count > 0) check_row(b, count);
    }
  }

  void check_row(Index b, Index count) const {
    const std::span<const std::int64_t> positions = newest(cache_, b, count);
    check_window("attention", cache_, b, positions.front(), count);
    if constexpr (rotates) {
      position_range read;
      if (counts_by_rank(cache_)) {
        read.include(0);
        read.include(rank_of(cache_, positions.back()));
      } else {
        if (raw()) read = held_positions(cache_, b);
        for (const std::int64_t position : positions) read.include(position);
      }
      check_rotation<Layout>("attention", q_.batch_range(b, 1), *table_, known_range{read});
    }
  }

  head_view<const T> rotated(const head_view<const T>& q, std::span<const std::int64_t> positions) const {
    if constexpr (!rotates) {
      return q;
    } else {
      const head_view<T> turned =
          bhsd(workspace<rotated_queries, T>(q.size()), 1, q.heads, q.tokens, q.head_dim);
      rotate_all<Layout, false>(q, turned, *table_, listed_positions<std::int64_t>(positions, q.tokens));
      return turned;
    }
  }

  /// The whole batch in one call, where its keys are at positions 0, 1, 2, ...
  bool attend_in_one_call() const {
    if constexpr (is_ring<Cache>) {
      return false;
    } else {
      if (!counts_.empty() || q_.batch == 0) return false;
      const Index size = cache_.size(0);
      for (Index b = 0; b < q_.batch; ++b)
        if (cache_.size(b) != size || !counted(cache_, b)) return false;
      head_view<const T> q = q_;
      if constexpr (rotates) {
        if (raw()) {
          attention<Layout>(q, cache_.keys(), cache_.values(), out_, *table_, options_, threads_);
          return true;
        }
        const head_view<T> turned =
            bhsd(workspace<rotated_queries, T>(q.size()), q.batch, q.heads, q.tokens, q.head_dim);
        rotate_all<Layout, false>(q, turned, *table_, contiguous_positions{size - q.tokens}, threads_);
        q = turned;
      }
      attention(q, cache_.keys(), cache_.values(), out_, options_, threads_);
      return true;
    }
  }

  /// Attention of one row to keys as they are stored. Raw ones are rotated while they are read; slots without
  /// a position are not seen.
  void attend(Index b, const head_view<const T>& q, const head_view<T>& out,
              std::span<const std::int64_t> positions) const {
    const stored_view<const C> k = cache_.keys(b), v = cache_.values(b);
    attention_options options = options_of_row(b, q.tokens, k.tokens);
    options.query_positions = positions;
    options.key_positions = order_of(cache_, b);
    const visibility rules = rules_of_row(cache_, b, options, {1, q.tokens, k.tokens, q.heads, q.head_dim});
    if constexpr (rotates) {
      if (raw()) {
        detail::attend(
            attention_call<T, table_rotation<Layout, S>, C>{q, k, v, out, rules, {tables_of(*table_)}},
            threads_);
        return;
      }
    }
    detail::attend(attention_call<T, no_rotation, C>{rotated(q, positions), k, v, out, rules, {}}, threads_);
  }

  /// Every query sees its keys at positions 0, 1, 2, ... in the order of their age, itself at the last one.
  void attend_by_rank(Index b, const head_view<const T>& q, const head_view<T>& out,
                      std::span<const std::int64_t> positions) const {
    if constexpr (is_ring<Cache> && rotates) {
      const Index kv_heads = cache_.kv_heads(), step = heads_per_pass();
      const Index group = kv_heads == 0 ? 0 : q.heads / kv_heads;
      for (Index i = 0; i < q.tokens; ++i) {
        const std::int64_t position = positions[static_cast<std::size_t>(i)];
        const std::int64_t rank = rank_of(cache_, position);
        const head_view<const T> turned = rotated(q.token_range(i, 1), {&rank, 1});
        for (Index h = 0; h < kv_heads; h += step) {
          const keys_by_rank recent = read_by_rank(b, h, step, position, rank);
          const Index first = h * group, heads = step * group;
          attention(turned.head_range(first, heads), recent.keys, recent.values,
                    out.token_range(i, 1).head_range(first, heads),
                    options_by_rank({b, q_.tokens, first, heads, q.tokens, to_index(rank + 1)}, i), threads_);
        }
      }
    }
  }

  /// Keys, rotated by their ranks, and values, in the order of these.
  struct keys_by_rank {
    head_view<T> keys, values;
  };

  /// Copies those of `heads` key heads that the query at `position`, which has rank `rank`, sees.
  keys_by_rank read_by_rank(Index b, Index head, Index heads, std::int64_t position,
                            std::int64_t rank) const {
    const stored_view<const C> k = cache_.keys(b).head_range(head, heads),
                               v = cache_.values(b).head_range(head, heads);
    const Index sinks = cache_.policy().sinks, count = to_index(rank + 1);
    const keys_by_rank recent = {
        bhsd(workspace<read_keys, T>(count * heads * k.head_dim), 1, heads, count, k.head_dim),
        bhsd(workspace<read_values, T>(count * heads * v.head_dim), 1, heads, count, v.head_dim)};
    for (Index r = 0; r < count;) {
      // Ranks r, r + 1, ... are next to each other in memory up to the end of the sinks or of the ring.
      const Index slot = cache_.slot(r < sinks ? r : position - rank + r);
      const Index run = (std::min)(count - r, (slot < sinks ? sinks : k.tokens) - slot);
      rotate_channels<Layout>(k.token_range(slot, run), recent.keys.token_range(r, run), *table_,
                              contiguous_positions{r});
      copy_channels(v.token_range(slot, run), recent.values.token_range(r, run));
      r += run;
    }
    return recent;
  }

  /// The options of query i, which sees all keys that it is given.
  attention_options options_by_rank(const call_part& part, Index i) const {
    attention_options options = options_of(options_, part);
    if (!options.log_sum_exp.empty())
      options.log_sum_exp = part_of(options.log_sum_exp, i * part.heads, part.heads);
    options.causal = false;
    options.window = 0;
    options.sinks = 0;
    return options;
  }

  /// Key heads of one inner call: all where sums are asked for, which lie head beside head; else one, so that
  /// its copy stays in the processor's cache.
  Index heads_per_pass() const {
    return options_.log_sum_exp.empty() ? Index{1} : (std::max)(Index{1}, cache_.kv_heads());
  }

  head_view<const T> q_;
  const Cache& cache_;
  head_view<T> out_;
  const placed_table<S>* table_;
  attention_options options_;
  row_counts counts_;
  const Threads& threads_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_CACHED_CALL_HPP
