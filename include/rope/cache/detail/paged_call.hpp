// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_PAGED_CALL_HPP
#define ROPE_CACHE_DETAIL_PAGED_CALL_HPP

#include <algorithm>  // std::max
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attend.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/product_precision.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/detail/ragged_queries.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/page_view.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>
#include <rope/tables/query_key_tables.hpp>

/// One call of attention to pages: its checks, and the calls of the kernels for its sequences.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class Layout, class T, class P, class S, class Threads>
class paged_call {
  using C = std::remove_const_t<P>;
  ROPE_DETAIL_CHECK_READ("attention", T, C);
  static constexpr bool rotates = !std::is_same_v<Layout, unnamed_layout>;

 public:
  paged_call(const head_view<const T>& q, const page_view<P>& pages, const head_view<T>& out,
             const placed_table<S>* table, const attention_options& options, const Threads& threads)
      : q_(q),
        pages_(pages),
        out_(out),
        table_(table),
        options_(options),
        newest_(pages, q.tokens, options.query_offsets),
        threads_(threads) {
    check_call();
  }

  /// Sequences with as many queries are one call; their keys may differ in number.
  void run() {
    attention_options options = options_;
    options.query_offsets = {};
    struct key_counts {};
    std::int64_t* counts = workspace<key_counts, std::int64_t>(pages_.sequences());
    for (Index s = 0, alike; s < pages_.sequences(); s += alike) {
      alike = newest_.alike(s);
      const Index queries = newest_.count(s), heads = q_.heads;
      if (queries == 0) continue;
      Index longest = 0;
      for (Index b = 0; b < alike; ++b) {
        counts[b] = pages_.length(s + b);
        longest = (std::max)(longest, pages_.length(s + b));
      }
      options.key_counts = {counts, static_cast<std::size_t>(alike)};
      if (!options_.log_sum_exp.empty())
        options.log_sum_exp = part_of(
            options_.log_sum_exp, (options_.query_offsets.empty() ? s * queries : newest_.first(s)) * heads,
            alike * queries * heads);
      const visibility rules(options, {alike, queries, longest, heads, q_.head_dim});
      attend_rows(s, newest_.rows(q_, s, alike), newest_.rows(out_, s, alike), longest, rules);
    }
  }

 private:
  void attend_rows(Index s, const head_view<const T>& q, const head_view<T>& out, Index longest,
                   const visibility& rules) const {
    const token_source<C> k(pages_.keys(), pages_.blocks(), s, longest),
        v(pages_.values(), pages_.blocks(), s, longest);
    if constexpr (rotates) {
      if (pages_.storage() == key_storage::raw) {
        attend_to(attention_call<T, table_rotation<Layout, S>, C>{q, k, v, out, rules, {tables_of(*table_)}});
        return;
      }
      struct rotated_queries {};
      const head_view<T> turned =
          bshd(workspace<rotated_queries, T>(q.size()), q.batch, q.tokens, q.heads, q.head_dim);
      rotate_all<Layout, false>(q, turned, *table_, positions_in_pages<P>{newest_, s}, threads_);
      attend_to(attention_call<T, no_rotation, C>{turned, k, v, out, rules, {}});
    } else {
      attend_to(attention_call<T, no_rotation, C>{q, k, v, out, rules, {}});
    }
  }
  template <class Turn>
  void attend_to(const attention_call<T, Turn, C>& call) const {
    detail::attend(call, threads_);
  }

  void check_call() const {
    const char* function = "attention";
    check_view(function, q_);
    check_view(function, out_);
    check_memory(function, q_, out_);
    pages_.check_blocks(function);
    newest_.check_counts(function, q_.batch);
    Index longest = 0;
    for (Index s = 0; s < pages_.sequences(); ++s) longest = (std::max)(longest, pages_.length(s));
    check_lists();
    attention_options options = options_;
    options.query_offsets = {};
    // A call without keys checks everything that has to do with the extents of heads.
    const stored_view<const C> k = pages_.keys(), v = pages_.values();
    const auto no_keys = shape_of(k).batch_range(0, 0), no_values = shape_of(v).batch_range(0, 0);
    attention_options plain;
    checked_attention(q_.batch_range(0, 0), no_keys.token_range(0, 0), no_values.token_range(0, 0),
                      out_.batch_range(0, 0), plain);
    const auto demand = [&](bool holds, const char* rule, Index first, Index second) {
      check_rule(function, holds, rule, first, second);
    };
    demand(q_.batch == out_.batch, "q and out must have the same batch", q_.batch, out_.batch);
    demand(q_.tokens == out_.tokens, "q and out must have the same tokens", q_.tokens, out_.tokens);
    check_options(function, options, {q_.batch, q_.tokens, longest, q_.heads, q_.head_dim});
    check_magnitudes<arithmetic<T>>(function, options, q_.head_dim);
    // Raw keys turn while they are read.
    const bool keys_turn = rotates && pages_.storage() == key_storage::raw;
    keys_turn ? check_products<T, C, true>(function, options.products, q_.head_dim)
              : check_products<T, C, false>(function, options.products, q_.head_dim);
    check_rotation_of_call();
  }
  /// Throws:  std::invalid_argument if options say what the pages decide
  void check_lists() const {
    if (!options_.query_positions.empty() || !options_.key_positions.empty() ||
        !options_.query_counts.empty() || !options_.key_counts.empty() || !options_.key_offsets.empty())
      ROPE_THROW(std::invalid_argument,
                 message("attention: pages have lengths, and their tokens positions; the options must list "
                         "nothing but query_offsets"));
    if (!equal(options_.dropout, 0))
      ROPE_THROW(std::invalid_argument,
                 message("attention: dropout is for training; set it to 0 for attention to pages, got ",
                         options_.dropout));
    if (!options_.query_offsets.empty() && (options_.bias || options_.mask))
      ROPE_THROW(std::invalid_argument,
                 message("attention: a bias or a mask has a row for each sequence; give the queries as "
                         "[sequences, tokens], without query_offsets"));
  }
  void check_rotation_of_call() const {
    if (!rotates && pages_.storage() == key_storage::raw)
      ROPE_THROW(std::invalid_argument,
                 message("attention: these pages hold raw keys, give the layout and the table"));
    if constexpr (rotates) {
      position_range read = newest_.range();
      if (pages_.storage() == key_storage::raw && !read.empty()) read.include(0);
      check_rotation<Layout>("attention", q_, *table_, known_range{read});
    }
  }

  head_view<const T> q_;
  const page_view<P>& pages_;
  head_view<T> out_;
  const placed_table<S>* table_;
  attention_options options_;
  newest_in_pages<P> newest_;
  const Threads& threads_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_PAGED_CALL_HPP
