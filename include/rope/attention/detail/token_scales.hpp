// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_TOKEN_SCALES_HPP
#define ROPE_ATTENTION_DETAIL_TOKEN_SCALES_HPP

#include <algorithm>  // std::min
#include <cstddef>

#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Scales of keys and values that are integers. Where these stream from memory, or are multiplied as
/// integers, a product with a scale per token takes the place of one per channel: scores are multiplied by
/// the scales of the keys, weights, once their sum is formed, by those of the values.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether rows that are read as `Storage` are still to be multiplied by their scales.
template <class Storage>
inline constexpr bool scales_apart = is_quantized<Storage>;

/// Calls visit(j, scales, stride, count) for runs of keys [j, j + count) of a tile, whose scales are at
/// regular strides.
template <class C, class Visit>
void for_each_run_of_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys,
                            const Visit& visit) {
  for (Index j = keys.first, count; j < keys.last; j += count) {
    count = (std::min)(keys.last - j, x.run_from(begin + j));
    visit(j, x.scale_at(b, begin + j, head), x.scale_stride(), count);
  }
}

/// to[j] = the scale that the integers of key j are multiplied by, for keys of a tile that begins with token
/// `begin`.
template <class A, class C>
void read_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys, A* to) {
  for_each_run_of_scales(x, b, head, begin, keys,
                         [&](Index j, const float* scales, Index stride, Index count) {
                           for (Index n = 0; n < count; ++n)
                             to[j + n] = static_cast<A>(usable_scale(scales[n * stride]));
                         });
}

/// rows[r * tile + j] *= scale of key j for keys of a tile that begins with token `begin`.
template <class A, class C>
void multiply_by_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys, A* rows,
                        Index row_count) {
  using P = packet<A>;
  constexpr Index tile = panel_shape<A>::tile, L = lanes<P>;
  A factors[std::size_t(tile)];
  read_scales(x, b, head, begin, keys, factors);
  for (Index r = 0; r < row_count; ++r) {
    A* row = rows + r * tile;
    Index j = keys.first;
    for (; j + L <= keys.last; j += L) store(row + j, multiply(load<P>(row + j), load<P>(factors + j)));
    for (; j < keys.last; ++j) row[j] *= factors[j];
  }
}

/// Whether the scales of all these keys are so far from infinite that every channel of theirs, at most 128
/// times its scale, is a number.
template <class C>
bool has_finite_scales(const token_source<C>& x, Index b, Index head, Index begin, tile_range keys) {
  bool finite = true;
  for_each_run_of_scales(x, b, head, begin, keys,
                         [&](Index /*j*/, const float* scales, Index stride, Index count) {
                           for (Index n = 0; n < count; ++n)
                             finite = finite && is_below(scales[n * stride], 0x1p120f);
                         });
  return finite;
}

/// Rows of tokens [first, first + count), at regular strides, of one head as numbers, [count, head_dim].
template <class A, class C>
void dequantize_rows(const token_source<C>& x, Index b, Index first, Index count, Index head, A* to) {
  const C* rows = x.at(b, first, head);
  const float* scales = x.scale_at(b, first, head);
  for (Index n = 0; n < count; ++n)
    dequantize_channels(rows + n * x.token_stride, x.head_dim,
                        static_cast<A>(usable_scale(scales[n * x.scale_stride()])), to + n * x.head_dim);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_TOKEN_SCALES_HPP
