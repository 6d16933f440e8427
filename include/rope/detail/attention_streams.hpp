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
#include <rope/detail/packet_math.hpp>

/// The matrix products of attention of few queries, which are bound by memory: keys and values are read once,
/// from where they are, in the order of memory. Four keys read side by side are four streams, and the
/// processor then fetches ahead at 0.4 of the speed of one; prefetch instructions make one stream slower, not
/// faster.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Sums that a stream keeps in registers.
inline constexpr int stream_sums = registers >= 32 ? 16 : 8;

/// Bytes ahead of a load that are asked for.
inline constexpr std::uintptr_t stream_ahead = 8192;

/// sums[first + i] += factors[i] * x for i in [0, count), unrolled; factor(i) loads a factor.
template <int first, class P, class Factor, std::size_t... i>
EIGEN_ALWAYS_INLINE void multiply_add_each(const P& x, P* sums, const Factor& factor,
                                           std::index_sequence<i...>) {
  ((sums[first + int(i)] = multiply_add(x, factor(Index(i)), sums[first + int(i)])), ...);
}

/// One key of score_block: all its channels before those of the next one.
template <int n, int rows, class P, class A, class K>
EIGEN_ALWAYS_INLINE void score_key(const A* queries, Index query_stride, const K* key, Index depth, P* sums) {
  for (Index d = 0; d + lanes<P> <= depth; d += lanes<P>) {
    prefetch_after<false>(key + d, stream_ahead);
    multiply_add_each<n * rows>(
        in_register(load<P>(key + d)), sums, [&](Index r) { return load<P>(queries + r * query_stride + d); },
        std::make_index_sequence<std::size_t(rows)>{});
  }
}

/// scores[r * tile + n] = sum_d queries[r * query_stride + d] * keys[n * stride + d] for rows x count keys.
template <class A, int rows, class K, std::size_t... n>
EIGEN_ALWAYS_INLINE void score_block(const A* queries, Index query_stride, row_block<K> keys, Index depth,
                                     A* scores, std::index_sequence<n...>) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  constexpr std::size_t size = std::size_t(rows) * sizeof...(n);
  P sums[size];
  for (std::size_t i = 0; i < size; ++i) sums[i] = fill<P>(A(0));
  (score_key<int(n), rows>(queries, query_stride, keys.rows + Index(n) * keys.stride, depth, sums), ...);

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
  for (Index d = depth / L * L; d < depth; ++d)
    for (Index i = 0; i < Index(size); ++i)
      totals[i] +=
          queries[i % rows * query_stride + d] * static_cast<A>(keys.rows[i / rows * keys.stride + d]);
  for (Index i = 0; i < Index(size); ++i) scores[i % rows * panel_shape<A>::tile + i / rows] = totals[i];
}

/// Scores of `rows` queries with keys [0, count).
template <class A, int rows, class K>
EIGEN_DONT_INLINE void score_rows(const A* queries, Index query_stride, row_block<K> keys, Index count,
                                  Index depth, A* scores) {
  constexpr int block = stream_sums / rows;
  Index n = 0;
  for (; n + block <= count; n += block)
    score_block<A, rows>(queries, query_stride, row_block<K>{keys.rows + n * keys.stride, keys.stride}, depth,
                         scores + n, std::make_index_sequence<std::size_t(block)>{});
  for (; n < count; ++n)
    score_block<A, rows>(queries, query_stride, row_block<K>{keys.rows + n * keys.stride, keys.stride}, depth,
                         scores + n, std::index_sequence<0>{});
}

/// sums[r * sum_stride + c] += sum_j weights[r * tile + j] * values[j * stride + c] for `packets` packets of
/// channels.
template <class A, int rows, int packets, class V>
EIGEN_ALWAYS_INLINE void value_block(const A* weights, row_block<V> values, Index count, A* sums_in_memory,
                                     Index sum_stride) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  P sums[std::size_t(rows * packets)];
  for (int n = 0; n < packets; ++n)
    for (int r = 0; r < rows; ++r) sums[n * rows + r] = load<P>(sums_in_memory + r * sum_stride + n * L);
  const V* value = values.rows;
  const auto step = [&]<std::size_t... r, std::size_t... n>(Index j, std::index_sequence<r...> all,
                                                            std::index_sequence<n...>) {
    const P weight[] = {in_register(fill<P>(weights[Index(r) * panel_shape<A>::tile + j]))...};
    if (rows > 1) (prefetch_after<false>(value + Index(n) * L, stream_ahead), ...);
    (multiply_add_each<int(n) * rows>(
         in_register(load<P>(value + Index(n) * L)), sums, [&](Index row) { return weight[row]; }, all),
     ...);
  };
  for (Index j = 0; j < count; ++j, value += values.stride)
    step(j, std::make_index_sequence<std::size_t(rows)>{}, std::make_index_sequence<std::size_t(packets)>{});
  for (int n = 0; n < packets; ++n)
    for (int r = 0; r < rows; ++r) store(sums_in_memory + r * sum_stride + n * L, sums[n * rows + r]);
}

/// Weighted values of `rows` queries, all channels.
template <class A, int rows, class V>
EIGEN_DONT_INLINE void value_rows(const A* weights, row_block<V> values, Index count, Index channels, A* sums,
                                  Index sum_stride) {
  constexpr int packets = stream_sums / rows < 8 ? stream_sums / rows : 8;
  constexpr Index L = lanes<packet<A>>;
  Index c = 0;
  for (; c + packets * L <= channels; c += packets * L)
    value_block<A, rows, packets>(weights, row_block<V>{values.rows + c, values.stride}, count, sums + c,
                                  sum_stride);
  for (; c + L <= channels; c += L)
    value_block<A, rows, 1>(weights, row_block<V>{values.rows + c, values.stride}, count, sums + c,
                            sum_stride);
  for (; c < channels; ++c)
    for (int r = 0; r < rows; ++r)
      for (Index j = 0; j < count; ++j)
        sums[r * sum_stride + c] +=
            weights[r * panel_shape<A>::tile + j] * static_cast<A>(values.rows[j * values.stride + c]);
}

/// Calls body(rows constant, first row) for groups of `largest` (four or two), two and one of `rows` rows.
template <int largest, class Body>
void for_groups_of_rows(Index rows, const Body& body) {
  Index r = 0;
  for (; r + largest <= rows; r += largest) body(std::integral_constant<int, largest>{}, r);
  for (; r + 2 <= rows; r += 2) body(std::integral_constant<int, 2>{}, r);
  for (; r < rows; ++r) body(std::integral_constant<int, 1>{}, r);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_STREAMS_HPP
