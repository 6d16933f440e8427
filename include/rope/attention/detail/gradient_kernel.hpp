// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP

#include <algorithm>  // std::fill_n, std::max, std::min

#include <rope/attention/detail/gradient_panels.hpp>
#include <rope/attention/detail/gradient_rows.hpp>
#include <rope/attention/detail/gradient_scratch.hpp>
#include <rope/attention/detail/gradient_slopes.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/ordered_turns.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/config.hpp>

/// The backward pass of attention, tile by tile. A block of queries of one key head (every query head of its
/// group, consecutive tokens) meets one tile of keys at a time and forms its weights again from the
/// log-sum-exp of each query, so nothing of size tokens x tokens exists. With weights w, upstream gradient g
/// and output o:
///
///     scores_ij = scale q_i . k_j                            queries x keys
///     slopes_ij = w_ij (g_i . v_j - g_i . o_i) bend_ij       queries x keys (detail/gradient_slopes.hpp)
///     dq_i = scale sum_j slopes_ij k_j
///     dk_j = scale sum_i slopes_ij q_i
///     dv_j = sum_i w_ij g_i
///
/// The sums dq belong to the block. The sums dk and dv of a tile are shared with other blocks, which add to
/// them one after the other (detail/ordered_turns.hpp), so they are the same for any number of threads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class T>
class attention_gradient_block {
  using A = arithmetic<T>;
  using shape = gradient_shape<A>;

 public:
  /// Tokens of a block.
  static Index tokens_of(Index group) {
    return (std::max)(Index{1}, shape::block / (std::max)(group, Index{1}));
  }

  /// \param rows  the block's queries
  /// \param sums  of the key head that they share
  /// \param turn  the block's place among those that add to `sums`
  attention_gradient_block(attention_gradient_rows<T>& rows, const bias_gradient& d_bias,
                           const key_sums<A>& sums, ordered_turn& turn)
      : rows_(rows), m_(rows.m), d_bias_(d_bias), sums_(sums), turn_(turn) {}

  /// Adds what every tile of keys says to the gradients with respect to the block's queries, and to `sums`.
  void run() {
    rows_.for_each_tile([&](Index begin, Index count) { add_tile(begin, count); });
  }

 private:
  void add_tile(Index begin, Index count) {
    const Index tile = begin / shape::tile;
    turn_.begin(tile);
    rows_.pack_keys(begin, count);
    rows_.pack_values(begin, count);
    // A hidden pair has a weight and a slope of 0, which leaves sums alone unless it meets 0 * NaN.
    const bool careful = hides(begin, count) && !(rows_.finite && finite_keys(count));
    if (d_bias_.joins_keys)
      turn_.wait_for_the_end();
    else if (careful || d_bias_.is_shared)
      turn_.wait(tile);
    for (Index s = 0; s < m_.strips; ++s) {
      const strip_slopes<A> slopes = weigh(s);
      if (!careful) add_to_queries(s, slopes.hull());
    }
    if (careful) return add_visible(tile);
    turn_.wait(tile);
    for (Index j = 0; j < count; j += shape::rows) add_to_keys(j, sums_.keys(tile), sums_.values(tile));
  }

  /// Whether some query of the block does not see some key of a tile, those behind its end included.
  bool hides(Index begin, Index count) const {
    return !rows_.keys.all_see_all() || count < (std::min)(shape::tile, rows_.tape.k.tokens - begin);
  }
  bool finite_keys(Index count) const {
    return all_finite(m_.turned_keys, panel_shape<A>::padded(count) * rows_.tape.k.head_dim);
  }

  /// Weights and slopes of strip s.
  strip_slopes<A> weigh(Index s) {
    strip_slopes<A> slopes(rows_.keys, rows_.strip(s), d_bias_.data);
    const Index row = s * shape::rows;
    A *weights = m_.weights + row * shape::tile, *products = m_.slopes + row * shape::tile;
    m_.hulls[s] = slopes.hull();
    rows_.multiply(m_.queries, s, m_.turned_keys, rows_.tape.k.head_dim, slopes.hull(), weights, shape::tile);
    rows_.multiply(m_.upstream, s, m_.turned_values, rows_.tape.v.head_dim, slopes.hull(), products,
                   shape::tile);
    slopes.run(weights, products, rows_.factors, {m_.shifts + row, m_.factors + row, m_.products + row});
    return slopes;
  }

  void add_to_queries(Index s, tile_range hull) const {
    add_products<A, shape::tile, 1>(m_.slopes + s * shape::rows * shape::tile + hull.first,
                                    m_.keys + hull.first * shape::width, sums_.panel_size,
                                    hull.last - hull.first, rows_.tape.k.head_dim, m_.strip_d_queries(s),
                                    shape::rows * shape::width);
  }

  /// Adds to the sums of keys [first, first + rows) of a tile what the strips that see any of them say.
  void add_to_keys(Index first, A* d_keys, A* d_values) const {
    Index begin = m_.strips, end = 0;
    for (Index s = 0; s < m_.strips; ++s)
      if (m_.hulls[s].first < first + shape::rows && m_.hulls[s].last > first) {
        begin = (std::min)(begin, s);
        end = s + 1;
      }
    if (begin >= end) return;
    const Index row = begin * shape::rows, depth = end * shape::rows - row;
    const auto add = [&](const A* numbers, const A* packed, Index channels, A* sums) {
      add_products<A, 1, shape::tile>(numbers + row * shape::tile + first, packed + row * shape::width,
                                      rows_.panel_stride(), depth, channels, sums + first * shape::width,
                                      sums_.panel_size);
    };
    add(m_.weights, m_.upstream, rows_.tape.v.head_dim, d_values);
    add(m_.slopes, m_.queries, rows_.tape.k.head_dim, d_keys);
  }

  /// The slow, careful sums: only pairs that see each other meet. Sums of this block and tile start at zero,
  /// as those of add_products do.
  void add_visible(Index tile) const {
    add_visible_to_keys(m_.weights, m_.upstream, m_.value_panels, sums_.values(tile));
    add_visible_to_keys(m_.slopes, m_.queries, m_.key_panels, sums_.keys(tile));
    A* const of_row = m_.wide;  // no longer needed once keys and values are packed
    for_each_row([&](Index row, const auto& for_each_key) {
      std::fill_n(of_row, m_.key_panels * shape::width, A(0));
      for_each_key([&](Index j) {
        for (Index p = 0; p < m_.key_panels; ++p)
          add(m_.slopes[row * shape::tile + j], m_.keys + p * sums_.panel_size + j * shape::width,
              of_row + p * shape::width);
      });
      A* sums = m_.strip_d_queries(row / shape::rows) + row % shape::rows * shape::width;
      for (Index p = 0; p < m_.key_panels; ++p)
        add(A(1), of_row + p * shape::width, sums + p * shape::rows * shape::width);
    });
  }

  void add_visible_to_keys(const A* numbers, const A* packed, Index panels, A* sums) const {
    A* const of_tile = m_.wide;
    std::fill_n(of_tile, panels * sums_.panel_size, A(0));
    for_each_row([&](Index row, const auto& for_each_key) {
      for_each_key([&](Index j) {
        for (Index p = 0; p < panels; ++p)
          add(numbers[row * shape::tile + j], packed + p * rows_.panel_stride() + row * shape::width,
              of_tile + p * sums_.panel_size + j * shape::width);
      });
    });
    for (Index n = 0; n < panels * sums_.panel_size; n += shape::width) add(A(1), of_tile + n, sums + n);
  }

  /// Calls body(row, for_each_key) for the rows of the block, where for_each_key(pair) calls pair(j) for the
  /// keys of the tile that the row sees.
  void for_each_row(const auto& body) const {
    for (Index s = 0; s < m_.strips; ++s) {
      strip_slopes<A> slopes(rows_.keys, rows_.strip(s), nullptr);
      for (Index r = 0; r < rows_.strip(s).count; ++r)
        body(s * shape::rows + r, [&](const auto& pair) { slopes.for_each_visible(r, pair); });
    }
  }

  static void add(A number, const A* from, A* to) {
    for (Index c = 0; c < shape::width; ++c) to[c] = multiply_add(number, from[c], to[c]);
  }

  attention_gradient_rows<T>& rows_;
  const attention_gradient_scratch<T>& m_;
  bias_gradient d_bias_;
  key_sums<A> sums_;
  ordered_turn& turn_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_KERNEL_HPP
