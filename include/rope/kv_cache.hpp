// SPDX-License-Identifier: MIT
#ifndef ROPE_KV_CACHE_HPP
#define ROPE_KV_CACHE_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <limits>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/storage.hpp>
#include <rope/rotate.hpp>  // check_view
#include <rope/view.hpp>

/// The keys and values of the tokens a decoder has already seen.

namespace rope {
inline namespace ROPE_ABI {

/// A fixed-capacity cache of keys and values, one growing sequence per row of the batch.
///
///     rotate<Layout>(q, table, cache.size());  rotate<Layout>(k, table, cache.size());
///     cache.append(k, v);
///     attention(q, cache.keys(), cache.values(), out);
///
/// The position of a cached token is its index. Memory is [batch, kv_heads, capacity, head_dim], so the keys of one head
/// are contiguous for a query that reads them all.
///
/// \tparam T  a channel type
///
/// Invariant: tokens [0, size()) are written, the rest is indeterminate and never visible.
template <class T>
class kv_cache {
  static_assert(channel<T>, "kv_cache: a channel type is float, double, Eigen::half or Eigen::bfloat16");

 public:
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if the cache exceeds the address space
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, Index value_dim = 0)
      : batch_(batch),
        capacity_(capacity),
        heads_(kv_heads),
        head_dim_(head_dim),
        value_dim_(value_dim == 0 ? head_dim : value_dim),
        keys_(checked_size(head_dim_)),
        values_(checked_size(value_dim_)) {}

  /// Tokens stored per row.
  Index size() const { return size_; }
  /// Tokens that can be stored per row.
  Index capacity() const { return capacity_; }

  /// Copies new tokens behind the stored ones.
  ///
  /// \param k  [batch, tokens, kv_heads, head_dim], already rotated if the model rotates keys
  /// \param v  [batch, tokens, kv_heads, value_dim]
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, std::length_error if the tokens do not fit;
  ///          the cache is then unchanged
  template <class K, class V>
  void append(head_view<K> k, head_view<V> v) {
    static_assert(std::is_same_v<std::remove_const_t<K>, T> && std::is_same_v<std::remove_const_t<V>, T>,
                  "kv_cache::append: k and v have the channel type of the cache");
    check_shape("k", k, head_dim_);
    check_shape("v", v, value_dim_);
    if (k.tokens != v.tokens)
      ROPE_THROW(std::invalid_argument, detail::message("kv_cache::append: k and v must have the same tokens, got ",
                                                        k.tokens, " and ", v.tokens));
    if (k.tokens > capacity_ - size_)
      ROPE_THROW(std::length_error, detail::message("kv_cache::append: ", k.tokens, " tokens do not fit, the cache holds ",
                                                    size_, " of ", capacity_));
    copy(k, keys_.data(), head_dim_);
    copy(v, values_.data(), value_dim_);
    size_ += k.tokens;
  }

  /// Forgets every token from `size` on: the rollback of speculative decoding.
  ///
  /// Throws:  std::out_of_range unless 0 <= size <= size(); the cache is then unchanged
  void truncate(Index size) {
    if (size < 0 || size > size_)
      ROPE_THROW(std::out_of_range,
                 detail::message("kv_cache::truncate: size must be in [0, ", size_, "], got ", size));
    size_ = size;
  }

  /// Forgets every token; the capacity stays.
  void clear() { size_ = 0; }

  /// The stored keys [batch, size(), kv_heads, head_dim]; valid while the cache lives.
  head_view<const T> keys() const { return view(keys_.data(), head_dim_).token_range(0, size_); }
  /// The stored values [batch, size(), kv_heads, value_dim]; valid while the cache lives.
  head_view<const T> values() const { return view(values_.data(), value_dim_).token_range(0, size_); }

 private:
  head_view<const T> view(const T* data, Index head_dim) const {
    return bhsd(data, batch_, heads_, capacity_, head_dim);
  }

  template <class X>
  void check_shape(const char* name, const head_view<X>& x, Index head_dim) const {
    detail::check_view("kv_cache::append", x);
    if (x.batch != batch_ || x.heads != heads_ || x.head_dim != head_dim)
      ROPE_THROW(std::invalid_argument,
                 detail::message("kv_cache::append: ", name, " must be [", batch_, ", tokens, ", heads_, ", ", head_dim,
                                 "], got [", x.batch, ", ", x.tokens, ", ", x.heads, ", ", x.head_dim, "]"));
  }

  template <class X>
  void copy(const head_view<X>& x, T* memory, Index head_dim) const {
    const head_view<T> to = bhsd(memory, batch_, heads_, capacity_, head_dim);
    for (Index b = 0; b < batch_; ++b)
      for (Index h = 0; h < heads_; ++h)
        for (Index t = 0; t < x.tokens; ++t) std::copy_n(x.at(b, t, h), head_dim, to.at(b, size_ + t, h));
  }

  std::size_t checked_size(Index head_dim) const {
    Index size = Index(sizeof(T));
    for (const Index extent : {batch_, capacity_, heads_, head_dim}) {
      if (extent < 0)
        ROPE_THROW(std::invalid_argument, detail::message("kv_cache: extents must not be negative, got [", batch_, ", ",
                                                          capacity_, ", ", heads_, ", ", head_dim, "]"));
      if (extent > 0 && size > (std::numeric_limits<Index>::max)() / extent)
        ROPE_THROW(std::length_error, detail::message("kv_cache: [", batch_, ", ", capacity_, ", ", heads_, ", ",
                                                      head_dim, "] exceeds the address space"));
      size *= extent;
    }
    return static_cast<std::size_t>(size) / sizeof(T);
  }

  Index batch_, capacity_, heads_, head_dim_, value_dim_;
  Index size_ = 0;
  detail::storage<T> keys_;    // [batch, heads, capacity, head_dim]
  detail::storage<T> values_;  // [batch, heads, capacity, value_dim]
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_KV_CACHE_HPP
