// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_STREAMS_HPP
#define ROPE_ATTENTION_DETAIL_STREAMS_HPP

#include <algorithm>  // std::copy_n, std::min
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>  // std::integral_constant, std::is_same_v
#include <utility>      // std::index_sequence

#include <rope/attention/detail/prefetch.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/channel_rows.hpp>  // load of narrow channels
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>  // as_computed
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

// Written after the parameters of a lambda that must be inlined. If clang calls a lambda, it keeps the state
// of the lambda in memory.
#if defined(__GNUC__)
#define ROPE_DETAIL_INLINE_LAMBDA __attribute__((always_inline))
#else
#define ROPE_DETAIL_INLINE_LAMBDA
#endif

/// The matrix products of attention with few queries. They are memory-bound, so keys and values are read
/// once, in place.
///
/// A block of sums has up to four queries and a few keys or packets of channels, so that a loaded register
/// serves several products. prefetch.hpp prefetches the next keys and values.
///
/// The benchmark row that gains most from these kernels is bhsd/1x16x32+32x128: one query, 16 keys, 32 query
/// and 32 key heads of 128 channels. The prefill kernel takes several times as long, because it packs keys
/// and values.

namespace rope::inline ROPE_ABI::detail {

// Channels after the last whole packet are added one by one. -ffast-math lets a compiler split such a sum if
// the terms are contiguous, so the bits would depend on strides. as_computed prevents that.

/// The number of packets of sums that a kernel keeps in registers.
inline constexpr int stream_sums = registers >= 32 ? 16 : 8;

/// sums[i] += x * factors[i] for i in [0, count), unrolled.
template <class P, std::size_t... i>
EIGEN_ALWAYS_INLINE void multiply_add_each(const P& x, const P* factors, P* sums, std::index_sequence<i...>) {
  ((sums[i] = multiply_add(x, factors[i], sums[i])), ...);
}

/// sums[r * count + n] += queries[r * query_stride ..] * keys.at(n) for one packet of channels of each of
/// `count` keys.
template <class P, class A, class Rows, std::size_t... r, std::size_t... n>
EIGEN_ALWAYS_INLINE void score_packet(const A* queries, Index query_stride, Rows keys, P* sums,
                                      std::index_sequence<r...>, std::index_sequence<n...> each_key) {
  if constexpr (sizeof...(r) == 1) {
    // With one query there are as many keys as sums, so loading all keys first would need too many registers.
    const P query = in_register(load<P>(queries));
    ((sums[n] = multiply_add(query, load<P>(keys.at(Index(n))), sums[n])), ...);
  } else {
    const P key[] = {in_register(load<P>(keys.at(Index(n))))...};
    (multiply_add_each(in_register(load<P>(queries + Index(r) * query_stride)), key, sums + r * sizeof...(n),
                       each_key),
     ...);
  }
}

/// The sums of the lanes of each of lanes<P> packets.
template <class P, std::size_t... i>
EIGEN_ALWAYS_INLINE P sums_of_each(const P* packets, std::index_sequence<i...>) {
  P group[] = {packets[i]...};
  return sums_of_lanes(group);
}

/// Whether rows are listed_rows, which have their own rows to prefetch. Kernels of listed rows prefetch for
/// every group of queries, not only for the first. A second kernel without prefetches would save less time
/// than its compilation takes.
template <class Rows>
inline constexpr bool are_listed_rows = std::is_same_v<Rows, listed_rows<typename Rows::value_type>>;

/// Calls body(prefetches). A kernel prefetches the rows ahead if `prefetches` is true. It is a constant for
/// groups of four queries, because a test makes their kernels slower if the keys are in cache, and for listed
/// rows, which have no rows ahead. Other kernels are compiled once and test it.
template <class Rows, int rows, class Body>
void with_prefetches(bool prefetches, const Body& body) {
  if constexpr (!are_listed_rows<Rows> && rows < 4) {
    body(prefetches);
  } else {
    if constexpr (!are_listed_rows<Rows>)
      if (prefetches) return body(std::true_type{});
    body(std::false_type{});
  }
}

/// scores[r * tile + n] = sum_d queries[r * query_stride + d] * keys.at(n)[d] for `rows` queries and all
/// whole blocks in `count` keys. Returns the number of keys in these blocks. The order of each sum does not
/// depend on the number of rows and keys.
template <class A, int rows, class Rows, class Prefetches, std::size_t... n>
EIGEN_DONT_INLINE Index score_blocks(const A* queries, Index query_stride, Rows keys, Index count,
                                     Index depth, A* scores, Prefetches prefetches, stream_ahead* ahead,
                                     repeated_prefetch& again, std::index_sequence<n...> each_key) {
  using P = packet<A>;
  using K = typename Rows::value_type;
  constexpr Index L = lanes<P>, line = line_bytes / Index(sizeof(K)), block = sizeof...(n);
  constexpr std::size_t size = std::size_t(rows) * sizeof...(n),
                        padded = std::size_t(pieces_of(Index(size), L) * L);
  constexpr auto each_row = std::make_index_sequence<std::size_t(rows)>{};
  const Index whole = depth / L * L;
  Index scored = 0;
  for (; scored + block <= count; scored += block, keys = keys.from_row(block), scores += block) {
    P sums[padded];
    unrolled<padded>([&](auto i) ROPE_DETAIL_INLINE_LAMBDA { sums[i] = fill<P>(A(0)); });
    std::uintptr_t next = 0, repeated = again.address;
    if constexpr (!are_listed_rows<Rows>)
      if (prefetches) next = ahead->take(block * depth * Index(sizeof(K)));
    Index d = 0;
    while (d < whole) {
      if constexpr (are_listed_rows<Rows>) {
        prefetch_rows<line_bytes>(keys.next, block, d);
      } else if (prefetches) {
        prefetch_lines(next, repeated, keys, each_key);
      }
      for (const Index last = line == L ? d + L : (std::min)(d + line, whole); d < last; d += L)
        score_packet(queries + d, query_stride, keys.from_channel(d), sums, each_row, each_key);
    }
    again.advance(block);

    A totals[padded];
    unrolled<padded / std::size_t(L)>([&](auto i) ROPE_DETAIL_INLINE_LAMBDA {
      store(totals + i * std::size_t(L),
            sums_of_each(sums + i * std::size_t(L), std::make_index_sequence<std::size_t(L)>{}));
    });
    if (d < depth) {
      Rows same = keys;
      same.rows = not_hoisted(same.rows);
      for (; d < depth; ++d)
        unrolled<size>([&](auto i) ROPE_DETAIL_INLINE_LAMBDA {
          totals[i] = as_computed(multiply_add(queries[Index(i) / block * query_stride + d],
                                               static_cast<A>(same.at(Index(i) % block)[d]), totals[i]));
        });
    }
    for (Index r = 0; r < rows; ++r)
      std::copy_n(totals + r * block, block, scores + r * panel_shape<A>::tile);
  }
  return scored;
}

/// Computes the scores of `rows` queries with keys [0, count).
///
/// Keys that do not fill a block are scored in a block that begins earlier, or query by query if there are
/// too few keys for that. Single queries have smaller blocks instead.
///
/// \param ahead  what to prefetch; null if these keys were just read
template <class A, int rows, class Rows>
void score_rows(const A* queries, Index query_stride, Rows keys, Index count, Index depth, A* scores,
                stream_ahead* ahead) {
  constexpr std::size_t block = stream_sums / rows;
  if constexpr (rows > 1)
    if (count < Index(block)) {
      for (Index r = 0; r < rows; ++r)
        score_rows<A, 1>(queries + r * query_stride, query_stride, keys, count, depth,
                         scores + r * panel_shape<A>::tile, r == 0 ? ahead : nullptr);
      return;
    }
  repeated_prefetch again = {};
  if constexpr (!are_listed_rows<Rows>)
    if (ahead != nullptr) again = ahead->again(keys, count);
  Index n = 0;
  const auto score = [&](auto each_key) {
    with_prefetches<Rows, rows>(ahead != nullptr, [&](auto prefetches) {
      n += score_blocks<A, rows>(queries, query_stride, keys.from_row(n), count - n, depth, scores + n,
                                 prefetches, ahead, again, each_key);
    });
  };
  constexpr auto whole_block = std::make_index_sequence<block>{};
  score(whole_block);
  if (n == count) return;
  if constexpr (rows > 1) {
    n = count - Index(block);
    score(whole_block);
  } else {
    score(std::make_index_sequence<block / 4>{});
    score(std::index_sequence<0>{});
  }
}

/// to[r] = one packet of row r, for rows that are `stride` apart.
template <class P, class A, std::size_t... r>
EIGEN_ALWAYS_INLINE void load_each(const A* rows, Index stride, P* to, std::index_sequence<r...>) {
  ((to[r] = load<P>(rows + Index(r) * stride)), ...);
}
template <class P, class A, std::size_t... r>
EIGEN_ALWAYS_INLINE void store_each(A* rows, Index stride, const P* from, std::index_sequence<r...>) {
  (store(rows + Index(r) * stride, from[r]), ...);
}

/// Values of `count` tokens, and what to prefetch while they are processed.
template <class Rows>
struct value_run {
  Rows rows;
  Index count;
  stream_ahead* ahead;
  repeated_prefetch again;
};

/// sums[r * sum_stride + c] += sum_j weights[r * tile + j] * values[j][c] for each row r and the channels of
/// each packet n from channel c on, over the values of all runs. Sums stay in registers from run to run.
template <class A, class Rows, class Prefetches, std::size_t... r, std::size_t... n>
EIGEN_DONT_INLINE void value_block(const A* weights, std::span<const value_run<Rows>> runs, Index c,
                                   A* sums_in_memory, Index sum_stride, Prefetches prefetches,
                                   std::index_sequence<r...> each_row, std::index_sequence<n...>) {
  using P = packet<A>;
  using V = typename Rows::value_type;
  constexpr std::size_t rows = sizeof...(r), packets = sizeof...(n);
  constexpr Index L = lanes<P>, bytes = Index(packets) * L * Index(sizeof(V));
  P sums[rows * packets];
  (load_each(sums_in_memory + Index(n) * L, sum_stride, sums + n * rows, each_row), ...);
  for (const value_run<Rows>& run : runs) {
    Rows values = run.rows.from_channel(c);
    repeated_prefetch again = run.again.after(c * Index(sizeof(V)));
    for_tokens<bytes, 1>(0, run.count, prefetches, run.ahead, again, [&](Index) ROPE_DETAIL_INLINE_LAMBDA {
      if constexpr (are_listed_rows<Rows>) prefetch_rows<bytes>(values.next, 1, c);
      const V* value = values.at(0);
      const P weight[] = {in_register(fill<P>(weights[Index(r) * panel_shape<A>::tile]))...};
      (multiply_add_each(in_register(load<P>(value + Index(n) * L)), weight, sums + n * rows, each_row), ...);
      ++weights;
      values = values.from_row(1);
    });
  }
  (store_each(sums_in_memory + Index(n) * L, sum_stride, sums + n * rows, each_row), ...);
}

/// Adds weighted values to the sums of `rows` queries, for all channels.
template <class A, int rows, class Rows>
void value_rows(const A* weights, std::span<const value_run<Rows>> runs, Index channels, A* sums,
                Index sum_stride, bool prefetches) {
  constexpr int most = rows == 1 ? 8 : stream_sums / rows < 4 ? stream_sums / rows : 4;
  constexpr Index L = lanes<packet<A>>;
  const auto add_block = [&](auto packets, Index first, A* to, Index stride, bool prefetch) {
    with_prefetches<Rows, rows>(prefetch, [&](auto known) {
      value_block(weights, runs, first, to, stride, known, std::make_index_sequence<std::size_t(rows)>{},
                  std::make_index_sequence<std::size_t(packets())>{});
    });
  };
  Index c = 0;
  const auto add_blocks = [&](auto packets) {
    for (; c + packets() * L <= channels; c += packets() * L)
      add_block(packets, c, sums + c, sum_stride, prefetches);
  };
  // Each addition to a packet of sums waits for the previous addition, so at least eight packets of sums are
  // processed in parallel while enough are left.
  add_blocks(std::integral_constant<int, most>{});
  if constexpr (rows == 1) {
    add_blocks(std::integral_constant<int, 4>{});
    add_blocks(std::integral_constant<int, 2>{});
  }
  add_blocks(std::integral_constant<int, 1>{});
  if (c < channels && channels >= L) {
    // One by one, each addition to these channels would wait for the one before. So they are the last lanes
    // of a packet. Its other lanes are channels that are complete already, and are dropped.
    A last[std::size_t(rows * L)];
    for (Index r = 0; r < rows; ++r) std::copy_n(sums + r * sum_stride + channels - L, L, last + r * L);
    add_block(std::integral_constant<int, 1>{}, channels - L, last, L, false);
    for (Index r = 0; r < rows; ++r)
      std::copy_n(last + r * L + L - (channels - c), channels - c, sums + r * sum_stride + c);
    return;
  }
  for (; c < channels; ++c)
    for (int r = 0; r < rows; ++r) {
      A sum = sums[r * sum_stride + c];
      const A* weight = weights + r * panel_shape<A>::tile;
      for (const value_run<Rows>& run : runs)
        for (Index j = 0; j < run.count; ++j, ++weight)
          sum = as_computed(multiply_add(*weight, static_cast<A>(run.rows.at(j)[c]), sum));
      sums[r * sum_stride + c] = sum;
    }
}

/// Splits `rows` rows into groups of four, two and one, and calls body(group size as a constant, first row)
/// for each.
template <class Body>
void for_groups_of_rows(Index rows, const Body& body) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) body(std::integral_constant<int, 4>{}, r);
  for (; r + 2 <= rows; r += 2) body(std::integral_constant<int, 2>{}, r);
  for (; r < rows; ++r) body(std::integral_constant<int, 1>{}, r);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_STREAMS_HPP
