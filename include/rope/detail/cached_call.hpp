// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_CACHED_CALL_HPP
#define ROPE_DETAIL_CACHED_CALL_HPP

#include <algorithm>  // std::fill_n, std::min, std::max
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention.hpp>
#include <rope/config.hpp>
#include <rope/detail/cache_rows.hpp>  // count_of, check_counts
#include <rope/detail/cached_keys.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/workspace.hpp>
#include <rope/kv_cache.hpp>
#include <rope/layout.hpp>
#include <rope/positions.hpp>
#include <rope/ring_cache.hpp>
#include <rope/table.hpp>
#include <rope/view.hpp>

/// One call of attention with a cache: what can be wrong with it, and how each row is attended.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class X>
inline constexpr bool is_ring = false;
template <class C>
inline constexpr bool is_ring<ring_cache<C>> = true;

/// The keys at the front of a sequence that stay visible outside the window.
template <class C>
Index sinks_of(const kv_cache<C>& /*cache*/) {
  return 0;
}
template <class C>
Index sinks_of(const ring_cache<C>& cache) {
  return cache.policy().sinks;
}

/// The positions of the newest `count` tokens of row b.
template <class C>
std::span<const std::int64_t> newest(const kv_cache<C>& cache, Index b, Index count) {
  return cache.positions(b).last(static_cast<std::size_t>(count));
}
template <class C>
std::span<const std::int64_t> newest(const ring_cache<C>& cache, Index b, Index count) {
  struct ring_queries {};
  std::int64_t* positions = workspace<ring_queries, std::int64_t>(count);
  for (Index i = 0; i < count; ++i)
    positions[i] = cache.next_positions()[static_cast<std::size_t>(b)] - count + i;
  return {positions, static_cast<std::size_t>(count)};
}

/// A ring has its own window and can only be causal.
///
/// Throws:  std::invalid_argument if the options say otherwise
template <class C>
void check_cache_options(const char* /*function*/, const kv_cache<C>& /*cache*/,
                         const attention_options& /*options*/) {}
template <class C>
void check_cache_options(const char* function, const ring_cache<C>& cache, const attention_options& options) {
  if (!options.causal || (options.window != 0 && options.window != cache.policy().window))
    ROPE_THROW(std::invalid_argument,
               message(function, ": a ring_cache is causal and has a window of ", cache.policy().window,
                       ", got causal = ", options.causal, " and a window of ", options.window));
}

/// Positions of which only the extremes are known, to be checked against a table.
struct known_range {
  position_range value;
  position_range range(const char* /*function*/, Index /*batch*/, Index /*tokens*/) const { return value; }
};

/// A call of attention with a cache.
template <class Layout, class T, class Cache, class S>
class cached_call {
  using C = typename Cache::value_type;
  static_assert(
      can_store<T, C> && !std::is_const_v<T>,
      "attention: q and out have the channel type of the cache, or are float where that is a 16-bit "
      "type");

 public:
  cached_call(const head_view<const T>& q, const Cache& cache, const head_view<T>& out,
              const frequency_table<S>* table, const attention_options& options,
              std::span<const Index> counts)
      : q_(q), cache_(cache), out_(out), table_(table), options_(options), counts_(counts) {
    check();
  }

  void run() {
    for (Index b = 0; b < cache_.batch(); ++b) {
      const Index count = count_of(b, q_.tokens, counts_);
      for (Index t = count; t < out_.tokens; ++t)
        for (Index h = 0; h < out_.heads; ++h) std::fill_n(out_.at(b, t, h), out_.head_dim, T(0));
      if (count == 0) continue;
      const head_view<const T> q = row_of(q_, b).token_range(0, count);
      const head_view<T> out = row_of(out_, b).token_range(0, count);
      const std::span<const std::int64_t> positions = newest(cache_, b, count);
      if (relative())
        attend_by_rank(b, q, out, positions);
      else
        attend(b, rotated(q, positions), out, positions);
    }
  }

 private:
  struct rotated_queries {};
  struct read_keys {};
  struct read_values {};

  bool relative() const {
    if constexpr (is_ring<Cache>)
      return cache_.policy().positions == ring_positions::cache;
    else
      return false;
  }
  bool raw() const { return cache_.storage() == key_storage::raw; }

  void check() {
    check_view("attention", q_);
    check_view("attention", out_);
    const auto require = [](bool holds, const char* rule, Index got, Index of) {
      if (!holds) ROPE_THROW(std::invalid_argument, message("attention: ", rule, ", got ", got, " and ", of));
    };
    require(q_.batch == cache_.batch(), "q and the cache must have the same batch", q_.batch, cache_.batch());
    check_counts("attention", counts_, q_.batch, q_.tokens);
    check_cache_options("attention", cache_, options_);
    if constexpr (is_ring<Cache>) options_.window = cache_.policy().window;
    if ((table_ == nullptr) && raw())
      ROPE_THROW(std::invalid_argument,
                 message("attention: this cache stores raw keys, give the layout and the table"));
    if constexpr (!std::is_same_v<Layout, unnamed_layout>) cache_.template require<Layout>(*table_);
    for (Index b = 0; b < q_.batch; ++b) {
      const Index count = count_of(b, q_.tokens, counts_);
      const head_view<const C> k = cache_.keys(b), v = cache_.values(b);
      checked_attention<T>(row_of(q_, b), shape_of(k), shape_of(v), row_of(out_, b), options_);
      require(count <= cache_.size(b), "queries must be appended before they attend; q.tokens and size are",
              count, cache_.size(b));
      if (count > 0) check_row(b, count);
    }
  }

  /// The shape of a view of the cache in the type of the query; never read.
  static head_view<const T> shape_of(const head_view<const C>& x) {
    return {nullptr, x.batch, x.tokens, x.heads, x.head_dim, x.batch_stride, x.token_stride, x.head_stride};
  }

  void check_row(Index b, Index count) const {
    const std::span<const std::int64_t> positions = newest(cache_, b, count);
    if constexpr (is_ring<Cache>)
      if (!cache_.holds_window(b, positions.front()))
        ROPE_THROW(std::invalid_argument,
                   message("attention: keys that the first of ", count,
                           " queries sees were overwritten, the cache takes at most chunk = ",
                           cache_.policy().chunk, " queries at a time"));
    if constexpr (!std::is_same_v<Layout, unnamed_layout>) {
      position_range read;
      if (relative()) {
        read.include(0);
        read.include((std::min)(std::int64_t{cache_.size(b)} - 1, newest_rank(positions.back())));
      } else {
        for (const std::int64_t position : positions) read.include(position);
        if (raw())
          for (const std::int64_t position : cache_.positions(b))
            if (position != ring_cache<C>::no_position) read.include(position);
      }
      check_rotation<Layout>("attention", row_of(q_, b), *table_, known_range{read});
    }
  }

  head_view<const T> rotated(const head_view<const T>& q, std::span<const std::int64_t> positions) const {
    if constexpr (std::is_same_v<Layout, unnamed_layout>) {
      return q;
    } else {
      const head_view<T> turned =
          bhsd(workspace<rotated_queries, T>(q.size()), 1, q.heads, q.tokens, q.head_dim);
      rotate_all<Layout, false>(q, turned, *table_, listed_positions<std::int64_t>(positions, q.tokens));
      return turned;
    }
  }

  /// Attention of one row, head by head where keys must be made ready first, so that the copy of one head
  /// stays in the processor's cache.
  void attend(Index b, const head_view<const T>& q, const head_view<T>& out,
              std::span<const std::int64_t> positions) const {
    const head_view<const C> k = cache_.keys(b), v = cache_.values(b);
    if (std::is_same_v<T, C> && !raw()) {
      if constexpr (std::is_same_v<T, C>) attend_heads(q, k, v, out, b, positions);
      return;
    }
    const Index group = k.heads == 0 ? 0 : q.heads / k.heads;
    for (Index h = 0; h < k.heads; ++h)
      attend_heads(q.head_range(h * group, group), ready_keys(k.head_range(h, 1), cache_.positions(b)),
                   widened_heads<read_values, T>(v.head_range(h, 1)), out.head_range(h * group, group), b,
                   positions);
  }

  head_view<const T> ready_keys(const head_view<const C>& k, std::span<const std::int64_t> positions) const {
    if constexpr (!std::is_same_v<Layout, unnamed_layout>)
      if (raw()) return rotated_heads<Layout, read_keys, T>(k, *table_, positions);
    return widened_heads<read_keys, T>(k);
  }

  void attend_heads(const head_view<const T>& q, const head_view<const T>& k, const head_view<const T>& v,
                    const head_view<T>& out, Index b, std::span<const std::int64_t> positions) const {
    if (!is_ring<Cache> && contiguous(cache_.positions(b)))
      attention(q, k, v, out, options_);
    else
      attend_by_position(q, k, v, out, positions, cache_.positions(b), sinks_of(cache_), options_);
  }

  /// The number of keys that a query of a ring sees before itself.
  std::int64_t newest_rank(std::int64_t position) const {
    if constexpr (is_ring<Cache>)
      return (std::min)(position, std::int64_t{cache_.policy().sinks} + cache_.policy().window - 1);
    else
      return position;
  }

  /// Every query sees its keys at positions 0, 1, 2, ... in the order of their age, itself at the last one.
  void attend_by_rank(Index b, const head_view<const T>& q, const head_view<T>& out,
                      std::span<const std::int64_t> positions) const {
    if constexpr (is_ring<Cache> && !std::is_same_v<Layout, unnamed_layout>) {
      const Index sinks = cache_.policy().sinks, group = q.heads / (std::max)(Index{1}, cache_.keys(b).heads);
      for (Index i = 0; i < q.tokens; ++i) {
        const std::int64_t position = positions[static_cast<std::size_t>(i)], rank = newest_rank(position);
        const auto keys = static_cast<Index>(rank + 1);
        const head_view<const T> turned = rotated(q.token_range(i, 1), {&rank, 1});
        for (Index h = 0; h < cache_.keys(b).heads; ++h) {
          const head_view<const C> k = cache_.keys(b).head_range(h, 1), v = cache_.values(b).head_range(h, 1);
          const head_view<T> near_keys = thd(workspace<read_keys, T>(keys * k.head_dim), keys, 1, k.head_dim);
          const head_view<T> near_values =
              thd(workspace<read_values, T>(keys * v.head_dim), keys, 1, v.head_dim);
          for (Index r = 0; r < keys;) {
            // Ranks r, r + 1, ... are next to each other in memory up to the end of the sinks or of the ring.
            const Index slot = cache_.slot(r < sinks ? r : position - rank + r);
            const Index end = slot < sinks ? sinks : k.tokens, count = (std::min)(keys - r, end - slot);
            rotate_channels<Layout>(k.token_range(slot, count), near_keys.token_range(r, count), *table_,
                                    contiguous_positions{r});
            copy_channels(v.token_range(slot, count), near_values.token_range(r, count));
            r += count;
          }
          attention(turned.head_range(h * group, group), near_keys, near_values,
                    out.token_range(i, 1).head_range(h * group, group), alone());
        }
      }
    }
  }

  /// The options of a query that sees every key it is given.
  attention_options alone() const {
    attention_options options = options_;
    options.causal = false;
    options.window = 0;
    return options;
  }

  head_view<const T> q_;
  const Cache& cache_;
  head_view<T> out_;
  const frequency_table<S>* table_;
  attention_options options_;
  std::span<const Index> counts_;
};

template <class X>
inline constexpr bool is_cache = is_ring<X>;
template <class C>
inline constexpr bool is_cache<kv_cache<C>> = true;

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_CACHED_CALL_HPP
