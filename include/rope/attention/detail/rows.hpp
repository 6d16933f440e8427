// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_ROWS_HPP
#define ROPE_ATTENTION_DETAIL_ROWS_HPP

#include <algorithm>  // std::min
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>  // std::exchange, std::pair

#include <rope/attention/detail/attention_call.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// Heads as rows of the arithmetic type. If possible, rows are read in place. Otherwise a few rows at a time
/// are rotated or widened into a copy, which stays in the cache.

namespace rope::inline ROPE_ABI::detail {

/// Rows at a regular stride: channel d of row n is rows[n * stride + d].
template <class X>
struct row_block {
  using value_type = X;
  const X* rows;
  Index stride;

  const X* at(Index n) const { return rows + n * stride; }
  row_block from_row(Index n) const { return {at(n), stride}; }
  row_block from_channel(Index c) const { return {rows + c, stride}; }
};

/// rows[n][first + d], anywhere in memory, and as many rows that are read after them.
template <class X>
struct listed_rows {
  using value_type = X;
  const X* const* rows;
  const X* const* next;
  Index first;

  const X* at(Index n) const { return rows[n] + first; }
  listed_rows from_row(Index n) const { return {rows + n, next + n, first}; }
  listed_rows from_channel(Index c) const { return {rows, next, first + c}; }
};

/// `count` rows in the type `Storage`: the rows themselves, or widened copies in `wide`.
template <class Storage, class X>
row_block<Storage> rows_as(row_block<X> rows, Index count, Index channels, arithmetic<X>* wide) {
  if constexpr (std::is_same_v<Storage, X>) {
    return rows;
  } else {
    for (Index n = 0; n < count; ++n) widen(rows.rows + n * rows.stride, channels, wide + n * channels);
    return {wide, channels};
  }
}

/// Places arrays one after another in one piece of scratch memory, and sets the pointer to each.
template <class User, class T>
void place_arrays(std::initializer_list<std::pair<T**, Index>> arrays) {
  Index size = 0;
  for (const auto& [array, count] : arrays) size += count;
  T* next = workspace<User, T>(size);
  for (const auto& [array, count] : arrays) *array = std::exchange(next, next + count);
}

/// Buffers for copies of the rows that are read at a time.
template <class T>
struct row_buffers {
  T* rotated;
  arithmetic<T>* wide;
};

/// Whether the channels of some keys or values, x, are finite. Those of int8 are if their scales are small
/// enough, because a channel is at most 128 times its scale.
///
/// \param keys  of a tile that begins with token `begin`
template <class C>
bool are_finite(const token_source<C>& x, Index b, Index head, Index begin, const tile_range& keys) {
  bool finite = true;
  if constexpr (is_quantized<C>)
    for_each_scale(x, b, head, begin, keys,
                   [&](Index /*j*/, float scale) { finite = finite && is_below(scale, 0x1p120f); });
  else
    for (Index j = keys.first; finite && j < keys.last; ++j)
      finite = all_finite(x.at(b, begin + j, head), x.head_dim);
  return finite;
}

/// The type that rows are packed from. Integers are first multiplied by their scales.
template <class C>
using packable = std::conditional_t<is_quantized<C>, arithmetic<C>, loadable<C>>;

/// The channels of a run of keys or values as `Storage`, which is their type or the arithmetic type. Integers
/// are multiplied by their scales only if `Storage` is the arithmetic type.
template <class Storage, class C>
row_block<Storage> stored_rows(const token_source<C>& x, const token_run<C>& run, arithmetic<C>* wide) {
  if constexpr (is_quantized<C> && !std::is_same_v<Storage, C>) {
    for_each_scale(x, run.b, run.head, run.first, {0, run.count}, [&](Index n, float scale) {
      dequantize_channels(run.rows + n * x.token_stride, x.head_dim,
                          static_cast<Storage>(usable_scale(scale)), wide + n * x.head_dim);
    });
    return {wide, x.head_dim};
  } else {
    return rows_as<Storage>(row_block<C>{run.rows, x.token_stride}, run.count, x.head_dim, wide);
  }
}

/// The keys of a run, [count, head_dim], rotated if the call rotates. For their type `Storage`, the rules of
/// stored_rows apply.
template <class Storage, class T, class Rotation, class C>
row_block<Storage> read_keys(const attention_call<T, Rotation, C>& call, const token_run<C>& run,
                             const row_buffers<T>& buffers) {
  const token_source<C>& k = call.k;
  if constexpr (Rotation::rotates)
    if (call.rotation.is_given()) {
      head_view<const T> from = {buffers.rotated, 1, run.count, 1, k.head_dim, 0, k.head_dim, 0};
      if constexpr (std::is_same_v<T, C>)
        from.data = run.rows, from.token_stride = k.token_stride;
      else
        stored_rows<T>(k, run, buffers.rotated);
      call.rotation.rotate_keys(from, call.rules, run.b, run.first, buffers.rotated);
      return rows_as<Storage>(row_block<T>{buffers.rotated, k.head_dim}, run.count, k.head_dim, buffers.wide);
    }
  return stored_rows<Storage>(k, run, buffers.wide);
}

/// Query heads [head, head + heads) of token i, rotated if the call rotates.
template <class T, class Rotation, class C>
row_block<T> query_rows(const attention_call<T, Rotation, C>& call, Index b, Index i, Index head, Index heads,
                        const row_buffers<T>& buffers) {
  // The tokens of a head may be far apart in memory. Processors prefetch only what is near the last read.
  constexpr Index ahead = 4;
  for (Index g = 0; g < heads && i + ahead < call.q.tokens; ++g)
    for (Index d = 0; d < call.q.head_dim; d += 64 / Index(sizeof(T)))
      prefetch_after(call.q.at(b, i + ahead, head + g), static_cast<std::uintptr_t>(d * Index(sizeof(T))));
  const head_view<const T> rows = {call.q.at(b, i, head), 1, 1, heads,
                                   call.q.head_dim,       0, 0, call.q.head_stride};
  if constexpr (Rotation::rotates)
    if (call.rotation.is_given()) {
      call.rotation.rotate_queries(rows, call.rules, b, i, buffers.rotated);
      return {buffers.rotated, call.q.head_dim};
    }
  return {rows.data, rows.head_stride};
}

/// Writes the channels of a row times `factor` into panels: channel d to to[d / width * panel_stride + d %
/// width]. If panel_stride is the width, the channels are contiguous. A finite channel whose product
/// overflows becomes the largest number of its sign.
template <class T>
void pack_scaled(const T* row, Index channels, arithmetic<T> factor, arithmetic<T>* to, Index panel_stride) {
  using A = arithmetic<T>;
  using P = packet<A>;
  constexpr Index width = panel_shape<A>::width;
  for (Index first = 0, here; first < channels; first += here, to += panel_stride) {
    const T* const from = row + first;
    here = panel_stride == width ? channels : (std::min)(width, channels - first);
    Index d = 0;
    if constexpr (std::is_same_v<loadable<T>, T>)
      for (; d + lanes<P> <= here; d += lanes<P>) store(to + d, multiply(load<P>(from + d), fill<P>(factor)));
    for (; d < here; ++d) to[d] = static_cast<A>(from[d]) * factor;
    if ((std::abs)(factor) > A(1))  // otherwise products of finite numbers are finite
      for (d = 0; d < here; ++d)
        if (is_finite(static_cast<double>(from[d]))) to[d] = saturated(to[d]);
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_ROWS_HPP
