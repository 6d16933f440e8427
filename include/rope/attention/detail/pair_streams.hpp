// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PAIR_STREAMS_HPP
#define ROPE_ATTENTION_DETAIL_PAIR_STREAMS_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <cstdint>
#include <utility>  // std::index_sequence

#include <rope/attention/detail/prefetch.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The kernels of streams.hpp for types that are multiplied in pairs. In each step a lane multiplies two
/// channels of a key, or one channel of two values.
///
/// Products in float would be slower (benchmark row int8_products_beside_bfloat16/1x4096x32+8x128: one query,
/// 4096 keys, 32 query heads and 8 key heads of 128 channels).
///
/// `Products` is bfloat16_products or integer_products. Its `number` is the type of queries and weights,
/// `stored` the type of keys and values, and `sum` the type of sums of their products.

namespace rope::inline ROPE_ABI::detail {

/// scores[r * tile + n] = sum_d queries[r * depth + d] * keys[n * stride + d], for rows x keys scores, like
/// score_blocks.
template <class Products, int rows, std::size_t... n>
EIGEN_ALWAYS_INLINE void score_block_of_pairs(const typename Products::number* queries,
                                              row_block<typename Products::stored> keys, Index depth,
                                              typename Products::sum* scores, stream_ahead* ahead,
                                              std::uintptr_t again, std::index_sequence<n...> each_key) {
  using stored = typename Products::stored;
  using sums = typename Products::sums;
  using pairs = typename Products::pairs;
  constexpr Index L = Products::lanes, line = line_bytes / Index(sizeof(stored)), count = sizeof...(n);
  constexpr std::size_t size = std::size_t(rows) * sizeof...(n),
                        padded = std::size_t(pieces_of(Index(size), L) * L);
  sums sum[padded];
  unrolled<padded>([&](auto i) ROPE_DETAIL_INLINE_LAMBDA { sum[i] = Products::zero(); });
  // GCC would call these lambdas, because they are used several times, and it keeps sums in memory across a
  // call. So they are always inlined.
  const auto multiply = [&](Index d, const auto& load_from) ROPE_DETAIL_INLINE_LAMBDA {
    if constexpr (rows == 1) {  // for the reason that score_packet gives
      const pairs query = in_register(load_from(queries + d));
      ((sum[n] = Products::multiply_add(query, load_from(keys.rows + Index(n) * keys.stride + d), sum[n])),
       ...);
    } else {
      const pairs key[] = {in_register(load_from(keys.rows + Index(n) * keys.stride + d))...};
      unrolled<std::size_t(rows)>([&](auto r) ROPE_DETAIL_INLINE_LAMBDA {
        const pairs query = in_register(load_from(queries + Index(r) * depth + d));
        sums* of_row = sum + r * sizeof...(n);
        ((of_row[n] = Products::multiply_add(query, key[n], of_row[n])), ...);
      });
    }
  };
  const auto whole = [](const auto* from) ROPE_DETAIL_INLINE_LAMBDA { return Products::load(from); };
  std::uintptr_t next = 0;
  if (ahead != nullptr) next = ahead->take(count * depth * Index(sizeof(stored)));
  Index d = 0;
  for (; d + line <= depth; d += line) {
    if (ahead != nullptr) prefetch_lines(next, again, keys, each_key);
    for (Index p = 0; p < line; p += 2 * L) multiply(d + p, whole);
  }
  for (; d + 2 * L <= depth; d += 2 * L) multiply(d, whole);
  if (d < depth) multiply(d, [&](const auto* from) { return load_first_pairs<Products>(from, depth - d); });

  typename Products::sum totals[padded];
  unrolled<padded / std::size_t(L)>([&](auto i) ROPE_DETAIL_INLINE_LAMBDA {
    sums group[std::size_t(L)];
    unrolled<std::size_t(L)>([&](auto j)
                                 ROPE_DETAIL_INLINE_LAMBDA { group[j] = sum[i * std::size_t(L) + j]; });
    Products::store_sums_of_lanes(totals + i * std::size_t(L), group);
  });
  for (Index r = 0; r < rows; ++r)
    std::copy_n(totals + r * count, count, scores + r * panel_shape<float>::tile);
}

/// Computes the scores of `rows` queries with keys [0, count), as score_rows does.
///
/// \param queries  [rows, depth]
template <class Products, int rows>
EIGEN_DONT_INLINE void score_rows_of_pairs(const typename Products::number* queries,
                                           row_block<typename Products::stored> keys, Index count,
                                           Index depth, typename Products::sum* scores, stream_ahead* ahead) {
  constexpr int block = stream_sums / rows;
  Index n = 0;
  repeated_prefetch again = {};
  if (ahead != nullptr) again = ahead->again(keys, count);
  const auto score = [&]<std::size_t... key>(std::index_sequence<key...> each_key) ROPE_DETAIL_INLINE_LAMBDA {
    score_block_of_pairs<Products, rows>(queries, keys.from_row(n), depth, scores + n, ahead, again.address,
                                         each_key);
    again.advance(Index(sizeof...(key)));
    n += Index(sizeof...(key));
  };
  while (n + block <= count) score(std::make_index_sequence<std::size_t(block)>{});
  while (n < count) score(std::index_sequence<0>{});
}

/// Values of a tile in pairs of tokens. Token 2 i is always paired with token 2 i + 1, even if a run of
/// tokens begins between them, so the order of sums does not depend on runs. If only one token of a pair is
/// in the run, it is paired with zeros.
template <class Products>
struct value_pairs {
  using number = typename Products::number;
  using stored = typename Products::stored;

  row_block<stored> rows;
  Index first, last;      // tokens of the tile
  const number* weights;  // [rows, tile], of the whole tile; zero for missing partners

  value_pairs from_row(Index r) const { return {rows, first, last, weights + r * panel_shape<float>::tile}; }
  value_pairs from_channel(Index c) const { return {{rows.rows + c, rows.stride}, first, last, weights}; }
  const stored* at(Index token) const { return rows.rows + (token - first) * rows.stride; }
};

/// sums[r * sum_stride + i] += sum_j weights[r][j] * values[j][i] for `blocks` pairs of packets of channels.
///
/// \param load  load(from, n): the channels of block n in a row of values
template <int rows, int blocks, class Products, class Load>
EIGEN_ALWAYS_INLINE void value_block_of_pairs(const value_pairs<Products>& values,
                                              typename Products::sum* sums_in_memory, Index sum_stride,
                                              const Load& load, stream_ahead* ahead,
                                              repeated_prefetch again) {
  using stored = typename Products::stored;
  using pairs = typename Products::pairs;
  using sums = typename Products::sums;
  constexpr Index width = 2 * Products::lanes, bytes = blocks * width * Index(sizeof(stored));
  sums sum[std::size_t(rows * blocks * 2)];
  // place(i) is the place in `sum` of the even sums of row i % rows and block i / rows. The odd sums of this
  // row and block are `rows` places later.
  const auto place = [](std::size_t i) { return i / rows * 2 * rows + i % rows; };
  const auto in_memory = [&](std::size_t i) {
    return sums_in_memory + Index(i % rows) * sum_stride + Index(i / rows) * width;
  };
  unrolled<std::size_t(rows * blocks)>([&](auto i) {
    const auto both = Products::load_sums(in_memory(i));
    sum[place(i)] = both.even;
    sum[place(i) + rows] = both.odd;
  });
  const stored zeros[std::size_t(blocks * width)] = {};
  for (Index first = values.first / 2 * 2, last; first < values.last; first = last) {
    const bool has_even = first >= values.first, has_odd = first + 1 < values.last;
    last = has_even && has_odd ? values.last / 2 * 2 : first + 2;
    const stored *even = has_even ? values.at(first) : zeros, *odd = has_odd ? values.at(first + 1) : zeros;
    for_tokens<bytes, 2>(first, last, ahead != nullptr, ahead, again, [&](Index j) ROPE_DETAIL_INLINE_LAMBDA {
      const std::ptrdiff_t row = (j - first) * values.rows.stride;
      unrolled<std::size_t(blocks)>([&](auto n) ROPE_DETAIL_INLINE_LAMBDA {
        const auto tokens =
            Products::of_tokens(in_register(load(even + row, n)), in_register(load(odd + row, n)));
        const pairs of_even = in_register(tokens.even), of_odd = in_register(tokens.odd);
        // Each weight is read again for each block. With all weights in registers, GCC would keep some of
        // them and of the sums in memory.
        unrolled<std::size_t(rows)>([&](auto r) ROPE_DETAIL_INLINE_LAMBDA {
          const pairs weight = Products::fill(values.weights + Index(r) * panel_shape<float>::tile + j);
          sums *even_sum = sum + 2 * n * rows + r, *odd_sum = even_sum + rows;
          *even_sum = Products::multiply_add(weight, of_even, *even_sum);
          *odd_sum = Products::multiply_add(weight, of_odd, *odd_sum);
        });
      });
    });
  }
  unrolled<std::size_t(rows * blocks)>(
      [&](auto i) { Products::store_sums(in_memory(i), sum[place(i)], sum[place(i) + rows]); });
}

/// Adds weighted values to the sums of `rows` queries, for all channels, like value_rows.
///
/// \param sums  [rows, channels]
template <int rows, class Products>
EIGEN_DONT_INLINE void value_rows_of_pairs(const value_pairs<Products>& values, Index channels,
                                           typename Products::sum* sums, stream_ahead* ahead) {
  using stored = typename Products::stored;
  constexpr int packets = stream_sums / rows < 8 ? stream_sums / rows : 8, blocks = packets / 2;
  constexpr Index width = 2 * Products::lanes;
  const repeated_prefetch first =
      ahead != nullptr ? ahead->again(values.rows, values.last - values.first) : repeated_prefetch{};
  const auto again = [&](Index c) { return first.after(c * Index(sizeof(stored))); };
  const auto whole = [](const stored* from, int n)
                         ROPE_DETAIL_INLINE_LAMBDA { return Products::load(from + n * width); };
  Index c = 0;
  for (; c + blocks * width <= channels; c += blocks * width)
    value_block_of_pairs<rows, blocks>(values.from_channel(c), sums + c, channels, whole, ahead, again(c));
  for (; c + width <= channels; c += width)
    value_block_of_pairs<rows, 1>(values.from_channel(c), sums + c, channels, whole, ahead, again(c));
  if (c == channels) return;
  const Index rest = channels - c;
  typename Products::sum padded[std::size_t(rows * width)] = {};
  for (Index r = 0; r < rows; ++r) std::copy_n(sums + r * channels + c, rest, padded + r * width);
  value_block_of_pairs<rows, 1>(
      values.from_channel(c), padded, width,
      [&](const stored* from, int) { return load_first_pairs<Products>(from, rest); }, ahead, again(c));
  for (Index r = 0; r < rows; ++r) std::copy_n(padded + r * width, rest, sums + r * channels + c);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PAIR_STREAMS_HPP
