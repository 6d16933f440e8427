// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_QUANTIZED_ATTENTION_HPP
#define ROPE_ATTENTION_QUANTIZED_ATTENTION_HPP

#include <cstdint>
#include <type_traits>

#include <rope/attention/attention.hpp>
#include <rope/attention/detail/attend.hpp>
#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// Attention to int8 keys and values with one scale per token and head.

namespace rope::inline ROPE_ABI {
namespace detail {

/// Checks the arguments of a call before anything is written, and returns its visibility rules.
template <bool rotates, class T>
visibility checked_quantized_attention(const head_view<const T>& q,
                                       const quantized_view<const std::int8_t>& k,
                                       const quantized_view<const std::int8_t>& v, const head_view<T>& out,
                                       const attention_options& options) {
  check_quantized("attention", k);
  check_quantized("attention", v);
  const visibility rules =
      checked_attention<T, Eigen::half>(q, shape_of(k), shape_of(v), out, options, rotates);
  check_products<T, std::int8_t, rotates>("attention", options.products, q.head_dim);
  check_memory("attention", q, out);
  check_output(q, out);
  return rules;
}

/// Checks of the argument types.
template <class Q, class T, class Threads>
constexpr void check_quantized_types() {
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);
  static_assert(std::is_same_v<std::remove_const_t<Q>, float> && std::is_same_v<T, float>,
                "attention: q and out are float where keys and values are quantized");
}

}  // namespace detail

/// Attention of float queries to quantized keys and values, as if these were dequantized first.
///
///     out_i = sum_j w_ij t_j v_j,   w_i = softmax over visible j of  scale * s_j q_i . k_j
///
/// with integers k_j, v_j and their scales s_j, t_j.
///
///     quantize(k, keys);
///     quantize(v, values);
///     attention(q, keys, values, out, {.window = 1024});
///
/// \param q    [batch, queries, q.heads, head_dim]
/// \param k    [batch, keys, k.heads, head_dim]
/// \param v    [batch, keys, k.heads, value_dim]
/// \param out  [batch, queries, q.heads, value_dim]
///
/// A scale that is NaN or infinite affects exactly the queries that attend to its token. Products of a query
/// channel and an integer must not overflow float: 127 |scale q_i| must stay below 2e38.
///
/// Requires:  out shares no element with the scales or integers, and none with q unless it is the same view
/// Throws:    as attention to unquantized keys and values, and std::invalid_argument if scales do not have
///            the shape of their integers; out is then unchanged
/// Accuracy:  that of attention to the dequantized keys and values, with equal bits if there are many queries
///            and products are full. The rounding of `quantize` is added to it. To within 2^-14 of these
///            bounds, a score is off by at most e = |scale| max_j s_j sum_d |q_id| / 2, a weight by a factor
///            within exp(+-2 e), and a channel of out by at most (exp(2 e) - 1) max|v| + max_j t_j / 2.
///            Maxima are over the visible keys. A softcap does not increase the errors
///            (tests/attention/quantized_attention.test.cpp)
/// Cost:      that of attention; with few queries, one byte per channel is read and 4 per scale.
///            product_precision::integers multiplies the stored integers directly, with few queries and with
///            many. The bits do not depend on the number of threads or the order of axes
template <class Layout = detail::unnamed_layout, class Q, class K, class V, class T,
          class Threads = this_thread>
void attention(head_view<Q> q, quantized_view<K> k, quantized_view<V> v, head_view<T> out,
               const attention_options& options = {}, const Threads& threads = {}) {
  detail::check_quantized_types<Q, T, Threads>();
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  const auto rules = detail::checked_quantized_attention<false, T>(q, k, v, out, options);
  detail::attend(detail::attention_call<T, detail::no_rotation, std::int8_t>{q, k, v, out, rules, {}},
                 threads);
}

/// Attention of unrotated queries to quantized unrotated keys, which are dequantized and rotated while they
/// are read. Such keys need no second rounding if their positions change.
///
///     attention<Layout>(q, keys, values, out, table);
///
/// \param tables  as in attention to unquantized keys and values
///
/// Throws:    as above, and as attention with a table
/// Accuracy:  as above with e = |scale| |q_i| max_j s_j sqrt(head_dim) / 2 times the square of the
///            attention_factor of the table. |q_i| is the Euclidean length: a rotation keeps the length of an
///            error
/// Cost:      as above; queries are rotated once, keys once per block of 512 query rows
template <class Layout = detail::unnamed_layout, class Q, class K, class V, class T, attention_tables Tables,
          class Threads = this_thread>
void attention(head_view<Q> q, quantized_view<K> k, quantized_view<V> v, head_view<T> out,
               const Tables& tables, const attention_options& options = {}, const Threads& threads = {}) {
  detail::check_quantized_types<Q, T, Threads>();
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  detail::check_tables("attention", tables, options);
  const query_key_tables pair = detail::tables_of(tables);
  const auto rules = detail::checked_quantized_attention<true, T>(q, k, v, out, options);
  detail::check_rotation<Layout>("attention", q, pair.queries(),
                                 detail::known_range{rules.query_position_range()});
  detail::check_rotation<Layout>("attention", k.batch, k.tokens, k.head_dim, pair.keys(),
                                 detail::known_range{rules.key_position_range()});
  using turn = detail::table_rotation<Layout, typename decltype(pair)::scalar>;
  detail::attend(detail::attention_call<T, turn, std::int8_t>{q, k, v, out, rules, {pair}}, threads);
}

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_QUANTIZED_ATTENTION_HPP
