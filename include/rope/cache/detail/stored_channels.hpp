// SPDX-License-Identifier: MIT
#ifndef ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP
#define ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP

#include <algorithm>  // std::copy_n, std::min
#include <cstdint>
#include <type_traits>
#include <utility>  // std::pair

#include <rope/base/numbers.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet_pairs.hpp>  // convert_channels
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/rotation_plan.hpp>
#include <rope/rotation/head_norm.hpp>  // normalize_and_rotate_all
#include <rope/rotation/normed_table.hpp>
#include <rope/rotation/quantized_view.hpp>
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// Converts channels to and from the type that a cache stores. Channels are copied, rotated, or normalised
/// and rotated, and each is rounded once. Keys may be copied and rotated by their ranks.

namespace rope::inline ROPE_ABI::detail {

/// Calls rotator.rotate(keys, b, slot, by) for one stored token. int8 channels are dequantized, rotated and
/// quantized again.
template <class Rotator, class View, class By>
void rotate_stored(Rotator& rotator, const View& keys, Index b, Index slot, const By& by) {
  if constexpr (is_quantized<typename View::value_type>) {
    const auto token = keys.batch_range(b, 1).token_range(slot, 1);
    const head_view<float> numbers =
        bshd(workspace<struct rotated_numbers, float>(keys.heads * keys.head_dim), 1, 1, keys.heads,
             Index{keys.head_dim});
    dequantize_all(token, numbers);
    rotator.rotate(numbers, Index{0}, Index{0}, by);
    quantize_all(numbers, token);
  } else {
    rotator.rotate(keys, b, slot, by);
  }
}

/// Whether heads of X can be stored as channels of type T with at most one rounding. int8 heads are stored
/// unchanged.
template <class X, class T>
inline constexpr bool is_stored_as = is_quantized<T> ? !std::is_same_v<X, double> : is_or_widens<X, T>;

/// Checks that new heads of K and V can be stored as channels of type T.
#define ROPE_DETAIL_CHECK_STORED(name, K, V, T)                                                           \
  static_assert(                                                                                          \
      detail::is_stored_as<std::remove_const_t<K>, T> && detail::is_stored_as<std::remove_const_t<V>, T>, \
      name                                                                                                \
      ": k and v have the channel type of what stores them, or are float where that is a "                \
      "16-bit type, or any but double where it is std::int8_t")

/// Used in place of a norm if new keys are copied, because they are raw or already rotated.
struct copied_keys : no_norm {};
template <class Keys>
inline constexpr bool are_copied = std::is_same_v<decltype(Keys::norm), copied_keys>;
/// Used in place of a key_transform if the table that rotated new keys, if any, is not given.
struct unknown_table {
  copied_keys norm;
};

/// Copies heads of one shape, rounding or widening each channel once if the types differ. Integers and their
/// scales keep their bits.
template <class From, class To>
void copy_channels(const From& x, const To& out) {
  using X = typename From::value_type;
  using T = typename To::value_type;
  if constexpr (is_quantized<T> && !is_quantized<X>) {
    quantize_all(x, out);
  } else if constexpr (is_quantized<X> && !is_quantized<T>) {
    dequantize_all(x, out);
  } else {
    for (Index b = 0; b < x.batch; ++b)
      for (Index h = 0; h < x.heads; ++h)
        for (Index t = 0; t < x.tokens; ++t) {
          if constexpr (std::is_same_v<X, T>)
            std::copy_n(x.at(b, t, h), x.head_dim, out.at(b, t, h));
          else
            convert_channels(x.at(b, t, h), x.head_dim, out.at(b, t, h));
          if constexpr (is_quantized<T>) *out.scale_at(b, t, h) = *x.scale_at(b, t, h);
        }
  }
}

/// Writes the rotated `x` to `out`, which may have another type. If there is a norm, x is normalised first.
/// Computes in the wider of both types, so that every channel is rounded to 16 or 8 bits at most once.
template <class Layout, class From, class To, class S, class Source, class Norm = no_norm>
void rotate_channels(const From& x, const To& out, const placed_table<S>& table, const Source& positions,
                     const Norm& norm = {}) {
  using X = typename From::value_type;
  using T = typename To::value_type;
  using A = std::conditional_t<is_or_widens<numbers_of<X>, numbers_of<T>>, numbers_of<X>, numbers_of<T>>;
  const auto rotate_to = [&](const head_view<A>& to) {
    head_view<const A> from = to;
    if constexpr (std::is_same_v<X, A>)
      from = x;
    else
      copy_channels(x, to);
    if constexpr (std::is_same_v<Norm, no_norm>)
      rotate_into<Layout, false>(from, to, table, positions);
    else
      normalize_and_rotate_all<Layout>(from, to, norm, table, positions);
  };
  if constexpr (std::is_same_v<A, T>) {
    rotate_to(out);
  } else {
    const head_view<A> wide =
        bshd(workspace<struct rotated_tokens, A>(x.size()), x.batch, x.tokens, x.heads, x.head_dim);
    rotate_to(wide);
    copy_channels(wide, out);
  }
}

/// Copies the keys and values of key heads [head, head + heads) of row b that are visible to the query at
/// `position`, whose rank is `rank`, [1, ranks, heads, ...]. Keys are rotated by their ranks. The copies are
/// valid until the next call on this thread.
template <class Layout, class T, class Rows, class S>
std::pair<head_view<const T>, head_view<const T>> read_by_rank(const Rows& rows, const placed_table<S>& table,
                                                               Index b, Index head, Index heads,
                                                               std::int64_t position, std::int64_t rank) {
  const auto k = rows.keys(b).head_range(head, heads), v = rows.values(b).head_range(head, heads);
  const Index sinks = rows.policy().sinks, count = to_index(rank + 1);
  const head_view<T> keys = bhsd(workspace<struct ranked_keys, T>(count * heads * k.head_dim), 1, heads,
                                 count, k.head_dim),
                     values = bhsd(workspace<struct ranked_values, T>(count * heads * v.head_dim), 1, heads,
                                   count, v.head_dim);
  for (Index r = 0; r < count;) {
    // Ranks r, r + 1, ... are contiguous in memory up to the end of the sinks or of the ring.
    const Index slot = rows.slot(r < sinks ? r : position - rank + r);
    const Index run = (std::min)(count - r, (slot < sinks ? sinks : k.tokens) - slot);
    rotate_channels<Layout>(k.token_range(slot, run), keys.token_range(r, run), table,
                            contiguous_positions{r});
    copy_channels(v.token_range(slot, run), values.token_range(r, run));
    r += run;
  }
  return {keys, values};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_CACHE_DETAIL_STORED_CHANNELS_HPP
