// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP
#define ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP

#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/config.hpp>
#include <rope/rotation/layout.hpp>

/// The rotation of the heads of one token. The table entries of a few packets are read once and stay in
/// registers while the same channels of all heads are rotated. Each pair (u, v) becomes
///
///     u' = fma(u, c, -(v * s))        v' = fma(v, c, u * s)
///
/// in packets of every width and in scalars. The bits are therefore equal for all widths, both layouts and
/// any stride.

namespace rope::inline ROPE_ABI::detail {

/// The size of a cache line in bytes.
inline constexpr Index line_of_cache = 64;

/// One row of a table, for a rotation or its inverse.
///
/// \tparam inverse  if true, the rotation uses scale * cos and -scale * sin, scale = 1 / m^2; if false, cos
///                  and sin
template <class S, bool is_inverse>
struct table_row {
  static constexpr bool inverse = is_inverse;
  const S* cos;
  const S* sin;
  Index pairs;
  S scale;
};

/// The heads of one token: `heads` rows of channels, read from `in` and written to `out`, which may be `in`.
template <class T>
struct token_heads {
  const T* in;
  T* out;
  Index heads;
  Index in_stride;
  Index out_stride;

  /// Heads [first, first + count).
  token_heads range(Index first, Index count) const {
    return {in + first * in_stride, out + first * out_stride, count, in_stride, out_stride};
  }
};

/// Rotates pairs [first, last) of every head, one at a time, for any layout and any mix of types.
template <class Layout, class T, class Row>
EIGEN_DONT_INLINE void rotate_scalars(token_heads<T> x, Row row, Index first, Index last) {
  using S = decltype(Row::scale);
  using A = std::common_type_t<arithmetic<T>, S>;
  for (Index i = first; i < last; ++i) {
    const Index u = Layout::first(i, row.pairs), v = Layout::second(i, row.pairs);
    const A c = static_cast<A>(Row::inverse ? row.cos[i] * row.scale : row.cos[i]);
    const A s = static_cast<A>(Row::inverse ? row.sin[i] * -row.scale : row.sin[i]);
    const T* in = x.in;
    T* out = x.out;
    for (Index h = 0; h < x.heads; ++h, in += x.in_stride, out += x.out_stride) {
      const A a = static_cast<A>(in[u]), b = static_cast<A>(in[v]);
      out[u] = rounded<T>(multiply_add(a, c, b * -s));
      out[v] = rounded<T>(multiply_add(b, c, a * s));
    }
  }
}

/// A step: the table entries of `pairs` pairs from pair `first` on, in lane order, and the rotation of these
/// pairs in one head. `in` points to the first of their channels in the head, and `half` is the number of
/// pairs of the row. Several steps form a block. read_early loads the channels of all steps of a block before
/// `rotate` stores those of the first step, because a compiler may not move a load before a store that might
/// alias it.
template <class Layout, class T, class P>
struct rotation_step;

/// half_split: u and v are each contiguous.
template <class T, class P>
struct rotation_step<half_split, T, P> {
  static constexpr Index pairs = lanes<P>, channels = pairs;
  P c, s;

  template <class Row>
  EIGEN_ALWAYS_INLINE rotation_step(const Row& row, Index first)
      : c(load<P>(row.cos + first)), s(load<P>(row.sin + first)) {
    if constexpr (Row::inverse) c = multiply(c, fill<P>(row.scale)), s = multiply(s, fill<P>(-row.scale));
  }
  EIGEN_ALWAYS_INLINE static P read_early(const T* in) { return load<P>(in); }
  EIGEN_ALWAYS_INLINE void rotate(const P& u, const T* in, T* out, Index half) const {
    const P v = load<P>(in + half);
    store(out, multiply_subtract(u, c, multiply(v, s)));
    store(out + half, multiply_add(v, c, multiply(u, s)));
  }
};

/// half_split in bfloat16, which is loaded and stored as even and odd channels.
template <class P>
struct rotation_step<half_split, Eigen::bfloat16, P> {
  static constexpr Index pairs = 2 * lanes<P>, channels = pairs;
  even_odd<P> c, s;

  template <class Row>
  EIGEN_ALWAYS_INLINE rotation_step(const Row& row, Index first)
      : c(load_even_odd<P>(row.cos + first)), s(load_even_odd<P>(row.sin + first)) {
    if constexpr (Row::inverse) {
      c = {multiply(c.even, fill<P>(row.scale)), multiply(c.odd, fill<P>(row.scale))};
      s = {multiply(s.even, fill<P>(-row.scale)), multiply(s.odd, fill<P>(-row.scale))};
    }
  }
  EIGEN_ALWAYS_INLINE static even_odd<P> read_early(const Eigen::bfloat16* in) {
    return load_even_odd<P>(in);
  }
  EIGEN_ALWAYS_INLINE void rotate(const even_odd<P>& u, const Eigen::bfloat16* in, Eigen::bfloat16* out,
                                  Index half) const {
    const auto v = load_even_odd<P>(in + half);
    store_even_odd(out, multiply_subtract(u.even, c.even, multiply(v.even, s.even)),
                   multiply_subtract(u.odd, c.odd, multiply(v.odd, s.odd)));
    store_even_odd(out + half, multiply_add(v.even, c.even, multiply(u.even, s.even)),
                   multiply_add(v.odd, c.odd, multiply(u.odd, s.odd)));
  }
};

/// interleaved: u in even channels, v in odd channels.
template <class T, class P>
requires(can_split_even_odd<T, P>) struct rotation_step<interleaved, T, P> {
  static constexpr Index pairs = lanes<P>, channels = 2 * pairs;
  P c, s;

  template <class Row>
  EIGEN_ALWAYS_INLINE rotation_step(const Row& row, Index first)
      : c(load_pair_entries<P, T>(row.cos + first)), s(load_pair_entries<P, T>(row.sin + first)) {
    if constexpr (Row::inverse) c = multiply(c, fill<P>(row.scale)), s = multiply(s, fill<P>(-row.scale));
  }
  EIGEN_ALWAYS_INLINE static even_odd<P> read_early(const T* in) { return load_pairs<P>(in); }
  EIGEN_ALWAYS_INLINE void rotate(const even_odd<P>& x, const T* /*in*/, T* out, Index /*half*/) const {
    const auto& [u, v] = x;
    store_pairs(out, multiply_subtract(u, c, multiply(v, s)), multiply_add(v, c, multiply(u, s)));
  }
};

/// interleaved, with every table entry in two lanes: a packet holds half as many pairs.
template <class T, class P>
struct swapping_step {
  static constexpr Index pairs = lanes<P> / 2, channels = 2 * pairs;
  P c, s;  // s: -sin for u, sin for v

  template <class Row>
  EIGEN_ALWAYS_INLINE swapping_step(const Row& row, Index first)
      : c(load_each_twice<P>(row.cos + first)),
        s(multiply(load_each_twice<P>(row.sin + first), alternating_signs<P>())) {
    if constexpr (Row::inverse) c = multiply(c, fill<P>(row.scale)), s = multiply(s, fill<P>(-row.scale));
  }
  EIGEN_ALWAYS_INLINE static P read_early(const T* in) { return load<P>(in); }
  EIGEN_ALWAYS_INLINE void rotate(const P& x, const T* /*in*/, T* out, Index /*half*/) const {
    store(out, multiply_add(x, c, multiply(swap_neighbours(x), s)));
  }
};
template <class T, class P>
requires(!can_split_even_odd<T, P>) struct rotation_step<interleaved, T, P> : swapping_step<T, P> {
  using swapping_step<T, P>::swapping_step;
};

/// A step of the half_split pairs whose u fill eight bytes: two pairs of float or four of bfloat16. It is for
/// rows that end with fewer pairs than a step of P has. P is a packet of four floats.
#if defined(EIGEN_VECTORIZE_SSE)
template <class T, class P>
struct eight_byte_step {
  static constexpr Index pairs = 8 / Index(sizeof(T)), channels = pairs;
  P c, s;

  template <class Row>
  EIGEN_ALWAYS_INLINE eight_byte_step(const Row& row, Index first)
      : c(entries(row.cos + first)), s(entries(row.sin + first)) {
    if constexpr (Row::inverse) c = multiply(c, fill<P>(row.scale)), s = multiply(s, fill<P>(-row.scale));
  }
  EIGEN_ALWAYS_INLINE static P read_early(const T* in) { return load_eight_bytes(in); }
  EIGEN_ALWAYS_INLINE void rotate(const P& u, const T* in, T* out, Index half) const {
    const P v = load_eight_bytes(in + half);
    store_eight_bytes(out, multiply_subtract(u, c, multiply(v, s)));
    store_eight_bytes(out + half, multiply_add(v, c, multiply(u, s)));
  }

 private:
  EIGEN_ALWAYS_INLINE static P entries(const float* from) {
    if constexpr (pairs == 2)
      return load_eight_bytes(from);
    else
      return load<P>(from);
  }
};
template <class T>
inline constexpr bool has_eight_byte_steps = std::is_same_v<T, float> || std::is_same_v<T, Eigen::bfloat16>;
#else
template <class T, class P>
struct eight_byte_step;
template <class T>
inline constexpr bool has_eight_byte_steps = false;
#endif

/// A block: `count` steps, one after another. Nested structures instead of an array, because g++ -O2 keeps
/// arrays in memory.
template <class Step, int count>
struct rotation_steps {
  static constexpr Index pairs = count * Step::pairs, channels = count * Step::channels;
  rotation_steps<Step, count - 1> before;
  Step last;

  template <class T>
  struct early {
    typename rotation_steps<Step, count - 1>::template early<T> before;
    decltype(Step::read_early(static_cast<const T*>(nullptr))) last;
  };

  template <class Row>
  EIGEN_ALWAYS_INLINE rotation_steps(const Row& row, Index first)
      : before(row, first), last(row, first + pairs - Step::pairs) {}
  template <class T>
  EIGEN_ALWAYS_INLINE static early<T> read_early(const T* in) {
    return {rotation_steps<Step, count - 1>::read_early(in),
            Step::read_early(in + channels - Step::channels)};
  }
  template <class T>
  EIGEN_ALWAYS_INLINE void rotate(const early<T>& x, const T* in, T* out, Index half) const {
    before.rotate(x.before, in, out, half);
    last.rotate(x.last, in + channels - Step::channels, out + channels - Step::channels, half);
  }
};
template <class Step>
struct rotation_steps<Step, 0> {
  template <class T>
  struct early {};
  template <class Row>
  EIGEN_ALWAYS_INLINE rotation_steps(const Row& /*row*/, Index /*first*/) {}
  template <class T>
  EIGEN_ALWAYS_INLINE static early<T> read_early(const T* /*in*/) {
    return {};
  }
  template <class T>
  EIGEN_ALWAYS_INLINE void rotate(const early<T>&, const T* /*in*/, T* /*out*/, Index /*half*/) const {}
};

/// Rotates the pairs of [first, last) that fill whole blocks of `count` steps, for every head.
///
/// \return  the first pair that is not rotated
template <class Step, int count, class T, class Row>
EIGEN_ALWAYS_INLINE Index rotate_blocks(token_heads<T> x, const Row& row, Index first, Index last) {
  using block = rotation_steps<Step, count>;
  for (; first + block::pairs <= last; first += block::pairs) {
    const block entries(row, first);
    const Index channel = first * (Step::channels / Step::pairs);
    const T* in = x.in + channel;
    T* out = x.out + channel;
    ROPE_DETAIL_NOT_UNROLLED
    for (Index h = 0; h < x.heads; ++h, in += x.in_stride, out += x.out_stride)
      entries.rotate(entries.read_early(in), in, out, row.pairs);
  }
  return first;
}

/// Steps in a block: their table entries take half of the registers.
template <class Layout, class T, class P>
inline constexpr int steps_in_block = registers / 2 * int(sizeof(P)) /
                                      int(sizeof(rotation_step<Layout, T, P>));

/// Rotates pairs [first, last) of every head: first in blocks of `count` steps, then in smaller blocks, then
/// in packets of half and quarter width, last in single pairs. Half a step of interleaved pairs is one packet
/// with swapped neighbours. No channel is written twice.
template <class Layout, class P, int count, class T, class Row>
EIGEN_ALWAYS_INLINE void rotate_packets(token_heads<T> x, const Row& row, Index first, Index last) {
  first = rotate_blocks<rotation_step<Layout, T, P>, count>(x, row, first, last);
  if constexpr (count > 1)
    return rotate_packets<Layout, P, (count > 4 ? count / 2 : count - 1)>(x, row, first, last);
  if (first == last) return;
  if constexpr (std::is_same_v<Layout, interleaved> && can_split_even_odd<T, P> &&
                !std::is_same_v<T, Eigen::bfloat16>)
    first = rotate_blocks<swapping_step<T, P>, 1>(x, row, first, last);
  if constexpr (!std::is_same_v<half_packet<P>, P> && has_packets<T, half_packet<P>> && lanes<P> >= 4) {
    rotate_packets<Layout, half_packet<P>, 1>(x, row, first, last);
  } else {
    if constexpr (has_eight_byte_steps<T> && std::is_same_v<Layout, half_split>)
      first = rotate_blocks<eight_byte_step<T, P>, 1>(x, row, first, last);
    if (first < last) rotate_scalars<Layout>(x, row, first, last);
  }
}

/// Whether a layout is rotated in packets of the arithmetic type of T. The table entries S must have that
/// type.
template <class Layout, class T, class S>
inline constexpr bool rotates_in_packets =
    has_packets<T, packet<arithmetic<T>>>&& std::is_same_v<S, arithmetic<T>> &&
    (std::is_same_v<Layout, interleaved> || std::is_same_v<Layout, half_split>);

/// The number of pairs of a block, or 0 if pairs are rotated one at a time.
template <class Layout, class T>
inline constexpr Index pairs_in_block = [] {
  using P = packet<arithmetic<T>>;
  if constexpr (rotates_in_packets<Layout, T, arithmetic<T>>)
    return steps_in_block<Layout, T, P> * rotation_step<Layout, T, P>::pairs;
  else
    return 0;
}();

/// Rotates every head of one token. `in_cache` is whether its channels are probably in a cache.
///
/// Memory of std::vector and malloc often begins 16 bytes after a multiple of 64. Wide packets would then
/// cross cache lines, and a store that does takes about twice as long. The pairs up to the first multiple of
/// the packet size are therefore rotated in packets of half the width. This costs more than it saves in one
/// head, in channels of 16 bits, and in channels that are not in a cache. In two heads it saves as often as
/// it costs.
///
/// \tparam single  whether there is one head, for which single steps are faster than blocks
template <class Layout, bool single = false, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_token(token_heads<T> x, table_row<S, inverse> row, bool in_cache = true) {
  using P = packet<arithmetic<T>>;
  if constexpr (rotates_in_packets<Layout, T, S>) {
    Index pairs = row.pairs;
    if constexpr (sizeof(P) > 16 && std::is_same_v<T, arithmetic<T>> && !single) {
      constexpr Index size = sizeof(P), channels = std::is_same_v<Layout, interleaved> ? 2 : 1;
      const Index past = Index(reinterpret_cast<std::uintptr_t>(x.out) % size),
                  before = (size - past) / (channels * Index(sizeof(T)));
      if (past != 0 && past % 16 == 0 && x.heads > 2 && pairs > before &&
          x.out_stride * Index(sizeof(T)) % size == 0 && in_cache) {
        rotate_packets<Layout, half_packet<P>, 1>(x, row, 0, before);
        row.cos += before, row.sin += before;
        x.in += channels * before, x.out += channels * before;
        pairs -= before;
      }
    }
    rotate_packets<Layout, P, single ? 1 : steps_in_block<Layout, T, P>>(x, row, 0, pairs);
  } else {
    rotate_scalars<Layout>(x, row, 0, row.pairs);
  }
}

/// Rotates every head of one token in memory order.
///
/// \param in_twos      whether two heads share the reads of the row; otherwise heads are rotated one by one
/// \param reads_ahead  whether the channels of a head are first read in memory order: hardware prefetches
///                     sequential reads, but not reads that alternate between the two halves of a head
template <class Layout, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_token_in_order(token_heads<T> x, table_row<S, inverse> row, bool in_twos,
                                               bool reads_ahead) {
  for (Index h = 0, count; h < x.heads; h += count) {
    count = in_twos && h + 2 <= x.heads ? 2 : 1;
    const auto* bytes = reinterpret_cast<const volatile unsigned char*>(x.in + h * x.in_stride);
    if (reads_ahead)
      for (Index i = 0; i < 2 * row.pairs * Index(sizeof(T)); i += line_of_cache) static_cast<void>(bytes[i]);
    rotate_token<Layout>(x.range(h, count), row);
  }
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ROTATION_DETAIL_ROTATE_KERNEL_HPP
