// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_WEIGHTS_HPP
#define ROPE_ATTENTION_WEIGHTS_HPP

#include <algorithm>  // std::max, std::min
#include <cmath>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/selected_query.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/dropout.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/score_view.hpp>
#include <rope/base/integer_list.hpp>
#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// The probabilities of attention, for inspection and plots.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Replaces the scores of one query, in `row`, by weights.
template <class A>
void weights_from_scores(const visibility& rules, Index b, Index h, Index i, A* row) {
  const attention_options& options = rules.options();
  const Index keys = rules.shape().keys;
  const bool has_sink = !options.sink_logits.empty();
  const double sink = has_sink ? static_cast<double>(options.sink_logits[static_cast<std::size_t>(h)])
                               : std::numeric_limits<double>::lowest();
  double largest = sink;
  for (Index j = 0; j < keys; ++j) {
    if (!rules.sees(b, h, i, j)) continue;
    auto score = static_cast<double>(row[j]);
    if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
    if (options.bias) score += static_cast<double>(options.bias.at(b, h, i)[j * options.bias.key_step()]);
    row[j] = saturated_to<A>(score);
    largest = (std::max)(largest, static_cast<double>(row[j]));
  }
  // The weights of each tile are added up first. A single sum would round once per key, in the same direction
  // for equal keys.
  constexpr Index tile = 128;
  double sum = has_sink ? std::exp(sink - largest) : 0;
  for (Index begin = 0; begin < keys; begin += tile) {
    double of_tile = 0;
    for (Index j = begin; j < (std::min)(begin + tile, keys); ++j)
      if (rules.sees(b, h, i, j)) of_tile += std::exp(static_cast<double>(row[j]) - largest);
    sum += of_tile;
  }
  const auto kept =
      dropout_mask(options.dropout, options.dropout_seed).row_of(b, h, rules.query_position(b, i));
  for (Index j = 0; j < keys; ++j) {
    const bool present = rules.sees(b, h, i, j) && kept.keeps(rules.key_position(b, j));
    row[j] =
        present
            ? static_cast<A>(std::exp(static_cast<double>(row[j]) - largest) / sum / (1 - options.dropout))
            : A(0);
  }
}

/// The memory to which weights are written: [batch, heads, queries, keys], at any strides.
template <class A>
struct weights_view {
  A* data;
  Index batch_stride, head_stride, query_stride, key_stride;

  A* at(Index b, Index h, Index i) const {
    return data + b * batch_stride + h * head_stride + i * query_stride;
  }
};

/// Writes the weights of a call to all keys that the rules admit.
template <class T, class Rotation, class C, class Threads>
void write_weights_of_keys(const attention_call<T, Rotation, C>& call,
                           const weights_view<arithmetic<T>>& weights, const Threads& threads) {
  using A = arithmetic<T>;
  const Index group = call.group(), depth = call.q.head_dim, keys = call.k.tokens, block = 64,
              copied = (std::max)(block, group) * depth;
  const auto write = [&](Index first, Index last) {
    number_array<A> wide(copied), queries(group * depth);
    number_array<A> rows_of_group(group * keys);  // before they are copied to `weights`, at any stride
    number_array<T> rotated(copied);
    const row_buffers<T> buffers = {rotated.data(), wide.data()};
    for (Index token = first; token < last; ++token)
      for (Index kv = 0; kv < call.k.heads; ++kv) {
        const Index b = token / call.q.tokens, i = token % call.q.tokens;
        // Keys outside the visible ranges are not read, because they may be beyond the row's count or outside
        // the table.
        const key_set visible = call.rules.keys_of(b, i);
        if (!visible.empty()) {
          const row_block<T> rows = query_rows(call, b, i, kv * group, group, buffers);
          for (Index g = 0; g < group; ++g)
            pack_scaled(rows.at(g), depth, static_cast<A>(call.rules.scale()), queries.data() + g * depth,
                        panel_shape<A>::width);
        }
        for (Index j = visible.hull_begin(), count; j < visible.hull_end(); j += count) {
          count = (std::min)({block, visible.hull_end() - j, call.k.run_from(j)});
          const auto rows = read_keys<A>(call, {b, kv, j, count, call.k.at(b, j, kv)}, buffers);
          for (Index g = 0; g < group; ++g)
            score_rows<A, 1>(queries.data() + g * depth, depth, rows, count, depth,
                             rows_of_group.data() + g * keys + j, nullptr);
        }
        for (Index g = 0; g < group; ++g) {
          A* const row = rows_of_group.data() + g * keys;
          weights_from_scores(call.rules, b, kv * group + g, i, row);
          A* const to = weights.at(b, kv * group + g, i);
          for (Index j = 0; j < keys; ++j) to[j * weights.key_stride] = row[j];
        }
      }
  };
  const Index tokens = call.q.batch * call.q.tokens;
  parallel_pieces(threads, tokens,
                  cost_of(tokens, call.q.heads, keys, sizeof(A), (std::max)(depth, Index{1})), write);
}

/// Writes the weights of a call. If keys are selected, every query and key head is a call of its own. If a
/// key is listed twice, its two weights are added.
template <class T, class Rotation, class C, class Threads>
void write_weights(const attention_call<T, Rotation, C>& call, const weights_view<arithmetic<T>>& weights,
                   const Threads& threads) {
  const selected_keys& selected = call.rules.options().selected;
  if (!selected) return write_weights_of_keys(call, weights, threads);
  using A = arithmetic<T>;
  const Index keys = call.k.tokens, group = call.group();
  const auto write = [&](Index first, Index last) {
    number_array<A> of_list(group * selected.keys());
    for (Index task = first; task < last; ++task) {
      const selected_query query(call, task);
      write_weights_of_keys(query.call(), weights_view<A>{of_list.data(), 0, query.count, 0, 1},
                            this_thread{});
      for (Index g = 0; g < group; ++g) {
        A* const row = weights.at(query.row, query.first_head() + g, query.query);
        for (Index j = 0; j < keys; ++j) row[j * weights.key_stride] = A(0);
        for (Index n = 0; n < query.count; ++n)
          row[query.keys[n] * weights.key_stride] += of_list.data()[g * query.count + n];
      }
    }
  };
  const Index tasks = selected_query_count(call);
  parallel_pieces(threads, tasks, cost_of(tasks, group, keys, sizeof(A)), write);
}

/// Checks the call of attention whose weights are computed or added up, and returns its visibility rules.
template <class T, class C>
visibility checked_scores(const char* function, const head_view<const T>& q, const head_view<const C>& k,
                          const attention_options& options, bool rotates) {
  check_extents(function, k);
  check_memory(function, q, k);
  const head_view<T> out = {nullptr, q.batch, q.tokens, q.heads, 0, 0, 0, 0};
  return checked_attention<T, C>(function, q, k, k.channels(0, 0), out, options, rotates);
}

/// The type of the weights of queries Q.
template <class Q>
using weight_of = arithmetic<std::remove_const_t<Q>>;

/// An Eigen object that weights of queries Q can be written to.
template <class W, class Q>
concept weight_object = scores_in_memory<W> && requires(W& weights) {
  { weights.data() } -> std::same_as<weight_of<Q>*>;
};

/// Views the caller's list or Eigen object as the weights of a call of queries Q. W is the type of the
/// argument, which is a reference if the argument has a name.
///
/// Throws:  std::invalid_argument if the extents differ from those of the call, std::length_error if the
///          weights exceed the address space
template <class Q, class W>
weights_view<weight_of<Q>> weights_in(std::remove_reference_t<W>& weights, const attention_shape& shape) {
  if (!extents_fit(shape.batch, shape.heads, shape.queries, shape.keys, Index(sizeof(weight_of<Q>))))
    throw_length("attention_weights", "weights ",
                 shape_text({shape.batch, shape.heads, shape.queries, shape.keys}),
                 " exceed the address space");
  // A matrix or tensor has an order of indices. The std::span of libc++ 14 would accept it as a list.
  constexpr bool has_order = weight_object<W, Q> && !vector_in_memory<W>;
  if constexpr (!has_order && std::is_convertible_v<W, std::span<weight_of<Q>>>) {
    const std::span<weight_of<Q>> list(weights);
    const auto count = static_cast<std::size_t>(shape.batch * shape.heads * shape.queries * shape.keys);
    if (list.size() != count)
      throw_invalid("attention_weights", "weights must have length batch * heads * queries * keys = ", count,
                    ", got ", list.size());
    const Index of_head = shape.queries * shape.keys;
    return {list.data(), shape.heads * of_head, of_head, shape.keys, 1};
  } else if constexpr (weight_object<W, Q>) {
    const auto by_index = scores_by_index(weights);
    if (by_index.batch != shape.batch || by_index.heads != shape.heads || by_index.queries != shape.queries ||
        by_index.keys != shape.keys)
      throw_invalid("attention_weights", "weights must be [batch, heads, queries, keys] = ",
                    shape_text({shape.batch, shape.heads, shape.queries, shape.keys}), ", got ",
                    shape_text({by_index.batch, by_index.heads, by_index.queries, by_index.keys}),
                    ", where a matrix is of one row and one head");
    return {weights.data(), by_index.batch_stride, by_index.head_stride, by_index.query_stride,
            by_index.key_stride};
  } else {
    static_assert(weight_object<W, Q>,
                  "attention_weights: weights are numbers that can be written, float, or double where q is "
                  "double: a std::span, a std::vector, an Eigen::Tensor [batch, heads, queries, keys], or an "
                  "Eigen matrix [queries, keys] for one row and one head");
    return {};
  }
}

}  // namespace detail

/// The attention probabilities of queries and keys that are already rotated or need no rotation.
///
///     w_ij = softmax over visible j of  scale * q_i . k_j
///
/// with softcap, bias and dropout of the options. A masked key has weight 0, and a query without a visible
/// key has only weights of 0. With learned sinks a row sums to 1 minus the weight of the sink. Options and
/// errors are those of attention, but log_sum_exp is not written.
///
/// \param q        [batch, queries, q.heads, head_dim]
/// \param k        [batch, keys, k.heads, head_dim]
/// \param weights  [batch, q.heads, queries, keys], float (double for double); overwritten. A std::span, an
///                 Eigen::Tensor by its indices, or a matrix [queries, keys] for one row and one head, of any
///                 storage order
/// \param threads  your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument as attention does, or if weights has another length
/// Accuracy:  scores in the arithmetic type, softmax in double (tests/attention/weights.test.cpp)
/// Cost:      2 head_dim flops per query head and key, and two exponentials in double. This function is for
///            inspection, not for use in a model
template <class Layout = detail::unnamed_layout, class Q, class K, class W = std::span<detail::weight_of<Q>>,
          class Threads = this_thread>
void attention_weights(head_view<Q> q, head_view<K> k, W&& weights, const attention_options& options = {},
                       const Threads& threads = {}) {
  using T = std::remove_const_t<Q>;
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention_weights", "q and k", K, T);
  ROPE_DETAIL_CHECK_THREADS("attention_weights", Threads);
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_weights", Layout);
  const auto rules = detail::checked_scores<T, T>("attention_weights", q, k, options, false);
  detail::write_weights(detail::attention_call<T, detail::read_rotation<T>>{q, k, {}, {}, rules, {}},
                        detail::weights_in<Q, W>(weights, rules.shape()), threads);
}

/// The attention probabilities of unrotated queries and keys, which are rotated while they are read.
///
/// Throws:  as above, and as attention<Layout> does
template <class Layout = detail::unnamed_layout, class Q, class K, class W = std::span<detail::weight_of<Q>>,
          attention_tables Tables, class Threads = this_thread>
void attention_weights(head_view<Q> q, head_view<K> k, W&& weights, const Tables& tables,
                       const attention_options& options = {}, const Threads& threads = {}) {
  using T = std::remove_const_t<Q>;
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention_weights", "q and k", K, T);
  ROPE_DETAIL_CHECK_THREADS("attention_weights", Threads);
  ROPE_DETAIL_CHECK_LAYOUT("attention_weights", Layout);
  const query_key_tables pair = detail::checked_tables("attention_weights", tables, options);
  const auto rules = detail::checked_scores<T, T>("attention_weights", q, k, options, true);
  const auto to = detail::weights_in<Q, W>(weights, rules.shape());
  const auto rotation = detail::checked_rotation<Layout, T, T>("attention_weights", q, k, pair, rules);
  detail::write_weights(detail::attention_call<T, detail::read_rotation<T>>{q, k, {}, {}, rules, rotation},
                        to, threads);
}

ROPE_DETAIL_ASK_FOR_VIEWS(attention_weights, 2);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_WEIGHTS_HPP
