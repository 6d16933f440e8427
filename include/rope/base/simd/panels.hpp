// SPDX-License-Identifier: MIT
#ifndef ROPE_BASE_SIMD_PANELS_HPP
#define ROPE_BASE_SIMD_PANELS_HPP

#include <algorithm>  // std::min, std::fill, std::copy_n
#include <concepts>   // std::same_as
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/config.hpp>

/// The matrix products of attention and of linear layers on packed operands. A strip of queries (one row for
/// every two registers of sums) is multiplied by a panel of keys or of value channels (two packets wide). A
/// tile is a block of 128 keys, and has several panels. Each step loads two packets of the panel and one
/// number of each row, for two multiply-adds per row.
///
/// For types that are multiplied in pairs, operands are packed as pairs of adjacent elements of the axis that
/// is summed over.

ROPE_DETAIL_QUIET_BEGIN

namespace rope::inline ROPE_ABI::detail {

/// Sizes of the kernel for numbers A.
template <class A>
struct panel_shape {
  /// The number of rows of a strip. Two sums per row, two packets of the panel and one packet of a row must
  /// fit in the registers.
  static constexpr int rows = registers >= 32 ? 12 : registers >= 16 ? 6 : 2;
  static constexpr int packets = 2;
  /// The number of keys or channels of a panel.
  static constexpr Index width = packets * lanes<packet<A>>;
  /// The number of keys of a tile: a multiple of every width. A packed tile of 128 channels takes 64 KiB as
  /// float.
  static constexpr Index tile = 128;
  static_assert(tile % width == 0);

  /// `count` rounded up to whole panels.
  static constexpr Index padded(Index count) { return pieces_of(count, width) * width; }
};

/// Products in the arithmetic type, with the members that strip_sums uses.
template <class A>
struct real_products {
  using number = A;
  using sums = packet<A>;
  using pairs = packet<A>;
  using reals = packet<A>;
  static constexpr Index lanes = detail::lanes<sums>;

  static EIGEN_ALWAYS_INLINE sums zero() { return detail::fill<sums>(A(0)); }
  static EIGEN_ALWAYS_INLINE pairs load(const A* from) { return detail::load<pairs>(from); }
  static EIGEN_ALWAYS_INLINE pairs fill(const A* from) { return detail::fill<pairs>(*from); }
  static EIGEN_ALWAYS_INLINE sums multiply_add(const pairs& a, const pairs& b, const sums& c) {
    return detail::multiply_add(a, b, c);
  }
  static EIGEN_ALWAYS_INLINE reals as_reals(const sums& of) { return of; }
};

/// The sums of products of a strip of queries and one panel, in registers, [rows][packets]. They are zero at
/// first.
template <class A, int packet_count, class Products = real_products<A>>
struct strip_sums {
  using number = typename Products::number;
  static constexpr int rows = panel_shape<A>::rows, packets = packet_count;
  /// The numbers of a lane in one step: two if numbers are multiplied in pairs.
  static constexpr Index numbers = std::is_same_v<Products, real_products<A>> ? 1 : 2;
  typename Products::sums sum[std::size_t(rows * packets)];

  EIGEN_ALWAYS_INLINE strip_sums() {
    for_each([&](auto r, auto n) { sum[r * packets + n] = Products::zero(); });
  }

  /// Calls body(row constant, packet constant) for each sum, unrolled.
  template <class Body>
  static EIGEN_ALWAYS_INLINE void for_each(const Body& body) {
    unrolled<std::size_t(rows * packets)>([&](auto i) {
      body(std::integral_constant<int, int(i) / packets>{}, std::integral_constant<int, int(i) % packets>{});
    });
  }

  /// sum[r][n] += row_numbers[r * step] * panel[n]
  EIGEN_ALWAYS_INLINE void multiply_add_row(const number* row_numbers, Index step, const number* panel) {
    typename Products::pairs columns[std::size_t(packets)];
    unrolled<std::size_t(packets)>(
        [&](auto n) { columns[n] = Products::load(panel + Index(n) * numbers * Products::lanes); });
    unrolled<std::size_t(rows)>([&](auto r) {
      const typename Products::pairs of_row = Products::fill(row_numbers + Index(r) * step);
      unrolled<std::size_t(packets)>([&](auto n) {
        typename Products::sums& to = sum[r * std::size_t(packets) + n];
        to = Products::multiply_add(of_row, columns[n], to);
      });
    });
  }
};

/// products[r * stride + n] = sum_d x_rd panel[d * width + n], or += if `adds`, for one strip of rows and one
/// panel.
///
/// \param x      [panels, ..., rows, width]: channel d of row r is at x[d / width * panel_stride + r * width
///               + d % width]
/// \param panel  [depth, width]
template <bool adds = false, class A>
EIGEN_DONT_INLINE void row_products(const A* x, Index panel_stride, const A* panel, Index depth, A* products,
                                    Index stride) {
  using P = packet<A>;
  using shape = panel_shape<A>;
  strip_sums<A, shape::packets> sums;
  for (; depth > 0; depth -= shape::width, x += panel_stride) {
    const Index here = (std::min)(depth, shape::width);
    for (Index d = 0; d < here; ++d, panel += shape::width) sums.multiply_add_row(x + d, shape::width, panel);
  }
  sums.for_each([&](auto r, auto n) {
    A* const to = products + r * stride + n * lanes<P>;
    const P sum = sums.sum[r * shape::packets + n];
    store(to, adds ? add(load<P>(to), sum) : sum);
  });
}

/// sums[r * width + c] = shrink[r] * sums[r * width + c] + factors[r] * sum_d numbers[r * row_step + d *
/// depth_step] * panel[d * width + c] for the first `packets` packets of one panel of channels. The sum over
/// d starts at zero, because adding terms one by one to a large sum rounds once per term. If numbers are
/// multiplied in pairs, d counts pairs, and the panel has pairs.
///
/// \param numbers         term d of row r is at numbers[r * row_step + d * depth_step]
/// \param panel           [depth, width]
/// \param shrink          [rows], or null for ones
/// \param sums_in_memory  [rows, width]
/// \param factors         [rows], or null for ones; used only if numbers are multiplied in pairs
template <class A, int packets, Index row_step, Index depth_step, class Products = real_products<A>>
EIGEN_DONT_INLINE void add_products_of_panel(const typename Products::number* numbers,
                                             const typename Products::number* panel, Index depth,
                                             const A* shrink, A* sums_in_memory, const A* factors = nullptr) {
  using P = typename Products::reals;
  using shape = panel_shape<A>;
  using strip = strip_sums<A, packets, Products>;
  strip sums;
  for (Index d = 0; d < depth; ++d)
    sums.multiply_add_row(numbers + d * depth_step, row_step, panel + d * strip::numbers * shape::width);
  sums.for_each([&](auto r, auto n) {
    A* before = sums_in_memory + r * shape::width + n * Products::lanes;
    const P factor = fill<P>(shrink == nullptr ? A(1) : shrink[r]);
    P sum = Products::as_reals(sums.sum[r * packets + n]);
    if constexpr (strip::numbers == 2)
      if (factors != nullptr) sum = multiply(fill<P>(factors[r]), sum);
    store(before, multiply_add(factor, load<P>(before), sum));
  });
}

/// Calls add_products_of_panel for all panels of `channels` channels. Two panels are panel_stride apart, and
/// their sums sums_stride.
template <class A, Index row_step, Index depth_step>
void add_products(const A* numbers, const A* panel, Index panel_stride, Index depth, Index channels,
                  const A* shrink, A* sums, Index sums_stride) {
  using shape = panel_shape<A>;
  for (; channels > 0; channels -= shape::width, panel += panel_stride, sums += sums_stride)
    if (channels > lanes<packet<A>>)
      add_products_of_panel<A, shape::packets, row_step, depth_step>(numbers, panel, depth, shrink, sums);
    else
      add_products_of_panel<A, 1, row_step, depth_step>(numbers, panel, depth, shrink, sums);
}

/// packed[d * packed_stride + n] = rows[n * row_stride + d], widened, for n in [0, count), zero up to
/// `padded_count`.
template <class A, class X>
void pack_transposed(const X* rows, Index row_stride, Index count, Index padded_count, Index depth, A* packed,
                     Index packed_stride) {
  using P = packet<A>;
  constexpr Index L = lanes<P>;
  for (Index n = 0; n < padded_count; n += L) {
    const Index here = (std::min)(L, count - n), columns = (std::min)(L, padded_count - n);
    Index d = 0;
    if (here == L) {
      for (; d + L <= depth; d += L) {
        P block[std::size_t(L)];
        unrolled<std::size_t(L)>([&](auto i) { block[i] = load<P>(rows + (n + Index(i)) * row_stride + d); });
        for (Index i = 0; i < L; ++i) {  // prefetched, because the processor does not follow so many streams
          const std::ptrdiff_t after = std::ptrdiff_t(n + L + i) * row_stride + d;
          prefetch_after(rows, static_cast<std::uintptr_t>(after * std::ptrdiff_t{sizeof(X)}));
        }
        transpose(block);
        unrolled<std::size_t(L)>(
            [&](auto i) { store(packed + (d + Index(i)) * packed_stride + n, block[i]); });
      }
    }
    for (; d < depth; ++d)
      for (Index i = 0; i < columns; ++i)
        packed[d * packed_stride + n + i] = i < here ? static_cast<A>(rows[(n + i) * row_stride + d]) : A(0);
  }
}

/// Packs rows [count, depth] into panels [depth, width] that are `panel_stride` apart, with zeros after the
/// last row.
template <class A>
void pack_transposed_panels(const A* rows, Index row_stride, Index count, Index depth, A* packed,
                            Index panel_stride) {
  constexpr Index width = panel_shape<A>::width;
  for (Index n = 0; n < count; n += width, packed += panel_stride)
    pack_transposed(rows + n * row_stride, row_stride, (std::min)(width, count - n), width, depth, packed,
                    width);
}

/// Copies channels [0, depth) of one row, widened, into panels that are `panel_stride` apart. Zeros fill the
/// last panel.
template <class A, class X>
void pack_row(const X* row, Index depth, A* packed, Index panel_stride) {
  using P = packet<A>;
  constexpr Index width = panel_shape<A>::width, L = lanes<P>;
  for (Index c = 0; c < depth; c += width, packed += panel_stride) {
    const Index here = (std::min)(width, depth - c);
    if (here == width) {
      for (Index i = 0; i < width; i += L) store(packed + i, load<P>(row + c + i));
    } else {
      for (Index i = 0; i < here; ++i) packed[i] = static_cast<A>(row[c + i]);
      std::fill(packed + here, packed + width, A(0));
    }
  }
}

/// Requirements on types that are multiplied in pairs: bfloat16_products and integer_products.
///
///     number               the type of packed numbers
///     stored               the type of keys and values in memory
///     sum                  the type to which products are added
///     pairs, sums, reals   a register of pairs, of sums and of floats; each has `lanes` lanes
///     load(from)           pairs of neighbours, of packed or of stored numbers
///     fill(from)           one pair in every lane
///     multiply_add(a, b, c)
///                          a.even * b.even + a.odd * b.odd + c in every lane
///     of_tokens(first, second)
///                          pairs of the same channel of two tokens. `even` has one half of the channels,
///                          and `odd` the other
///     place_of_channel(c)  the index of channel c of 2 * lanes in `even` followed by `odd`
///     as_reals(sums)       the sums as floats
template <class X>
concept pair_products = requires(const typename X::number* packed, const typename X::stored* from, Index c,
                                 const typename X::pairs& a, const typename X::sums& sums) {
  { X::zero() } -> std::same_as<typename X::sums>;
  { X::load(packed) } -> std::same_as<typename X::pairs>;
  { X::load(from) } -> std::same_as<typename X::pairs>;
  { X::fill(packed) } -> std::same_as<typename X::pairs>;
  { X::multiply_add(a, a, sums) } -> std::same_as<typename X::sums>;
  { X::of_tokens(a, a) } -> std::same_as<even_odd<typename X::pairs>>;
  { X::place_of_channel(c) } -> std::same_as<Index>;
  { X::as_reals(sums) } -> std::same_as<typename X::reals>;
};

/// The sums of products of a strip of queries and one panel, both packed in pairs.
template <pair_products Products>
using strip_of_pairs = strip_sums<float, int(panel_shape<float>::width / Products::lanes), Products>;

/// scores[r * tile + n] = factors[r] * (sum_d queries[d][r] . keys[d][n]) * scales[n] over pairs d of
/// channels, for one panel.
///
/// \param queries  [count, rows], each element two adjacent numbers
/// \param keys     [count, width], each element two adjacent numbers
/// \param factors  [rows]
/// \param scales   [width], or null for ones
template <pair_products Products>
EIGEN_DONT_INLINE void score_panel_of_pairs(const typename Products::number* queries,
                                            const typename Products::number* keys, Index count,
                                            const float* factors, const float* scales, float* scores) {
  using shape = panel_shape<float>;
  using reals = typename Products::reals;
  constexpr Index L = Products::lanes;
  strip_of_pairs<Products> sums;
  for (Index d = 0; d < count; ++d)
    sums.multiply_add_row(queries + d * 2 * shape::rows, 2, keys + d * 2 * shape::width);
  sums.for_each([&](auto r, auto n) {
    const reals score = multiply(fill<reals>(factors[r]), Products::as_reals(sums.sum[r * sums.packets + n]));
    store(scores + r * shape::tile + n * L,
          scales == nullptr ? score : reals(multiply(score, load<reals>(scales + n * L))));
  });
}

/// Copies pair d of rows[n * row_stride ..], n in [0, count), to pair d * width + n of `packed`. Writes zeros
/// for n up to `padded_count`, and for the channel after the last one if `depth` is odd.
template <pair_products Products>
void pack_pairs_transposed(const typename Products::stored* rows, Index row_stride, Index count,
                           Index padded_count, Index depth, typename Products::number* packed) {
  using number = typename Products::number;
  using reals = typename Products::reals;
  constexpr Index L = Products::lanes, width = panel_shape<float>::width;
  for (Index n = 0; n < padded_count; n += L) {
    const Index here = (std::min)(L, count - n), columns = (std::min)(L, padded_count - n);
    Index d = 0;
    if constexpr (L > 1)
      if (here == L)
        for (; 2 * (d + L) <= depth; d += L) {
          reals block[std::size_t(L)];
          unrolled<std::size_t(L)>([&](auto i) {
            block[i] = from_bits<reals>(Products::load(rows + (n + Index(i)) * row_stride + 2 * d));
          });
          transpose(block);
          unrolled<std::size_t(L)>(
              [&](auto i) { store_bits(packed + ((d + Index(i)) * width + n) * 2, to_bits(block[i])); });
        }
    for (; 2 * d < depth; ++d)
      for (Index i = 0; i < columns; ++i) {
        number* to = packed + (d * width + n + i) * 2;
        to[0] = i < here ? number(rows[(n + i) * row_stride + 2 * d]) : number{};
        to[1] = i < here && 2 * d + 1 < depth ? number(rows[(n + i) * row_stride + 2 * d + 1]) : number{};
      }
  }
}

/// Copies the pairs of one row to `packed`, where they are `packed_stride` apart. A zero follows an odd
/// number of channels.
template <class Number>
void pack_strided_pairs(const Number* row, Index depth, Number* packed, Index packed_stride) {
  for (; depth > 1; depth -= 2, row += 2, packed += packed_stride) std::copy_n(row, 2, packed);
  if (depth == 1) {
    packed[0] = row[0];
    packed[1] = Number{};
  }
}

/// The index of channel c in a row of a panel of values. Channels are packed in groups that fill two
/// registers of pairs: the first half of a group is `even` of `Products::of_tokens`, the second half is
/// `odd`.
template <pair_products Products>
Index place_of_channel(Index c) {
  constexpr Index both = 2 * Products::lanes;
  return c / both * both + Products::place_of_channel(c % both);
}

/// Copies channels [0, depth) of two adjacent tokens into panels of pairs that are `panel_stride` apart.
/// Zeros fill the last panel.
template <pair_products Products>
void pack_rows_of_pairs(const typename Products::stored* even, const typename Products::stored* odd,
                        Index depth, typename Products::number* packed, Index panel_stride) {
  using number = typename Products::number;
  constexpr Index L = Products::lanes, width = panel_shape<float>::width;
  for (Index c = 0; c < depth; c += width, packed += panel_stride) {
    if constexpr (L > 1)
      if (depth - c >= width) {
        for (Index i = 0; i < width; i += 2 * L) {
          const auto both = Products::of_tokens(Products::load(even + c + i), Products::load(odd + c + i));
          store_bits(packed + 2 * i, both.even);
          store_bits(packed + 2 * (i + L), both.odd);
        }
        continue;
      }
    for (Index i = 0; i < width; ++i) {
      number* to = packed + 2 * place_of_channel<Products>(i);
      to[0] = c + i < depth ? number(even[c + i]) : number{};
      to[1] = c + i < depth ? number(odd[c + i]) : number{};
    }
  }
}

/// Writes the half of each pair that belongs to one token. The other half is unchanged.
///
/// \param half  0 for the even token, 1 for the odd one
template <pair_products Products>
void pack_row_of_pairs(const typename Products::stored* row, Index half, Index depth,
                       typename Products::number* packed, Index panel_stride) {
  using number = typename Products::number;
  constexpr Index width = panel_shape<float>::width;
  for (Index c = 0; c < depth; c += width, packed += panel_stride)
    for (Index i = 0; i < width; ++i)
      packed[2 * place_of_channel<Products>(i) + half] = c + i < depth ? number(row[c + i]) : number{};
}

}  // namespace rope::inline ROPE_ABI::detail

ROPE_DETAIL_QUIET_END

#endif  // ROPE_BASE_SIMD_PANELS_HPP
