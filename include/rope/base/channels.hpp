// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_CHANNELS_HPP
#define ROPE_BASE_CHANNELS_HPP

#include <type_traits>

#include <rope/config.hpp>

/// Channels of a head as numbers.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The type arithmetic on channels of type T is done in.
template <class T>
using arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// `count` channels in memory, as a row of Eigen's.
template <class T>
using channels_map = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_channels_map = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BASE_CHANNELS_HPP
