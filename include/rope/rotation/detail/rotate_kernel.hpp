// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP
#define ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP

#include <cstddef>
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/base/numbers.hpp>
#include <rope/base/simd/narrow_channels.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>

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
/// \tparam inverse  the rotation uses scale * cos and -scale * sin, scale = 1 / m^2; else cos and sin as
///                  they are
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

/// Rotates pairs [first, row.pairs) of every head, one at a time, for any layout and any mix of types.
template <class Layout, class T, class S, bool inverse>
void rotate_scalars(token_heads<T> x, table_row<S, inverse> row, Index first) {
  using A = std::common_type_t<arithmetic<T>, S>;
  for (Index h = 0; h < x.heads; ++h) {
    const T* in = x.in + h * x.in_stride;
    T* out = x.out + h * x.out_stride;
    for (Index i = first; i < row.pairs; ++i) {
      const Index u = Layout::first(i, row.pairs), v = Layout::second(i, row.pairs);
      const A c = static_cast<A>(inverse ? row.cos[i] * row.scale : row.cos[i]);
      const A s = static_cast<A>(inverse ? row.sin[i] * -row.scale : row.sin[i]);
      const A a = static_cast<A>(in[u]), b = static_cast<A>(in[v]);
      out[u] = rounded<T>(multiply_add(a, c, b * -s));
      out[v] = rounded<T>(multiply_add(b, c, a * s));
    }
  }
}

/// The entries of a table row from pair `first` on as one packet, or as its even and odd entries; in the
/// inverse rotation times `factor`.
template <class P, bool inverse, class S>
EIGEN_ALWAYS_INLINE P held_entries(const S* entries, S factor) {
  return inverse ? multiply(load<P>(entries), fill<P>(factor)) : load<P>(entries);
}
template <class P, bool inverse, class S>
EIGEN_ALWAYS_INLINE even_odd<P> held_even_odd(const S* entries, S factor) {
  const auto [even, odd] = load_even_odd<P>(entries);
  return inverse ? even_odd<P>{multiply(even, fill<P>(factor)), multiply(odd, fill<P>(factor))}
                 : even_odd<P>{even, odd};
}

/// The smallest run of pairs that fills registers: its table entries, in the order of the channels' lanes,
/// and the rotation of these pairs in one head.
///
/// `read` takes the head's first channel of the run and what `read_early` returned for it. The two channels
/// of a half_split pair are half a head apart: a block reads the first channels of all its steps early and
/// then the second ones, so that memory is read in its order. Where the two halves are read in turn and are
/// more than 256 bytes apart, processors do not fetch ahead (0.58 of the speed of x *= a, in order 0.93; Zen
/// 4).
///
/// \tparam split_even_odd  even and odd channels are split into two packets; interleaved, these are the first
///                and the second channels of pairs
template <class Layout, class T, class P, bool split_even_odd>
struct rotation_step;

/// What read_early returns where the two channels of a pair are neighbours.
struct nothing_read {};

/// half_split: u and v are each contiguous.
template <class T, class P>
struct rotation_step<half_split, T, P, false> {
  static constexpr Index pairs = lanes<P>;
  P c, s;

  template <class S, bool inverse>
  EIGEN_ALWAYS_INLINE rotation_step(table_row<S, inverse> row, Index first)
      : c(held_entries<P, inverse>(row.cos + first, row.scale)),
        s(held_entries<P, inverse>(row.sin + first, -row.scale)) {}

  struct channels {
    P u, v;
  };
  EIGEN_ALWAYS_INLINE static P read_early(const T* in) { return in_register(load<P>(in)); }
  EIGEN_ALWAYS_INLINE static channels read(const P& u, const T* in, Index row_pairs) {
    return {u, load<P>(in + row_pairs)};
  }
  EIGEN_ALWAYS_INLINE void write(const channels& x, T* out, Index row_pairs) const {
    store(out, multiply_subtract(x.u, c, multiply(x.v, s)));
    store(out + row_pairs, multiply_add(x.v, c, multiply(x.u, s)));
  }
};

/// interleaved: a packet holds lanes / 2 whole pairs.
template <class T, class P>
struct rotation_step<interleaved, T, P, false> {
  static constexpr Index pairs = lanes<P> / 2;
  P c, s;

  template <class S, bool inverse>
  EIGEN_ALWAYS_INLINE rotation_step(table_row<S, inverse> row, Index first)
      : c(inverse ? multiply(load_each_twice<P>(row.cos + first), fill<P>(row.scale))
                  : load_each_twice<P>(row.cos + first)),
        s(multiply(
            load_each_twice<P>(row.sin + first),
            inverse ? multiply(fill<P>(-row.scale), alternating_signs<P>()) : alternating_signs<P>())) {}

  using channels = P;
  EIGEN_ALWAYS_INLINE static nothing_read read_early(const T* /*in*/) { return {}; }
  EIGEN_ALWAYS_INLINE static channels read(nothing_read, const T* in, Index /*row_pairs*/) {
    return load<P>(in);
  }
  EIGEN_ALWAYS_INLINE void write(const channels& x, T* out, Index /*row_pairs*/) const {
    store(out, multiply_add(x, c, multiply(swap_neighbours(x), s)));
  }
};

/// half_split in bfloat16, even and odd channels split.
template <class P>
struct rotation_step<half_split, Eigen::bfloat16, P, true> {
  using T = Eigen::bfloat16;
  static constexpr Index pairs = 2 * lanes<P>;
  even_odd<P> c, s;

  template <class S, bool inverse>
  EIGEN_ALWAYS_INLINE rotation_step(table_row<S, inverse> row, Index first)
      : c(held_even_odd<P, inverse>(row.cos + first, row.scale)),
        s(held_even_odd<P, inverse>(row.sin + first, -row.scale)) {}

  struct channels {
    even_odd<P> u, v;
  };
  EIGEN_ALWAYS_INLINE static even_odd<P> read_early(const T* in) {
    const auto [even, odd] = load_even_odd<P>(in);
    return {in_register(even), in_register(odd)};
  }
  EIGEN_ALWAYS_INLINE static channels read(const even_odd<P>& u, const T* in, Index row_pairs) {
    return {u, load_even_odd<P>(in + row_pairs)};
  }
  EIGEN_ALWAYS_INLINE void write(const channels& x, T* out, Index row_pairs) const {
    const auto& [u, v] = x;
    store_even_odd(out, multiply_subtract(u.even, c.even, multiply(v.even, s.even)),
                   multiply_subtract(u.odd, c.odd, multiply(v.odd, s.odd)));
    store_even_odd(out + row_pairs, multiply_add(v.even, c.even, multiply(u.even, s.even)),
                   multiply_add(v.odd, c.odd, multiply(u.odd, s.odd)));
  }
};

/// interleaved, even and odd channels split.
template <class T, class P>
struct rotation_step<interleaved, T, P, true> {
  static constexpr Index pairs = lanes<P>;
  P c, s;

  template <class S, bool inverse>
  EIGEN_ALWAYS_INLINE rotation_step(table_row<S, inverse> row, Index first)
      : c(load_pair_entries<P, T>(row.cos + first)), s(load_pair_entries<P, T>(row.sin + first)) {
    if constexpr (inverse) {
      c = multiply(c, fill<P>(row.scale));
      s = multiply(s, fill<P>(-row.scale));
    }
  }

  using channels = even_odd<P>;
  EIGEN_ALWAYS_INLINE static nothing_read read_early(const T* /*in*/) { return {}; }
  EIGEN_ALWAYS_INLINE static channels read(nothing_read, const T* in, Index /*row_pairs*/) {
    return load_pairs<P>(in);
  }
  EIGEN_ALWAYS_INLINE void write(const channels& x, T* out, Index /*row_pairs*/) const {
    const auto& [u, v] = x;
    store_pairs(out, multiply_subtract(u, c, multiply(v, s)), multiply_add(v, c, multiply(u, s)));
  }
};

template <class Layout, class T, class P, bool split_even_odd>
inline constexpr Index pairs_in_step = rotation_step<Layout, T, P, split_even_odd>::pairs;

/// Steps in a block: its table entries take half of the registers.
template <class Layout, class T, class P, bool split_even_odd>
inline constexpr std::size_t steps_in_block = std::size_t(registers / 2) * sizeof(P) /
                                              sizeof(rotation_step<Layout, T, P, split_even_odd>);

template <class Layout, class T, class P, bool split_even_odd>
inline constexpr Index pairs_in_block =
    Index(steps_in_block<Layout, T, P, split_even_odd>) * rotation_step<Layout, T, P, split_even_odd>::pairs;

/// Rotates the pairs of n steps from pair `first` on, of every head.
///
/// \tparam tail  the row ends behind these steps, with fewer pairs than a step has: one more step turns its
///               last pairs, some of which the step before it turns too. It is read before anything is
///               written, or it would turn these twice in place.
template <class Layout, class P, bool split_even_odd, bool tail, class T, class S, bool inverse,
          std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_block(std::index_sequence<k...>, token_heads<T> x, table_row<S, inverse> row,
                                      Index first) {
  using step = rotation_step<Layout, T, P, split_even_odd>;
  const step steps[] = {step(row, first + Index(k) * step::pairs)...};
  const step last(row, tail ? row.pairs - step::pairs : first);
  // Local copies: a compiler has to assume that the stores below change x and row, and would read them again.
  const Index heads = x.heads, in_stride = x.in_stride, out_stride = x.out_stride, pairs = row.pairs;
  constexpr Index stride = std::is_same_v<Layout, interleaved> ? 2 : 1;  // channels between pairs
  const Index to_last = stride * (pairs - step::pairs - first);
  const T* in = x.in + stride * first;
  T* out = x.out + stride * first;
  for (Index h = 0; h < heads; ++h, in += in_stride, out += out_stride) {
    const decltype(step::read_early(in)) early[] = {
        step::read_early(in + stride * Index(k) * step::pairs)...};
    [[maybe_unused]] typename step::channels rest;
    if constexpr (tail) rest = step::read(step::read_early(in + to_last), in + to_last, pairs);
    (steps[k].write(step::read(early[k], in + stride * Index(k) * step::pairs, pairs),
                    out + stride * Index(k) * step::pairs, pairs),
     ...);
    if constexpr (tail) last.write(rest, out + to_last, pairs);
  }
}

/// Rotates pairs [first, row.pairs) of every head: as many blocks of n steps as fit, then blocks of fewer
/// steps, of which the last also turns the pairs that do not fill a step. Rows shorter than a step turn in
/// smaller packets, or one pair at a time.
template <class Layout, class P, std::size_t n, bool split_even_odd, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_blocks(token_heads<T> x, table_row<S, inverse> row, Index first) {
  constexpr Index step = rotation_step<Layout, T, P, split_even_odd>::pairs, block = Index(n) * step;
  constexpr auto steps = std::make_index_sequence<n>{};
  for (;; first += block) {
    const Index left = row.pairs - first - block;  // behind another block
    if (left < 0) break;
    if (left == 0 || left >= step) {
      rotate_block<Layout, P, split_even_odd, false>(steps, x, row, first);
      if (left == 0) return;
    } else if constexpr (n <= 2) {
      rotate_block<Layout, P, split_even_odd, true>(steps, x, row, first);
      return;
    } else {
      break;
    }
  }
  if constexpr (n > 1)
    rotate_blocks<Layout, P, n / 2, split_even_odd>(x, row, first);
  else if constexpr (!std::is_same_v<half_packet<P>, P> && has_packets<T, half_packet<P>> && lanes<P> >= 4)
    rotate_blocks<Layout, half_packet<P>, 1, split_even_odd>(x, row, first);
  else
    rotate_scalars<Layout>(x, row, first);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP
