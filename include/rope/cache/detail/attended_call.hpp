// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_ATTENDED_CALL_HPP
#define ROPE_CACHE_DETAIL_ATTENDED_CALL_HPP

#include <algorithm>  // std::fill_n, std::max, std::min, std::minmax_element
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>  // std::pair

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attend.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/cache/attended_rows.hpp>
#include <rope/cache/detail/axes_tables.hpp>
#include <rope/cache/detail/row_tokens.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>

/// One call of attention to stored tokens: its checks, and the kernel calls for its rows.

namespace rope::inline ROPE_ABI::detail {

/// Throws:  std::invalid_argument if the options list positions, counts or offsets, which stored tokens
///          determine, or set dropout
inline void check_cache_lists(const char* function, const attention_options& options) {
  const std::pair<const char*, std::size_t> lists[] = {
      {"query_positions", options.query_positions.size()}, {"key_positions", options.key_positions.size()},
      {"query_counts", options.query_counts.size()},       {"key_counts", options.key_counts.size()},
      {"query_offsets", options.query_offsets.size()},     {"key_offsets", options.key_offsets.size()}};
  for (const auto& [name, size] : lists)
    if (size > 0)
      throw_invalid(function, "a cache knows the positions and counts of its tokens; leave ", name,
                    " empty in the options, got length ", size);
  if (!equal(options.dropout, 0))
    throw_invalid(function, "dropout is for training; set it to 0 for attention to a cache, got ",
                  options.dropout);
}

/// The part of a call that one kernel call processes: rows from b on, queries from first_query on, and query
/// heads from first_head on.
struct attended_part {
  Index b, first_query = 0, first_head = 0;
  std::int64_t position = 0, rank = -1;  // of the query if its keys are copied by rank, otherwise rank is -1

  /// The slot of key j of the kernel call, if keys are copied by rank.
  template <class Rows>
  Index slot(const Rows& rows, Index j) const {
    if constexpr (rows_by_rank<Rows>) return rows.slot(j < rows.policy().sinks ? j : position - rank + j);
    return j;
  }
};

/// Passed in place of a table by calls that rotate nothing.
inline constexpr const placed_table<float>* without_table = nullptr;

/// A call of attention to stored tokens. The constructor checks the call, and run() computes the output.
template <class Layout, class T, class Rows, class S, class Threads>
class attended_call {
  using C = typename Rows::value_type;
  static_assert(is_or_widens<T, C> && !std::is_const_v<T>,
                "attention: q and out have the channel type of the stored keys and values, or are float "
                "where that is a 16-bit type or std::int8_t");
  static constexpr bool rotates = !std::is_same_v<Layout, unnamed_layout>;

 public:
  /// \param queries       which tokens of q belong to each row. The last rows may have none
  /// \param only_weights  whether kernels read only keys. Heads of out then have no channels
  attended_call(const head_view<const T>& q, const Rows& rows, const head_view<T>& out,
                const placed_table<S>* table, const attention_options& options, const row_tokens& queries,
                const Threads& threads, bool only_weights = false)
      : q_(q),
        rows_(rows),
        out_(out),
        table_(table),
        options_(rows.rules("attention", options)),
        queries_(queries),
        threads_(threads),
        only_weights_(only_weights),
        shape_{q.batch, q.tokens, 0, q.heads, q.head_dim} {
    check_call();
  }

  void run() const;
  /// The extents of the call. The number of keys is that of the longest row.
  const attention_shape& shape() const { return shape_; }

  /// Calls visit(call, part) for every kernel call. Adjacent compatible rows share one kernel call.
  template <class Visit>
  void for_each_call(const Visit& visit) const {
    for (Index b = 0, number; b < queries_.asking(); b += number) {
      number = 1;
      clear_padding(b);
      if (queries_.count(b) == 0) continue;
      if (ranks_of(rows_) > 0) {
        attend_by_rank(b, visit);
      } else {
        for (; are_alike(b, b + number); ++number) clear_padding(b + number);
        attend_rows(b, number, visit);
      }
    }
  }

 private:
  void check_call();
  token_source<C> keys(Index b) const { return rows_.keys(b); }
  token_source<C> values(Index b) const {
    if (!only_weights_) return rows_.values(b);
    token_source<C> none = rows_.keys(b);
    none.head_dim = 0;
    return none;
  }
  bool raw() const { return rows_.storage() == key_storage::raw; }
  /// The number of coordinates of a token, or 0 if it has a position.
  Index axes() const {
    if constexpr (rows_on_axes<Rows>) return rows_.axes();
    return 0;
  }

  /// Queries and stored keys must be rotated in the same way. A call without a table does not show whether
  /// they are.
  void check_key_rotation() const {
    if (!rotates && rows_.rotates_keys() && !options_.queries_are_rotated)
      throw_invalid("attention",
                    "this cache rotated its keys, and a call without a table does not rotate q; call "
                    "attention<Layout>(q, cache, out, table), or rotate q yourself and set "
                    "queries_are_rotated, got false");
    if (rotates) check_unrotated("attention", options_);
    if (!rotates || raw() || rows_.rotates_keys()) return;
    for (Index b = 0; b < queries_.asking(); ++b)
      if (rows_.seen(b) > 0)
        throw_invalid(
            "attention", "the keys of the ", rows_.seen(b), " tokens in row ", b,
            " were rotated before they were appended; rotate q yourself and leave out the layout and "
            "the table, or append the keys with their table by append_rotated");
  }
  void check_row(Index b) const {
    const token_source<C> k = keys(b), v = values(b);
    check_heads("attention", q_, k, v, out_);
    const auto listed = static_cast<Index>(std::span<const std::int64_t>(rows_.order(b)).size());
    check_equal("attention", "keys and values of a row", "slots", k.tokens, v.tokens);
    check_rule("attention", listed == k.tokens || (listed == 0 && k.tokens == rows_.seen(b)),
               "the order of a row must have a position for each slot, or be empty where every token has a "
               "slot",
               listed, k.tokens);
    const Index count = queries_.count(b);
    if (count > rows_.seen(b))
      throw_invalid("attention", "append the keys of the queries before they attend: ", count, " queries, ",
                    rows_.seen(b), " cached tokens");
    if constexpr (requires { rows_.check_queries("attention", b, count); })
      if (count > 0) rows_.check_queries("attention", b, count);
  }

  /// Finds the positions of all queries, which determine the visible keys, and the rows of the table that
  /// rotate the queries.
  ///
  /// Throws:  as check_rotation; with axes, std::invalid_argument unless a table of coordinates has those of
  ///          the queries (raw keys: of all tokens), or a table of positions rotates queries of text
  void find_positions() {
    const Index size = q_.batch * q_.tokens;
    angles_ = positions_ = workspace<struct query_positions, std::int64_t>(size);
    for_each_query([&](Index b, Index i, std::int64_t token) {
      positions_[queries_.place(b, i)] = rows_.order_of(b, token);
    });
    if constexpr (rotates) {
      if constexpr (rows_on_axes<Rows>)
        if (raw() && axes() > 0) return check_raw_keys_on_axes<Layout>(q_, rows_, *table_);
      const frequency_table<S>& table = table_->table();
      const std::int64_t ranks = ranks_of(rows_);
      const bool by_rows = axes() > 0 && is_coordinate_table("attention", axes(), table);
      const token_rows table_rows = {
          by_rows ? checked_token_rows("attention", table.rows(), q_.batch, q_.tokens).row_stride : 0};
      if (ranks > 0 || axes() > 0) angles_ = workspace<struct query_angles, std::int64_t>(size);
      position_range read;
      for_each_query([&](Index b, Index i, std::int64_t token) {
        const Index place = queries_.place(b, i);
        std::int64_t angle = ranks > 0 ? (std::min)(positions_[place], ranks - 1) : positions_[place];
        if constexpr (rows_on_axes<Rows>)
          if (axes() > 0) {
            const double* const at = rows_.coordinates_of(b, token);
            if (by_rows)
              check_coordinates(table, table_rows(b, i), at, "the queries, which are the newest tokens");
            angle = by_rows ? table_rows(b, i)
                            : text_position("attention", "a query", axes(), [at](Index a) { return at[a]; });
          }
        angles_[place] = angle;
        read.include(angle);
      });
      for (Index b = 0; b < queries_.asking(); ++b)
        if (queries_.count(b) > 0) {
          include_read_keys(rows_, b, read);
          if (const std::span<const std::int64_t> order = rows_.order(b); raw() && ranks == 0)
            check_ids("attention", to_index(order.size()), table,
                      position_source(order, to_index(order.size())));
        }
      check_rotation<Layout>("attention", q_, *table_, known_range{read});
    }
  }
  template <class Visit>
  void for_each_query(const Visit& visit) const {
    for (Index b = 0; b < queries_.asking(); ++b)
      for (Index i = 0, count = queries_.count(b); i < count; ++i) visit(b, i, rows_.seen(b) - count + i);
  }

  /// Writes zeros for the tokens of row b of the call that are not queries.
  void clear_padding(Index b) const {
    const Index padding = queries_.padding(b);
    for (Index t = q_.tokens - padding; t < q_.tokens; ++t)
      for (Index h = 0; h < out_.heads; ++h) std::fill_n(out_.at(b, t, h), out_.head_dim, T(0));
    if (!options_.log_sum_exp.empty() && padding > 0)
      std::fill_n(options_.log_sum_exp.data() + queries_.place(b, queries_.count(b)) * q_.heads,
                  padding * q_.heads, attention_options::no_keys);
  }

  /// The row of the table that rotates the key at position 0 of row b. For raw keys in a cache with axes, the
  /// table has a row for every token, one batch row after another. Otherwise the result is 0.
  std::int64_t row_of_zero(Index b) const {
    std::int64_t row = 0;
    if (rotates && raw() && axes() > 0)
      for (Index before = 0; before < b; ++before) row += rows_.seen(before);
    return row;
  }

  /// Whether a kernel call for rows [first, next) can include row `next`. The numbers of queries must be
  /// equal, because the choice of the kernel, and therefore the bits of the output, depends on this number.
  bool are_alike(Index first, Index next) const {
    return next < queries_.asking() && queries_.count(next) == queries_.count(first) &&
           is_counted(rows_, first) && is_counted(rows_, next) && row_of_zero(next) == row_of_zero(first) &&
           ((options_.log_sum_exp.empty() && !ranges_differ_by_row() && !lists_differ_by_row()) ||
            queries_.padding(first) == 0) &&
           keys(first).is_followed_by(keys(next), next - first) &&
           values(first).is_followed_by(values(next), next - first);
  }

  /// Whether every row has its own key_ranges. Those of joined rows must then be contiguous.
  bool ranges_differ_by_row() const { return static_cast<Index>(options_.key_ranges.size()) > q_.tokens; }
  /// Whether every row has its own selected keys. Those of joined rows must then be contiguous.
  bool lists_differ_by_row() const { return options_.selected && options_.selected.queries() > q_.tokens; }
  /// The options for the queries of rows [b, b + number). The log_sum_exp of these queries are contiguous.
  attention_options options_of(Index b, Index number, Index keys) const {
    const Index count = queries_.count(b);
    attention_options options = options_;
    const auto take_rows = [&](auto& scores) {
      if (!scores) return;
      scores.data = scores.at(b, 0, 0);
      if (scores.batch != 1) scores.batch = number;
      if (scores.queries != 1) scores.queries = count;
      if (scores.keys != 1) scores.keys = keys;
    };
    take_rows(options.bias);
    take_rows(options.mask);
    // One list for all rows, or the lists of the rows one after another.
    const auto first = [&](bool differ) { return differ ? queries_.place(b, 0) : queries_.first(b); };
    const auto size = [&](bool differ) { return differ || q_.batch == 1 ? number * count : count; };
    if (const bool differ = ranges_differ_by_row(); !options.key_ranges.empty())
      options.key_ranges = part_of(options.key_ranges, first(differ), size(differ));
    if (const bool differ = lists_differ_by_row(); options.selected)
      options.selected = options.selected.of_queries(first(differ), size(differ));
    if (!options.log_sum_exp.empty())
      options.log_sum_exp =
          part_of(options.log_sum_exp, queries_.place(b, 0) * q_.heads, number * count * q_.heads);
    return options;
  }

  /// The visibility rules of a kernel call for rows from b on.
  visibility rules_of(Index b, const attention_options& options, const attention_shape& shape) const {
    if constexpr (requires { rows_.ordered(b); })
      if (!is_counted(rows_, b))
        return {options, shape,
                rows_.ordered(b).ascending == rows_.seen(b) ? key_order::ascending : key_order::any};
    return {options, shape};
  }

  /// Attention of joined rows. Raw keys are rotated while they are read.
  template <class Visit>
  void attend_rows(Index b, Index number, const Visit& visit) const {
    std::int64_t* counts = workspace<struct key_counts, std::int64_t>(number);
    for (Index n = 0; n < number; ++n) counts[n] = keys(b + n).tokens;
    const auto [fewest, most] = std::minmax_element(counts, counts + number);
    const Index longest = to_index(*most), count = queries_.count(b);
    attention_options options = options_of(b, number, longest);
    if (!is_counted(rows_, b)) {
      options.query_positions = {positions_ + queries_.place(b, 0), static_cast<std::size_t>(count)};
      options.key_positions = rows_.order(b);
    } else if (*fewest != *most) {
      options.key_counts = {counts, static_cast<std::size_t>(number)};
    }
    const visibility rules = rules_of(b, options, {number, count, longest, q_.heads, q_.head_dim});
    const token_source<C> k = keys(b).of_length(longest), v = values(b).of_length(longest);
    const head_view<const T> q = queries_.rows(q_, b, number);
    const head_view<T> out = queries_.rows(out_, b, number);
    if constexpr (rotates)
      if (raw()) {
        const query_key_tables tables = tables_of(*table_);
        const read_rotation<T> rotation(std::type_identity<Layout>{}, tables, row_of_zero(b));
        return visit(attention_call<T, read_rotation<T>, C>{q, k, v, out, rules, rotation}, attended_part{b});
      }
    visit(attention_call<T, no_rotation_of<T, C>, C>{rotated(q, b, 0), k, v, out, rules, {}},
          attended_part{b});
  }

  /// Returns q, rotated. Its tokens are queries [first, first + q.tokens) of the rows from b on.
  head_view<const T> rotated(const head_view<const T>& q, Index b, Index first) const {
    if constexpr (!rotates) {
      return q;
    } else {
      const head_view<T> to =
          bhsd(workspace<struct rotated_queries, T>(q.size()), q.batch, q.heads, q.tokens, q.head_dim);
      const auto angle = [&](Index row, Index t) { return angles_[queries_.place(b + row, first + t)]; };
      rotate_into<Layout, false>(q, to, *table_, angle, threads_);
      return to;
    }
  }

  /// Attention with ring_positions::cache. The keys visible to a query get positions 0, 1, 2, ..., from the
  /// oldest key to that of the query. A kernel call processes one key head, so that the copy of the head
  /// stays in cache. With log_sum_exp, a kernel call processes all heads, because their sums are contiguous.
  template <class Visit>
  void attend_by_rank(Index b, const Visit& visit) const {
    if constexpr (rows_by_rank<Rows> && rotates) {
      const head_view<const T> q = queries_.rows(q_, b, 1);
      const head_view<T> out = queries_.rows(out_, b, 1);
      const Index kv_heads = keys(b).heads, step = options_.log_sum_exp.empty() ? Index{1} : kv_heads;
      const Index heads = kv_heads == 0 ? 0 : step * (q.heads / kv_heads);
      for (Index i = 0; i < q.tokens; ++i) {
        const std::int64_t position = positions_[queries_.place(b, i)], rank = angles_[queries_.place(b, i)];
        const head_view<const T> query = rotated(q.token_range(i, 1), b, i);
        for (Index h = 0; h < kv_heads; h += step) {
          const auto [seen, values] = read_by_rank<Layout, T>(rows_, *table_, b, h, step, position, rank);
          const Index first = h / step * heads;
          attention_options options = options_of(b, 1, seen.tokens);
          if (!options.sink_logits.empty()) options.sink_logits = part_of(options.sink_logits, first, heads);
          if (!options.log_sum_exp.empty())
            options.log_sum_exp = part_of(options.log_sum_exp, i * heads, heads);
          options.causal = false;
          options.window = options.sinks = 0;
          const visibility rules(options, {1, 1, seen.tokens, heads, q.head_dim});
          const head_view<T> to = out.token_range(i, 1).head_range(first, heads);
          const attention_call<T, read_rotation<T>, T> call = {
              query.head_range(first, heads), seen, values, to, rules, {}};
          visit(call, attended_part{b, i, first, position, rank});
        }
      }
    }
  }

  head_view<const T> q_;
  const Rows& rows_;
  head_view<T> out_;
  const placed_table<S>* table_;
  attention_options options_;
  row_tokens queries_;
  const Threads& threads_;
  bool only_weights_;
  attention_shape shape_;
  std::int64_t *positions_ = nullptr, *angles_ = nullptr;  // positions and table rows of all queries
};

// Not inline, so that programs can compile them once.
template <class Layout, class T, class Rows, class S, class Threads>
void attended_call<Layout, T, Rows, S, Threads>::check_call() {
  check_heads("attention", q_);
  check_heads("attention", out_);
  check_output(q_, out_);
  check_equal("attention", "q and out", "batch", q_.batch, out_.batch);
  check_equal("attention", "q and out", "tokens", q_.tokens, out_.tokens);
  check_cache_lists("attention", options_);
  if (!rotates && raw()) throw_invalid("attention", "the stored keys are raw, give the layout and the table");
  if constexpr (requires { rows_.rotates_keys(); }) check_key_rotation();
  if constexpr (rotates) rows_.template check_table<Layout>(*table_);
  for (Index b = 0; b < queries_.asking(); ++b) shape_.keys = (std::max)(shape_.keys, keys(b).tokens);
  check_numbers("attention", options_);
  check_lists("attention", options_, shape_, queries_.counts());
  check_selected("attention", options_, shape_, queries_.asking() == 0 ? 1 : keys(0).heads, queries_.asking(),
                 [&](Index b) {
                   return selecting_row{queries_.count(b), keys(b).tokens,
                                        lists_differ_by_row() ? queries_.place(b, 0) : queries_.first(b)};
                 });
  check_magnitudes<arithmetic<T>>("attention", options_, q_.head_dim);
  // Raw keys are rotated while they are read.
  check_products<T, C>("attention", options_.products, q_.head_dim, raw());
  for (Index b = 0; b < queries_.asking(); ++b) check_row(b);
  find_positions();
}

template <class Layout, class T, class Rows, class S, class Threads>
void attended_call<Layout, T, Rows, S, Threads>::run() const {
  for_each_call([this](const auto& call, const attended_part& /*part*/) { attend(call, threads_); });
}

/// Implements `attention` to stored tokens.
template <class Layout, class Q, class Rows, class T, class S, class Threads>
void attend_to_rows(const head_view<Q>& q, const Rows& rows, const row_tokens& queries,
                    const head_view<T>& out, const placed_table<S>* table, const attention_options& options,
                    const Threads& threads) {
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  attended_call<Layout, T, Rows, S, Threads>(q, rows, out, table, options, queries, threads).run();
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_ATTENDED_CALL_HPP
