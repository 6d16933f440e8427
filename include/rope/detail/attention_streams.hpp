// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_STREAMS_HPP
#define ROPE_DETAIL_ATTENTION_STREAMS_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <cstdint>
#include <utility>  // std::index_sequence

#include <rope/config.hpp>
#include <rope/detail/attention_panels.hpp>
#include <rope/detail/attention_rows.hpp>
#include <rope/detail/packet.hpp>

/// The matrix products of attention of few queries, which are bound by memory: keys and values are read once,
/// from where they are, and asked for ahead of time.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Sums that a stream keeps in registers.
inline constexpr int stream_sums = registers >= 32 ? 16 : 8;

/// Keys ahead of the one in work whose cache lines are asked for.
inline constexpr Index keys_ahead = 12;

/// scores[r * tile + n] = sum_d queries[r * query_stride + d] * keys[n * stride + d] for rows x count keys.
///
/// \param ahead  bytes ahead of a load that are asked for; 0: the keys are in the cache
template <class A, int rows, int count, class K>
EIGEN_ALWAYS_INLINE void score_block(const A* queries, Index query_stride, row_block<K> keys, Index depth,
                                     prefetch_distance ahead, A* scores) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  constexpr std::size_t size = std::size_t(rows * count);
  P sums[size];
  for (std::size_t i = 0; i < size; ++i) sums[i] = fill<P>(A(0));
  Index d = 0;
  const auto step = [&]<std::size_t... r, std::size_t... n>(std::index_sequence<r...>,
                                                            std::index_sequence<n...>) {
    const P x[] = {load<P>(keys.rows + Index(n) * keys.stride + d)...};
    if (ahead != 0) (prefetch_after(keys.rows + Index(n) * keys.stride + d, ahead), ...);
    const auto row = [&](auto number) {
      const P y = load<P>(queries + number() * query_stride + d);
      ((sums[std::size_t(number() * count) + n] =
            multiply_add(x[n], y, sums[std::size_t(number() * count) + n])),
       ...);
    };
    (row(std::integral_constant<int, int(r)>{}), ...);
  };
  for (; d + L <= depth; d += L)
    step(std::make_index_sequence<std::size_t(rows)>{}, std::make_index_sequence<std::size_t(count)>{});

  A totals[size];
  if constexpr (size % std::size_t(L) == 0) {
    for (std::size_t i = 0; i < size; i += std::size_t(L)) {
      P group[std::size_t(L)];
      for (std::size_t j = 0; j < std::size_t(L); ++j) group[j] = sums[i + j];
      store(totals + i, sums_of_lanes(group));
    }
  } else {
    for (std::size_t i = 0; i < size; ++i) totals[i] = sum_of_lanes(sums[i]);
  }
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < count; ++n) {
      A total = totals[r * count + n];
      for (Index c = d; c < depth; ++c)
        total += queries[r * query_stride + c] * static_cast<A>(keys.rows[n * keys.stride + c]);
      scores[r * panel_shape<A>::tile + n] = total;
    }
}

/// Scores of `rows` queries with keys [0, count).
template <class A, int rows, class K>
EIGEN_DONT_INLINE void score_rows(const A* queries, Index query_stride, row_block<K> keys, Index count,
                                  Index depth, prefetch_distance ahead, A* scores) {
  constexpr int block = stream_sums / rows;
  Index n = 0;
  for (; n + block <= count; n += block)
    score_block<A, rows, block>(queries, query_stride, row_block<K>{keys.rows + n * keys.stride, keys.stride},
                                depth, ahead, scores + n);
  for (; n < count; ++n)
    score_block<A, rows, 1>(queries, query_stride, row_block<K>{keys.rows + n * keys.stride, keys.stride},
                            depth, ahead, scores + n);
}

/// sums[r * sum_stride + c] += sum_j weights[r * tile + j] * values[j * stride + c] for `packets` packets of
/// channels.
template <class A, int rows, int packets, class V>
EIGEN_ALWAYS_INLINE void value_block(const A* weights, row_block<V> values, Index count,
                                     prefetch_distance ahead, A* sums_in_memory, Index sum_stride) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  P sums[std::size_t(rows * packets)];
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < packets; ++n)
      sums[r * packets + n] = load<P>(sums_in_memory + r * sum_stride + n * L);
  const V* value = values.rows;
  const auto step = [&]<std::size_t... r, std::size_t... n>(Index j, std::index_sequence<r...>,
                                                            std::index_sequence<n...>) {
    const P x[] = {load<P>(value + Index(n) * L)...};
    if (ahead != 0) (prefetch_after(value + Index(n) * L, ahead), ...);
    const auto row = [&](auto number) {
      const P weight = fill<P>(weights[number() * panel_shape<A>::tile + j]);
      ((sums[std::size_t(number() * packets) + n] =
            multiply_add(weight, x[n], sums[std::size_t(number() * packets) + n])),
       ...);
    };
    (row(std::integral_constant<int, int(r)>{}), ...);
  };
  for (Index j = 0; j < count; ++j, value += values.stride)
    step(j, std::make_index_sequence<std::size_t(rows)>{}, std::make_index_sequence<std::size_t(packets)>{});
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < packets; ++n) store(sums_in_memory + r * sum_stride + n * L, sums[r * packets + n]);
}

/// Weighted values of `rows` queries, all channels.
template <class A, int rows, class V>
EIGEN_DONT_INLINE void value_rows(const A* weights, row_block<V> values, Index count, Index channels,
                                  prefetch_distance ahead, A* sums, Index sum_stride) {
  constexpr int packets = stream_sums / rows < 8 ? stream_sums / rows : 8;
  constexpr Index L = lanes<packet<A>>;
  Index c = 0;
  for (; c + packets * L <= channels; c += packets * L)
    value_block<A, rows, packets>(weights, row_block<V>{values.rows + c, values.stride}, count, ahead,
                                  sums + c, sum_stride);
  for (; c + L <= channels; c += L)
    value_block<A, rows, 1>(weights, row_block<V>{values.rows + c, values.stride}, count, ahead, sums + c,
                            sum_stride);
  for (; c < channels; ++c)
    for (int r = 0; r < rows; ++r)
      for (Index j = 0; j < count; ++j)
        sums[r * sum_stride + c] +=
            weights[r * panel_shape<A>::tile + j] * static_cast<A>(values.rows[j * values.stride + c]);
}

/// Calls body(rows constant, first row) for groups of four, two and one of `rows` rows.
template <class Body>
void for_groups_of_rows(Index rows, const Body& body) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) body(std::integral_constant<int, 4>{}, r);
  for (; r + 2 <= rows; r += 2) body(std::integral_constant<int, 2>{}, r);
  for (; r < rows; ++r) body(std::integral_constant<int, 1>{}, r);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_STREAMS_HPP
