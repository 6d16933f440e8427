// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_TILE_PRODUCT_HPP
#define ROPE_BLOCK_DETAIL_TILE_PRODUCT_HPP

#include <algorithm>  // std::min, std::copy_n, std::fill_n
#include <cstddef>
#include <numeric>  // std::lcm
#include <type_traits>

#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The product of two matrices for one tile of the result, in memory of our own: Eigen's product has its
/// packed operands from an allocator, and under a name, that translation units of other instruction sets
/// share, and then finds them packed or aligned for another one.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Element (r, c) of an operand is data[r * row_stride + c * col_stride]; one of the strides is 1.
template <class A>
struct operand {
  const A* data;
  Index row_stride, col_stride;

  /// The operand from that element on.
  operand from(Index r, Index c) const {
    return {data + r * row_stride + c * col_stride, row_stride, col_stride};
  }
};

/// Operands are packed for so many terms of a sum at a time: a strip stays in the nearest cache and the
/// panels of a tile in a core's own.
inline constexpr Index terms_at_once = 256;

/// Rows that are packed together: whole strips and whole packets.
template <class A>
inline constexpr Index rows_at_once = std::lcm(Index{panel_shape<A>::rows}, Index{lanes<packet<A>>});

/// out[r * stride + n] = sum_d strip[d * rows_at_once + r] * panel[d * width + n], or += if `add`, for one
/// strip of rows and one panel.
template <class A>
EIGEN_DONT_INLINE void multiply_panel(const A* strip, const A* panel, Index terms, bool add, A* out,
                                      Index stride) {
  using P = packet<A>;
  using shape = panel_shape<A>;
  strip_sums<A, shape::packets> sums;
  sums.for_each([&](auto r, auto n) { sums.sum[r * shape::packets + n] = fill<P>(A(0)); });
  for (Index d = 0; d < terms; ++d)
    sums.multiply_add_row(strip + d * rows_at_once<A>, 1, panel + d * shape::width);
  sums.for_each([&](auto r, auto n) {
    const P sum = sums.sum[r * shape::packets + n];
    A* to = out + r * stride + n * lanes<P>;
    store(to, add ? rope::detail::add(load<P>(to), sum) : sum);
  });
}

/// The same for a strip or a panel of which only rows [0, rows) and columns [0, cols) are there.
template <class A>
void multiply_edge(const A* strip, const A* panel, Index terms, bool add, A* out, Index stride, Index rows,
                   Index cols) {
  using shape = panel_shape<A>;
  A whole[std::size_t(shape::rows * shape::width)];
  multiply_panel(strip, panel, terms, false, whole, shape::width);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) {
      A& to = out[r * stride + c];
      to = add ? to + whole[r * shape::width + c] : whole[r * shape::width + c];
    }
}

/// packed[d * rows_at_once + r] = a(r, d), zero for r from `rows` on.
template <class A>
void pack_rows(const operand<A>& a, Index rows, Index terms, A* packed) {
  constexpr Index all = rows_at_once<A>;
  if (a.col_stride == 1) return pack_transposed(a.data, a.row_stride, rows, all, terms, packed, all);
  for (Index d = 0; d < terms; ++d) {
    std::copy_n(a.data + d * a.col_stride, rows, packed + d * all);
    std::fill_n(packed + d * all + rows, all - rows, A(0));
  }
}

/// packed[(c / width * terms + d) * width + c % width] = b(d, c), zero up to a whole panel.
template <class A>
void pack_panels(const operand<A>& b, Index terms, Index cols, A* packed) {
  constexpr Index width = panel_shape<A>::width;
  if (b.col_stride == 1) {
    for (Index d = 0; d < terms; ++d)
      pack_row(b.data + d * b.row_stride, cols, packed + d * width, terms * width);
  } else {
    for (Index c = 0; c < cols; c += width)
      pack_transposed(b.data + c * b.col_stride, b.col_stride, (std::min)(width, cols - c), width, terms,
                      packed + c * terms, width);
  }
}

/// out(r, c) = sum_d a(r, d) b(d, c), or += if `add`: [rows, depth] times [depth, cols]. Sums are formed for
/// terms_at_once terms and then added.
template <class A>
void multiply_tile(const operand<A>& a, const operand<A>& b, Index rows, Index depth, Index cols, bool add,
                   A* out, Index stride) {
  using shape = panel_shape<A>;
  constexpr Index strip_rows = shape::rows, width = shape::width, block = rows_at_once<A>;
  if (depth == 0 && !add)
    for (Index r = 0; r < rows; ++r) std::fill_n(out + r * stride, cols, A(0));
  struct product_numbers {};
  const Index most = (std::min)(depth, terms_at_once);
  A* const strips = workspace<product_numbers, A>(most * (block + shape::padded(cols)));
  A* const panels = strips + most * block;
  for (Index first = 0; first < depth; first += terms_at_once) {
    const Index terms = (std::min)(terms_at_once, depth - first);
    const bool adds = add || first > 0;
    pack_panels(b.from(first, 0), terms, cols, panels);
    for (Index r = 0; r < rows; r += block) {
      const Index packed = (std::min)(block, rows - r);
      pack_rows(a.from(r, first), packed, terms, strips);
      for (Index s = 0; s < packed; s += strip_rows)
        for (Index c = 0; c < cols; c += width) {
          const Index here = (std::min)(strip_rows, packed - s), there = (std::min)(width, cols - c);
          A* const to = out + (r + s) * stride + c;
          if (here == strip_rows && there == width)
            multiply_panel(strips + s, panels + c * terms, terms, adds, to, stride);
          else
            multiply_edge(strips + s, panels + c * terms, terms, adds, to, stride, here, there);
        }
    }
  }
}

/// Tokens and rows of a weight whose products of one another are formed at once.
template <int tokens>
inline constexpr int weights_beside = tokens == 1 ? 8 : 4;

/// out[t * out_stride + c] = sum_d x[t * x_stride + d] w[c * w_stride + d] for `tokens` tokens and c in
/// [0, cols): both operands are read where they are. A sum has the same bits whatever is formed beside it.
template <int tokens, class A>
EIGEN_DONT_INLINE void multiply_few(const A* x, Index x_stride, const A* w, Index w_stride, Index depth,
                                    Index cols, A* out, Index out_stride) {
  using P = packet<A>;
  constexpr int L = lanes<P>, beside = weights_beside<tokens>;
  for (Index c = 0; c < cols; c += beside) {
    const A* weights[std::size_t(beside)];
    for (int i = 0; i < beside; ++i) weights[i] = w + (std::min)(c + i, cols - 1) * w_stride;
    P sums[std::size_t(tokens)][std::size_t(beside)];
    for (auto& of_token : sums)
      for (P& sum : of_token) sum = fill<P>(A(0));
    Index d = 0;
    for (; d + L <= depth; d += L) {
      P numbers[std::size_t(tokens)];
      for (int t = 0; t < tokens; ++t) numbers[t] = load<P>(x + t * x_stride + d);
      for (int i = 0; i < beside; ++i) {
        const P weight = load<P>(weights[i] + d);
        for (int t = 0; t < tokens; ++t) sums[t][i] = multiply_add(numbers[t], weight, sums[t][i]);
      }
    }
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < beside && c + i < cols; ++i) {
        A sum = sum_of_lanes(sums[t][i]);
        for (Index rest = d; rest < depth; ++rest)
          sum = multiply_add(x[t * x_stride + rest], weights[i][rest], sum);
        out[t * out_stride + c + i] = sum;
      }
  }
}

/// The same for any number of tokens: faster than packing for few.
template <class A>
void multiply_few(Index tokens, const A* x, Index x_stride, const A* w, Index w_stride, Index depth,
                  Index cols, A* out, Index out_stride) {
  constexpr int at_once = registers >= 32 ? 4 : 2;
  // A few weights stay in the nearest cache while all tokens meet them.
  constexpr Index weights_at_once = 8;
  for (Index c = 0; c < cols; c += weights_at_once) {
    const Index here = (std::min)(weights_at_once, cols - c);
    Index t = 0;
    const auto run = [&]<int count>(std::integral_constant<int, count>) {
      for (; t + count <= tokens; t += count)
        multiply_few<count>(x + t * x_stride, x_stride, w + c * w_stride, w_stride, depth, here,
                            out + t * out_stride + c, out_stride);
    };
    run(std::integral_constant<int, at_once>{});
    run(std::integral_constant<int, 2>{});
    run(std::integral_constant<int, 1>{});
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_TILE_PRODUCT_HPP
