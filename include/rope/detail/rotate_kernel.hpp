// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ROTATE_KERNEL_HPP
#define ROPE_DETAIL_ROTATE_KERNEL_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>
#include <rope/detail/storage.hpp>  // cache_line
#include <rope/layout.hpp>

/// The rotation of the heads of one token. The table entries of a block of pairs are loaded once, into
/// registers, and stay there while the same channels of every head pass through. Each pair (u, v) becomes
///
///     u' = fma(u, c, -(v * s))        v' = fma(v, c, u * s)
///
/// in every path below, so packets of any width, scalars, both layouts and any stride agree in every bit.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One row of a table, and the direction it is used in.
///
/// \tparam inverse  the rotation uses scale * cos and -scale * sin, scale = 1 / m^2; else cos and sin as they
/// are
template <class S, bool inverse>
struct table_row {
  const S* cos;
  const S* sin;
  Index pairs;
  S scale;
};

/// The heads of one token: `heads` rows of channels, read from `in` and written to `out`, which may be the
/// same.
template <class T>
struct token_heads {
  const T* in;
  T* out;
  Index heads;
  Index in_stride;
  Index out_stride;
};

/// Bytes ahead of a load that are asked for while data streams from memory; 0: the data is in the cache.
using prefetch_distance = std::uintptr_t;

/// Pairs [first, row.pairs), one at a time, for any layout and any mix of types.
template <class Layout, class T, class S, bool inverse>
void rotate_scalars(token_heads<T> x, table_row<S, inverse> row, Index first) {
  using A = std::conditional_t<std::is_same_v<arithmetic<T>, float> && !std::is_same_v<T, float>, float,
                               std::common_type_t<arithmetic<T>, S>>;
  for (Index h = 0; h < x.heads; ++h) {
    const T* in = x.in + h * x.in_stride;
    T* out = x.out + h * x.out_stride;
    for (Index i = first; i < row.pairs; ++i) {
      const Index u = Layout::first(i, row.pairs), v = Layout::second(i, row.pairs);
      const A c = static_cast<A>(inverse ? row.cos[i] * row.scale : row.cos[i]);
      const A s = static_cast<A>(inverse ? row.sin[i] * -row.scale : row.sin[i]);
      const A a = static_cast<A>(in[u]), b = static_cast<A>(in[v]);
      out[u] = static_cast<T>(multiply_add(a, c, b * -s));
      out[v] = static_cast<T>(multiply_add(b, c, a * s));
    }
  }
}

/// Packet number k of a run asks for the cache line `ahead` bytes after it, once per line.
template <std::size_t k, class P, class T>
EIGEN_ALWAYS_INLINE void prefetch_line(const T* packet_start, prefetch_distance ahead) {
  constexpr std::size_t bytes = std::size_t(lanes<P>) * sizeof(T);
  if constexpr (k * bytes % cache_line < bytes) prefetch_after(packet_start, ahead);
}

/// n packets of pairs from pair `first` on, half_split: u and v are both contiguous.
template <class P, bool prefetch, class T, class S, bool inverse, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_block(half_split, std::index_sequence<k...>, token_heads<T> x,
                                      table_row<S, inverse> row, Index first, prefetch_distance ahead) {
  const auto scaled = [&](const S* entries, S sign) {
    return inverse ? multiply(load<P>(entries), fill<P>(sign * row.scale)) : load<P>(entries);
  };
  const P c[] = {scaled(row.cos + first + Index(k) * lanes<P>, S(1))...};
  const P s[] = {scaled(row.sin + first + Index(k) * lanes<P>, S(-1))...};
  // Copies: the stores below could otherwise change what x and row refer to, and every value would be read
  // again.
  const Index heads = x.heads, in_stride = x.in_stride, out_stride = x.out_stride, pairs = row.pairs;
  const T* in = x.in + first;
  T* out = x.out + first;
  for (Index h = 0; h < heads; ++h, in += in_stride, out += out_stride) {
    const auto rotate_pairs = [&](auto number, const P& cos, const P& sin) {
      const Index at = Index(number()) * lanes<P>;
      const P u = load<P>(in + at), v = load<P>(in + at + pairs);
      if constexpr (prefetch) {
        prefetch_line<number(), P>(in + at, ahead);
        prefetch_line<number(), P>(in + at + pairs, ahead);
      }
      store(out + at, multiply_subtract(u, cos, multiply(v, sin)));
      store(out + at + pairs, multiply_add(v, cos, multiply(u, sin)));
    };
    (rotate_pairs(std::integral_constant<std::size_t, k>{}, c[k], s[k]), ...);
  }
}

/// n packets of channels from pair `first` on, interleaved: each packet holds lanes / 2 whole pairs.
template <class P, bool prefetch, class T, class S, bool inverse, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_block(interleaved, std::index_sequence<k...>, token_heads<T> x,
                                      table_row<S, inverse> row, Index first, prefetch_distance ahead) {
  const P signs = inverse ? multiply(fill<P>(-row.scale), alternating_signs<P>()) : alternating_signs<P>();
  const auto scaled = [&](const S* entries) {
    return inverse ? multiply(load_each_twice<P>(entries), fill<P>(row.scale)) : load_each_twice<P>(entries);
  };
  const P c[] = {scaled(row.cos + first + Index(k) * (lanes<P> / 2))...};
  const P s[] = {multiply(load_each_twice<P>(row.sin + first + Index(k) * (lanes<P> / 2)), signs)...};
  const Index heads = x.heads, in_stride = x.in_stride, out_stride = x.out_stride;
  const T* in = x.in + 2 * first;
  T* out = x.out + 2 * first;
  for (Index h = 0; h < heads; ++h, in += in_stride, out += out_stride) {
    const auto rotate_pairs = [&](auto number, const P& cos, const P& sin) {
      const Index at = Index(number()) * lanes<P>;
      const P pairs = load<P>(in + at);
      if constexpr (prefetch) prefetch_line<number(), P>(in + at, ahead);
      store(out + at, multiply_add(pairs, cos, multiply(swap_neighbours(pairs), sin)));
    };
    (rotate_pairs(std::integral_constant<std::size_t, k>{}, c[k], s[k]), ...);
  }
}

/// Pairs [first, row.pairs): as many blocks of n packets as fit, then smaller blocks, then smaller packets,
/// then scalars.
template <class Layout, class P, std::size_t n, bool prefetch, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_blocks(token_heads<T> x, table_row<S, inverse> row, Index first,
                                       prefetch_distance ahead) {
  constexpr Index block = Index(n) * lanes<P> / (std::is_same_v<Layout, interleaved> ? 2 : 1);
  for (; row.pairs - first >= block; first += block)
    rotate_block<P, prefetch>(Layout{}, std::make_index_sequence<n>{}, x, row, first, ahead);
  if (first == row.pairs) return;
  if constexpr (n > 1)
    rotate_blocks<Layout, P, n / 2, prefetch>(x, row, first, ahead);
  else if constexpr (!std::is_same_v<half_packet<P>, P> && has_packets<T, half_packet<P>> && lanes<P> >= 4)
    rotate_blocks<Layout, half_packet<P>, 1, prefetch>(x, row, first, ahead);
  else
    rotate_scalars<Layout>(x, row, first);
}

/// Rotates every head of one token.
template <class Layout, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_token(token_heads<T> x, table_row<S, inverse> row, prefetch_distance ahead) {
  using P = packet<arithmetic<T>>;
  constexpr bool known = std::is_same_v<Layout, interleaved> || std::is_same_v<Layout, half_split>;
  if constexpr (known && std::is_same_v<arithmetic<T>, S> && has_packets<T, P>) {
    // The packets of a block hold cos and sin; the rest of the registers is for two operands each
    // (half_split) or one.
    constexpr std::size_t n = std::is_same_v<Layout, half_split> ? registers / 8 : registers / 4;
    constexpr Index held = Index(n) * lanes<P> / (std::is_same_v<Layout, interleaved> ? 2 : 1);
    if (ahead == 0) {
      rotate_blocks<Layout, P, n, false>(x, row, 0, 0);
    } else if (row.pairs <= held) {
      rotate_blocks<Layout, P, n, true>(x, row, 0, ahead);
    } else {
      // The registers hold a part of the row only. Passing through the heads once per part would leave the
      // order of memory, which costs more than reading the row from the L1 cache for each head.
      for (Index h = 0; h < x.heads; ++h)
        rotate_blocks<Layout, P, n, true>(
            token_heads<T>{x.in + h * x.in_stride, x.out + h * x.out_stride, 1, x.in_stride, x.out_stride},
            row, 0, ahead);
    }
  } else {
    rotate_scalars<Layout>(x, row, 0);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ROTATE_KERNEL_HPP
