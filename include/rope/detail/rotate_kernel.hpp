// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ROTATE_KERNEL_HPP
#define ROPE_DETAIL_ROTATE_KERNEL_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>
#include <rope/layout.hpp>

/// The rotation of the heads of one token. The table entries of a block of pairs are loaded once, into registers,
/// and stay there while the same channels of every head pass through. Each pair (u, v) becomes
///
///     u' = fma(u, c, v * -s)        v' = fma(v, c, u * s)
///
/// in every path below, so packets of any width, scalars, both layouts and any stride agree in every bit.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// One row of a table, and how to read it: the rotation uses cos_scale * cos and sin_scale * sin.
template <class S>
struct table_row {
  const S* cos;
  const S* sin;
  Index pairs;
  S cos_scale = 1;  // 1 forwards; 1 / m^2 backwards
  S sin_scale = 1;  // 1 forwards; -1 / m^2 backwards
};

/// The heads of one token: `heads` rows of channels, read from `in` and written to `out`, which may be the same.
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
template <class Layout, class T, class S>
void rotate_scalars(const token_heads<T>& x, const table_row<S>& row, Index first) {
  using A = std::conditional_t<std::is_same_v<arithmetic<T>, float> && !std::is_same_v<T, float>, float,
                               std::common_type_t<arithmetic<T>, S>>;
  for (Index h = 0; h < x.heads; ++h) {
    const T* in = x.in + h * x.in_stride;
    T* out = x.out + h * x.out_stride;
    for (Index i = first; i < row.pairs; ++i) {
      const Index u = Layout::first(i, row.pairs), v = Layout::second(i, row.pairs);
      const A c = static_cast<A>(row.cos[i] * row.cos_scale), s = static_cast<A>(row.sin[i] * row.sin_scale);
      const A a = static_cast<A>(in[u]), b = static_cast<A>(in[v]);
      out[u] = static_cast<T>(multiply_add(a, c, b * -s));
      out[v] = static_cast<T>(multiply_add(b, c, a * s));
    }
  }
}

/// n packets of pairs from pair `first` on, half_split: u and v are both contiguous.
template <class P, bool prefetch, class T, class S, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_block(half_split, std::index_sequence<k...>, const token_heads<T>& x,
                                      const table_row<S>& row, Index first, prefetch_distance ahead) {
  const P cos_scale = fill<P>(row.cos_scale), sin_scale = fill<P>(row.sin_scale), minus = fill<P>(S(-1));
  const P c[] = {multiply(load<P>(row.cos + first + Index(k) * lanes<P>), cos_scale)...};
  const P s[] = {multiply(load<P>(row.sin + first + Index(k) * lanes<P>), sin_scale)...};
  const P n[] = {multiply(s[k], minus)...};
  // Copies: the stores below could otherwise change what x and row refer to, and every value would be read again.
  const Index heads = x.heads, in_stride = x.in_stride, out_stride = x.out_stride, pairs = row.pairs;
  const T* in = x.in + first;
  T* out = x.out + first;
  for (Index h = 0; h < heads; ++h, in += in_stride, out += out_stride) {
    const auto rotate_pairs = [&](Index at, const P& cos, const P& sin, const P& minus_sin) {
      const P u = load<P>(in + at), v = load<P>(in + at + pairs);
      if constexpr (prefetch) {
        prefetch_after(in + at, ahead);
        prefetch_after(in + at + pairs, ahead);
      }
      store(out + at, multiply_add(u, cos, multiply(v, minus_sin)));
      store(out + at + pairs, multiply_add(v, cos, multiply(u, sin)));
    };
    (rotate_pairs(Index(k) * lanes<P>, c[k], s[k], n[k]), ...);
  }
}

/// n packets of channels from pair `first` on, interleaved: each packet holds lanes / 2 whole pairs.
template <class P, bool prefetch, class T, class S, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_block(interleaved, std::index_sequence<k...>, const token_heads<T>& x,
                                      const table_row<S>& row, Index first, prefetch_distance ahead) {
  const P cos_scale = fill<P>(row.cos_scale);
  const P sin_scale = multiply(fill<P>(row.sin_scale), alternating_signs<P>());
  const P c[] = {multiply(load_each_twice<P>(row.cos + first + Index(k) * (lanes<P> / 2)), cos_scale)...};
  const P s[] = {multiply(load_each_twice<P>(row.sin + first + Index(k) * (lanes<P> / 2)), sin_scale)...};
  const Index heads = x.heads, in_stride = x.in_stride, out_stride = x.out_stride;
  const T* in = x.in + 2 * first;
  T* out = x.out + 2 * first;
  for (Index h = 0; h < heads; ++h, in += in_stride, out += out_stride) {
    const auto rotate_pairs = [&](Index at, const P& cos, const P& sin) {
      const P pairs = load<P>(in + at);
      if constexpr (prefetch) prefetch_after(in + at, ahead);
      store(out + at, multiply_add(pairs, cos, multiply(swap_neighbours(pairs), sin)));
    };
    (rotate_pairs(Index(k) * lanes<P>, c[k], s[k]), ...);
  }
}

/// Pairs [first, row.pairs): as many blocks of n packets as fit, then smaller blocks, then smaller packets, then
/// scalars.
template <class Layout, class P, std::size_t n, bool prefetch, class T, class S>
EIGEN_ALWAYS_INLINE void rotate_blocks(const token_heads<T>& x, const table_row<S>& row, Index first,
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
template <class Layout, class T, class S>
EIGEN_ALWAYS_INLINE void rotate_token(const token_heads<T>& x, const table_row<S>& row, prefetch_distance ahead) {
  using P = packet<arithmetic<T>>;
  constexpr bool known = std::is_same_v<Layout, interleaved> || std::is_same_v<Layout, half_split>;
  if constexpr (known && std::is_same_v<arithmetic<T>, S> && has_packets<T, P>) {
    // A half_split block holds cos, sin, -sin and two operands per packet, an interleaved one cos, sin and one.
    constexpr std::size_t n = std::is_same_v<Layout, half_split> ? registers / 8 : registers / 4;
    if (ahead != 0)
      rotate_blocks<Layout, P, n, true>(x, row, 0, ahead);
    else
      rotate_blocks<Layout, P, n, false>(x, row, 0, ahead);
  } else {
    rotate_scalars<Layout>(x, row, 0);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ROTATE_KERNEL_HPP
