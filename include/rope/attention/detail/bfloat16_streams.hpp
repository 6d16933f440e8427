// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_BFLOAT16_STREAMS_HPP
#define ROPE_ATTENTION_DETAIL_BFLOAT16_STREAMS_HPP

#include <algorithm>  // std::copy_n, std::min
#include <cstddef>
#include <cstdint>
#include <utility>  // std::index_sequence

#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The streams of streams.hpp with queries and weights of bfloat16: a lane takes two channels of a key, or
/// one channel of two values, per step.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// scores[r * tile + n] = factor * sum_d queries[r * depth + d] * keys[n * stride + d], rows x keys of them,
/// as score_block.
template <int rows, std::size_t... n>
EIGEN_ALWAYS_INLINE void score_block_of_pairs(const Eigen::bfloat16* queries, row_block<Eigen::bfloat16> keys,
                                              Index depth, float factor, float* scores, stream_ahead* ahead,
                                              std::uintptr_t again, std::index_sequence<n...>) {
  using P = pair_sums;
  constexpr Index L = lanes<P>, line = line_bytes / 2, count = sizeof...(n);
  constexpr std::size_t size = std::size_t(rows) * sizeof...(n),
                        padded = (size + std::size_t(L) - 1) / std::size_t(L) * std::size_t(L);
  P sums[padded];
  for (std::size_t i = 0; i < padded; ++i) sums[i] = fill<P>(0.0f);
  const auto multiply_loaded = [&](Index d, const auto& load_from) {
    const pair_lanes<P> key[] = {in_register(load_from(keys.rows + Index(n) * keys.stride + d))...};
    const auto row = [&]<std::size_t... r>(std::index_sequence<r...>) {
      const auto one = [&](const pair_lanes<P>& query, P* of_row) {
        ((of_row[n] = multiply_add_pairs<P>(query, key[n], of_row[n])), ...);
      };
      (one(in_register(load_from(queries + Index(r) * depth + d)), sums + r * sizeof...(n)), ...);
    };
    row(std::make_index_sequence<std::size_t(rows)>{});
  };
  const auto multiply = [&](Index d) {
    multiply_loaded(d, [](const Eigen::bfloat16* from) { return load_neighbours<P>(from); });
  };
  std::uintptr_t next = 0;
  if (ahead != nullptr) next = ahead->take(count * depth * 2);
  Index d = 0;
  for (; d + line <= depth; d += line) {
    if (ahead != nullptr) {
      (prefetch_line(next + n * line_bytes), ...);
      (prefetch_line(again + static_cast<std::uintptr_t>(Index(n) * keys.stride * 2)), ...);
      next += count * line_bytes;
      again += line_bytes;
    }
    for (Index p = 0; p < line; p += 2 * L) multiply(d + p);
  }
  for (; d + 2 * L <= depth; d += 2 * L) multiply(d);
  if (d < depth)
    multiply_loaded(d,
                    [&](const Eigen::bfloat16* from) { return load_first_neighbours<P>(from, depth - d); });

  float totals[padded];
  const P factors = fill<P>(factor);
  for (std::size_t i = 0; i < padded; i += std::size_t(L)) {
    P group[std::size_t(L)];
    for (std::size_t j = 0; j < std::size_t(L); ++j) group[j] = sums[i + j];
    store(totals + i, detail::multiply(factors, sums_of_lanes(group)));
  }
  for (Index r = 0; r < rows; ++r)
    std::copy_n(totals + r * count, count, scores + r * panel_shape<float>::tile);
}

/// Scores of `rows` queries with keys [0, count), as score_rows.
///
/// \param queries  [rows, depth]
template <int rows>
EIGEN_DONT_INLINE void score_rows_of_pairs(const Eigen::bfloat16* queries, row_block<Eigen::bfloat16> keys,
                                           Index count, Index depth, float factor, float* scores,
                                           stream_ahead* ahead) {
  constexpr int block = stream_sums / rows;
  Index n = 0;
  requests_again again = {};
  if (ahead != nullptr) again = ahead->again(keys, count, 0);
  const auto score = [&]<std::size_t... key>(std::index_sequence<key...> each_key) {
    score_block_of_pairs<rows>(queries, row_block<Eigen::bfloat16>{keys.rows + n * keys.stride, keys.stride},
                               depth, factor, scores + n, ahead, again.address, each_key);
    again.advance(Index(sizeof...(key)));
    n += Index(sizeof...(key));
  };
  while (n + block <= count) score(std::make_index_sequence<std::size_t(block)>{});
  while (n < count) score(std::index_sequence<0>{});
}

/// Values of tokens that are neighbours in a tile, two by two: token 2 i meets token 2 i + 1 wherever a part
/// of the tile begins, so that the order of sums does not depend on the parts. One without its neighbour
/// meets zeros.
struct value_pairs {
  row_block<Eigen::bfloat16> rows;
  Index first, last;               // tokens of the tile
  const Eigen::bfloat16* weights;  // [rows, weight_stride], of the whole tile; zero beside tokens without one
  Index weight_stride;

  value_pairs from_row(Index r) const {
    return {rows, first, last, weights + r * weight_stride, weight_stride};
  }
  value_pairs from_channel(Index c) const {
    return {{rows.rows + c, rows.stride}, first, last, weights, weight_stride};
  }
  const Eigen::bfloat16* at(Index token) const { return rows.rows + (token - first) * rows.stride; }
};

/// sums[r * sum_stride + i] += sum_j weights[r][j] * values[j][i] for the channels of `blocks` times a pair
/// of packets.
///
/// \param load  load(from, n): the neighbours of block n in a row of values
template <int rows, int blocks, class Load>
EIGEN_ALWAYS_INLINE void value_block_of_pairs(const value_pairs& values, float* sums_in_memory,
                                              Index sum_stride, const Load& load, stream_ahead* ahead,
                                              requests_again again) {
  using P = pair_sums;
  constexpr Index width = 2 * lanes<P>;
  constexpr auto bytes = static_cast<std::uintptr_t>(blocks * width * 2);
  P sums[std::size_t(rows * blocks * 2)];
  for (int n = 0; n < blocks; ++n)
    for (int r = 0; r < rows; ++r) {
      const auto both = load_even_odd<P>(sums_in_memory + r * sum_stride + n * width);
      sums[2 * n * rows + r] = both.even;
      sums[(2 * n + 1) * rows + r] = both.odd;
    }
  const auto multiply = [&]<std::size_t... r>(Index even_token, const auto& load_even, const auto& load_odd,
                                              std::index_sequence<r...>) {
    const pair_lanes<P> weight[] = {
        in_register(fill_neighbours<P>(values.weights + Index(r) * values.weight_stride + even_token))...};
    for (int n = 0; n < blocks; ++n) {
      const token_pairs<P> tokens = pairs_of_tokens<P>(in_register(load_even(n)), in_register(load_odd(n)));
      P *even = sums + 2 * n * rows, *odd = even + rows;
      ((even[r] = multiply_add_pairs<P>(weight[r], tokens.even, even[r])), ...);
      ((odd[r] = multiply_add_pairs<P>(weight[r], tokens.odd, odd[r])), ...);
    }
  };
  const auto request = [&](int tokens) {
    for (int token = 0; ahead != nullptr && token < tokens; ++token) {
      const std::uintptr_t next = ahead->take(Index(bytes));
      for (std::uintptr_t line = 0; line < bytes; line += line_bytes) {
        prefetch_line(next + line);
        prefetch_line(again.address + line);
      }
      again.advance(1);
    }
  };
  constexpr auto each_row = std::make_index_sequence<std::size_t(rows)>{};
  const auto token = [&](Index j) { return [&, j](int n) { return load(values.at(j), n); }; };
  const auto nothing = [&](int) { return load_first_neighbours<P>(values.rows.rows, 0); };
  Index j = values.first;
  if (j % 2 == 1) {
    request(1);
    multiply(j - 1, nothing, token(j), each_row);
    ++j;
  }
  for (; j + 2 <= values.last; j += 2) {
    request(2);
    multiply(j, token(j), token(j + 1), each_row);
  }
  if (j < values.last) {
    request(1);
    multiply(j, token(j), nothing, each_row);
  }
  for (int n = 0; n < blocks; ++n)
    for (int r = 0; r < rows; ++r)
      store_alternating(sums_in_memory + r * sum_stride + n * width, sums[2 * n * rows + r],
                        sums[(2 * n + 1) * rows + r]);
}

/// Weighted values of `rows` queries, all channels, as value_rows.
///
/// \param sums  [rows, channels]
template <int rows>
EIGEN_DONT_INLINE void value_rows_of_pairs(const value_pairs& values, Index channels, float* sums,
                                           stream_ahead* ahead) {
  using P = pair_sums;
  constexpr int packets = stream_sums / rows < 8 ? stream_sums / rows : 8, blocks = packets / 2;
  constexpr Index width = 2 * lanes<P>;
  const auto again = [&](Index c) {
    return ahead != nullptr ? ahead->again(values.rows, values.last - values.first, c) : requests_again{};
  };
  const auto whole = [](const Eigen::bfloat16* from, int n) { return load_neighbours<P>(from + n * width); };
  Index c = 0;
  for (; c + blocks * width <= channels; c += blocks * width)
    value_block_of_pairs<rows, blocks>(values.from_channel(c), sums + c, channels, whole, ahead, again(c));
  for (; c + width <= channels; c += width)
    value_block_of_pairs<rows, 1>(values.from_channel(c), sums + c, channels, whole, ahead, again(c));
  if (c == channels) return;
  const Index rest = channels - c;
  float padded[std::size_t(rows * width)] = {};
  for (Index r = 0; r < rows; ++r) std::copy_n(sums + r * channels + c, rest, padded + r * width);
  value_block_of_pairs<rows, 1>(
      values.from_channel(c), padded, width,
      [&](const Eigen::bfloat16* from, int) { return load_first_neighbours<P>(from, rest); }, ahead,
      again(c));
  for (Index r = 0; r < rows; ++r) std::copy_n(padded + r * width, rest, sums + r * channels + c);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_BFLOAT16_STREAMS_HPP
