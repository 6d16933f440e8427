// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_WEIGHTED_SUM_HPP
#define ROPE_ATTENTION_DETAIL_WEIGHTED_SUM_HPP

#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// The sum that merges two parts of an attention.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// a[c] = share_a a[c] + share_b b[c] for c in [0, count), in the arithmetic type.
///
/// Of two products and their sum a compiler may fuse either product with the sum, and it chooses anew for
/// every loop. Here it has no choice, so the bits do not depend on where the rows begin in memory.
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

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_WEIGHTED_SUM_HPP
