// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_WEIGHTS_HPP
#define ROPE_ATTENTION_WEIGHTS_HPP

#include <algorithm>  // std::max, std::min, std::fill_n
#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>  // std::pair

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/dropout.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/integer_range.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/base/storage.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// The probabilities of attention themselves, for inspection and plots.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The weights of one query of a row, from its scores in `row`.
template <class A>
void weights_from_scores(const visibility& rules, Index b, Index h, Index i, std::span<A> row) {
  const attention_options& options = rules.options();
  const auto keys = static_cast<Index>(row.size());
  const auto at = [&](Index j) -> A& { return row[static_cast<std::size_t>(j)]; };
  const bool has_sink = !options.sink_logits.empty();
  const double sink = has_sink ? static_cast<double>(options.sink_logits[static_cast<std::size_t>(h)]) : 0;
  bool any = has_sink;
  double largest = sink;
  for (Index j = 0; j < keys; ++j) {
    if (!rules.sees(b, h, i, j)) continue;
    auto score = static_cast<double>(at(j));
    if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
    if (options.bias) score += static_cast<double>(options.bias.at(b, h, i)[j * options.bias.key_step()]);
    at(j) = saturated_to<A>(score);
    score = static_cast<double>(at(j));
    largest = any ? (std::max)(largest, score) : score;
    any = true;
  }
  // Tile by tile: one sum over all keys would round once for every key, and alike where keys are equal.
  constexpr Index tile = 128;
  double sum = has_sink ? std::exp(sink - largest) : 0;
  for (Index begin = 0; begin < keys; begin += tile) {
    double of_tile = 0;
    for (Index j = begin; j < (std::min)(begin + tile, keys); ++j)
      if (rules.sees(b, h, i, j)) of_tile += std::exp(static_cast<double>(at(j)) - largest);
    sum += of_tile;
  }
  const auto kept =
      dropout_mask(options.dropout, options.dropout_seed).row_of(b, h, rules.query_position(b, i));
  for (Index j = 0; j < keys; ++j) {
    const bool present =
        rules.sees(b, h, i, j) && (detail::equal(options.dropout, 0) || kept.keeps(rules.key_position(b, j)));
    at(j) = present
                ? static_cast<A>(std::exp(static_cast<double>(at(j)) - largest) / sum / (1 - options.dropout))
                : A(0);
  }
}

template <class T, class Turn, class Threads>
void write_weights(const attention_call<T, Turn>& call, std::span<arithmetic<T>> weights,
                   const Threads& threads) {
  using A = arithmetic<T>;
  const Index group = call.group(), depth = call.q.head_dim, keys = call.k.tokens, block = 64;
  const auto copied = static_cast<std::size_t>((std::max)(block, group) * depth);
  const auto row_of = [&](Index b, Index h, Index i) {
    return weights.subspan(static_cast<std::size_t>(((b * call.q.heads + h) * call.q.tokens + i) * keys),
                           static_cast<std::size_t>(keys));
  };
  const auto write = [&](Index first, Index last) {
    storage<A> wide(copied), queries(static_cast<std::size_t>(group * depth));
    storage<T> turned(copied);
    const row_buffers<T> buffers = {turned.data(), wide.data()};
    for (Index token = first; token < last; ++token)
      for (Index kv = 0; kv < call.k.heads; ++kv) {
        const Index b = token / call.q.tokens, i = token % call.q.tokens;
        const bool no_key_in_range = call.rules.has_no_key_in_range(b, i);
        if (!no_key_in_range)
          read_queries(call, b, i, kv * call.group(), call.group(), static_cast<A>(call.rules.scale()),
                       buffers, [&](Index g) { return std::pair(queries.data() + g * depth, Index{1}); });
        // Keys that no range admits are not read: they may lie beyond the row's count, or outside the table.
        const key_set visible = call.rules.keys_of(b, i);
        for (Index j = visible.hull_begin(); j < visible.hull_end() && !no_key_in_range; j += block) {
          const Index count = (std::min)(block, visible.hull_end() - j);
          const auto rows = read_keys<A>(call, {b, kv, j, count, call.k.at(b, j, kv)}, buffers);
          for (Index g = 0; g < group; ++g)
            score_rows<A, 1>(queries.data() + g * depth, depth, rows, count, depth,
                             row_of(b, kv * group + g, i).data() + j, nullptr);
        }
        for (Index g = 0; g < group; ++g) {
          const auto row = row_of(b, kv * group + g, i);
          if (no_key_in_range)
            std::fill(row.begin(), row.end(), A(0));
          else
            weights_from_scores(call.rules, b, kv * group + g, i, row);
        }
      }
  };
  parallel_pieces(threads, call.q.batch * call.q.tokens,
                  cost_of(weights.size(), sizeof(A), (std::max)(depth, Index{1})), write);
}

/// The rules of the call of attention whose weights are asked for, which is checked.
template <class T>
visibility checked_weights(const head_view<const T>& q, const head_view<const T>& k,
                           const attention_options& options, std::size_t size, bool rotates = false) {
  check_view("attention_weights", q);
  check_view("attention_weights", k);
  check_memory("attention_weights", q, k);
  if (!extents_fit(q.batch, q.heads, q.tokens, k.tokens, Index(sizeof(arithmetic<T>))))
    throw_length("attention_weights", "weights ", shape_text({q.batch, q.heads, q.tokens, k.tokens}),
                 " exceed the address space");
  const auto count = static_cast<std::size_t>(q.batch * q.heads * q.tokens * k.tokens);
  if (size != count)
    throw_invalid("attention_weights", "weights must have length batch * heads * queries * keys = ", count,
                  ", got ", size);
  const head_view<T> out = {nullptr, q.batch, q.tokens, q.heads, 0, 0, 0, 0};
  const head_view<const T> v = {nullptr, k.batch, k.tokens, k.heads, 0, 0, 0, 0};
  return checked_attention<T, T>(q, k, v, out, options, rotates);
}

}  // namespace detail

/// The probabilities with which queries that are already rotated (or need no rotation) attend to keys.
///
///     w_ij = softmax over visible j of  scale * q_i . k_j
///
/// capped, biased and dropped as the options say. A masked key has weight 0; the weights of a query that sees
/// no key are all 0. With learned sinks a row sums to less than 1, by the share of the sink. Options and
/// errors are those of attention; log_sum_exp is not written.
///
/// \param q        [batch, queries, q.heads, head_dim]
/// \param k        [batch, keys, k.heads, head_dim]
/// \param weights  [batch, q.heads, queries, keys], float (double for double); overwritten
/// \param threads  the caller's threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument as attention does, or if weights has another length
/// Accuracy:  scores in the arithmetic type, softmax in double (tests/attention/weights.test.cpp)
/// Cost:      2 head_dim flops per query head and key, and two exponentials in double: for looking at, not
///            for computing with
template <class Layout = detail::unnamed_layout, class Q, class K, class Threads = this_thread>
void attention_weights(head_view<Q> q, head_view<K> k,
                       std::span<detail::arithmetic<std::remove_const_t<Q>>> weights,
                       const attention_options& options = {}, const Threads& threads = {}) {
  using T = std::remove_const_t<Q>;
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention_weights", "q and k", K, T);
  ROPE_DETAIL_CHECK_THREADS("attention_weights", Threads);
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weights", Layout);
  const auto rules = detail::checked_weights<T>(q, k, options, weights.size());
  detail::write_weights(detail::attention_call<T, detail::no_rotation>{q, k, {}, {}, rules, {}}, weights,
                        threads);
}

/// The probabilities of unrotated queries and keys, which are rotated by their tables on the way.
///
/// Throws:  as above, and as attention<Layout> does
template <class Layout = detail::unnamed_layout, class Q, class K, attention_tables Tables,
          class Threads = this_thread>
void attention_weights(head_view<Q> q, head_view<K> k,
                       std::span<detail::arithmetic<std::remove_const_t<Q>>> weights, const Tables& tables,
                       const attention_options& options = {}, const Threads& threads = {}) {
  using T = std::remove_const_t<Q>;
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention_weights", "q and k", K, T);
  ROPE_DETAIL_CHECK_THREADS("attention_weights", Threads);
  ROPE_DETAIL_CHECK_LAYOUT("attention_weights", Layout);
  detail::check_tables("attention_weights", tables, options);
  const query_key_tables pair = detail::tables_of(tables);
  const auto rules = detail::checked_weights<T>(q, k, options, weights.size(), true);
  detail::check_rotations<Layout>("attention_weights", head_view<const T>(q), head_view<const T>(k), pair,
                                  rules);
  using turn = detail::table_rotation<Layout, typename decltype(pair)::scalar>;
  detail::write_weights(detail::attention_call<T, turn>{q, k, {}, {}, rules, {pair}}, weights, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(attention_weights, 2);

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_WEIGHTS_HPP
