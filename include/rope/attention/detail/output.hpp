// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_OUTPUT_HPP
#define ROPE_ATTENTION_DETAIL_OUTPUT_HPP

#include <algorithm>  // std::fill, std::max, std::min
#include <cmath>
#include <cstddef>
#include <limits>

#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/exp2.hpp>    // log2_e, ln_2, as_computed
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>

/// How the softmax of a query begins, and what is made of it in the end.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// A sink logit in units of log2; saturated, as scores are.
template <class A>
double sink_score(float logit) {
  constexpr double largest = static_cast<double>((std::numeric_limits<A>::max)());
  return (std::min)((std::max)(static_cast<double>(logit) * log2_e, -largest), largest);
}

/// Begins the softmax of a row: with the learned sink logit of its head where there is one.
template <class A>
void begin_softmax(const visibility& rules, const strip_rows& strip, const softmax_rows<A>& state) {
  const auto logits = rules.options().sink_logits;
  for (Index r = 0; r < strip.count; ++r) {
    state.maximum[r] =
        logits.empty() ? A(0)
                       : static_cast<A>(sink_score<A>(logits[static_cast<std::size_t>(strip.head_of(r))]));
    state.sum[r] = logits.empty() ? A(0) : A(1);
  }
}

/// Channels over a number. Where the row lies in memory decides which channels a loop takes in vectors and
/// which one by one, and -ffast-math divides the two in different ways (in vectors by an estimated
/// reciprocal). There the reciprocal is taken once, where no loop can take it apart: what is left to every
/// channel is a product, which is rounded in one way only.
template <class A>
auto divided(const const_channels_map<A>& channels, A divisor) {
#if defined(__FAST_MATH__)
  return channels * as_computed(A(1) / divisor);
#else
  return channels / divisor;
#endif
}

/// Channels of an output: sums / sum, over what dropout keeps on average, zeros where nothing was seen.
template <class A, class T>
void write_channels(const visibility& rules, const A* sums, A sum, Index count, T* out) {
  if (equal(sum, A(0)))
    std::fill(out, out + count, T(0));
  else
    channels_map<T>(out, count) =
        divided(const_channels_map<A>(sums, count), sum * static_cast<A>(1 - rules.options().dropout))
            .template cast<T>();
}

template <class A>
void write_log_sum_exp(const visibility& rules, Index b, Index i, Index h, A maximum, A sum) {
  const auto report = rules.options().log_sum_exp;
  if (report.empty()) return;
  const attention_shape& shape = rules.shape();
  report[static_cast<std::size_t>((b * shape.queries + i) * shape.heads + h)] =
      equal(sum, A(0)) || rules.is_padding(b, i)
          ? attention_options::no_keys
          : multiply_add(ln_2, static_cast<double>(maximum), std::log(static_cast<double>(sum)));
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_OUTPUT_HPP
