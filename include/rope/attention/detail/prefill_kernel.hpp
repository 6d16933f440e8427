// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_KERNEL_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_KERNEL_HPP

#include <algorithm>  // std::min, std::max, std::fill
#include <type_traits>
#include <utility>  // std::pair, std::swap

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/output.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/strip_in_tile.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/detail/weighted_sum.hpp>
#include <rope/base/channels.hpp>
#include <rope/base/exact.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/base/workspace.hpp>
#include <rope/config.hpp>

/// Attention of many queries. A block of queries of one key head (all or some query heads of its group,
/// consecutive tokens) is packed into strips once. Each tile of keys and values is packed once per block,
/// rotated on the way, and serves every strip. What a strip keeps between tiles is its softmax and its
/// weighted sums, so nothing of size tokens x tokens exists, and memory does not depend on the number of
/// tokens at all.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Memory of a block, cut from the scratch of the thread.
template <class T>
struct prefill_scratch {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;

  Index strips, depth, value_dim, value_panels;
  A* queries;             // [strips, depth, rows]
  A* sums;                // [strips, value_panels, rows, width]
  softmax_rows<A> state;  // [strips, rows]
  A* total_sums;          // as sums and state, of the runs of tiles before; only written if there are such
  softmax_rows<A> total;
  A* scores;  // [rows, tile]
  A* keys;    // [tile / width, depth, width]
  A* values;  // [value_panels, tile, width]
  row_buffers<T> buffers;

  prefill_scratch(Index tokens, Index group, Index head_dim, Index value_channels)
      : strips((tokens * group + shape::rows - 1) / shape::rows),
        depth(head_dim),
        value_dim(value_channels),
        value_panels(shape::padded(value_channels) / shape::width) {
    struct prefill_numbers {};
    struct prefill_turned {};
    const Index all_rows = strips * shape::rows, padded_values = value_panels * shape::width;
    const Index copied = (std::max)(shape::width, group) * (std::max)(depth, value_dim);
    queries = workspace<prefill_numbers, A>(all_rows * (depth + 2 * (padded_values + 2)) +
                                            shape::rows * shape::tile +
                                            shape::tile * (depth + padded_values) + copied);
    sums = queries + all_rows * depth;
    state.maximum = sums + all_rows * padded_values;
    state.sum = state.maximum + all_rows;
    total_sums = state.sum + all_rows;
    total.maximum = total_sums + all_rows * padded_values;
    total.sum = total.maximum + all_rows;
    scores = total.sum + all_rows;
    keys = scores + shape::rows * shape::tile;
    values = keys + shape::tile * depth;
    buffers.wide = values + shape::tile * padded_values;
    buffers.turned = workspace<prefill_turned, T>(copied);
  }

  A* strip_queries(Index s) const { return queries + s * shape::rows * depth; }
  A* strip_sums(Index s) const { return sums + s * shape::rows * value_panels * shape::width; }
  softmax_rows<A> strip_state(Index s) const {
    return {state.maximum + s * shape::rows, state.sum + s * shape::rows};
  }
};

/// Query tokens [first_token, first_token + tokens) of row b, of `heads` query heads from first_head on. Key
/// head kv serves all of them.
struct query_block {
  Index b, kv, first_head, heads, first_token, tokens;
};

template <class T, class Turn, class C>
class prefill_block {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Turn, C>;

 public:
  /// Tokens of a block: 512 rows keep queries and sums in a core's own cache beside a tile, and make packing
  /// a hundredth of the work.
  static Index tokens_of(Index group) { return (std::max)(Index{1}, Index{512} / group); }

  prefill_block(const call_type& call, const query_block& block)
      : call_(call),
        block_(block),
        factors_(call.rules),
        keys_(call.rules, block.b, block.first_token, block.tokens, block.first_head, block.heads),
        m_(block.tokens, block.heads, call.k.head_dim, call.v.head_dim) {}

  void run() {
    pack_queries();
    Index run = keys_.begin() / run_of_keys;
    keys_.for_each_tile(shape::tile, [&](Index begin, Index count) {
      if (begin / run_of_keys != run) end_run();
      run = begin / run_of_keys;
      attend_tile(begin, count);
    });
    if (has_total_) {
      end_run();
      std::swap(m_.sums, m_.total_sums);
      std::swap(m_.state, m_.total);
    }
    for (Index s = 0; s < m_.strips; ++s) write(s);
  }

 private:
  /// Sums of tiles are added up in runs, and the runs among themselves: of n equal terms a sum loses about as
  /// many roundings as a tile has keys, a run tiles, and the call runs.
  static constexpr Index run_of_keys = 32 * shape::tile;

  /// Adds the sums of the present run to those of the runs before.
  void end_run() {
    const Index panel = shape::rows * shape::width;
    if (!has_total_) {
      std::fill_n(m_.total_sums, m_.strips * m_.value_panels * panel, A(0));
      std::fill_n(m_.total.sum, m_.strips * shape::rows, A(0));
    }
    has_total_ = true;
    for (Index s = 0; s < m_.strips; ++s)
      for (Index r = 0; r < rows_of(s).count; ++r) {
        const Index row = s * shape::rows + r;
        if (equal(m_.state.sum[row], A(0))) continue;
        const joined_factors<A> factors = join(softmax_rows<A>{m_.total.maximum + row, m_.total.sum + row},
                                               softmax_rows<A>{m_.state.maximum + row, m_.state.sum + row});
        for (Index p = 0; p < m_.value_panels; ++p) {
          const Index at = (s * m_.value_panels + p) * panel + r * shape::width;
          add_shares<A>(m_.total_sums + at, factors.total, m_.sums + at, factors.part, shape::width);
          std::fill_n(m_.sums + at, Index{shape::width}, A(0));
        }
        m_.state.maximum[row] = m_.state.sum[row] = A(0);
      }
  }

  strip_rows rows_of(Index s) const {
    const Index first_row = s * shape::rows, all = block_.tokens * block_.heads;
    return {block_.b,     block_.first_token, block_.first_head,
            block_.heads, first_row,          (std::min)(Index{shape::rows}, all - first_row)};
  }

  void pack_queries() {
    const Index heads = block_.heads, rows = block_.tokens * heads;
    for (Index t = 0; t < block_.tokens; ++t)
      if (!keys_.of(block_.first_token + t).empty())
        read_queries(call_, block_.b, block_.first_token + t, block_.first_head, heads,
                     static_cast<A>(factors_.query), m_.buffers, [&](Index g) {
                       const Index row = t * heads + g;
                       return std::pair(m_.strip_queries(row / shape::rows) + row % shape::rows,
                                        Index{shape::rows});
                     });
      else
        for (Index row = t * heads; row < (t + 1) * heads; ++row) clear_query(row);
    for (Index row = rows; row < m_.strips * shape::rows; ++row) clear_query(row);
    std::fill(m_.sums, m_.state.maximum, A(0));
    for (Index s = 0; s < m_.strips; ++s) begin_softmax(call_.rules, rows_of(s), m_.strip_state(s));
  }

  void clear_query(Index row) {
    A* query = m_.strip_queries(row / shape::rows) + row % shape::rows;
    for (Index d = 0; d < m_.depth; ++d) query[d * shape::rows] = A(0);
  }

  void pack_tile(Index begin, Index count) {
    for (Index n = 0, here; n < count; n += here) {
      // Keys [n, n + here) are at regular strides and columns of one panel; what is written behind them there
      // are zeros, until the next keys come.
      const Index column = n % shape::width;
      here = (std::min)((std::min)(shape::width - column, count - n), call_.k.run_from(begin + n));
      const auto keys = read_keys<packable<typename call_type::turned>>(call_, block_.b, block_.kv, begin + n,
                                                                        here, m_.buffers);
      pack_transposed(keys.rows, keys.stride, here, shape::width - column, m_.depth,
                      m_.keys + (n - column) * m_.depth + column, shape::width);
      const auto values = read_values<packable<C>>(call_, block_.b, block_.kv, begin + n, here, m_.buffers);
      for (Index j = 0; j < here; ++j)
        pack_row(values.rows + j * values.stride, m_.value_dim, m_.values + (n + j) * shape::width,
                 shape::tile * shape::width);
    }
  }

  void attend_tile(Index begin, Index count) {
    pack_tile(begin, count);
    bool known = false, finite = true;
    for (Index s = 0; s < m_.strips; ++s) {
      const strip_rows rows = rows_of(s);
      tile_softmax<A> softmax(keys_, rows);
      const tile_range hull = softmax.hull();
      if (hull.empty()) continue;
      for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
        score_panel(m_.strip_queries(s), m_.keys + n * m_.depth, m_.depth, m_.scores + n);
      softmax.run(m_.scores, factors_, m_.strip_state(s));
      if (softmax.hides() && !known) {
        known = true;
        for (Index p = 0; p < m_.value_panels; ++p)
          finite = finite && all_finite(m_.values + p * shape::tile * shape::width, count * shape::width);
      }
      if (softmax.hides() && !finite)
        add_visible_values(s, rows.count, softmax);
      else
        add_values(s, hull, softmax.shrink());
    }
  }

  void add_values(Index s, tile_range hull, const A* shrink) {
    A* sums = m_.strip_sums(s);
    for (Index p = 0; p < m_.value_panels; ++p, sums += shape::rows * shape::width) {
      const A* values = m_.values + p * shape::tile * shape::width;
      if (m_.value_dim - p * shape::width > lanes<packet<A>>)
        value_panel<A, shape::packets>(m_.scores, values, hull.first, hull.last, shrink, sums);
      else
        value_panel<A, 1>(m_.scores, values, hull.first, hull.last, shrink, sums);
    }
  }

  void add_visible_values(Index s, Index rows, tile_softmax<A>& softmax) {
    const Index panel = shape::tile * shape::width;
    for (Index p = 0; p < m_.value_panels; ++p)
      for (Index r = 0; r < rows; ++r) {
        A* sums = m_.strip_sums(s) + (p * shape::rows + r) * shape::width;
        softmax.visible_values(
            r, m_.scores + r * shape::tile, [&](Index j) { return m_.values + p * panel + j * shape::width; },
            shape::width, [&](Index c) -> A& { return sums[c]; });
      }
  }

  void write(Index s) {
    const strip_rows rows = rows_of(s);
    const softmax_rows<A> state = m_.strip_state(s);
    for (Index r = 0; r < rows.count; ++r) {
      const A* sums = m_.strip_sums(s) + r * shape::width;
      T* out = call_.out.at(block_.b, rows.token_of(r), rows.head_of(r));
      for (Index c = 0; c < m_.value_dim; c += shape::width, sums += shape::rows * shape::width)
        write_channels(call_.rules, sums, state.sum[r], (std::min)(shape::width, m_.value_dim - c), out + c);
      write_log_sum_exp(call_.rules, block_.b, rows.token_of(r), rows.head_of(r), state.maximum[r],
                        state.sum[r]);
    }
  }

  const call_type& call_;
  query_block block_;
  score_factors factors_;
  block_keys keys_;
  prefill_scratch<T> m_;
  bool has_total_ = false;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_KERNEL_HPP
