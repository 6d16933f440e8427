// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_OUTPUT_HPP
#define ROPE_ATTENTION_DETAIL_OUTPUT_HPP

#include <algorithm>  // std::fill, std::max, std::min
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/exp2.hpp>    // log2_e, ln_2, as_computed
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/config.hpp>

/// The initial state of a query's softmax, and the outputs computed from its final state.

namespace rope::inline ROPE_ABI::detail {

/// a[c] = share_a a[c] + share_b b[c] for c in [0, count), in the arithmetic type.
///
/// In a sum of two products a compiler may fuse either product with the sum, and may choose differently in
/// each loop. Here multiply_add fixes the choice, so the bits do not depend on where the rows begin in
/// memory.
template <class T>
void add_shares(T* a, arithmetic<T> share_a, const T* b, arithmetic<T> share_b, Index count) {
  using A = arithmetic<T>;
  using P = packet<A>;
  constexpr bool in_packets = std::is_same_v<T, A> || (std::is_same_v<T, Eigen::half> && has_packets<T, P>);
  Index c = 0;
  if constexpr (in_packets) {
    const P of_a = fill<P>(share_a), of_b = fill<P>(share_b);
    for (; c + lanes<P> <= count; c += lanes<P>)
      store(a + c, multiply_add(of_b, load<P>(b + c), multiply(of_a, load<P>(a + c))));
  }
  for (; c < count; ++c)
    a[c] = static_cast<T>(multiply_add(share_b, static_cast<A>(b[c]), share_a * static_cast<A>(a[c])));
}

/// A sink logit in units of log2, saturated like scores.
template <class A>
double sink_score(float logit) {
  constexpr double largest = static_cast<double>((std::numeric_limits<A>::max)());
  return (std::min)((std::max)(static_cast<double>(logit) * log2_e, -largest), largest);
}

/// Initialises the softmax of the rows of a strip, with the learned sink logits of their heads if there are
/// any.
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

/// Channels divided by `divisor`. The address of a row decides which channels a loop processes in vectors and
/// which one by one. In vectors -ffast-math divides differently (by an estimated reciprocal), and so does
/// 32-bit NEON. There the reciprocal is computed once, outside of the loop. The loop only multiplies by it,
/// which rounds equally with and without vectors.
template <class A>
auto divided(const const_channels_map<A>& channels, A divisor) {
#if ROPE_DETAIL_FAST_MATH || ROPE_DETAIL_ESTIMATED_QUOTIENTS
  return channels * as_computed(A(1) / divisor);
#else
  return channels / divisor;
#endif
}

/// Writes the channels of an output: sums / (sum * (1 - dropout)), or zeros if no key was visible.
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

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_OUTPUT_HPP
