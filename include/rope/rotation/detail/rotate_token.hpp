// SPDX-License-Identifier: MIT
#ifndef ROPE_ROTATION_DETAIL_ROTATE_TOKEN_HPP
#define ROPE_ROTATION_DETAIL_ROTATE_TOKEN_HPP

#include <algorithm>  // std::min
#include <cstddef>
#include <type_traits>

#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>  // can_split_even_odd
#include <rope/config.hpp>
#include <rope/rotation/detail/rotate_kernel.hpp>
#include <rope/rotation/detail/shifted_heads.hpp>
#include <rope/rotation/layout.hpp>

/// In which order and form the blocks of rotate_kernel.hpp pass through the heads of a token: tuning only, as
/// all orders and forms give the same bits.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Whether a row of `pairs` pairs is one block, so that one pass over the heads turns all of them. For 16-bit
/// channels also if it is less than a step: the second pass that this takes costs little.
template <class Layout, class T, class P, bool split_even_odd>
bool in_one_pass(Index pairs) {
  constexpr Index least = sizeof(T) == 2 ? 0 : pairs_in_step<Layout, T, P, split_even_odd>;
  return pairs >= least && pairs <= pairs_in_block<Layout, T, P, split_even_odd>;
}

/// Rotates every head of a token whose row is one block of any length.
template <class Layout, class P, bool split_even_odd, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_in_one_pass(token_heads<T> x, table_row<S, inverse> row) {
  constexpr std::size_t most = steps_in_block<Layout, T, P, split_even_odd>;
  if constexpr (sizeof(T) == 2) {
    rotate_blocks<Layout, P, most, split_even_odd>(x, row, 0);
  } else {
    constexpr Index step = pairs_in_step<Layout, T, P, split_even_odd>;
    with_count<most + 1>(row.pairs / step, [&](auto each) {
      if constexpr (each.size() > 0) {
        if (each.size() == most || row.pairs % step == 0)
          rotate_block<Layout, P, split_even_odd, false>(each, x, row, 0);
        else
          rotate_block<Layout, P, split_even_odd, true>(each, x, row, 0);
      }
    });
  }
}

/// Touches the channels of a head in the order of memory, so that they are in the cache when blocks read them
/// in another order.
template <class T>
void read_in_order(const T* channels, Index count) {
  constexpr Index line = 64;
  const auto* bytes = reinterpret_cast<const volatile unsigned char*>(channels);
  for (Index i = 0; i < count * Index(sizeof(T)); i += line) static_cast<void>(bytes[i]);
}

/// Which form of rotation_step is the faster one: whether channels are split.
template <class Layout, class T>
struct kernel_variant {
  /// Where the entries of a row are held in registers while all heads pass through: only for bfloat16. Other
  /// interleaved channels exchange neighbours, for which every entry stands twice in a register.
  static constexpr bool split_if_resident = std::is_same_v<T, Eigen::bfloat16>;
  /// Where the entries of a row are read again for other heads: for interleaved channels too.
  static constexpr bool split_if_reloaded =
      split_if_resident ||
      (std::is_same_v<Layout, interleaved> && can_split_even_odd<T, packet<arithmetic<T>>>);

  /// Whether the form for held entries is also the faster one from one buffer to another, both larger than a
  /// core's own cache. For interleaved channels of 32 and 64 bits it is not: it has 0.88 of the speed of a
  /// copy, the form for entries that are read again 0.98 (AVX-512).
  static constexpr bool resident_faster_out_of_place =
      split_if_resident == split_if_reloaded || std::is_same_v<T, Eigen::half>;
};

/// Heads that share one read of the table where a row is more than one block and at most two, and the data is
/// larger than a core's own cache. Reading the row for every head takes as many instructions as rotating it.
/// Longer rows, of more blocks, are slower that way from memory. (AVX2, Zen 3, share of the speed of x *= a,
/// heads of 128 floats, one head, two and four: half_split 0.88, 1.0 and 0.93 in a cache that cores share,
/// 0.93, 1.1 and 0.85 where 64 MiB are taken again and again; interleaved 0.50, 0.68 and 0.72 in such a
/// cache, 0.72, 0.72 and 0.61 from memory.)
/// Not measured with 32 registers, where a block holds more pairs.
inline constexpr Index heads_per_table_read = registers >= 32 ? 1 : 2;

/// Heads [first, first + heads) of x.
template <class T>
token_heads<T> some_heads(const token_heads<T>& x, Index first, Index heads) {
  return {x.in + first * x.in_stride, x.out + first * x.out_stride, heads, x.in_stride, x.out_stride};
}

/// Rotates every head of a token whose data is larger than a core's own cache, in the order of memory.
template <class Layout, class P, bool split_even_odd, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_in_order(token_heads<T> x, table_row<S, inverse> row) {
  constexpr std::size_t steps = steps_in_block<Layout, T, P, split_even_odd>;
  const auto rotate_from = [&](Index head, Index heads) {
    rotate_blocks<Layout, P, steps, split_even_odd>(some_heads(x, head, heads), row, 0);
  };
  if (in_one_pass<Layout, T, P, split_even_odd>(row.pairs)) {
    rotate_from(0, x.heads);
  } else if (heads_per_table_read > 1 && row.pairs <= 2 * pairs_in_block<Layout, T, P, split_even_odd>) {
    for (Index h = 0; h < x.heads; h += heads_per_table_read)
      rotate_from(h, (std::min)(heads_per_table_read, x.heads - h));
  } else {
    // Passing through the heads once per part of a row would leave the order of memory, which costs more than
    // reading the row from the L1 cache for each head.
    for (Index h = 0; h < x.heads; ++h) {
      if (std::is_same_v<Layout, half_split>) read_in_order(x.in + h * x.in_stride, 2 * row.pairs);
      rotate_from(h, 1);
    }
  }
}

/// Whether packets of the arithmetic type of T, which the entries S must be, turn the pairs of a layout.
template <class Layout, class T, class S>
inline constexpr bool turns_in_packets = false;
template <class T>
inline constexpr bool turns_in_packets<interleaved, T, arithmetic<T>> = has_packets<T, packet<arithmetic<T>>>;
template <class T>
inline constexpr bool turns_in_packets<half_split, T, arithmetic<T>> = has_packets<T, packet<arithmetic<T>>>;

/// Whether a row of `pairs` pairs is less than a block and a whole number of steps, or a whole number of
/// blocks.
template <class Layout, class T, bool split_even_odd>
bool is_whole_blocks(Index pairs) {
  using P = packet<arithmetic<T>>;
  constexpr Index step = pairs_in_step<Layout, T, P, split_even_odd>,
                  block = pairs_in_block<Layout, T, P, split_even_odd>;
  return pairs > 0 && pairs % (pairs < block ? step : block) == 0;
}

/// Rotates every head of a token whose row is whole blocks of n steps.
///
/// \tparam together  so many heads take the blocks of a row one after the other before the next heads do; 0:
///                   all of them do
template <class Layout, class P, bool split_even_odd, Index together, std::size_t... n, class T, class S,
          bool inverse>
EIGEN_ALWAYS_INLINE void rotate_whole_blocks(std::index_sequence<n...> steps, token_heads<T> x,
                                             table_row<S, inverse> row) {
  constexpr Index block = Index(sizeof...(n)) * pairs_in_step<Layout, T, P, split_even_odd>;
  if constexpr (together == 0) {
    for (Index i = 0; i < row.pairs; i += block)
      rotate_block<Layout, P, split_even_odd, false>(steps, x, row, i);
  } else {
    for (Index h = 0; h < x.heads; h += together)
      rotate_whole_blocks<Layout, P, split_even_odd, 0>(
          steps, some_heads(x, h, (std::min)(together, x.heads - h)), row);
  }
}

/// Calls body with an index_sequence, as long as each block of such a row has steps.
template <class Layout, class T, bool split_even_odd, class Body>
EIGEN_ALWAYS_INLINE void with_steps_of_blocks(Index pairs, const Body& body) {
  using P = packet<arithmetic<T>>;
  constexpr std::size_t most = steps_in_block<Layout, T, P, split_even_odd>;
  const Index steps = (std::min)(pairs / pairs_in_step<Layout, T, P, split_even_odd>, Index(most));
  with_count<most + 1>(steps, [&](auto each) {
    if constexpr (each.size() > 0) body(each);
  });
}

/// Rotates every head of one token.
///
/// \param streams  whether the data is larger than a core's own cache, so that the order of memory matters
template <class Layout, class T, class S, bool inverse>
EIGEN_ALWAYS_INLINE void rotate_token(token_heads<T> x, table_row<S, inverse> row, bool streams) {
  using P = packet<arithmetic<T>>;
  using form = kernel_variant<Layout, T>;
  if constexpr (turns_in_packets<Layout, T, S>) {
    if constexpr (std::is_same_v<T, S> && shifts_heads<P>)
      if (channels_to_line<P>(x.in) != 0 && rotate_shifted<Layout, P>(x, row)) return;
    const bool held = in_one_pass<Layout, T, P, form::split_if_resident>(row.pairs);
    if (!streams || (held && (form::resident_faster_out_of_place || x.in == x.out))) {
      if (held)
        rotate_in_one_pass<Layout, P, form::split_if_resident>(x, row);
      else
        rotate_blocks<Layout, P, steps_in_block<Layout, T, P, form::split_if_resident>,
                      form::split_if_resident>(x, row, 0);
      return;
    }
    rotate_in_order<Layout, P, form::split_if_reloaded>(x, row);
  } else {
    rotate_scalars<Layout>(x, row, 0);
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ROTATION_DETAIL_ROTATE_TOKEN_HPP
