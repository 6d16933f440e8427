// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_PANELS_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_PANELS_HPP

#include <algorithm>  // std::min

#include <rope/attention/detail/rows.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The five matrix products of the backward pass on packed operands. Each is a sum over a depth of (a number
/// per row) x (a panel two packets wide), so each is the same tile of sums in registers; what differs is
/// where the numbers lie. Weights and their gradients are stored [queries, tile]: a row of them gives the
/// numbers of a strip of queries, and as many neighbours in a row those of a strip of keys, so the transposed
/// products need no transposition.
///
///     product              rows      numbers     depth      panel
///     scores = q k^T       queries   q           channels   k, transposed
///     g v^T                queries   g           channels   v, transposed
///     dq += ds k           queries   ds          keys       k
///     dk += ds^T q         keys      ds          queries    q
///     dv += w^T g          keys      w           queries    g

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Sizes of the backward kernel for numbers A.
template <class A>
struct gradient_shape {
  /// Rows of a strip, and width of a panel.
  static constexpr int rows = panel_shape<A>::rows;
  static constexpr Index width = panel_shape<A>::width;
  /// Keys of a tile: whole panels, and whole strips.
  static constexpr Index tile = 96;
  static_assert(tile % width == 0 && tile % rows == 0);
  /// Queries of a block, unless one token has more: whole strips. Weights, slopes, and three times the
  /// channels of a block stay in a core's own cache for head_dim 128.
  static constexpr Index block = 240;

  static constexpr Index panels(Index channels) { return (channels + width - 1) / width; }
};

/// products[r * stride + n] = sum_d x_rd panel[d * width + n] for one panel of the other operand.
///
/// \param x      channel d of row r is at x[d / width * panel_stride + r * width + d % width]
/// \param panel  [depth, width]
template <class A>
EIGEN_DONT_INLINE void row_products(const A* x, Index panel_stride, const A* panel, Index depth, A* products,
                                    Index stride) {
  using P = packet<A>;
  using shape = panel_shape<A>;
  strip_sums<A, shape::packets> sums;
  sums.for_each([&](auto r, auto n) { sums.sum[r * shape::packets + n] = fill<P>(A(0)); });
  for (; depth > 0; depth -= shape::width, x += panel_stride) {
    const Index here = (std::min)(depth, shape::width);
    for (Index d = 0; d < here; ++d, panel += shape::width) sums.multiply_add_row(x + d, shape::width, panel);
  }
  sums.for_each(
      [&](auto r, auto n) { store(products + r * stride + n * lanes<P>, sums.sum[r * shape::packets + n]); });
}

/// sums[r * width + c] += sum_d numbers[r * row_step + d * depth_step] * panel[d * width + c] for the first
/// `packets` packets of one panel of channels. The sum over d is formed first: terms that are added one by
/// one to a large sum are each rounded to its precision.
///
/// \param panel  [depth, width]
/// \param sums   [rows, width]
template <class A, int packets, Index row_step, Index depth_step>
EIGEN_DONT_INLINE void add_products_of_panel(const A* numbers, const A* panel, Index depth, A* in_memory) {
  using P = packet<A>;
  constexpr Index width = panel_shape<A>::width;
  strip_sums<A, packets> sums;
  sums.for_each([&](auto r, auto n) { sums.sum[r * packets + n] = fill<P>(A(0)); });
  for (Index d = 0; d < depth; ++d)
    sums.multiply_add_row(numbers + d * depth_step, row_step, panel + d * width);
  sums.for_each([&](auto r, auto n) {
    A* before = in_memory + r * width + n * lanes<P>;
    store(before, add(load<P>(before), sums.sum[r * packets + n]));
  });
}

/// The same for every panel of `channels` channels, panel_stride and sums_stride apart.
template <class A, Index row_step, Index depth_step>
void add_products(const A* numbers, const A* panel, Index panel_stride, Index depth, Index channels, A* sums,
                  Index sums_stride) {
  using shape = panel_shape<A>;
  for (; channels > 0; channels -= shape::width, panel += panel_stride, sums += sums_stride)
    if (channels > lanes<packet<A>>)
      add_products_of_panel<A, shape::packets, row_step, depth_step>(numbers, panel, depth, sums);
    else
      add_products_of_panel<A, 1, row_step, depth_step>(numbers, panel, depth, sums);
}

/// Panels [count / width, depth, width] of rows [count, depth], zeros behind the last row.
template <class A>
void pack_turned(const A* rows, Index row_stride, Index count, Index depth, A* packed) {
  constexpr Index width = panel_shape<A>::width;
  for (Index n = 0; n < count; n += width)
    pack_transposed(rows + n * row_stride, row_stride, (std::min)(width, count - n), width, depth,
                    packed + n * depth, width);
}

/// One row of panels as channels: factor times each, rounded.
template <class A, class T>
void write_panels(const A* panels, Index panel_stride, A factor, Index channels, T* to) {
  constexpr Index width = panel_shape<A>::width;
  for (Index c = 0; c < channels; c += width, panels += panel_stride) {
    const Index here = (std::min)(width, channels - c);
    channels_map<T>(to + c, here) = (const_channels_map<A>(panels, here) * factor).template cast<T>();
  }
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_PANELS_HPP
