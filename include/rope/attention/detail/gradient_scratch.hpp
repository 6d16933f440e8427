// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_SCRATCH_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_SCRATCH_HPP

#include <algorithm>  // std::min, std::max

#include <rope/attention/detail/hidden_keys.hpp>  // tile_range
#include <rope/attention/detail/rows.hpp>         // place_arrays
#include <rope/attention/detail/softmax.hpp>      // softmax_rows
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Packed operands of the backward pass of attention: the sums of each key, and the scratch memory of a block
/// of queries. base/simd/panels.hpp has their matrix products, and defines strips and panels.

namespace rope::inline ROPE_ABI::detail {

// The backward pass has five matrix products of packed operands. In each step, one number per row is
// multiplied by a panel row of two packets, and the results are added to sums in registers. The five products
// differ only in the strides of the numbers. Weights w and slopes ds (gradients with respect to the scores)
// are stored [queries, tile]. The numbers of a strip of queries have a stride of `tile`, and the numbers of a
// strip of keys are adjacent, so w^T and ds^T need no transposed copy. g is the gradient with respect to the
// output.
//
//     product              rows      numbers     depth      panel
//     scores = q k^T       queries   q           channels   k, transposed
//     g v^T                queries   g           channels   v, transposed
//     dq += ds k           queries   ds          keys       k
//     dk += ds^T q         keys      ds          queries    q
//     dv += w^T g          keys      w           queries    g

/// Sizes of the backward kernel for numbers A.
template <class A>
struct gradient_shape {
  /// The number of rows of a strip.
  static constexpr int rows = panel_shape<A>::rows;
  /// The number of columns of a panel.
  static constexpr Index width = panel_shape<A>::width;
  /// The number of keys of a tile: a multiple of `width` and of `rows`.
  static constexpr Index tile = 96;
  static_assert(tile % width == 0 && tile % rows == 0);
  /// Query rows of a block, in whole strips. A block has more rows only if a single token has more. For
  /// head_dim 128, the weights, slopes, queries, and gradients of a block fit L2.
  static constexpr Index block = 240;

  static constexpr Index panels(Index channels) { return pieces_of(channels, width); }
};

/// Writes one row of panels to `to`: each channel is multiplied by `factor` and rounded to T.
template <class A, class T>
void write_panels(const A* panels, Index panel_stride, A factor, Index channels, T* to) {
  constexpr Index width = panel_shape<A>::width;
  for (Index c = 0; c < channels; c += width, panels += panel_stride) {
    const Index here = (std::min)(width, channels - c);
    channels_map<T>(to + c, here) = (const_channels_map<A>(panels, here) * factor).template cast<T>();
  }
}

/// The memory to which gradients with respect to the bias are added.
struct bias_gradient {
  double* data;                // at the strides of the bias, or null
  bool is_shared, joins_keys;  // whether several blocks, or tiles of several keys, may add to one entry
};

/// Gradients with respect to the keys and values of one key head, to which blocks of queries add. They are
/// stored as [tiles, panels of k then of v, tile, width], so each panel of channels [tile, width] is
/// contiguous. Gradients with respect to keys are sums over packed queries. They therefore have the factor of
/// packed queries (score_factors) instead of the scale.
template <class A>
struct key_sums {
  using shape = gradient_shape<A>;
  A* memory;
  Index key_panels, value_panels;

  static constexpr Index panel_size = shape::tile * shape::width;
  static Index size(Index keys, Index head_dim, Index value_dim) {
    return pieces_of(keys, shape::tile) * panel_size * (shape::panels(head_dim) + shape::panels(value_dim));
  }
  A* keys(Index tile) const { return memory + tile * (key_panels + value_panels) * panel_size; }
  A* values(Index tile) const { return keys(tile) + key_panels * panel_size; }
};

/// Scratch memory of a block of queries. Panels hold `width` channels of every row, so that a row is
/// contiguous within a panel.
template <class A>
struct attention_gradient_scratch {
  using shape = gradient_shape<A>;

  Index strips, rows, key_panels, value_panels;
  A* queries;            // [key_panels, rows, width], times the factor of scores
  A* upstream;           // [value_panels, rows, width]: gradients with respect to the output
  A* d_queries;          // [strips, key_panels, strip, width], without the scale
  A* weights;            // [rows, tile]: scores, then the weights that multiply values
  A* slopes;             // [rows, tile]: upstream . value, then the gradient with respect to the score
  A* shifts;             // [rows]: a weight is 2^(score - shift) * factor
  A* factors;            // [rows]
  A* products;           // [rows]: upstream . out
  A* seen;               // [rows]: 1 if a key is visible to the row, otherwise 0
  A* transposed_keys;    // [tile / width, head_dim, width]: keys of a tile, transposed
  A* transposed_values;  // [tile / width, value_dim, width]
  A* keys;               // [key_panels, tile, width]
  A* wide;               // [tile, channels]: rows of 16-bit channels, widened
  A* scores;             // [strip, panel_shape::tile], if the softmax is recomputed
  softmax_rows<A> runs;  // [rows]: the softmax of runs of tiles, if it is recomputed
  tile_range* hulls;     // [strips]: keys of the tile visible to a strip

  attention_gradient_scratch(Index query_rows, Index head_dim, Index value_dim)
      : strips(pieces_of(query_rows, shape::rows)),
        rows(strips * shape::rows),
        key_panels(shape::panels(head_dim)),
        value_panels(shape::panels(value_dim)) {
    const Index of_keys = key_panels * shape::width, of_values = value_panels * shape::width;
    const Index widest = (std::max)(of_keys, of_values);
    place_arrays<struct gradient_numbers, A>({{&queries, rows * of_keys},
                                              {&upstream, rows * of_values},
                                              {&d_queries, rows * of_keys},
                                              {&weights, rows * shape::tile},
                                              {&slopes, rows * shape::tile},
                                              {&transposed_keys, shape::tile * head_dim},
                                              {&transposed_values, shape::tile * value_dim},
                                              {&keys, shape::tile * of_keys},
                                              {&wide, shape::tile * widest},
                                              {&scores, shape::rows * panel_shape<A>::tile},
                                              {&shifts, rows},
                                              {&factors, rows},
                                              {&products, rows},
                                              {&seen, rows},
                                              {&runs.maximum, rows},
                                              {&runs.sum, rows}});
    hulls = workspace<struct gradient_hulls, tile_range>(strips);
  }

  A* strip_d_queries(Index s) const { return d_queries + s * shape::rows * key_panels * shape::width; }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_SCRATCH_HPP
