// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_AXES_CALL_HPP
#define ROPE_CACHE_DETAIL_AXES_CALL_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rope/attention/detail/attend.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/cached_call.hpp>
#include <rope/cache/detail/cached_options.hpp>
#include <rope/cache/detail/row_counts.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Attention to a cache whose tokens have coordinates: who sees whom goes by their order, and queries, or raw
/// keys, turn by the rows of a table, which must be at the coordinates that the cache knows.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A call of attention<Layout>(q, cache, out, table) where the cache has axes.
template <class Layout, class T, class Cache, class S, class Threads>
class axes_call {
  using C = typename Cache::value_type;
  /// Rings with axes store no raw keys.
  static constexpr bool may_be_raw = !is_ring<Cache>;

 public:
  axes_call(const head_view<const T>& q, const Cache& cache, const head_view<T>& out,
            const placed_table<S>& table, const attention_options& options, const row_counts& counts,
            const Threads& threads)
      : call_(q, cache, out, &table, options, counts, threads),
        q_(q),
        cache_(cache),
        table_(table),
        threads_(threads) {
    cache.template check_table<Layout>(table);
    const bool by_rows = is_coordinate_table("attention", cache.axes(), table.table());
    if constexpr (may_be_raw) {
      if (cache.storage() == key_storage::raw) {
        check_all_tokens(by_rows);
        return;
      }
    }
    by_rows ? check_queries() : find_text();
  }

  void run() {
    if constexpr (may_be_raw) {
      if (cache_.storage() == key_storage::raw) return attend_raw();
    }
    if (queries_ == no_queries) return call_.run();
    struct queries_on_axes {};
    const head_view<T> turned =
        bhsd(workspace<queries_on_axes, T>(q_.size()), q_.batch, q_.heads, q_.tokens, q_.head_dim);
    if (queries_ == at_rows)
      rotate_all<Layout, false>(q_, turned, table_, rows_, threads_);
    else
      rotate_all<Layout, false>(q_, turned, table_, text_source(), threads_);
    call_.run_with(turned);
  }

 private:
  const double* coordinates_of(Index b, Index t) const {
    return newest_coordinates(cache_, b, call_.queries_of(b), t);
  }
  listed_positions<std::int64_t> text_source() const {
    const auto size = static_cast<std::size_t>(q_.batch * q_.tokens);
    return {vector_of("attention", std::span<const std::int64_t>(text_, size)), q_.tokens};
  }
  /// Throws:  std::invalid_argument unless row `r` of the table is where a token is
  void check_row(Index r, const double* coordinates, const char* token) const {
    const auto of_table = table_.table().coordinates();
    for (Index a = 0; a < cache_.axes(); ++a)
      if (!equal(of_table(r, a), coordinates[a]))
        ROPE_THROW(std::invalid_argument,
                   message("attention: the table must be at the coordinates of ", token, ", row ", r,
                           " is at ", of_table(r, a), " on axis ", a, " and the token at ", coordinates[a]));
  }
  void check_queries() {
    rows_ = checked_token_rows("attention", table_.table().rows(), q_.batch, q_.tokens);
    check_rotation<Layout>("attention", q_, table_, rows_);
    for (Index b = 0; b < q_.batch; ++b)
      for (Index t = 0; t < call_.queries_of(b); ++t)
        check_row(rows_(b, t), coordinates_of(b, t), "the queries, which are the newest tokens");
  }
  /// Notes the positions of the queries, which must be text.
  ///
  /// Throws:  std::invalid_argument if one is not at the same integer on all axes
  void find_text() {
    struct text_positions {};
    std::int64_t* text = workspace<text_positions, std::int64_t>(q_.batch * q_.tokens);
    position_range range;
    for (Index b = 0; b < q_.batch; ++b)
      for (Index t = 0; t < call_.queries_of(b); ++t) {
        const double* at = coordinates_of(b, t);
        for (Index a = 0; a < cache_.axes(); ++a)
          if (!equal(at[a], at[0]) || !equal(at[a], std::floor(at[a])))
            ROPE_THROW(std::invalid_argument,
                       message("attention: a table of positions turns text, which is at one integer on all "
                               "axes; give a table of coordinates for a query at ",
                               at[0], " and ", at[a]));
        range.include(text[b * q_.tokens + t] = static_cast<std::int64_t>(at[0]));
      }
    check_rotation<Layout>("attention", q_, table_, known_range{range});
    // Tokens of q that are no queries turn too, and are never read; a position of the table will do.
    for (Index b = 0; b < q_.batch; ++b)
      for (Index t = call_.queries_of(b); t < q_.tokens; ++t) text[b * q_.tokens + t] = range.smallest;
    text_ = text;
    queries_ = range.empty() ? no_queries : at_positions;
  }
  void check_all_tokens(bool by_rows) const {
    const frequency_table<S>& table = table_.table();
    if (!by_rows)
      ROPE_THROW(std::invalid_argument,
                 message("attention: raw keys on ", cache_.axes(),
                         " axes are read by a table at cache.coordinates(), got one of positions"));
    Index size = 0;
    for (Index b = 0; b < cache_.batch(); ++b) size += cache_.size(b);
    if (table.rows() != size)
      ROPE_THROW(std::invalid_argument,
                 message("attention: raw keys are read by a table at cache.coordinates(), which has ", size,
                         " rows, got ", table.rows()));
    check_rotation<Layout>("attention", q_, table_, known_range{});
    size = 0;
    for (Index b = 0; b < cache_.batch(); ++b)
      for (Index t = 0; t < cache_.size(b); ++t)
        check_row(size++, newest_coordinates(cache_, b, cache_.size(b), t), "all tokens");
  }

  void attend_raw() {
    call_.for_each_row([&](Index b, const head_view<const T>& q, const head_view<T>& out) {
      const stored_view<const C> k = cache_.keys(b), v = cache_.values(b);
      // Rows of the table for one row of the batch lie together, in the order of tokens.
      Index first = 0;
      for (Index before = 0; before < b; ++before) first += cache_.size(before);
      attention_options options = call_.options_of_row(b, q.tokens, k.tokens);
      options.key_positions = options.query_positions = {};
      const visibility rules(options, {1, q.tokens, k.tokens, q.heads, q.head_dim});
      attend(attention_call<T, table_rotation<Layout, S>, C>{q, k, v, out, rules, {tables_of(table_), first}},
             threads_);
    });
  }

  cached_call<unnamed_layout, T, Cache, S, Threads> call_;
  head_view<const T> q_;
  const Cache& cache_;
  placed_table<S> table_;
  const Threads& threads_;
  enum { at_rows, at_positions, no_queries } queries_ = at_rows;
  token_rows rows_ = {0};
  const std::int64_t* text_ = nullptr;  // positions of queries, [batch * tokens]
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_AXES_CALL_HPP
