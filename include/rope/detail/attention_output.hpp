// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_OUTPUT_HPP
#define ROPE_DETAIL_ATTENTION_OUTPUT_HPP

#include <algorithm>  // std::fill
#include <cmath>
#include <cstddef>

#include <rope/config.hpp>
#include <rope/detail/attention_rows.hpp>
#include <rope/detail/attention_softmax.hpp>
#include <rope/detail/exp2.hpp>  // log2_e, ln_2
#include <rope/detail/visibility.hpp>

/// How the softmax of a query begins, and what is made of it in the end.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Begins the softmax of a row: with the learned sink logit of its head where there is one.
template <class A>
void begin_softmax(const visibility& rules, const strip_rows& strip, const softmax_rows<A>& state) {
  const auto logits = rules.options().sink_logits;
  for (Index r = 0; r < strip.count; ++r) {
    state.maximum[r] =
        logits.empty() ? A(0) : static_cast<A>(logits[static_cast<std::size_t>(strip.head_of(r))] * log2_e);
    state.sum[r] = logits.empty() ? A(0) : A(1);
  }
}

/// Channels of an output: sums / sum, over what dropout keeps on average, zeros where nothing was seen.
template <class A, class T>
void write_channels(const visibility& rules, const A* sums, A sum, Index count, T* out) {
  if (sum == A(0))
    std::fill(out, out + count, T(0));
  else
    channels_map<T>(out, count) =
        (const_channels_map<A>(sums, count) / (sum * static_cast<A>(1 - rules.options().dropout)))
            .template cast<T>();
}

template <class A>
void write_log_sum_exp(const visibility& rules, Index b, Index i, Index h, A maximum, A sum) {
  const auto report = rules.options().log_sum_exp;
  if (report.empty()) return;
  const attention_shape& shape = rules.shape();
  report[static_cast<std::size_t>((b * shape.queries + i) * shape.heads + h)] =
      sum == A(0) ? attention_options::no_keys
                  : ln_2 * static_cast<double>(maximum) + std::log(static_cast<double>(sum));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_OUTPUT_HPP
