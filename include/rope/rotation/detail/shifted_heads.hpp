// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_SHIFTED_HEADS_HPP
#define ROPE_ROTATION_DETAIL_SHIFTED_HEADS_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::index_sequence

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/layout.hpp>

/// The rotation of heads that do not begin with a cache line. Those in a large std::vector never do: it
/// begins 16 bytes into one. A packet as wide as a line, read from such a head, crosses into the next line,
/// and so does every other one, which takes twice as long. But where the heads of a token lie side by side
/// without a gap, packets may begin with lines if the entries of the table are shifted by as many channels.
/// The last packet of a head then holds the first channels of the next head too, and its entries are the same
/// for all heads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The most packets of one head: the entries of each are held in two registers.
inline constexpr Index max_shifted_packets = 8;

/// Whether a line of the cache is one packet, and there are registers for the entries of a head.
template <class P>
inline constexpr bool shifts_heads = sizeof(P) == 64 && registers >= 32;

/// Channels from `x` on to the next packet that begins a line; 0 where that cannot be.
template <class P, class T>
Index channels_to_line(const T* x) {
  const auto past = static_cast<Index>(reinterpret_cast<std::uintptr_t>(x) % sizeof(P));
  return past % Index(sizeof(T)) != 0 || past == 0 ? 0 : (Index(sizeof(P)) - past) / Index(sizeof(T));
}

/// interleaved: n = sizeof...(k) packets for each head, of which the last holds the first `shift` channels of
/// the next head.
template <class P, class T, class S, bool inverse, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_shifted_pairs(token_heads<T> x, table_row<S, inverse> row, Index shift,
                                              std::index_sequence<k...>) {
  using step = rotation_step<interleaved, T, P, false>;
  constexpr Index L = lanes<P>, n = sizeof...(k);
  // The entries of the last packet: those of the last pairs, then those of the first ones.
  S across[std::size_t(2 * L)];
  const Index from_end = (L - shift) / 2;
  std::copy_n(row.cos + row.pairs - from_end, from_end, across);
  std::copy_n(row.cos, L / 2 - from_end, across + from_end);
  std::copy_n(row.sin + row.pairs - from_end, from_end, across + L);
  std::copy_n(row.sin, L / 2 - from_end, across + L + from_end);
  const table_row<S, inverse> wrapped = {across, across + L, row.pairs, row.scale};
  const auto entries = [&](Index i) {
    return i + 1 < n ? step(row, shift / 2 + i * step::pairs) : step(wrapped, 0);
  };
  const step steps[] = {entries(Index(k))...};

  // The first and the last packet of the token begin inside of lines and share channels with their
  // neighbours, so that each is read before its neighbour is written. The last one is not read earlier than
  // that, as its line is far from the first ones.
  const Index width = n * L, pairs = row.pairs;
  const step begin(row, 0), end(row, pairs - step::pairs);
  const P at_begin = load<P>(x.in);
  const T* in = x.in + shift;
  T* out = x.out + shift;
  for (Index h = 0; h + 1 < x.heads; ++h, in += width, out += width)
    (steps[k].write(load<P>(in + Index(k) * L), out + Index(k) * L, pairs), ...);
  const P at_end = load<P>(in + width - shift - L);
  (void(Index(k) + 1 < n ? (steps[k].write(load<P>(in + Index(k) * L), out + Index(k) * L, pairs), 0) : 0),
   ...);
  end.write(at_end, out + width - shift - L, pairs);
  begin.write(at_begin, x.out, pairs);
}

/// Lanes shift .. shift + L - 1 of two packets one after the other.
template <class P, class A>
EIGEN_ALWAYS_INLINE P lanes_from(Index shift, const P& first, const P& second) {
  A both[std::size_t(2 * lanes<P>)];
  store(both, first);
  store(both + lanes<P>, second);
  return load<P>(both + shift);
}

/// half_split: each half of a head, u and then v, takes m packets. The last packet of u also holds the first
/// `shift` channels of v, and the last packet of v those of u of the next head. The partners of the channels
/// in such a packet are in the packets of this kind before it and after it, half a head away:
///
///     across     ... | v1  u0' |   u1' v0' |   v1' u0" | ...     (u0 the first channels of u, u1 the last)
///     with           | u1  v0' |   v1' u0' |   u1' v0" |
template <class P, class T, class S, bool inverse, std::size_t... k>
EIGEN_ALWAYS_INLINE void rotate_shifted_halves(token_heads<T> x, table_row<S, inverse> row, Index shift,
                                               std::index_sequence<k...>) {
  using step = rotation_step<half_split, T, P, false>;
  constexpr Index L = lanes<P>, m = sizeof...(k) + 1, pairs = m * L;
  const step begin(row, 0), end(row, pairs - L), steps[] = {step(row, shift + Index(k) * L)...};
  const P one = fill<P>(T(1)), minus = fill<P>(T(-1));
  const auto is_end = positive_lanes(lanes_from<P, T>(shift, one, minus));  // lanes of the end of a half
  const P c = lanes_from<P, T>(shift, end.c, begin.c),
          // of packets that end with second channels: u c - v s, then v c + u s
      s = lanes_from<P, T>(shift, multiply(end.s, minus), begin.s), other_s = multiply(s, minus);
  const auto turn = [&](const P& own, const P& with, const P& signed_s) {
    return multiply_add(own, c, multiply(with, signed_s));
  };

  // The first and the last packet begin inside of lines and share channels with packets that hold parts of
  // both halves. Each is read before those are written, and the last one not earlier than that, as its line
  // is far from the first ones. The others are read in the order of memory.
  const typename step::channels at_begin = {load<P>(x.in), load<P>(x.in + pairs)};
  P own_before = at_begin.u, before = lanes_from<P, T>(shift, own_before, at_begin.u);
  const auto turn_head = [&](const T* in, T* out, bool first, const auto& read_middle) {
    const P early[] = {step::read_early(in + Index(k) * L)...};
    const P own = in_register(load<P>(in + (m - 1) * L));
    if (!first) store(out - L, turn(before, select(is_end, own_before, own), other_s));
    (steps[k].write(step::read(early[k], in + Index(k) * L, pairs), out + Index(k) * L, pairs), ...);
    const P middle = read_middle(in + pairs + (m - 1) * L);
    store(out + (m - 1) * L, turn(own, select(is_end, middle, before), s));
    own_before = own;
    before = middle;
  };
  const T* in = x.in + shift;
  T* out = x.out + shift;
  for (Index h = 0; h + 1 < x.heads; ++h, in += 2 * pairs, out += 2 * pairs)
    turn_head(in, out, h == 0, [](const T* across) { return in_register(load<P>(across)); });
  const Index to_end = pairs - L - shift;
  const typename step::channels at_end = {load<P>(in + to_end), load<P>(in + pairs + to_end)};
  turn_head(in, out, false, [&](const T*) { return lanes_from<P, T>(shift, at_end.v, at_end.v); });
  store(out + pairs + to_end, multiply_add(at_end.v, end.c, multiply(at_end.u, end.s)));
  store(x.out, multiply_subtract(at_begin.u, begin.c, multiply(at_begin.v, begin.s)));
}

/// Calls body with an index_sequence of n, in [0, most).
template <std::size_t most, class Body>
EIGEN_ALWAYS_INLINE void with_count(Index n, const Body& body) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (void(Index(i) == n ? (body(std::make_index_sequence<i>{}), 0) : 0), ...);
  }
  (std::make_index_sequence<most>{});
}

/// Rotates all heads of a token in packets that begin lines.
///
/// \return  false, and nothing is done, where heads begin with lines, have gaps between them, or are no whole
///          number of packets
template <class Layout, class P, class T, class S, bool inverse>
bool rotate_shifted(token_heads<T> x, table_row<S, inverse> row) {
  constexpr Index L = lanes<P>;
  const Index shift = channels_to_line<P>(x.in), width = 2 * row.pairs;
  if (shift == 0 || x.heads < 2 || x.in_stride != width || x.out_stride != width ||
      channels_to_line<P>(x.out) != shift)
    return false;
  if constexpr (std::is_same_v<Layout, interleaved>) {
    if (shift % 2 != 0 || width % L != 0 || width < 2 * L || width / L > max_shifted_packets) return false;
    with_count<std::size_t(max_shifted_packets) + 1>(width / L, [&](auto each) {
      if constexpr (each.size() > 1) rotate_shifted_pairs<P>(x, row, shift, each);
    });
  } else {
    if (row.pairs % L != 0 || row.pairs < 2 * L || width / L > max_shifted_packets) return false;
    with_count<std::size_t(max_shifted_packets) / 2>(row.pairs / L - 1, [&](auto each) {
      if constexpr (each.size() > 0) rotate_shifted_halves<P>(x, row, shift, each);
    });
  }
  return true;
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_DETAIL_SHIFTED_HEADS_HPP
