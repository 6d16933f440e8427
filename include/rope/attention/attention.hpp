// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_ATTENTION_HPP
#define ROPE_ATTENTION_ATTENTION_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/attention/detail/attend.hpp>
#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/selected_query.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/instances.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>
#include <rope/tables/table.hpp>

/// Scaled dot-product attention, with or without rotation of queries and keys. Keys and values may be int8
/// with one scale per token and head.

namespace rope::inline ROPE_ABI {

namespace detail {

/// Checks that the heads and head_dim of q, k, v and out fit together. k and v are views or pages.
///
/// Throws:  std::invalid_argument
template <class Q, class K, class Out>
void check_heads(const char* function, const Q& q, const K& k, const K& v, const Out& out) {
  check_equal(function, "k and v", "heads", k.heads, v.heads);
  check_equal(function, "q and out", "heads", q.heads, out.heads);
  check_equal(function, "q and k", "head_dim", q.head_dim, k.head_dim);
  check_equal(function, "v and out", "head_dim", v.head_dim, out.head_dim);
  check_rule(function, k.heads <= 0 ? q.heads == 0 : q.heads % k.heads == 0,
             "q.heads must be a multiple of k.heads", q.heads, k.heads);
}

/// Checks the arguments of a call before anything is written, and returns the visibility rules of the call.
template <class T, class C>
visibility checked_attention(const char* function, const head_view<const T>& q, const head_view<const C>& k,
                             const head_view<const C>& v, const head_view<T>& out,
                             const attention_options& options, bool rotates) {
  check_view(function, q);
  check_extents(function, k);
  check_extents(function, v);
  check_view(function, out);
  check_equal(function, "q and k", "batch", q.batch, k.batch);
  check_equal(function, "k and v", "batch", k.batch, v.batch);
  check_equal(function, "q and out", "batch", q.batch, out.batch);
  check_equal(function, "k and v", "tokens", k.tokens, v.tokens);
  check_equal(function, "q and out", "tokens", q.tokens, out.tokens);
  check_heads(function, q, k, v, out);
  const attention_shape shape = {q.batch, q.tokens, k.tokens, q.heads, q.head_dim};
  check_options(function, options, shape, rotates);
  check_selected(function, options, shape, k.heads);
  check_magnitudes<arithmetic<T>>(function, options, shape.head_dim);
  return {options, shape};
}

/// Rejects an output that overlaps q, unless out and q are the same view.
///
/// Throws:  std::invalid_argument
template <class T>
void check_output(const head_view<const T>& q, const head_view<T>& out) {
  check_written("attention", out);
  if (!are_same(q, out) && share_memory(q, out))
    throw_invalid("attention",
                  "out overlaps q but is not the same view; pass q itself as out, or separate memory");
}

/// Checks a call of attention to views, also that out shares no memory with k and v, which are read after out
/// is written. Returns the visibility rules of the call.
template <class T, class C>
visibility checked_call(const head_view<const T>& q, const head_view<const C>& k, const head_view<const C>& v,
                        const head_view<T>& out, const attention_options& options, bool rotates) {
  const visibility rules = checked_attention<T, C>("attention", q, k, v, out, options, rotates);
  check_products<T, C>("attention", options.products, q.head_dim, rotates);
  check_memory("attention", q, k, v, out);
  check_output(q, out);
  if (share_memory(k, out) || share_memory(v, out))
    throw_invalid("attention",
                  "out must not share memory with k or v, which are read after out is "
                  "written; give out memory of its own, or that of q");
  return rules;
}

/// Whether the first three arguments are views and the fourth is not.
template <class... Arguments>
constexpr bool lacks_output() {
  constexpr bool views[] = {is_head_view<std::remove_cvref_t<Arguments>>..., false, false, false, false};
  return views[0] && views[1] && views[2] && !views[3];
}

/// Whether there is an argument after out (the last view) and the tables, and it is not attention_options.
template <class... Arguments>
constexpr bool lacks_options() {
  enum kind { view, tables, options, other };
  constexpr kind kinds[] = {is_head_view<std::remove_cvref_t<Arguments>>                 ? view
                            : given_table<std::remove_cvref_t<Arguments>>                ? tables
                            : std::is_convertible_v<Arguments, const attention_options&> ? options
                                                                                         : other...,
                            other};
  std::size_t next = sizeof...(Arguments);
  while (next > 0 && kinds[next - 1] != view) --next;
  if (next < sizeof...(Arguments) && kinds[next] == tables) ++next;
  return next < sizeof...(Arguments) && kinds[next] != options;
}

/// Checks the argument types.
#define ROPE_DETAIL_CHECK_ATTENTION(Q, K, V, T, Threads)                                               \
  ROPE_DETAIL_CHECK_WRITABLE("attention", "out", T);                                                   \
  ROPE_DETAIL_CHECK_SAME_CHANNELS("attention", "q and out", Q, T);                                     \
  ROPE_DETAIL_CHECK_THREADS("attention", Threads);                                                     \
  static_assert(std::is_same_v<std::remove_const_t<K>, std::remove_const_t<V>> &&                      \
                    detail::is_or_widens<std::remove_const_t<T>, std::remove_const_t<K>>,              \
                "attention: k and v have the channel type of q and out, or both the same 16-bit type " \
                "or std::int8_t where that is float")

}  // namespace detail

/// Attention of queries and keys that are already rotated or need no rotation.
///
///     out_i = sum_j w_ij v_j,   w_i = softmax over visible j of  scale * q_i . k_j
///
/// Query head h attends to key head h / (q.heads / k.heads) (grouped-query attention). A query without a
/// visible key gives zeros. Values of keys that are not visible never enter the sum, not even as 0 * NaN.
///
/// \param q        [batch, queries, q.heads, head_dim]
/// \param k        [batch, keys, k.heads, head_dim]; the channel type of q, or a 16-bit type or std::int8_t
///                 with scales if q is float
/// \param v        [batch, keys, k.heads, value_dim]; the channel type of k
/// \param out      [batch, queries, q.heads, value_dim]
/// \param options  visible keys, formula of scores, and optional outputs
/// \param threads  your threads, see base/parallel.hpp; small calls use the calling thread only
///
/// Scores are computed in units of log2, so the scale is multiplied by log2(e). If a score, or a channel of q
/// times the scale, then overflows the arithmetic type (beyond 2.3e38 for float), it counts as the largest
/// number of its sign. Terms of one sum q_i . k_j that overflow must have the same sign.
///
/// int8 keys and values are read as if they were dequantized first:
///
///     quantize(k, keys);
///     quantize(v, values);
///     attention(q, keys, values, out, {.window = 1024});
///
/// If the scale of a token is NaN or infinite, exactly the queries that attend to this token are affected.
/// Products of a query channel and an integer must not overflow float: 127 |scale q_i| must stay below 2e38,
/// where scale is that of the options.
///
/// Requires:  out shares no element with k or v, and none with q unless it is the same view; throws if an
///            overlap is detected, which is certain if the two views have the same strides
/// Throws:    std::invalid_argument if shapes disagree, q.heads is not a multiple of k.heads, an option is
///            out of range, or scales do not have the shape of their integers; out is then unchanged
/// Accuracy:  arithmetic and sums in float (double for double), weights within 1.2 ulp of 2^x, or 0 below
///            2^-125 of the largest (double: 2^-1021), one final rounding to the type of out. 16-bit keys and
///            values are widened exactly. Sums are formed per tile and then added: within 3e-5 at 262,144
///            equal keys. The bits do not depend on the number of threads or the order of axes
///            (tests/attention/attention.test.cpp, tests/attention/laws/attention_features.test.cpp,
///            tests/attention/laws/repeated_tokens.test.cpp). For int8, that of attention to the dequantized
///            keys and values, with equal bits if both have many queries (see Cost) and products are full.
///            The rounding of `quantize` is added to it. To within 2^-14 of these bounds, a score is off by
///            at most e = |scale| max_j s_j sum_d |q_id| / 2 with the scales s_j of the keys, a weight by a
///            factor within exp(+-2 e), and a channel of out by at most (exp(2 e) - 1) max|v| + max_j t_j / 2
///            with the scales t_j of the values. Maxima are over the visible keys. A softcap does not
///            increase the errors (tests/attention/laws/quantized_attention.test.cpp)
/// Cost:      2 (head_dim + value_dim) flops per query head and visible key. With few queries, each key and
///            value is read once, in place. Otherwise queries are processed in blocks of at most 512 rows.
///            Queries are few if tokens * group, the query rows of a key head, is at most 8, 24 or 48 with 8,
///            16 or 32 vector registers. For quantized keys and for products in bfloat16 the limits are 3, 9
///            and 18. Scratch memory per thread does not depend on the number of tokens, except that few
///            queries need a row of sums per 1024 keys. Scratch memory is kept until release_scratch(), so
///            later calls of the same size do not allocate. product_precision::integers multiplies stored
///            integers directly
/// Source:    Vaswani et al. 2017, arXiv:1706.03762, equation 1; Ainslie et al. 2023, arXiv:2305.13245
///            (grouped query); Dao et al. 2022, arXiv:2205.14135, algorithm 1 (tiles); Dao et al. 2023,
///            FlashDecoding (splits along the keys)
template <class Layout = detail::unnamed_layout, class Q, class K, class V, class T,
          class Threads = this_thread>
void attention(head_view<Q> q, head_view<K> k, head_view<V> v, head_view<T> out,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ATTENTION(Q, K, V, T, Threads);
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention", Layout);
  using C = std::remove_const_t<K>;
  const auto rules = detail::checked_call<T, C>(q, k, v, out, options, false);
  detail::attend(detail::attention_call<T, detail::no_rotation_of<T, C>, C>{q, k, v, out, rules, {}},
                 threads);
}

/// Attention of unrotated queries and keys, which are rotated while they are read. q and k are not changed.
/// The bits are those of `rotate` on q and k (k first widened to the type of q), followed by `attention`.
///
/// \param tables  one frequency_table, or one for the queries and one for the keys
///                (tables/query_key_tables.hpp), with rows for the positions of the keys and of every query
///                with a visible key, see attention_options
///
/// int8 keys that are quantized before the rotation need no second rounding if their positions change.
///
/// Throws:    as above; std::invalid_argument if the rotated channels exceed the head, queries_are_rotated is
///            set, positions are left out although a table has coordinates for every token of several rows,
///            positions equal the coordinates that a table was made of, or the tables are xPos tables and the
///            options are not causal (xPos multiplies the score of a key after its query by a factor that
///            grows with their distance); std::out_of_range if a position is outside the table; out is then
///            unchanged
/// Accuracy:  for int8, as above, with e = m^2 |scale| |q_i| max_j s_j sqrt(head_dim) / 2, where m is the
///            attention_factor of the table and |q_i| a Euclidean length. (A rotation moves the error of a
///            key between channels and keeps only its length.)
/// Cost:      as above; queries are rotated once, keys once per block of at most 512 query rows
template <class Layout = detail::unnamed_layout, class Q, class K, class V, class T, attention_tables Tables,
          class Threads = this_thread>
void attention(head_view<Q> q, head_view<K> k, head_view<V> v, head_view<T> out, const Tables& tables,
               const attention_options& options = {}, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_ATTENTION(Q, K, V, T, Threads);
  ROPE_DETAIL_CHECK_LAYOUT("attention", Layout);
  using C = std::remove_const_t<K>;
  const query_key_tables pair = detail::checked_tables("attention", tables, options);
  const auto rules = detail::checked_call<T, C>(q, k, v, out, options, true);
  const auto rotation = detail::checked_rotation<Layout, T, C>("attention", q, k, pair, rules);
  detail::attend(detail::attention_call<T, detail::read_rotation<T>, C>{q, k, v, out, rules, rotation},
                 threads);
}

/// Catches calls that match no other overload and reports the missing or misplaced argument. The deduced
/// return type makes its message the first one, also for `r = attention(q, k, v, table)`.
template <class Layout = detail::unnamed_layout, class... Arguments>
requires(detail::lacks_view<4, Arguments...>() || detail::lacks_output<Arguments...>() ||
         detail::lacks_options<Arguments...>()) auto attention(Arguments&&...) {
  constexpr bool no_view = detail::lacks_view<4, Arguments...>(),
                 no_output = !no_view && detail::lacks_output<Arguments...>();
  static_assert(!no_view, ROPE_DETAIL_VIEW_SENTENCE("attention"));
  static_assert(!no_output,
                "attention: the fourth argument is the view that is written, attention(q, k, v, out, ...); "
                "nothing is returned");
  static_assert(no_view || no_output || !detail::lacks_options<Arguments...>(),
                "attention: after out pass the tables (a frequency_table or query_key_tables) if it "
                "rotates, then the options (attention_options), then the threads");
  return 0;
}

#undef ROPE_DETAIL_CHECK_ATTENTION

}  // namespace rope::inline ROPE_ABI

#define ROPE_DETAIL_ROTATIONS_AT(declared, T, Layout, Positions)                                           \
  declared void rotate_checked<Layout, false, true>(const char*, const head_view<T>&, const head_view<T>&, \
                                                    const placed_table<float>&, const Positions&,          \
                                                    const this_thread&, reverse_rotation);                 \
  declared void rotate_checked<Layout, false, false>(                                                      \
      const char*, const head_view<const T>&, const head_view<T>&, const placed_table<float>&,             \
      const Positions&, const this_thread&, reverse_rotation);                                             \
  declared void rotate_both_checked<Layout, false>(const char*, const head_view<T>&, const head_view<T>&,  \
                                                   const placed_table<float>&, const Positions&,           \
                                                   const this_thread&, reverse_rotation)
#define ROPE_DETAIL_ROTATIONS_OF(declared, T, Layout)           \
  declared class rotation_plan<Layout, false, T, float, false>; \
  declared class rotation_plan<Layout, false, T, float, true>;  \
  declared class rotation_plan<Layout, true, T, float, false>;  \
  declared class rotation_plan<Layout, true, T, float, true>;   \
  ROPE_DETAIL_ROTATIONS_AT(declared, T, Layout, braced_ids);    \
  ROPE_DETAIL_ROTATIONS_AT(declared, T, Layout, std::int64_t)
#define ROPE_DETAIL_ROTATIONS(declared, T)            \
  ROPE_DETAIL_ROTATIONS_OF(declared, T, interleaved); \
  ROPE_DETAIL_ROTATIONS_OF(declared, T, half_split)
ROPE_DETAIL_DECLARE_INSTANCES(ROPE_DETAIL_ROTATIONS);

#define ROPE_DETAIL_ATTENTIONS_OF(declared, T, Layout)                                       \
  declared read_rotation<T> checked_rotation<Layout>(const char*, const head_view<const T>&, \
                                                     const head_view<const T>&,              \
                                                     const query_key_tables<float>&, const visibility&)
#define ROPE_DETAIL_ATTENTIONS(declared, T)                                                                  \
  declared visibility checked_call(const head_view<const T>&, const head_view<const T>&,                     \
                                   const head_view<const T>&, const head_view<T>&, const attention_options&, \
                                   bool);                                                                    \
  declared void attend_block(const attention_call<T, read_rotation<T>, T>&, const query_block&);             \
  declared void attend_split(const attention_call<T, read_rotation<T>, T>&,                                  \
                             const decode_results<arithmetic<T>>*, const key_split&);                        \
  declared void attend(const attention_call<T, read_rotation<T>, T>&, const this_thread&);                   \
  ROPE_DETAIL_ATTENTIONS_OF(declared, T, interleaved);                                                       \
  ROPE_DETAIL_ATTENTIONS_OF(declared, T, half_split)
ROPE_DETAIL_DECLARE_INSTANCES(ROPE_DETAIL_ATTENTIONS);

/// Defines the kernels that base/instances.hpp declares. cache/attention.hpp redefines this macro to add the
/// kernels of caches.
#define ROPE_INSTANTIATE                         \
  ROPE_DETAIL_INSTANTIATE(ROPE_DETAIL_ROTATIONS) \
  ROPE_DETAIL_INSTANTIATE(ROPE_DETAIL_ATTENTIONS)

#endif  // ROPE_ATTENTION_ATTENTION_HPP
