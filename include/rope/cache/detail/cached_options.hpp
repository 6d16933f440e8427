// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHED_OPTIONS_HPP
#define ROPE_CACHE_DETAIL_CACHED_OPTIONS_HPP

#include <algorithm>  // std::max, std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <rope/attention/detail/attend.hpp>  // visibility
#include <rope/attention/options.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/latent_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/tables/placed_table.hpp>

/// The options of attention where a cache decides positions, and a call is made of calls for some rows and
/// heads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class X>
inline constexpr bool is_ring = false;
template <class C>
inline constexpr bool is_ring<ring_cache<C>> = true;
template <class X>
inline constexpr bool is_cache = is_ring<X>;
template <class C>
inline constexpr bool is_cache<kv_cache<C>> = true;
/// Whether its tokens may have coordinates.
template <class X>
inline constexpr bool may_have_axes = false;
template <class C>
inline constexpr bool may_have_axes<kv_cache<C>> = true;
template <class C>
inline constexpr bool may_have_axes<ring_cache<C>> = true;
template <class X>
inline constexpr bool is_latent = false;
template <class C>
inline constexpr bool is_latent<latent_cache<C>> = true;
/// The caches that queries can attend to. A function below is for all of them unless it has an overload for
/// one.
template <class X>
concept attended_cache = is_cache<X> || is_latent<X>;

/// The table where it turns the heads of queries and keys.
template <class Cache, class Table>
auto placed_for(const Cache& /*cache*/, const Table& table) {
  return placed(table);
}
template <class C, class Table>
auto placed_for(const latent_cache<C>& cache, const Table& table) {
  return behind_latent("attention", table, cache.latent_dim(), cache.rotary_dim());
}

/// What visibility goes by, for every token or slot of row b.
template <class Cache>
std::span<const std::int64_t> order_of(const Cache& cache, Index b) {
  return cache.positions(b);
}
template <class Cache>
requires may_have_axes<Cache> std::span<const std::int64_t> order_of(const Cache& cache, Index b) {
  return cache.order(b);
}

/// The positions of the newest `count` tokens of row b that visibility goes by.
template <class Cache>
std::span<const std::int64_t> newest(const Cache& cache, Index b, Index count) {
  return order_of(cache, b).last(static_cast<std::size_t>(count));
}
template <class C>
std::span<const std::int64_t> newest(const ring_cache<C>& cache, Index b, Index count) {
  struct ring_queries {};
  std::int64_t* positions = workspace<ring_queries, std::int64_t>(count);
  for (Index i = 0; i < count; ++i) positions[i] = cache.seen()[static_cast<std::size_t>(b)] - count + i;
  return {positions, static_cast<std::size_t>(count)};
}

/// Whether the positions of row b are 0, 1, 2, ...
template <class Cache>
bool counted(const Cache& cache, Index b) {
  return cache.ordered(b).counted == cache.size(b);
}

/// The positions of all tokens of row b.
template <class Cache>
position_range held_positions(const Cache& cache, Index b) {
  const std::span<const std::int64_t> order = order_of(cache, b);
  position_range range;
  if (cache.ordered(b).ascending < cache.size(b))
    for (const std::int64_t position : order) range.include(position);
  else if (!order.empty())
    range = {order.front(), order.back()};
  return range;
}
template <class C>
position_range held_positions(const ring_cache<C>& cache, Index b) {
  position_range range;
  for (const std::int64_t position : cache.order(b))
    if (position != ring_cache<C>::no_position) range.include(position);
  return range;
}

/// The visibility of a call for row b; the options list its positions.
template <class Cache>
visibility rules_of_row(const Cache& cache, Index b, const attention_options& options,
                        const attention_shape& shape) {
  if (counted(cache, b)) return {options, shape, key_order::contiguous};
  return {options, shape,
          cache.ordered(b).ascending == cache.size(b) ? key_order::ascending : key_order::any};
}
template <class C>
visibility rules_of_row(const ring_cache<C>& /*cache*/, Index /*b*/, const attention_options& options,
                        const attention_shape& shape) {
  return {options, shape};
}

/// Where a cache with axes has token t of the newest `count` of row b, [axes].
template <class C>
const double* newest_coordinates(const kv_cache<C>& cache, Index b, Index count, Index t) {
  return cache.coordinates(b).data() + (cache.size(b) - count + t) * cache.axes();
}
template <class C>
const double* newest_coordinates(const ring_cache<C>& cache, Index b, Index count, Index t) {
  return cache.coordinates(b).data() +
         cache.slot(cache.seen()[static_cast<std::size_t>(b)] - count + t) * cache.axes();
}

/// Throws:  std::invalid_argument if the options say what the cache decides
inline void check_cache_lists(const char* function, const attention_options& options) {
  const auto demand_empty = [function](const char* name, std::span<const std::int64_t> list) {
    if (!list.empty())
      ROPE_THROW(std::invalid_argument,
                 message(function, ": a cache knows the positions and counts of its tokens; leave ", name,
                         " empty in the options, got length ", list.size()));
  };
  demand_empty("query_positions", options.query_positions);
  demand_empty("key_positions", options.key_positions);
  demand_empty("query_counts", options.query_counts);
  demand_empty("key_counts", options.key_counts);
  demand_empty("query_offsets", options.query_offsets);
  demand_empty("key_offsets", options.key_offsets);
  if (!equal(options.dropout, 0))
    ROPE_THROW(std::invalid_argument,
               message(function, ": dropout is for training; set it to 0 for attention to a cache, got ",
                       options.dropout));
}
template <class Cache>
void check_cache_options(const char* function, const Cache& /*cache*/, const attention_options& options) {
  check_cache_lists(function, options);
  if (is_latent<Cache> && equal(options.scale, 0))
    ROPE_THROW(std::invalid_argument,
               message(function,
                       ": a latent_cache needs a scale, 1 / sqrt(head_dim) of the expanded heads, which it "
                       "does not know, got 0"));
}
template <class C>
void check_cache_options(const char* function, const ring_cache<C>& cache, const attention_options& options) {
  check_cache_lists(function, options);
  const ring_policy& policy = cache.policy();
  std::string got = options.causal ? "" : "causal = false";
  const auto compare = [&got](const char* name, Index given, Index own) {
    if (given != 0 && given != own)
      got += (got.empty() ? "" : ", ") + std::string(name) + " = " + std::to_string(given);
  };
  compare("window", options.window, policy.window);
  compare("sinks", options.sinks, policy.sinks);
  if (!got.empty())
    ROPE_THROW(std::invalid_argument,
               message(function,
                       ": leave causal, window and sinks at their defaults, the ring_cache has its own, "
                       "causal with window = ",
                       policy.window, " and sinks = ", policy.sinks, ", got ", got.c_str()));
  if (options.bias || options.mask)
    ROPE_THROW(std::invalid_argument,
               message(function,
                       ": a ring_cache overwrites old keys, so a bias or a mask cannot tell which are which; "
                       "use a kv_cache, or leave it empty, got a ",
                       options.bias ? "bias" : "mask"));
}

/// Puts the window and the sinks of a ring into the options.
template <class Cache>
void complete_options(attention_options& /*options*/, const Cache& /*cache*/) {}
template <class C>
void complete_options(attention_options& options, const ring_cache<C>& cache) {
  options.window = cache.policy().window;
  options.sinks = cache.policy().sinks;
}

/// Whether keys are rotated by their rank among the keys that a query sees (ring_positions::cache), and the
/// rank of the query itself.
template <class Cache>
bool counts_by_rank(const Cache& /*cache*/) {
  return false;
}
template <class C>
bool counts_by_rank(const ring_cache<C>& cache) {
  return cache.policy().positions == ring_positions::cache;
}
template <class Cache>
std::int64_t rank_of(const Cache& /*cache*/, std::int64_t position) {
  return position;
}
template <class C>
std::int64_t rank_of(const ring_cache<C>& cache, std::int64_t position) {
  return (std::min)(position, std::int64_t{cache.policy().sinks} + cache.policy().window - 1);
}

/// Throws:  std::invalid_argument if keys that a query at one of `queries` positions from `position` on
///          sees are no longer held
template <class Cache>
void check_window(const char* /*function*/, const Cache& /*cache*/, Index /*b*/, std::int64_t /*position*/,
                  Index /*queries*/) {}
template <class C>
void check_window(const char* function, const ring_cache<C>& cache, Index b, std::int64_t position,
                  Index queries) {
  // Sinks are never overwritten, and of the other queries the first one sees the oldest keys.
  const std::int64_t oldest = (std::max)(position, std::int64_t{cache.policy().sinks});
  if (oldest - position < queries && !cache.holds_window(b, oldest))
    ROPE_THROW(std::invalid_argument,
               message(function, ": keys that the query at ", oldest, ", one of ", queries,
                       ", sees were overwritten, the cache takes at most chunk = ", cache.policy().chunk,
                       " queries at a time"));
}

/// The tokens of row b that have been appended and not forgotten; a ring may have overwritten some.
template <class Cache>
std::int64_t seen(const Cache& cache, Index b) {
  return cache.size(b);
}
template <class C>
std::int64_t seen(const ring_cache<C>& cache, Index b) {
  return cache.seen()[static_cast<std::size_t>(b)];
}

/// Throws:  std::invalid_argument if a row has seen fewer tokens than there are queries
template <class Cache>
void check_appended(const char* function, const Cache& cache, Index b, Index queries) {
  if (queries > seen(cache, b))
    ROPE_THROW(std::invalid_argument,
               message(function, ": append the keys of the queries before they attend: ", queries,
                       " queries, ", seen(cache, b), " cached tokens"));
}

/// Queries [0, queries) of heads [first_head, first_head + heads) of row b, out of `all_queries` of a row.
struct call_part {
  Index b, all_queries, first_head, heads, queries, keys;
};

/// The entries of a matrix of scores that belong to a part of the call with every head.
template <class X>
score_view<X> scores_of(score_view<X> x, const call_part& part) {
  if (!x) return x;
  x.data = x.at(part.b, 0, 0);
  x.batch = 1;
  if (x.queries != 1) x.queries = part.queries;
  if (x.keys != 1) x.keys = part.keys;
  return x;
}

/// The options of a part of the call; log_sum_exp is that of whole rows.
template <class Options>
Options options_of(Options options, const call_part& part) {
  options.bias = scores_of(options.bias, part);
  options.mask = scores_of(options.mask, part);
  if (!options.sink_logits.empty())
    options.sink_logits = part_of(options.sink_logits, part.first_head, part.heads);
  if (!options.log_sum_exp.empty())
    options.log_sum_exp =
        part_of(options.log_sum_exp, part.b * part.all_queries * part.heads, part.queries * part.heads);
  return options;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_CACHED_OPTIONS_HPP
