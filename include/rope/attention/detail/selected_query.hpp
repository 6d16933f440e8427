// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_SELECTED_QUERY_HPP
#define ROPE_ATTENTION_DETAIL_SELECTED_QUERY_HPP

#include <algorithm>  // std::fill_n
#include <cstddef>
#include <cstdint>

#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/score_view.hpp>
#include <rope/base/lists.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/config.hpp>
#include <rope/positions/selected_keys.hpp>

/// Selected keys: their checks, and the attention of one query to the keys that are selected for it. Each
/// query is a call of its own, with listed tokens as keys (token_source::listed), so kernels do not depend on
/// selections.

namespace rope::inline ROPE_ABI::detail {

/// A row of a call with selected keys.
struct selecting_row {
  Index queries, keys;
  Index first_list;  // the index of the lists of the first query
};

/// Checks the lists of the queries of all rows. Lists of padding are not read.
///
/// \param row_of  row_of(b) is the selecting_row b, one of `rows`
///
/// Throws:  std::invalid_argument if lists do not fit, an entry is not a key of its row, or there is dropout;
///          without NDEBUG also if a key is listed twice
template <class RowOf>
void check_selected(const char* function, const attention_options& options, const attention_shape& shape,
                    Index key_heads, Index rows, const RowOf& row_of) {
  const selected_keys& selected = options.selected;
  if (!selected) return;
  if (selected.queries() != shape.queries && selected.queries() != shape.batch * shape.queries)
    throw_invalid(function, "selected must have ", shape.queries,
                  " queries, or batch * queries = ", shape.batch * shape.queries, ", got ",
                  selected.queries());
  if (selected.key_heads() != 1 && selected.key_heads() != key_heads)
    throw_invalid(function, "selected must have 1 list for each query or ", key_heads,
                  ", one for each key head, got ", selected.key_heads());
  if (!equal(options.dropout, 0))
    throw_invalid(function, "selected keys have no dropout; give a mask of the same keys, got ",
                  options.dropout);
#ifndef NDEBUG
  bool* const seen = workspace<struct seen_in_list, bool>(shape.keys);
  std::fill_n(seen, shape.keys, false);
#endif
  for (Index b = 0; b < rows; ++b) {
    const selecting_row row = row_of(b);
    for (Index i = 0; i < row.queries; ++i)
      for (Index kv = 0; kv < selected.key_heads(); ++kv) {
        const auto at = [&](Index n) { return selected.at(row.first_list + i, kv, n); };
        Index count = 0;
        for (; count < selected.keys() && at(count) != -1; ++count)
          if (const std::int64_t key = at(count); key < 0 || key >= row.keys)
            throw_invalid(function, "selected keys must be in [0, ", row.keys,
                          "), or -1 where a list ends, got ", key, " for query ", i, " of row ", b);
#ifndef NDEBUG
        for (Index n = 0; n < count; ++n) {
          bool& is_seen = seen[to_index(at(n))];
          if (is_seen)
            throw_invalid(function, "a list must select a key once, or it would count twice, got key ", at(n),
                          " twice for query ", i, " of row ", b);
          is_seen = true;
        }
        for (Index n = 0; n < count; ++n) seen[to_index(at(n))] = false;
#endif
      }
  }
}

/// Checks the lists of a call. The counts of queries and keys of each row are those of the options.
inline void check_selected(const char* function, const attention_options& options,
                           const attention_shape& shape, Index key_heads) {
  const bool shared = options.selected.queries() == shape.queries;
  check_selected(function, options, shape, key_heads, shape.batch, [&](Index b) {
    return selecting_row{count_of_row(options.query_counts, b, shape.queries),
                         count_of_row(options.key_counts, b, shape.keys), shared ? 0 : b * shape.queries};
  });
}

/// The number of selected_query objects of a call: one for each query token and key head.
template <class T, class Rotation, class C>
Index selected_query_count(const attention_call<T, Rotation, C>& call) {
  return call.q.batch * call.q.tokens * call.k.heads;
}

/// One query token, in the query heads of one key head, and the selected keys that its ranges and the rules
/// of positions admit. The list of these keys is in scratch memory of the calling thread, and valid until the
/// next selected_query of this thread.
template <class T, class Rotation, class C>
struct selected_query {
  using call_type = attention_call<T, Rotation, C>;

  const call_type& of;
  Index key_head, query, row;
  Index* keys;  // [count], in the order of the list
  Index count = 0;

  /// \param task  in [0, selected_query_count)
  selected_query(const attention_call<T, Rotation, C>& whole, Index task)
      : of(whole),
        key_head(task % of.k.heads),
        query(task / of.k.heads % of.q.tokens),
        row(task / of.k.heads / of.q.tokens) {
    const visibility& rules = of.rules;
    const selected_keys& selected = rules.options().selected;
    keys = workspace<struct selected_list, Index>(selected.keys());
    const Index place =
        selected.queries() == rules.shape().queries ? query : row * rules.shape().queries + query;
    const key_set range = rules.keys_of(row, query);
    for (Index n = 0; n < selected.keys() && !range.empty(); ++n) {
      const std::int64_t entry = selected.at(place, key_head, n);
      if (entry < 0) break;
      const Index key = to_index(entry);
      if (range.contains(key) && rules.sees_position(row, query, key)) keys[count++] = key;
    }
  }

  Index first_head() const { return key_head * of.group(); }

  /// Attention to these keys, as a call of one query and one key head.
  call_type call() const {
    const Index group = of.group();
    const auto heads_of = [&](auto x) {
      if (x.size() > 0) x.data = x.at(row, query, first_head());  // weights are computed without an output
      x.batch = x.tokens = 1;
      x.heads = group;
      return x;
    };
    return {heads_of(of.q),
            of.k.listed(row, key_head, keys, count),
            of.v.listed(row, key_head, keys, count),
            heads_of(of.out),
            visibility(options(), {1, 1, count, group, of.q.head_dim},
                       of.rotation.is_given() ? key_order::any : key_order::contiguous),
            of.rotation};
  }

 private:
  /// The options for the call of this query. The list of keys already obeys the rules of positions. Mask and
  /// bias have only the entries of these keys.
  attention_options options() const {
    const visibility& rules = of.rules;
    const Index group = of.group();
    const attention_options& all = rules.options();
    attention_options one = {
        .scale = all.scale, .causal = false, .softcap = all.softcap, .products = all.products};
    if (!all.sink_logits.empty()) one.sink_logits = part_of(all.sink_logits, first_head(), group);
    if (!all.log_sum_exp.empty())
      one.log_sum_exp =
          part_of(all.log_sum_exp, (row * of.q.tokens + query) * of.q.heads + first_head(), group);
    one.mask = entries_of(all.mask, workspace<struct selected_mask, bool>(all.mask ? group * count : 0));
    one.bias = entries_of(all.bias, workspace<struct selected_bias, float>(all.bias ? group * count : 0));
    static constexpr std::int64_t none = 0;
    if (rules.is_padding(row, query)) one.query_counts = {&none, 1};
    if (of.rotation.is_given()) {
      std::int64_t* const positions = workspace<struct selected_positions, std::int64_t>(count + 1);
      for (Index n = 0; n < count; ++n) positions[n] = rules.key_position(row, keys[n]);
      if (count > 0) positions[count] = rules.query_position(row, query);
      one.key_positions = {positions, static_cast<std::size_t>(count)};
      one.query_positions = {positions + count, 1};
    }
    return one;
  }

  /// The entries of a mask or bias for the listed keys, [group, keys], or [1, keys] if query heads share
  /// entries.
  template <class X>
  score_view<X> entries_of(const score_view<X>& all, X* to) const {
    if (!all) return {};
    const Index heads = all.heads == 1 ? 1 : of.group();
    for (Index h = 0; h < heads; ++h) {
      const X* const entries = all.at(row, first_head() + h, query);
      for (Index n = 0; n < count; ++n) to[h * count + n] = entries[keys[n] * all.key_step()];
    }
    return {.data = to, .heads = heads, .keys = count, .head_stride = count, .key_stride = 1};
  }
};
template <class T, class Rotation, class C>
selected_query(const attention_call<T, Rotation, C>&, Index) -> selected_query<T, Rotation, C>;

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_SELECTED_QUERY_HPP
