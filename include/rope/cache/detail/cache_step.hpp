// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_STEP_HPP
#define ROPE_CACHE_DETAIL_CACHE_STEP_HPP

#include <algorithm>  // std::min, std::max
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/attended_call.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/cache_rows.hpp>   // check_new_positions
#include <rope/cache/detail/call_checks.hpp>  // lacks_list
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/kv_cache.hpp>
#include <rope/cache/ring_cache.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/tables/table.hpp>

/// Checks one decoder step. A step calls append and then attention, and append must write nothing if
/// attention would throw.

namespace rope::inline ROPE_ABI::detail {

/// Heads of the queries, and the required shape of the cache.
struct step_shape {
  Index heads, kv_heads, head_dim, value_dim;
};

/// Caches to which a block appends heads.
template <class X>
concept is_cache = attended_rows<X> && requires(X& cache) {
  { cache.kv_heads() } -> std::convertible_to<Index>;
  { cache.head_dim() } -> std::convertible_to<Index>;
  { cache.value_dim() } -> std::convertible_to<Index>;
  { cache.next_positions() } -> std::convertible_to<std::span<const std::int64_t>>;
  cache.clear();
};

/// The maximum number of tokens that may be appended before attention is called.
template <class Cache>
Index chunk_of(const Cache& cache, Index tokens) {
  if constexpr (rows_by_rank<Cache>)
    return cache.policy().chunk;
  else
    return (std::max)(Index{1}, tokens);
}

/// Throws before anything is written if append or attention would reject `tokens` new tokens per row with
/// heads of this shape. Other errors, such as tokens that do not fit, are reported by append before it
/// writes.
///
/// Throws:  as append and attention; with axes, std::invalid_argument if keys are raw (they need a table of
///          all tokens), or a ring gets more tokens of a table of coordinates than its chunk
template <class Layout, class Cache, class S>
void check_next(const Cache& cache, const step_shape& shape, const attention_options& options, Index tokens,
                const placed_table<S>* table, const row_counts& counts) {
  const char* function = "multi_head_attention";
  if (cache.kv_heads() != shape.kv_heads || cache.head_dim() != shape.head_dim ||
      cache.value_dim() != shape.value_dim)
    throw_invalid(function, "the cache must have [kv_heads, head_dim, value_dim] = ",
                  shape_text({shape.kv_heads, shape.head_dim, shape.value_dim}), ", got ",
                  shape_text({cache.kv_heads(), cache.head_dim(), cache.value_dim()}));
  check_counts(function, counts, cache.batch(), tokens);
  cache.rules(function, options);
  check_cache_lists(function, options);
  Index keys = 0;
  for (Index b = 0; b < cache.batch(); ++b) {
    keys = (std::max)(keys, cache.size(b) + count_of_row(counts, b, tokens));
    if constexpr (requires { cache.check_queries(function, b, Index{0}); })
      if (count_of_row(counts, b, tokens) > 0) cache.check_queries(function, b, 0);  // skipped positions
  }
  check_numbers(function, options);
  check_lists(function, options, {cache.batch(), tokens, keys, shape.heads, shape.head_dim}, counts);
  const Index chunk = chunk_of(cache, tokens);
  const auto check_later_chunks = [&] {  // append checks the first one before it writes
    if (chunk < tokens)
      check_new_positions(function, cache.batch(), tokens,
                          started_rows<std::int64_t>{std::span<const std::int64_t>(cache.next_positions())},
                          counts);
  };
  if (table == nullptr) {
    if (cache.storage() == key_storage::raw)
      throw_invalid(function, "this cache stores raw keys, give the table");
    return check_later_chunks();
  }
  if constexpr (pair_layout<Layout>) {
    cache.template check_table<Layout>(*table);
    if (cache.axes() > 0 && cache.storage() == key_storage::raw)
      throw_invalid(function, "raw keys on ", cache.axes(),
                    " axes are read by a table of all tokens, append and attend to them by hand");
    if (cache.axes() > 0 && is_coordinate_table(function, cache.axes(), table->table())) {
      if (chunk < tokens)
        throw_invalid(function, "a ring with axes takes chunk = ", chunk,
                      " tokens at a time by a table of their coordinates, got ", tokens);
      checked_token_rows(function, table->table().rows(), cache.batch(), tokens);
      return check_rotation<Layout>(function, cache.batch(), tokens, shape.head_dim, *table, known_range{});
    }
    check_later_chunks();
    position_range read;  // the positions by which the step rotates queries and keys
    for (Index b = 0; b < cache.batch(); ++b) {
      const Index count = count_of_row(counts, b, tokens);
      if (count == 0) continue;
      const std::int64_t next = cache.next_positions()[static_cast<std::size_t>(b)], ranks = ranks_of(cache);
      for (const std::int64_t position : {next, advance(next, count - 1)})
        read.include(ranks > 0 ? (std::min)(position, ranks - 1) : position);
      include_read_keys(cache, b, read, (std::min)(chunk, count));
    }
    check_rotation<Layout>(function, cache.batch(), tokens, shape.head_dim, *table, known_range{read});
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_CACHE_STEP_HPP
