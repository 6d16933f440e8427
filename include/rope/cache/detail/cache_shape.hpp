// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_SHAPE_HPP
#define ROPE_CACHE_DETAIL_CACHE_SHAPE_HPP

#include <rope/config.hpp>

/// What every cache says of the heads that it holds.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// \tparam Cache  has memory(), a cache_memory, and is a base of nothing
template <class Cache>
class cache_shape {
 public:
  Index batch() const { return memory().batch(); }
  Index kv_heads() const { return memory().keys().heads; }
  Index head_dim() const { return memory().keys().head_dim; }
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
