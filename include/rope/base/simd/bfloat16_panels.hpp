// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_BFLOAT16_PANELS_HPP
#define ROPE_BASE_SIMD_BFLOAT16_PANELS_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <cstdint>
#include <cstring>  // std::memcpy
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/channels_16_bit.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/base/simd/quiet.hpp>
#include <rope/config.hpp>

/// The matrix products of attention where queries, keys, weights and values are bfloat16 and sums are float,
/// on packed operands as in simd/panels.hpp. What is multiplied and added along one axis is packed as pairs
/// of neighbours of that axis.

ROPE_DETAIL_QUIET_BEGIN

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The sums of a strip of queries with one panel, [rows][packets].
template <class P>
struct strip_of_pairs {
  using shape = panel_shape<float>;
  static constexpr int rows = shape::rows, packets = int(shape::width) / lanes<P>;
  P sum[std::size_t(rows * packets)];

  EIGEN_ALWAYS_INLINE strip_of_pairs() {
    for_each([&](auto r, auto n) { sum[r * packets + n] = fill<P>(0.0f); });
  }

  /// Calls body(row constant, packet constant) for each sum, unrolled.
  template <class Body>
  static EIGEN_ALWAYS_INLINE void for_each(const Body& body) {
    each_unrolled(body, std::make_index_sequence<std::size_t(rows * packets)>{});
  }

  /// sum[r][n] += numbers[r * step] . panel[n], of pairs
  EIGEN_ALWAYS_INLINE void multiply_add_row(const Eigen::bfloat16* numbers, Index step,
                                            const Eigen::bfloat16* panel) {
    unrolled(numbers, step, panel, std::make_index_sequence<std::size_t(rows)>{},
             std::make_index_sequence<std::size_t(packets)>{});
  }

 private:
  template <class Body, std::size_t... i>
  static EIGEN_ALWAYS_INLINE void each_unrolled(const Body& body, std::index_sequence<i...>) {
    (body(std::integral_constant<int, int(i) / packets>{}, std::integral_constant<int, int(i) % packets>{}),
     ...);
  }
  template <std::size_t... r, std::size_t... n>
  EIGEN_ALWAYS_INLINE void unrolled(const Eigen::bfloat16* numbers, Index step, const Eigen::bfloat16* panel,
                                    std::index_sequence<r...>, std::index_sequence<n...> all) {
    const pair_lanes<P> columns[] = {load_neighbours<P>(panel + Index(n) * 2 * lanes<P>)...};
    (row_unrolled<int(r)>(fill_neighbours<P>(numbers + Index(r) * step), columns, all), ...);
  }
  template <int row, std::size_t... n>
  EIGEN_ALWAYS_INLINE void row_unrolled(const pair_lanes<P>& number, const pair_lanes<P>* columns,
                                        std::index_sequence<n...>) {
    ((sum[row * packets + int(n)] = multiply_add_pairs<P>(number, columns[n], sum[row * packets + int(n)])),
     ...);
  }
};

/// scores[r * tile + n] = factor * sum_d queries[d][r] . keys[d][n] over pairs d of channels, for one panel.
///
/// \param queries  [pairs, rows] of pairs
/// \param keys     [pairs, width] of pairs
template <class P = pair_sums>  // compiled where it is called
EIGEN_DONT_INLINE void score_panel_of_pairs(const Eigen::bfloat16* queries, const Eigen::bfloat16* keys,
                                            Index count, float factor, float* scores) {
  using shape = panel_shape<float>;
  strip_of_pairs<P> sums;
  for (Index d = 0; d < count; ++d)
    sums.multiply_add_row(queries + d * 2 * shape::rows, 2, keys + d * 2 * shape::width);
  sums.for_each([&](auto r, auto n) {
    store(scores + r * shape::tile + n * lanes<P>, multiply(fill<P>(factor), sums.sum[r * sums.packets + n]));
  });
}

/// sums[r * width + c] = shrink[r] * sums[r * width + c] + sum_j weights[r][j] . values[j][c] over pairs j of
/// keys in [first, last), for one panel of channels. The sum over j starts at zero, as in value_panel.
///
/// \param weights  [rows, tile / 2] of pairs
/// \param values   [tile / 2, width] of pairs
/// \param sums     [rows, width]
template <class P = pair_sums>
EIGEN_DONT_INLINE void value_panel_of_pairs(const Eigen::bfloat16* weights, const Eigen::bfloat16* values,
                                            Index first, Index last, const float* shrink,
                                            float* sums_in_memory) {
  using shape = panel_shape<float>;
  strip_of_pairs<P> sums;
  for (Index j = first; j < last; ++j)
    sums.multiply_add_row(weights + 2 * j, shape::tile, values + j * 2 * shape::width);
  sums.for_each([&](auto r, auto n) {
    float* before = sums_in_memory + r * shape::width + n * lanes<P>;
    store(before, multiply_add(fill<P>(shrink[r]), load<P>(before), sums.sum[r * sums.packets + n]));
  });
}

/// Pair d of rows[n * row_stride ..], n in [0, count), to pair d * width + n of `packed`; zeros up to
/// `padded_count`, and for the channel behind the last one of an odd number.
template <class P = pair_sums>
void pack_pairs_transposed(const Eigen::bfloat16* rows, Index row_stride, Index count, Index padded_count,
                           Index depth, Eigen::bfloat16* packed) {
  constexpr Index L = lanes<P>, width = panel_shape<float>::width;
  const Eigen::bfloat16 zero = Eigen::bfloat16(0.0f);
  for (Index n = 0; n < padded_count; n += L) {
    const Index here = (std::min)(L, count - n), columns = (std::min)(L, padded_count - n);
    Index d = 0;
    if constexpr (L > 1)
      if (here == L)
        for (; 2 * (d + L) <= depth; d += L) {
          P block[std::size_t(L)];
          for (Index i = 0; i < L; ++i)
            block[i] = from_bits<P>(load_neighbours<P>(rows + (n + i) * row_stride + 2 * d));
          transpose(block);
          for (Index i = 0; i < L; ++i) store_bits(packed + ((d + i) * width + n) * 2, to_bits(block[i]));
        }
    for (; 2 * d < depth; ++d)
      for (Index i = 0; i < columns; ++i) {
        const Eigen::bfloat16* pair = rows + (n + i) * row_stride + 2 * d;
        Eigen::bfloat16* to = packed + (d * width + n + i) * 2;
        to[0] = i < here ? pair[0] : zero;
        to[1] = i < here && 2 * d + 1 < depth ? pair[1] : zero;
      }
  }
}

/// Pairs of one row to every `packed_stride`-th place; a zero behind an odd number of channels.
inline void pack_strided_pairs(const Eigen::bfloat16* row, Index depth, Eigen::bfloat16* packed,
                               Index packed_stride) {
  for (; depth > 1; depth -= 2, row += 2, packed += packed_stride)
    std::memcpy(static_cast<void*>(packed), row, sizeof(bfloat16_pair));
  if (depth == 1) {
    packed[0] = row[0];
    packed[1] = Eigen::bfloat16(0.0f);
  }
}

/// Where channel c of a panel of values is among its `width` places: the even ones first, then the odd ones,
/// which no lane has to move for.
inline Index place_of_channel(Index c) { return c % 2 * (panel_shape<float>::width / 2) + c / 2; }

/// Copies channels [0, depth) of two tokens that are neighbours into panels of pairs, `panel_stride` apart;
/// zeros behind them.
template <class P = pair_sums>
void pack_rows_of_pairs(const Eigen::bfloat16* even, const Eigen::bfloat16* odd, Index depth,
                        Eigen::bfloat16* packed, Index panel_stride) {
  constexpr Index L = lanes<P>, width = panel_shape<float>::width;
  const Eigen::bfloat16 zero = Eigen::bfloat16(0.0f);
  for (Index c = 0; c < depth; c += width, packed += panel_stride) {
    if constexpr (L > 1)
      if (depth - c >= width) {
        static_assert(width == 2 * L);
        const auto both = pairs_of_tokens<P>(load_neighbours<P>(even + c), load_neighbours<P>(odd + c));
        store_bits(packed, both.even);
        store_bits(packed + width, both.odd);
        continue;
      }
    for (Index i = 0; i < width; ++i) {
      Eigen::bfloat16* to = packed + 2 * place_of_channel(i);
      to[0] = c + i < depth ? even[c + i] : zero;
      to[1] = c + i < depth ? odd[c + i] : zero;
    }
  }
}

/// One half of the pairs of a token and its neighbour; the other half stays as it is.
///
/// \param half  0 for the even token, 1 for the odd one
inline void pack_row_of_pairs(const Eigen::bfloat16* row, Index half, Index depth, Eigen::bfloat16* packed,
                              Index panel_stride) {
  constexpr Index width = panel_shape<float>::width;
  for (Index c = 0; c < depth; c += width, packed += panel_stride)
    for (Index i = 0; i < width; ++i)
      packed[2 * place_of_channel(i) + half] = c + i < depth ? row[c + i] : Eigen::bfloat16(0.0f);
}

/// rounded[j] = weights[j] for the first `width` weights of a panel.
template <class P = pair_sums>
void round_panel(const float* weights, Eigen::bfloat16* to) {
  constexpr Index width = panel_shape<float>::width;
  if constexpr (lanes < pair_sums >> 1) {
    const auto both = load_even_odd<pair_sums>(weights);
    store_even_odd(to, both.even, both.odd);
  } else {
    for (Index j = 0; j < width; ++j) to[j] = rounded<Eigen::bfloat16>(weights[j]);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_BFLOAT16_PANELS_HPP
