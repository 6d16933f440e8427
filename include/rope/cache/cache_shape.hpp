// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_CACHE_SHAPE_HPP
#define ROPE_CACHE_CACHE_SHAPE_HPP

#include <rope/config.hpp>

/// What kv_cache and ring_cache say of the heads that they hold.

namespace rope {
inline namespace ROPE_ABI {

/// The extents of kv_cache and ring_cache, whose base it is.
///
///     const Index channels = cache.kv_heads() * (cache.head_dim() + cache.value_dim());  // of a token
///
/// \tparam Cache  the class that derives from this one
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

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_CACHE_SHAPE_HPP
