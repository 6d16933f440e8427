// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP
#define ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP

#include <algorithm>  // std::copy_n
#include <concepts>   // std::same_as
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/storage.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/head_norm.hpp>  // normalize_and_rotate_all
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantize.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/placed_table.hpp>

/// Memory of the heads of a cache, and how channels get into the type in which it keeps them and back:
/// copied, rotated, or normalised and rotated, each rounded once.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Heads [batch, heads, slots, head_dim], indeterminate until they are written.
template <class T>
class head_memory {
 public:
  /// \param channels  of all heads, 0 where there are no heads or no channels
  head_memory(std::size_t channels, std::size_t /*heads*/) : channels_(channels) {}

  head_view<T> view(Index batch, Index heads, Index slot_count, Index head_dim) {
    return bhsd(channels_.data(), batch, heads, slot_count, head_dim);
  }
  head_view<const T> view(Index batch, Index heads, Index slot_count, Index head_dim) const {
    return bhsd(channels_.data(), batch, heads, slot_count, head_dim);
  }

 private:
  storage<T> channels_;
};

template <std::same_as<std::int8_t> T>
class head_memory<T> {
 public:
  head_memory(std::size_t channels, std::size_t heads) : integers_(channels), scales_(heads) {}

  quantized_view<std::int8_t> view(Index batch, Index heads, Index slot_count, Index head_dim) {
    return bhsd(integers_.data(), scales_.data(), batch, heads, slot_count, head_dim);
  }
  quantized_view<const std::int8_t> view(Index batch, Index heads, Index slot_count, Index head_dim) const {
    return bhsd(integers_.data(), scales_.data(), batch, heads, slot_count, head_dim);
  }

 private:
  storage<std::int8_t> integers_;
  storage<float> scales_;
};

/// Calls visit(x, size, y) for what is next to each other in the memory of a head: channels of `count` slots
/// from `from` on in row a, and from `to` on in row b, and their scales where they have such.
template <class T, class Visit>
void for_each_part(const head_view<T>& heads, Index h, Index a, Index from, Index b, Index to, Index count,
                   const Visit& visit) {
  visit(heads.at(a, from, h), count * heads.head_dim, heads.at(b, to, h));
}
template <class T, class Visit>
void for_each_part(const quantized_view<T>& heads, Index h, Index a, Index from, Index b, Index to,
                   Index count, const Visit& visit) {
  visit(heads.at(a, from, h), count * heads.head_dim, heads.at(b, to, h));
  visit(heads.scale_at(a, from, h), count, heads.scale_at(b, to, h));
}

/// Calls turn.turn(keys, b, slot, by) for one stored token. Integers become numbers, which turn and are
/// rounded again.
template <class T, class Turn, class By>
void turn_stored(Turn& turn, const head_view<T>& keys, Index b, Index slot, const By& by) {
  turn.turn(keys, b, slot, by);
}
template <class Turn, class By>
void turn_stored(Turn& turn, const quantized_view<std::int8_t>& keys, Index b, Index slot, const By& by) {
  struct turned_numbers {};
  const auto token = keys.batch_range(b, 1).token_range(slot, 1);
  const head_view<float> numbers = bshd(workspace<turned_numbers, float>(keys.heads * keys.head_dim), 1, 1,
                                        keys.heads, Index{keys.head_dim});
  dequantize(token, numbers);
  turn.turn(numbers, Index{0}, Index{0}, by);
  quantize(numbers, token);
}

/// Whether heads of X are stored as channels of type T with one rounding at most.
template <class X, class T>
inline constexpr bool is_stored_as = is_quantized<T> ? !std::is_same_v<X, double> : is_or_widens<X, T>;

/// New heads of K and V become channels of type T of a cache or of pages.
#define ROPE_DETAIL_CHECK_STORED(name, K, V, T)                                                           \
  static_assert(                                                                                          \
      detail::is_stored_as<std::remove_const_t<K>, T> && detail::is_stored_as<std::remove_const_t<V>, T>, \
      name                                                                                                \
      ": k and v have the channel type of what stores them, or are float where that is a "                \
      "16-bit type, or any but double where it is std::int8_t")

/// Queries and outputs of T meet stored channels of type C.
#define ROPE_DETAIL_CHECK_READ(name, T, C)                                                             \
  static_assert(detail::is_or_widens<T, C> && !std::is_const_v<T>, name                                \
                ": q and out have the channel type of the stored keys and values, or are float where " \
                "that is a 16-bit type or std::int8_t")

/// Copies heads of one shape, rounding or widening each channel once where the types differ.
template <class X, class T>
void copy_channels(const head_view<X>& x, const head_view<T>& out) {
  using value = std::remove_const_t<X>;
  for (Index b = 0; b < x.batch; ++b)
    for (Index h = 0; h < x.heads; ++h)
      for (Index t = 0; t < x.tokens; ++t) {
        if constexpr (std::is_same_v<value, T>)
          std::copy_n(x.at(b, t, h), x.head_dim, out.at(b, t, h));
        else
          Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(out.at(b, t, h), x.head_dim) =
              Eigen::Map<const Eigen::Array<value, Eigen::Dynamic, 1>>(x.at(b, t, h), x.head_dim)
                  .template cast<T>();
      }
}

/// The same with integers and scales.
template <class X>
void copy_channels(const head_view<X>& x, const quantized_view<std::int8_t>& out) {
  quantize(x, out);
}
template <class X, class T>
void copy_channels(const quantized_view<X>& x, const head_view<T>& out) {
  dequantize(x, out);
}

/// Rotates `x` into `out`, which may be of another type: the rotation is then in the type of `x` where that
/// is the wider one, else in that of `out`, so that every channel is rounded to 16 bits once at most.
template <class Layout, class X, class T, class S, class Source>
void rotate_channels(const head_view<X>& x, const head_view<T>& out, const placed_table<S>& table,
                     const Source& positions) {
  using value = std::remove_const_t<X>;
  if constexpr (std::is_same_v<value, T>) {
    rotate_all<Layout, false, T>(head_view<const T>(x), out, table, positions);
  } else if constexpr (std::is_same_v<value, arithmetic<value>>) {
    struct rotated_tokens {};
    value* memory = workspace<rotated_tokens, value>(x.size());
    const head_view<value> wide = bshd(memory, x.batch, x.tokens, x.heads, x.head_dim);
    rotate_all<Layout, false, value>(head_view<const value>(x), wide, table, positions);
    copy_channels(wide, out);
  } else {
    copy_channels(x, out);
    rotate_all<Layout, false, T>(head_view<const T>(out), out, table, positions);
  }
}

/// The same for heads that are normalised first.
template <class Layout, class X, class T, class S, class Source, class W>
void rotate_channels(const head_view<X>& x, const head_view<T>& out, const placed_table<S>& table,
                     const Source& positions, const norm_rule<W>& norm) {
  using value = std::remove_const_t<X>;
  if constexpr (std::is_same_v<value, T>) {
    normalize_and_rotate_all<Layout, T>(x, out, norm, table, positions);
  } else {
    struct normed_tokens {};
    value* memory = workspace<normed_tokens, value>(x.size());
    const head_view<value> wide = bshd(memory, x.batch, x.tokens, x.heads, x.head_dim);
    normalize_and_rotate_all<Layout, value>(x, wide, norm, table, positions);
    copy_channels(wide, out);
  }
}
template <class Layout, class X, class T, class S, class Source>
void rotate_channels(const head_view<X>& x, const head_view<T>& out, const placed_table<S>& table,
                     const Source& positions, no_norm /*norm*/) {
  rotate_channels<Layout>(x, out, table, positions);
}

/// The same with integers and scales: rotated as floats, so that every channel is rounded to an integer once.
template <class Layout, class X, class S, class Source>
void rotate_channels(const head_view<X>& x, const quantized_view<std::int8_t>& out,
                     const placed_table<S>& table, const Source& positions) {
  struct rotated_tokens {};
  float* memory = workspace<rotated_tokens, float>(x.size());
  const head_view<float> wide = bshd(memory, x.batch, x.tokens, x.heads, x.head_dim);
  if constexpr (std::is_same_v<std::remove_const_t<X>, float>) {
    rotate_all<Layout, false, float>(head_view<const float>(x), wide, table, positions);
  } else {
    copy_channels(x, wide);
    rotate_all<Layout, false, float>(head_view<const float>(wide), wide, table, positions);
  }
  quantize(head_view<const float>(wide), out);
}
template <class Layout, class X, class S, class Source, class W>
void rotate_channels(const head_view<X>& x, const quantized_view<std::int8_t>& out,
                     const placed_table<S>& table, const Source& positions, const norm_rule<W>& norm) {
  struct rotated_tokens {};
  float* memory = workspace<rotated_tokens, float>(x.size());
  const head_view<float> wide = bshd(memory, x.batch, x.tokens, x.heads, x.head_dim);
  copy_channels(x, wide);
  normalize_and_rotate_all<Layout, float>(head_view<const float>(wide), wide, norm, table, positions);
  quantize(head_view<const float>(wide), out);
}
template <class Layout, class X, class S, class Source>
void rotate_channels(const head_view<X>& x, const quantized_view<std::int8_t>& out,
                     const placed_table<S>& table, const Source& positions, no_norm /*norm*/) {
  rotate_channels<Layout>(x, out, table, positions);
}
template <class Layout, class X, class S, class Source>
void rotate_channels(const quantized_view<X>& x, const head_view<float>& out, const placed_table<S>& table,
                     const Source& positions) {
  dequantize(x, out);
  rotate_all<Layout, false, float>(head_view<const float>(out), out, table, positions);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP
