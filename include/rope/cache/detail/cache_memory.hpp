// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_CACHE_MEMORY_HPP
#define ROPE_CACHE_DETAIL_CACHE_MEMORY_HPP

#include <algorithm>  // std::copy_n, std::fill_n, std::swap_ranges
#include <type_traits>

#include <rope/base/message.hpp>
#include <rope/base/number_array.hpp>
#include <rope/base/numbers.hpp>
#include <rope/cache/detail/call_checks.hpp>  // value_place
#include <rope/cache/detail/row_counts.hpp>
#include <rope/cache/detail/stored_channels.hpp>
#include <rope/cache/detail/token_list.hpp>
#include <rope/config.hpp>
#include <rope/rotation/checks.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>

/// The memory of a cache: keys [batch, kv_heads, slots, head_dim] and values [batch, kv_heads, slots,
/// value_dim], which may be part of the keys. Writes, moves and copies tokens.

namespace rope::inline ROPE_ABI::detail {

/// Invariant: slots that the owner has not written are indeterminate. A moved-from object has no extents.
template <class T, value_place place = value_place::own>
class cache_memory {
  static_assert(
      channel<T> || (is_quantized<T> && place == value_place::own),
      "a cache has channels of float, double, Eigen::half, Eigen::bfloat16 or, in kv_cache and ring_cache, "
      "std::int8_t; latent_cache<Eigen::bfloat16> takes half the memory of float");
  static constexpr bool shared = place == value_place::in_keys;

 public:
  /// Throws:  std::invalid_argument if an extent is negative, std::length_error if the memory exceeds the
  ///          address space
  cache_memory(const char* owner, Index batch, Index slot_count, Index kv_heads, Index head_dim,
               Index value_dim)
      : batch_(batch),
        slots_(slot_count),
        heads_(kv_heads),
        head_dim_(head_dim),
        value_dim_(value_dim),
        keys_(allocated(owner, kv_heads, head_dim)),
        values_(allocated(owner, shared ? 0 : kv_heads, value_dim)) {}

  Index batch() const { return batch_; }
  Index slot_count() const { return slots_; }

  head_view<const T> keys() const { return view_of(keys_, head_dim_); }
  head_view<T> keys() { return view_of(keys_, head_dim_); }
  head_view<const T> values() const {
    return view_of(shared ? keys_ : values_, shared ? head_dim_ : value_dim_).channels(0, value_dim_);
  }
  head_view<T> values() {
    return view_of(shared ? keys_ : values_, shared ? head_dim_ : value_dim_).channels(0, value_dim_);
  }

  /// The first channel of a stored key that new keys set.
  Index first_new_channel() const { return shared ? Index{value_dim_} : 0; }
  /// The size of `count` tokens in bytes.
  double bytes_of(Index count) const {
    return cost_of(count, Index{heads_}, head_dim_ + value_dim_ - first_new_channel(), sizeof(T));
  }

  /// Checks the shapes and counts of new tokens.
  ///
  /// Throws:  std::invalid_argument
  template <class K, class V>
  void check_new(const char* function, const K& k, const V& v, const row_counts& counts) const {
    ROPE_DETAIL_CHECK_STORED("append", typename K::value_type, typename V::value_type, T);
    check_shape(function, shared ? "rotated_part" : "k", k, head_dim_ - first_new_channel());
    check_shape(function, shared ? "latent" : "v", v, value_dim_);
    check_equal(function, shared ? "rotated_part and latent" : "k and v", "tokens", k.tokens, v.tokens);
    check_counts(function, counts, batch(), k.tokens);
  }

  /// Writes tokens [first, first + count) of row b to slots [slot, slot + count). Values are copied, and keys
  /// are written by write_keys(from, to).
  template <class K, class V, class WriteKeys>
  void write(const K& k, const V& v, Index b, Index first, Index count, Index slot,
             const WriteKeys& write_keys) {
    const auto from = [&](const auto& x) { return x.batch_range(b, 1).token_range(first, count); };
    const auto to = [&](const head_view<T>& x) { return x.batch_range(b, 1).token_range(slot, count); };
    write_keys(from(k), to(keys()).channels(first_new_channel(), head_dim_ - first_new_channel()));
    copy_channels(from(v), to(values()));
  }

  /// Removes tokens of row b, which has `size`. Later ones move to lower slots.
  void remove(Index b, const token_list& tokens, Index size) {
    tokens.for_each_kept(
        size, [&](Index from, Index to, Index count) { copy_slots(*this, b, from, b, to, count); });
  }
  /// Sets the channels of a slot of row b to zero.
  void clear_slot(Index b, Index slot) {
    for_each_part(*this, b, slot, b, slot, 1, [](const auto* /*x*/, Index size, auto* y) {
      std::fill_n(y, size, std::remove_pointer_t<decltype(y)>(0));
    });
  }
  /// Copies the first `count` slots of row `from` of `other` to the first slots of row `to`. `other` has
  /// heads of the same shape, and may be this memory.
  void copy_row(const cache_memory& other, Index from, Index to, Index count) {
    copy_slots(other, from, 0, to, 0, count);
  }
  void swap_rows(Index a, Index b, Index count) {
    for_each_part(*this, a, 0, b, 0, count,
                  [](auto* x, Index size, auto* y) { std::swap_ranges(x, x + size, y); });
  }

 private:
  /// Heads [batch, heads, slots, head_dim] in memory of their own.
  struct stored_heads {
    number_array<T> channels;
    number_array<arithmetic<T>> scales;  // floats of integers, otherwise none
  };

  stored_heads allocated(const char* owner, Index heads, Index head_dim) const {
    check_extents<T>(owner, batch_, slots_, heads, head_dim);
    const Index count = batch_ * slots_ * heads;
    return {number_array<T>(count * head_dim), number_array<arithmetic<T>>(is_quantized<T> ? count : 0)};
  }
  template <class Heads>
  auto view_of(Heads& heads, Index head_dim) const {
    if constexpr (is_quantized<T>)
      return bhsd(heads.channels.data(), heads.scales.data(), batch_, heads_, slots_, head_dim);
    else
      return bhsd(heads.channels.data(), batch_, heads_, slots_, head_dim);
  }
  void copy_slots(const cache_memory& other, Index a, Index from, Index b, Index to, Index count) {
    for_each_part(other, a, from, b, to, count,
                  [](const auto* x, Index size, auto* y) { std::copy_n(x, size, y); });
  }

  /// Calls visit(x, size, y) for each contiguous part of `count` slots. x is in `other`, from slot `from` of
  /// row a on. y is in this memory, from slot `to` of row b on. Both have heads of the same shape.
  template <class Other, class Visit>
  void for_each_part(Other& other, Index a, Index from, Index b, Index to, Index count, const Visit& visit) {
    const auto visit_heads = [&](const auto& x, const auto& y) {
      for (Index h = 0; h < x.heads; ++h) {
        visit(x.at(a, from, h), count * x.head_dim, y.at(b, to, h));
        if constexpr (is_quantized<T>) visit(x.scale_at(a, from, h), count, y.scale_at(b, to, h));
      }
    };
    visit_heads(other.keys(), keys());
    if constexpr (!shared) visit_heads(other.values(), values());
  }

  template <class X>
  void check_shape(const char* function, const char* name, const X& x, Index head_dim) const {
    check_extents(function, x);
    if (x.batch != batch_ || x.heads != heads_ || x.head_dim != head_dim)
      throw_invalid(function, name, " must be [", batch_, ", tokens, ", heads_, ", ", head_dim, "], got ",
                    shape_text(x));
    check_memory(function, x);
  }

  moved_index batch_, slots_, heads_, head_dim_, value_dim_;
  stored_heads keys_, values_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_CACHE_MEMORY_HPP
