// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_SHAPE_HPP
#define ROPE_CACHE_DETAIL_CACHE_SHAPE_HPP

#include <rope/config.hpp>

/// What every cache says of the heads that it holds.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The extents of a cache, as a base of its class.
///
/// \tparam Cache  the derived class, whose memory() is a cache_memory
template <class Cache>
class cache_shape {
 public:
  /// Rows of the batch.
  Index batch() const { return memory().batch(); }
  /// Heads of keys and values.
  Index kv_heads() const { return memory().keys().heads; }
  /// Channels of a key head.
  Index head_dim() const { return memory().keys().head_dim; }
  /// Channels of a value head.
  Index value_dim() const { return memory().values().head_dim; }

 private:
  friend Cache;
  cache_shape() = default;
  const auto& memory() const { return static_cast<const Cache&>(*this).memory(); }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_CACHE_SHAPE_HPP
