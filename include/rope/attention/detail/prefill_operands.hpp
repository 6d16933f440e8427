// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP

#include <algorithm>  // std::min, std::max
#include <utility>    // std::pair

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// What a block of queries multiplies in the arithmetic type: its queries, and a tile of keys and values,
/// packed into strips and panels.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Query tokens [first_token, first_token + tokens) of row b, of `heads` query heads from first_head on. Key
/// head kv serves all of them.
struct query_block {
  Index b, kv, first_head, heads, first_token, tokens;

  Index rows() const { return tokens * heads; }
};

template <class T, class Turn, class C>
class prefill_operands {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Turn, C>;

 public:
  prefill_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call), block_(block), depth_(call.k.head_dim), value_dim_(call.v.head_dim) {
    struct prefill_numbers {};
    struct prefill_turned {};
    const Index padded_values = shape::padded(value_dim_);
    const Index copied = (std::max)(shape::width, block.heads) * (std::max)(depth_, value_dim_);
    queries_ = workspace<prefill_numbers, A>(strips * shape::rows * depth_ +
                                             shape::tile * (depth_ + padded_values) + copied);
    keys_ = queries_ + strips * shape::rows * depth_;
    values_ = keys_ + shape::tile * depth_;
    buffers_.wide = values_ + shape::tile * padded_values;
    buffers_.turned = workspace<prefill_turned, T>(copied);
  }

  /// Rows of the heads of token t of the block, times `factor`.
  void pack_queries(Index t, double factor) {
    read_queries(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads,
                 static_cast<A>(factor), buffers_,
                 [&](Index g) { return std::pair(query(t * block_.heads + g), Index{shape::rows}); });
  }
  /// Zeros, of a row that sees nothing or is none.
  void clear_query(Index row) {
    for (Index d = 0; d < depth_; ++d) query(row)[d * shape::rows] = A(0);
  }

  void pack_tile(Index begin, Index count) {
    for (Index n = 0, here; n < count; n += here) {
      // Keys [n, n + here) are at regular strides and columns of one panel; what is written behind them there
      // are zeros, until the next keys come.
      const Index column = n % shape::width;
      here = (std::min)((std::min)(shape::width - column, count - n), call_.k.run_from(begin + n));
      const auto run_of = [&](const token_source<C>& x) {
        return token_run<C>{block_.b, block_.kv, begin + n, here, x.at(block_.b, begin + n, block_.kv)};
      };
      const auto keys = read_keys<packable<typename call_type::turned>>(call_, run_of(call_.k), buffers_);
      pack_transposed(keys.rows, keys.stride, here, shape::width - column, depth_,
                      keys_ + (n - column) * depth_ + column, shape::width);
      const auto values = read_values<packable<C>>(call_, run_of(call_.v), buffers_);
      for (Index j = 0; j < here; ++j)
        pack_row(values.rows + j * values.stride, value_dim_, values_ + (n + j) * shape::width,
                 shape::tile * shape::width);
    }
  }

  /// Scores of strip s with the panels that hold keys of the hull.
  void score(Index s, const tile_range& hull, A* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      score_panel(queries_ + s * shape::rows * depth_, keys_ + n * depth_, depth_, scores + n);
  }

  /// Whether the values of the tile are numbers. (Zeros behind the last channel are.)
  bool finite_values(Index count) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      if (!all_finite(panel(c), count * shape::width)) return false;
    return true;
  }
  /// Whether values outside of the hull are multiplied too, by zero.
  static bool exceeds(const tile_range& /*hull*/) { return false; }

  /// sums [value_panels, rows, width] = shrink * sums + weights * values of the hull
  void add_values(const tile_range& hull, const A* weights, const A* shrink, A* sums) const {
    for (Index c = 0; c < value_dim_; c += shape::width, sums += shape::rows * shape::width)
      if (value_dim_ - c > lanes<packet<A>>)
        value_panel<A, shape::packets>(weights, panel(c), hull.first, hull.last, shrink, sums);
      else
        value_panel<A, 1>(weights, panel(c), hull.first, hull.last, shrink, sums);
  }

  /// The same where values that rows do not see are not numbers.
  void add_visible_values(Index rows, const A* weights, tile_softmax<A>& softmax, A* sums) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
        if (r < rows)
          softmax.visible_values(
              r, weights + r * shape::tile, [&](Index j) { return panel(c) + j * shape::width; },
              shape::width, [&](Index place) -> A& { return sums[place]; });
  }

  /// The sums of a panel in the order of channels.
  static const A* in_order(const A* sums, A* /*room*/) { return sums; }

 private:
  A* query(Index row) const {
    return queries_ + row / shape::rows * shape::rows * depth_ + row % shape::rows;
  }
  const A* panel(Index channel) const { return values_ + channel * shape::tile; }

  const call_type& call_;
  query_block block_;
  Index depth_, value_dim_;
  A* queries_;  // [strips, depth, rows]
  A* keys_;     // [tile / width, depth, width]
  A* values_;   // [value_panels, tile, width]
  row_buffers<T> buffers_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
