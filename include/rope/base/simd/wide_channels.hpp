// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_WIDE_CHANNELS_HPP
#define ROPE_BASE_SIMD_WIDE_CHANNELS_HPP

#include <type_traits>

#include <rope/base/channels.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// Rows of channels on their way to the type that is computed in, and back.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Channels in the arithmetic type, which is exact.
template <class T>
void widen(const T* from, Index count, arithmetic<T>* to) {
  using P = packet<arithmetic<T>>;
  Index d = 0;
  if constexpr (has_packets<T, P>)
    for (; d + lanes<P> <= count; d += lanes<P>) store(to + d, load<P>(from + d));
  for (; d < count; ++d) to[d] = static_cast<arithmetic<T>>(from[d]);
}

/// Channels that were computed in the arithmetic type, each rounded once.
template <class T>
void round_channels(const arithmetic<T>* from, Index count, T* to) {
  Index d = 0;
  if constexpr (std::is_same_v<T, Eigen::half> && has_packets<T, packet<float>>) {
    using P = packet<float>;
    for (; d + lanes<P> <= count; d += lanes<P>) store(to + d, load<P>(from + d));
  }
  for (; d < count; ++d) to[d] = rounded<T>(from[d]);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_SIMD_WIDE_CHANNELS_HPP
