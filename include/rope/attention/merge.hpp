// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_MERGE_HPP
#define ROPE_ATTENTION_MERGE_HPP

#include <algorithm>  // std::copy_n, std::max
#include <cmath>
#include <cstddef>
#include <span>

#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/parallel.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/view.hpp>

/// Merges attention over two disjoint sets of keys into attention over their union, for long contexts that
/// are split over threads, machines or blocks of a cache.

namespace rope::inline ROPE_ABI {

/// Merges the results of attention over other keys, `out_b` and `log_sum_exp_b`, into `out_a` and
/// `log_sum_exp_a`.
///
///     L = log(exp(L_a) + exp(L_b)),   out = exp(L_a - L) out_a + exp(L_b - L) out_b
///
/// L_a and L_b are the values that attention wrote to `attention_options::log_sum_exp`. If one of them is
/// `attention_options::no_keys`, because the query has no visible key there, that side is ignored, and its
/// output may hold anything. Pass learned sink logits to only one of the two calls of attention.
///
/// Attention to a part of the keys needs explicit positions. Without them the last query is aligned with the
/// last key of the part.
///
///     attention<Layout>(q, k.token_range(first, n), v.token_range(first, n), out_a, table,
///                       {.query_positions = query_ids, .key_positions = key_ids.subspan(first, n),
///                        .log_sum_exp = log_sum_exp_a});
///
/// \param out_a          [batch, queries, heads, value_dim], overwritten by the output for the union
/// \param log_sum_exp_a  [batch, queries, heads], overwritten by the log-sum-exp of the union
/// \param threads        your threads, see base/parallel.hpp; the bits do not depend on them
///
/// Throws:    std::invalid_argument if shapes or lengths disagree, or channels of out_a overlap; nothing is
///            then written
/// Accuracy:  the order of merges changes the result only by rounding. The error of a merge is at most 3 eps
///            max|out|, eps = 2^-24 (float) or 2^-53 (double), and one rounding if the type is 16-bit
///            (tests/attention/merge.test.cpp)
/// Cost:      two reads and one write of the output; no allocation
/// Source:    Dao et al. 2023, FlashDecoding; Ye et al. 2025, FlashInfer, arXiv:2501.01005, section 2.2
template <class T, class B, class Threads = this_thread>
void merge_attention(head_view<T> out_a, std::span<double> log_sum_exp_a, head_view<B> out_b,
                     std::span<const double> log_sum_exp_b, const Threads& threads = {}) {
  ROPE_DETAIL_CHECK_WRITABLE("merge_attention", "out_a", T);
  ROPE_DETAIL_CHECK_SAME_CHANNELS("merge_attention", "out_a and out_b", T, B);
  ROPE_DETAIL_CHECK_THREADS("merge_attention", Threads);
  detail::check_heads("merge_attention", out_a);
  detail::check_heads("merge_attention", out_b);
  if (!detail::have_same_shape(out_a, out_b))
    detail::throw_invalid("merge_attention", "the outputs must have the same shape, got ",
                          detail::shape_text(out_a), " and ", detail::shape_text(out_b));
  detail::check_written("merge_attention", out_a);
  const auto count = static_cast<std::size_t>(out_a.batch * out_a.tokens * out_a.heads);
  if (log_sum_exp_a.size() != count || log_sum_exp_b.size() != count)
    detail::throw_invalid("merge_attention",
                          "a log-sum-exp must have length batch * queries * heads = ", count, ", got ",
                          log_sum_exp_a.size(), " and ", log_sum_exp_b.size());

  using A = detail::arithmetic<T>;
  const auto merge = [&](Index b, Index i, Index h) {
    const auto n = static_cast<std::size_t>((b * out_a.tokens + i) * out_a.heads + h);
    // The output of a side without a visible key may hold anything, so it is not read.
    if (detail::equal(log_sum_exp_b[n], attention_options::no_keys)) return;
    if (detail::equal(log_sum_exp_a[n], attention_options::no_keys)) {
      std::copy_n(out_b.at(b, i, h), out_a.head_dim, out_a.at(b, i, h));
      log_sum_exp_a[n] = log_sum_exp_b[n];
      return;
    }
    const double largest = (std::max)(log_sum_exp_a[n], log_sum_exp_b[n]);
    const double a = std::exp(log_sum_exp_a[n] - largest), b_weight = std::exp(log_sum_exp_b[n] - largest);
    const A share_a = static_cast<A>(a / (a + b_weight)), share_b = static_cast<A>(b_weight / (a + b_weight));
    detail::add_shares<T>(out_a.at(b, i, h), share_a, out_b.at(b, i, h), share_b, out_a.head_dim);
    log_sum_exp_a[n] = largest + std::log(a + b_weight);
  };
  detail::for_each_head(out_a, threads, merge, 2);
}

ROPE_DETAIL_ASK_FOR_VIEWS_AT(merge_attention, 0b101);

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_ATTENTION_MERGE_HPP
