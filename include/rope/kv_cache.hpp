// SPDX-License-Identifier: MIT
#ifndef ROPE_KV_CACHE_HPP
#define ROPE_KV_CACHE_HPP

#include <algorithm>  // std::copy_n, std::max
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <rope/config.hpp>
#include <rope/detail/message.hpp>
#include <rope/detail/storage.hpp>
#include <rope/phase.hpp>
#include <rope/rotate.hpp>
#include <rope/table.hpp>
#include <rope/view.hpp>

/// The keys and values of the tokens a decoder has already seen.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// An address that is the same for one layout and different for two.
template <class Layout>
const void* layout_identity() {
  static const char identity = 0;
  return &identity;
}

}  // namespace detail

/// A fixed-capacity cache of keys and values, one growing sequence per row of the batch.
///
///     rotate<Layout>(q, table, cache.size());  rotate<Layout>(k, table, cache.size());
///     cache.append(k, v);
///     attention(q, cache.keys(), cache.values(), out);
///
/// or, with the rotation checked by the cache, `cache.append<Layout>(k, v, table)` and, before the query is
/// rotated, `cache.require<Layout>(table)`. The position of a cached token is its index. Memory is [batch,
/// kv_heads, capacity, head_dim], so the keys of one head are contiguous for a query that reads them all.
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
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if the cache exceeds the
  /// address space
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
  /// \param k  [batch, tokens, kv_heads, head_dim], already rotated if the model rotates keys; the cache
  /// cannot know by
  ///           which table, so it takes no keys through `append(k, v, table)` besides
  /// \param v  [batch, tokens, kv_heads, value_dim]
  ///
  /// Throws:  std::invalid_argument if a shape differs from the cache's, std::length_error if the tokens do
  /// not fit;
  ///          the cache is then unchanged
  template <class K, class V>
  void append(head_view<K> k, head_view<V> v) {
    check_new(k, v);
    if (size_ > 0 && rotation_ != rotation{})
      ROPE_THROW(
          std::invalid_argument,
          detail::message(
              "kv_cache::append: this cache rotates its keys, give the table, got none for keys of table ",
              rotation_.table));
    rotation_ = {};
    copy(k, keys_.data(), head_dim_);
    copy(v, values_.data(), value_dim_);
    size_ += k.tokens;
  }

  /// Rotates copies of new keys by the positions they are stored at, and appends them. The cache then belongs
  /// to this layout and to tables that rotate like this one: a schedule that depends on length (dynamic NTK,
  /// LongRoPE) cannot be exchanged under a cache unnoticed.
  ///
  /// \param k  [batch, tokens, kv_heads, head_dim], not rotated
  ///
  /// Throws:  as above; std::invalid_argument if the cache holds keys of another table or layout, or keys
  /// whose table is
  ///          not known; std::out_of_range if a position is outside the table; the cache is then unchanged
  template <class Layout, class K, class V, class S>
  void append(head_view<K> k, head_view<V> v, const frequency_table<S>& table) {
    check_new(k, v);
    require<Layout>(table);
    const detail::contiguous_positions positions = {size_};
    detail::check_rotation<Layout>("kv_cache::append", k, table, positions);
    detail::rotate_all<Layout, false, T>(k, all_keys().token_range(size_, k.tokens), table, positions);
    copy(v, values_.data(), value_dim_);
    size_ += k.tokens;
    rotation_ = {table.fingerprint(), detail::layout_identity<Layout>()};
  }

  /// Checks that the stored keys were rotated in this layout by a table that rotates like this one.
  ///
  /// Throws:  std::invalid_argument
  template <class Layout, class S>
  void require(const frequency_table<S>& table) const {
    if (size_ > 0 && rotation_ != rotation{table.fingerprint(), detail::layout_identity<Layout>()})
      ROPE_THROW(std::invalid_argument,
                 detail::message(
                     "kv_cache: keys must meet the layout and the table they were rotated by, got table ",
                     table.fingerprint(), " for keys of table ", rotation_.table));
  }

  /// Turns the stored keys from the angles of one table to those of another, in one pass, by the exact
  /// difference of the two angles at each position.
  ///
  ///     k' = m_to / m_from R(angle_to(p) - angle_from(p)) k
  ///
  /// Throws:    std::invalid_argument unless the keys were appended with `from` and this layout, and both
  /// tables are of
  ///            the same pairs, over a range of positions, with exact angles; the cache is then unchanged
  /// Accuracy:  that of one more rotation
  template <class Layout, class S>
  void rebase(const frequency_table<S>& from, const frequency_table<S>& to) {
    require<Layout>(from);
    if (from.pairs() != to.pairs())
      ROPE_THROW(std::invalid_argument,
                 detail::message("kv_cache::rebase: both tables must have the same pairs, got ", from.pairs(),
                                 " and ", to.pairs()));
    if (!from.is_exact_range() || !to.is_exact_range())
      ROPE_THROW(std::invalid_argument,
                 detail::message(
                     "kv_cache::rebase: the angle must be position * inv_freq in both tables, not of float "
                     "angles or coordinates, got exact = ",
                     from.is_exact_range(), " and ", to.is_exact_range()));
    const Index pairs = to.pairs();
    std::vector<phase> step(static_cast<std::size_t>(pairs)), now(step.size());
    for (std::size_t i = 0; i < step.size(); ++i)
      step[i] = phase_of(to.inv_freq()(static_cast<Index>(i), 0)) +
                -phase_of(from.inv_freq()(static_cast<Index>(i), 0));
    detail::storage<S> row(2 * step.size());
    const head_view<T> keys = all_keys();
    for (Index t = 0; t < size_; ++t) {
      detail::write_table_row(now.data(), pairs, to.attention_factor() / from.attention_factor(), row.data(),
                              row.data() + pairs);
      for (Index b = 0; b < batch_; ++b)
        detail::rotate_token<Layout>(detail::token_heads<T>{keys.at(b, t, 0), keys.at(b, t, 0), heads_,
                                                            keys.head_stride, keys.head_stride},
                                     detail::table_row<S, false>{row.data(), row.data() + pairs, pairs, S(1)},
                                     0);
      for (std::size_t i = 0; i < step.size(); ++i) now[i] = now[i] + step[i];
    }
    rotation_.table = to.fingerprint();
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

  head_view<T> all_keys() { return bhsd(keys_.data(), batch_, heads_, capacity_, head_dim_); }

  template <class K, class V>
  void check_new(const head_view<K>& k, const head_view<V>& v) const {
    static_assert(std::is_same_v<std::remove_const_t<K>, T> && std::is_same_v<std::remove_const_t<V>, T>,
                  "kv_cache::append: k and v have the channel type of the cache");
    check_shape("k", k, head_dim_);
    check_shape("v", v, value_dim_);
    if (k.tokens != v.tokens)
      ROPE_THROW(std::invalid_argument,
                 detail::message("kv_cache::append: k and v must have the same tokens, got ", k.tokens,
                                 " and ", v.tokens));
    if (k.tokens > capacity_ - size_)
      ROPE_THROW(std::length_error,
                 detail::message("kv_cache::append: ", k.tokens, " tokens do not fit, the cache holds ",
                                 size_, " of ", capacity_));
  }

  template <class X>
  void check_shape(const char* name, const head_view<X>& x, Index head_dim) const {
    detail::check_view("kv_cache::append", x);
    if (x.batch != batch_ || x.heads != heads_ || x.head_dim != head_dim)
      ROPE_THROW(std::invalid_argument,
                 detail::message("kv_cache::append: ", name, " must be [", batch_, ", tokens, ", heads_, ", ",
                                 head_dim, "], got [", x.batch, ", ", x.tokens, ", ", x.heads, ", ",
                                 x.head_dim, "]"));
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
        ROPE_THROW(std::invalid_argument,
                   detail::message("kv_cache: extents must not be negative, got [", batch_, ", ", capacity_,
                                   ", ", heads_, ", ", head_dim, "]"));
      // Strides are products of extents even where another one is zero.
      if (size > (std::numeric_limits<Index>::max)() / (std::max)(extent, Index{1}))
        ROPE_THROW(std::length_error, detail::message("kv_cache: [", batch_, ", ", capacity_, ", ", heads_,
                                                      ", ", head_dim, "] exceeds the address space"));
      size *= (std::max)(extent, Index{1});
    }
    const bool empty = batch_ == 0 || capacity_ == 0 || heads_ == 0 || head_dim == 0;
    return empty ? 0 : static_cast<std::size_t>(size) / sizeof(T);
  }

  /// How the stored keys were rotated; nothing for keys that came rotated.
  struct rotation {
    std::uint64_t table = 0;
    const void* layout = nullptr;
    friend bool operator==(const rotation&, const rotation&) = default;
  };

  Index batch_, capacity_, heads_, head_dim_, value_dim_;
  Index size_ = 0;
  rotation rotation_;
  detail::storage<T> keys_;    // [batch, heads, capacity, head_dim]
  detail::storage<T> values_;  // [batch, heads, capacity, value_dim]
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_KV_CACHE_HPP
