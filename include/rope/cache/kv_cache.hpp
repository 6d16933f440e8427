// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_KV_CACHE_HPP
#define ROPE_CACHE_KV_CACHE_HPP

#include <rope/base/owned_array.hpp>
#include <rope/cache/detail/call_checks.hpp>  // value_place
#include <rope/cache/growing_cache.hpp>
#include <rope/cache/policy.hpp>
#include <rope/cache/token_cache.hpp>
#include <rope/config.hpp>

/// A cache of the keys and values of all previous tokens.

namespace rope::inline ROPE_ABI {

/// A fixed-capacity cache of keys and values, one growing sequence per row of the batch.
///
///     kv_cache<float> cache(batch, capacity, kv_heads, head_dim);
///     cache.append<Layout>(k, v, table);
///     attention<Layout>(q, cache, out, table);
///
/// `append(k, v)` takes rotated keys, and attention(q, cache, out) takes rotated queries. The position of a
/// new token is one more than the largest in its row, evicted tokens included, 0 if there are none, unless
/// `append_at` sets another. `shift` changes it. Tokens of images have several coordinates: see token_axes in
/// policy.hpp. Memory is [batch, kv_heads, capacity, head_dim], so the keys of one head are contiguous.
/// token_cache.hpp has the functions of all caches: append, append_at, size, keys, truncate, ...;
/// growing_cache.hpp those of a cache that grows: remove, evict, shift, rebase, ...
///
/// \tparam T  a channel type. 16-bit caches also take float keys and values, rounded once. With std::int8_t,
///            float or 16-bit keys and values are stored as by `quantize`, keys() and values() return a
///            quantized_view, and queries are float. Every later rotation rounds these keys again, by at most
///            half a scale
///
/// Invariant: tokens [0, size(b)) of row b are written. The rest of the row is indeterminate and never
///            visible. A function that throws leaves the cache unchanged. A moved-from cache is empty.
template <class T>
class kv_cache : public growing_cache<kv_cache<T>, T, detail::value_place::own> {
  using base = growing_cache<kv_cache<T>, T, detail::value_place::own>;

 public:
  /// \param value_dim  channels of a value head; 0: head_dim
  ///
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if memory cannot hold it
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : base(batch, capacity, kv_heads, head_dim, value_dim == 0 ? head_dim : value_dim, storage) {}

  /// A cache of tokens with several coordinates.  Throws: as above
  kv_cache(Index batch, Index capacity, Index kv_heads, Index head_dim, token_axes axes, Index value_dim = 0,
           key_storage storage = key_storage::rotated)
      : kv_cache(batch, capacity, kv_heads, head_dim, value_dim, storage) {
    base::tokens_.put_on_axes(axes);
  }

  using base::coordinates;
  /// Coordinates of all tokens, [size(0) + size(1) + ..., axes], row after row: for the table that rotates
  /// raw keys.
  detail::owned_doubles<T> coordinates() const { return base::tokens_.coordinates().all(base::rows()); }

  static constexpr detail::cache_names names = ROPE_DETAIL_CACHE_NAMES("kv_cache");  // in messages
};

}  // namespace rope::inline ROPE_ABI

#endif  // ROPE_CACHE_KV_CACHE_HPP
