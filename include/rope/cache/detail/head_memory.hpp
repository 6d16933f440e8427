// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_HEAD_MEMORY_HPP
#define ROPE_CACHE_DETAIL_HEAD_MEMORY_HPP

#include <algorithm>  // std::copy_n
#include <concepts>   // std::same_as
#include <cstddef>
#include <cstdint>

#include <rope/base/quantized_channels.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/storage.hpp>
#include <rope/config.hpp>
#include <rope/rotation/quantize.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>

/// Memory of the heads of a cache, of channels or of integers with their scales.

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

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_CACHE_DETAIL_HEAD_MEMORY_HPP
