// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_GRADIENT_HPP
#define ROPE_ATTENTION_GRADIENT_HPP

#include <algorithm>  // std::fill
#include <cstddef>
#include <span>
#include <type_traits>

#include <rope/attention/detail/gradient_scratch.hpp>
#include <rope/attention/detail/gradient_tasks.hpp>
#include <rope/attention/detail/rotated_operands.hpp>
#include <rope/attention/detail/table_checks.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/tape.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/layout.hpp>
#include <rope/rotation/rotate.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/query_key_tables.hpp>

/// The backward pass of `attention`.

namespace rope {
inline namespace ROPE_ABI {

/// Gradients with respect to what the options hold; each is written where memory is given for it.
///
///     std::vector<double> d_sinks(heads);
///     attention_gradient(tape, options, {.sink_logits = d_sinks});
struct option_gradients {
  /// [q.heads]: with respect to options.sink_logits.
  std::span<double> sink_logits = {};
  /// With respect to options.bias, as long as the memory from its first entry to its last, with the gradient
  /// of an entry at the offset of the entry. An entry that several scores share receives the sum of theirs.
  /// No stride of the bias may be negative. Sharing costs threads: where queries, heads or rows share
  /// entries, at most one thread per 96 keys has work, and where keys do, one thread in all.
  std::span<double> bias = {};
};

namespace detail {

/// The heads of a tape are views of the call's extents.
template <class T>
void check_tape(const char* function, const attention_tape<T>& x) {
  for (const head_view<const T>& view : {x.q, x.k, x.v, x.out, x.d_out, head_view<const T>(x.d_q),
                                         head_view<const T>(x.d_k), head_view<const T>(x.d_v)}) {
    check_view(function, view);
    check_memory(function, view);
  }
  const auto demand = [function](bool holds, const char* rule, Index first, Index second) {
    check_rule(function, holds, rule, first, second);
  };
  demand(x.q.batch == x.k.batch, "q and k must have the same batch", x.q.batch, x.k.batch);
  demand(x.q.head_dim == x.k.head_dim, "q and k must have the same head_dim", x.q.head_dim, x.k.head_dim);
  demand(x.k.heads == 0 ? x.q.heads == 0 : x.q.heads % x.k.heads == 0,
         "q.heads must be a multiple of k.heads", x.q.heads, x.k.heads);
  const auto match = [&](const char* name, const head_view<const T>& view, const head_view<const T>& like,
                         Index head_dim) {
    if (view.batch != like.batch || view.tokens != like.tokens || view.heads != like.heads ||
        view.head_dim != head_dim)
      ROPE_THROW(std::invalid_argument,
                 message(function, ": ", name, " must be [", like.batch, ", ", like.tokens, ", ", like.heads,
                         ", ", head_dim, "], got [", view.batch, ", ", view.tokens, ", ", view.heads, ", ",
                         view.head_dim, "]"));
  };
  match("v", x.v, x.k, x.v.head_dim);
  match("out", x.out, x.q, x.v.head_dim);
  match("d_out", x.d_out, x.q, x.v.head_dim);
  match("d_q", x.d_q, x.q, x.q.head_dim);
  match("d_k", x.d_k, x.k, x.k.head_dim);
  match("d_v", x.d_v, x.k, x.v.head_dim);
}

/// Numbers in the memory that a bias spans, from its first entry to its last.
inline Index span_of(const score_view<float>& bias) {
  if (!bias) return 0;
  return 1 + (bias.batch - 1) * bias.batch_stride + (bias.heads - 1) * bias.head_stride +
         (bias.queries - 1) * bias.query_stride + (bias.keys - 1) * bias.key_stride;
}

/// Throws:  std::invalid_argument if memory for a gradient with respect to an option is not as long as it
inline void check_option_gradients(const char* function, const option_gradients& by_options,
                                   const attention_options& options) {
  if (!by_options.sink_logits.empty() && by_options.sink_logits.size() != options.sink_logits.size())
    ROPE_THROW(std::invalid_argument,
               message(function, ": the gradient with respect to sink_logits must have their length, ",
                       options.sink_logits.size(), ", got ", by_options.sink_logits.size()));
  if (by_options.bias.empty()) return;
  const score_view<float>& bias = options.bias;
  for (const auto& [extent, stride] : {std::pair(bias.batch, bias.batch_stride),
                                       {bias.heads, bias.head_stride},
                                       {bias.queries, bias.query_stride},
                                       {bias.keys, bias.key_stride}})
    if (extent > 1 && stride < 0)
      ROPE_THROW(
          std::invalid_argument,
          message(function, ": the gradient with respect to bias needs strides that are not negative, got ",
                  stride));
  if (static_cast<Index>(by_options.bias.size()) != span_of(bias))
    ROPE_THROW(std::invalid_argument,
               message(function, ": the gradient with respect to bias must have one number per entry, ",
                       span_of(bias), ", got ", by_options.bias.size()));
}

/// Everything that can be wrong with a call, found before anything is written.
template <class T>
void check_attention_gradient(const attention_tape<T>& x, const attention_options& options,
                              const option_gradients& by_options, bool rotates = false) {
  const char* function = "attention_gradient";
  check_tape(function, x);
  check_options(function, options, {x.q.batch, x.q.tokens, x.k.tokens, x.q.heads, x.q.head_dim}, rotates);
  check_magnitudes<arithmetic<T>>(function, options, x.q.head_dim);
  check_option_gradients(function, by_options, options);
}

/// Every gradient; nothing is checked any more.
template <class T, class Threads>
void differentiate_attention(const attention_tape<T>& tape, const visibility& rules,
                             const option_gradients& by_options, const Threads& threads) {
  std::fill(by_options.bias.begin(), by_options.bias.end(), 0.0);
  attention_gradient_tasks<T> tasks(tape, rules, by_options.sink_logits, by_options.bias);
  tasks.run(threads);
  tasks.add_sinks(by_options.sink_logits);
}

/// Types that a caller may have got wrong.
template <class T, class Threads>
constexpr void check_gradient_types() {
  ROPE_DETAIL_CHECK_WRITABLE("attention_gradient", "d_q, d_k or d_v", T);
  ROPE_DETAIL_CHECK_THREADS("attention_gradient", Threads);
}

}  // namespace detail

/// Gradients with respect to q, k and v of a loss whose gradient with respect to the output of
/// `attention(q, k, v, out, options)` is d_out.
///
///     d_v_j = sum_i w_ij d_out_i
///     d_s_ij = w_ij (d_out_i . v_j - d_out_i . out_i)
///     d_q_i = scale sum_j d_s_ij k_j,   d_k_j = scale sum_i d_s_ij q_i
///
/// with d_s times the slope of the softcap, and w and d_out . v masked and rescaled by dropout where they are
/// in the forward pass. Keys of a group sum over the query heads that share them. A query that sees no key
/// has a gradient of zero.
///
/// \param tape     the heads of the forward pass, d_out, and where the gradients go
/// \param options  those of the forward pass. options.log_sum_exp is read here: give what the forward pass
///                 wrote, or nothing, and it is found again at the cost of one more product
/// \param by_options  where the gradients with respect to learned sink logits and to the bias go
/// \param threads  the caller's threads; each takes blocks of queries of a key head. These add to d_k and d_v
///                 in one order, so the bits do not depend on the threads
///
/// Requires:  d_q, d_k and d_v share no element with any other argument
/// Throws:    std::invalid_argument if shapes disagree, q.heads is not a multiple of k.heads, or an option is
///            out of range; nothing is written then
/// Accuracy:  arithmetic and sums in float (double for double), one final rounding for half and bfloat16,
///            whose `out` enters rounded. Sums over tokens are formed per tile of 96 keys and block of 240
///            queries and then added: within 5e-5 at 65,536 equal tokens
///            (tests/attention/gradient.test.cpp, tests/attention/laws/repeated_tokens.test.cpp)
/// Cost:      2 (3 head_dim + 2 value_dim) flops per query head and visible key, 2 head_dim more without
///            log_sum_exp, at about the share of the peak of multiply-adds that `attention` reaches. Memory
///            in numbers: keys * (head_dim + value_dim) per key head, for as many key heads as have 128
///            blocks of 240 queries, but at most the larger of 16 heads and 2^24 numbers; per thread, of a
///            block and a tile of 96 keys, 240 * (2 head_dim + value_dim + 192) + 96 * (3 head_dim + 2
///            value_dim). Nothing of queries * keys. All of it is kept until release_scratch()
///            (base/scratch.hpp)
/// Source:    Dao 2023, FlashAttention-2, arXiv:2307.08691, algorithm 2, with queries in the outer loop
template <class Layout = detail::unnamed_layout, class T, class Threads = this_thread>
void attention_gradient(const attention_tape<T>& tape, const attention_options& options = {},
                        const option_gradients& by_options = {}, const Threads& threads = {}) {
  detail::check_gradient_types<T, Threads>();
  ROPE_DETAIL_CHECK_NO_LAYOUT("attention_gradient", Layout);
  detail::check_attention_gradient(tape, options, by_options);
  const detail::visibility rule(options,
                                {tape.q.batch, tape.q.tokens, tape.k.tokens, tape.q.heads, tape.q.head_dim});
  detail::differentiate_attention(tape, rule, by_options, threads);
}

/// The same for `attention<Layout>(q, k, v, out, tables, options)`, with the rotation in the graph: q and k
/// are given unrotated, and d_q and d_k are the gradients with respect to them.
///
///     d_q_i = m R(-angle(p_i)) (gradient with respect to the rotated query),   d_k_j alike
///
/// Throws:    as above, std::invalid_argument if rotary_dim > head_dim, and std::out_of_range if a position
///            is outside the table; nothing is written then
/// Accuracy:  as above; gradients of half and bfloat16 channels are rounded before they are turned back, and
///            after
/// Cost:      as above, one pass over q and k, and one over d_q and d_k. Rotated copies of q and k stay with
///            the calling thread until release_scratch(): sizeof(T) (q.size() + k.size()) bytes
///            (base/scratch.hpp)
template <class Layout = detail::unnamed_layout, class T, attention_tables Tables,
          class Threads = this_thread>
void attention_gradient(const attention_tape<T>& tape, const Tables& tables,
                        const attention_options& options = {}, const option_gradients& by_options = {},
                        const Threads& threads = {}) {
  detail::check_gradient_types<T, Threads>();
  ROPE_DETAIL_CHECK_LAYOUT("attention_gradient", Layout);
  detail::check_tables("attention_gradient", tables, options);
  const query_key_tables pair = detail::tables_of(tables);
  detail::check_attention_gradient(tape, options, by_options, true);
  const detail::visibility rule(options,
                                {tape.q.batch, tape.q.tokens, tape.k.tokens, tape.q.heads, tape.q.head_dim});
  const auto rotated =
      detail::rotated_operands<Layout>("attention_gradient", tape.q, tape.k, pair, rule, threads);
  attention_tape<T> turned = tape;
  turned.q = rotated.q;
  turned.k = rotated.k;
  detail::differentiate_attention(turned, rule, by_options, threads);
  detail::rotate_gradients_back<Layout>(tape.d_q, tape.d_k, pair, rule, threads);
}

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_GRADIENT_HPP
