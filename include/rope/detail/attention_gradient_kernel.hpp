// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP
#define ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP

#include <algorithm>  // std::min, std::max, std::fill
#include <cmath>
#include <cstddef>

#include <rope/attention_options.hpp>
#include <rope/config.hpp>
#include <rope/detail/attention_gradient_panels.hpp>
#include <rope/detail/attention_gradient_scratch.hpp>
#include <rope/detail/attention_gradient_slopes.hpp>
#include <rope/detail/attention_output.hpp>  // begin_softmax
#include <rope/detail/attention_softmax.hpp>
#include <rope/detail/exp2.hpp>
#include <rope/detail/ordered_turns.hpp>
#include <rope/detail/packet.hpp>  // arithmetic
#include <rope/detail/visibility.hpp>
#include <rope/view.hpp>

/// The backward pass of attention, tile by tile. A block of queries of one key head (every query head of its
/// group, consecutive tokens) meets one tile of keys at a time and forms its weights again from the
/// log-sum-exp of each query, so nothing of size tokens x tokens exists. With weights w, upstream gradient g
/// and output o:
///
///     scores_ij = scale q_i . k_j                            queries x keys
///     slopes_ij = w_ij (g_i . v_j - g_i . o_i) bend_ij       queries x keys (attention_gradient_slopes.hpp)
///     dq_i = scale sum_j slopes_ij k_j
///     dk_j = scale sum_i slopes_ij q_i
///     dv_j = sum_i w_ij g_i
///
/// Sums by queries are the block's own. Those by keys are shared with other blocks: to the ones of a tile a
/// block adds when it is its turn (ordered_turns.hpp), so they are the same whatever the threads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Query tokens [first, first + tokens) of row b, in the heads that share key head `kv`. Row r of a block is
/// token first + r / group, query head kv * group + r % group.
template <class T>
class attention_gradient_block {
  using A = arithmetic<T>;
  using shape = gradient_shape<A>;

 public:
  /// Tokens of a block.
  static Index tokens_of(Index group) {
    return (std::max)(Index{1}, shape::block / (std::max)(group, Index{1}));
  }

  attention_gradient_block(const attention_tape<T>& tape, const visibility& rules,
                           const bias_gradient& d_bias, Index b, Index kv, Index first, Index tokens)
      : tape_(tape),
        rules_(rules),
        d_bias_(d_bias),
        b_(b),
        kv_(kv),
        first_(first),
        tokens_(tokens),
        group_(tape.group()),
        factors_(rules),
        m_(tokens, tape.group(), tape.k.head_dim, tape.v.head_dim) {}

  /// \param sums           of key head (b, kv)
  /// \param turn           the block's place among those that add to `sums`
  /// \param d_sink_logits  [group] or null: receives what this block adds to the gradients by sink logits
  void run(const key_sums<A>& sums, ordered_turn& turn, double* d_sink_logits) {
    pack_queries();
    find_softmax();
    for_each_tile([&](Index tile, Index count) {
      turn.begin(tile);
      add_tile(tile, count, sums, turn);
    });
    write_queries();
    if (d_sink_logits != nullptr) write_sinks(d_sink_logits);
  }

 private:
  strip_rows rows_of(Index s) const {
    const Index first_row = s * shape::rows;
    return {b_,     first_,    kv_ * group_,
            group_, first_row, (std::min)(Index{shape::rows}, tokens_ * group_ - first_row)};
  }

  void pack_queries() {
    std::fill(m_.queries, m_.queries + m_.rows * m_.key_panels * shape::width, A(0));
    std::fill(m_.upstream, m_.upstream + m_.rows * m_.value_panels * shape::width, A(0));
    std::fill(m_.d_queries, m_.d_queries + m_.rows * m_.key_panels * shape::width, A(0));
    std::fill(m_.products, m_.products + m_.rows, A(0));
    const A factor = static_cast<A>(factors_.query);
    for (Index t = 0; t < tokens_; ++t) {
      m_.visible[t] = rules_.keys_of(b_, first_ + t);
      if (m_.visible[t].empty()) continue;  // such a query may hold anything
      for (Index g = 0; g < group_; ++g) {
        const Index row = t * group_ + g, h = kv_ * group_ + g;
        const auto channels = [&](const head_view<const T>& x) {
          return const_channels_map<T>(x.at(b_, first_ + t, h), x.head_dim);
        };
        channels_map<A>(m_.wide, tape_.q.head_dim) = channels(tape_.q).template cast<A>() * factor;
        pack_row(m_.wide, tape_.q.head_dim, m_.queries + row * shape::width, query_panel());
        channels_map<A>(m_.wide, tape_.v.head_dim) = channels(tape_.d_out).template cast<A>();
        pack_row(m_.wide, tape_.v.head_dim, m_.upstream + row * shape::width, query_panel());
        m_.products[row] = static_cast<A>(
            (channels(tape_.out).template cast<double>() * channels(tape_.d_out).template cast<double>())
                .sum());
      }
    }
    finite_ = all_finite(m_.queries, m_.rows * m_.key_panels * shape::width) &&
              all_finite(m_.upstream, m_.rows * m_.value_panels * shape::width);
  }

  /// shift and factor of every row, so that its weights are 2^(score - shift) * factor.
  void find_softmax() {
    const attention_options& options = rules_.options();
    if (options.log_sum_exp.empty()) return find_softmax_of_scores();
    for (Index row = 0; row < tokens_ * group_; ++row) {
      const double sum = options.log_sum_exp[static_cast<std::size_t>(
          (b_ * tape_.q.tokens + first_ + row / group_) * tape_.q.heads + kv_ * group_ + row % group_)];
      const bool none = sum == attention_options::no_keys;
      m_.shifts[row] = none ? A(0) : static_cast<A>(sum * log2_e);
      m_.factors[row] =
          none ? A(0) : static_cast<A>(std::exp2(static_cast<double>(m_.shifts[row]) - sum * log2_e));
    }
  }

  void find_softmax_of_scores() {
    const auto state_of = [&](Index s) {
      return softmax_rows<A>{m_.shifts + s * shape::rows, m_.factors + s * shape::rows};
    };
    for (Index s = 0; s < m_.strips; ++s) begin_softmax(rules_, rows_of(s), state_of(s));
    for_each_tile([&](Index tile, Index count) {
      pack_keys(tile * shape::tile, count);
      for (Index s = 0; s < m_.strips; ++s) {
        tile_softmax<A> softmax(rules_, rows_of(s), m_.visible, tile * shape::tile, count);
        if (softmax.hull().empty()) continue;
        multiply(m_.queries, s, m_.turned_keys, tape_.k.head_dim, softmax.hull(), m_.scores,
                 panel_shape<A>::tile);
        softmax.run(m_.scores, factors_, state_of(s));
      }
    });
    for (Index row = 0; row < tokens_ * group_; ++row)
      m_.factors[row] = m_.factors[row] == A(0) ? A(0) : 1 / m_.factors[row];
  }

  /// Calls tile(n, count) for every tile n in which a query may see one of its `count` keys. Tiles begin at
  /// multiples of their size, so that blocks agree on them.
  void for_each_tile(const auto& tile) const {
    Index begin = tape_.k.tokens, end = 0;
    for (Index t = 0; t < tokens_; ++t) {
      if (m_.visible[t].empty()) continue;
      begin = (std::min)(begin, m_.visible[t].hull_begin());
      end = (std::max)(end, m_.visible[t].hull_end());
    }
    for (Index n = begin / shape::tile; n * shape::tile < end; ++n) {
      const Index count = (std::min)(shape::tile, tape_.k.tokens - n * shape::tile);
      bool seen = false;
      for (Index t = 0; t < tokens_ && !seen; ++t)
        seen = !meet(m_.visible[t], n * shape::tile, count, false).range.empty();
      if (seen) tile(n, count);
    }
  }

  void pack_keys(Index begin, Index count) {
    const row_block<A> rows = widened_rows(tape_.k, b_, begin, count, kv_, m_.wide);
    pack_turned(rows.rows, rows.stride, count, tape_.k.head_dim, m_.turned_keys);
    for (Index j = 0; j < count; ++j)
      pack_row(rows.rows + j * rows.stride, tape_.k.head_dim, m_.keys + j * shape::width,
               key_sums<A>::panel_size);
  }
  void pack_values(Index begin, Index count) {
    const row_block<A> rows = widened_rows(tape_.v, b_, begin, count, kv_, m_.wide);
    pack_turned(rows.rows, rows.stride, count, tape_.v.head_dim, m_.turned_values);
  }

  /// Whether some query of the block does not see some key of a tile.
  bool hides(Index begin, Index count) const {
    for (Index t = 0; t < tokens_; ++t) {
      const row_in_tile met = meet(m_.visible[t], begin, count, rules_.by_key());
      if (met.has_holes || met.range.first != 0 || met.range.last != count) return true;
    }
    return false;
  }

  void add_tile(Index tile, Index count, const key_sums<A>& sums, ordered_turn& turn) {
    const Index begin = tile * shape::tile;
    pack_keys(begin, count);
    pack_values(begin, count);
    // A hidden pair has a weight and a slope of 0, which leaves sums alone unless it meets 0 * NaN.
    const bool careful =
        hides(begin, count) &&
        !(finite_ && all_finite(m_.turned_keys, panel_shape<A>::padded(count) * tape_.k.head_dim));
    if (careful || d_bias_.is_shared) turn.wait(tile);
    for (Index s = 0; s < m_.strips; ++s) {
      strip_slopes<A> slopes(rules_, rows_of(s), m_.visible, begin, count, d_bias_.data);
      const Index row = s * shape::rows;
      const tile_range hull = m_.hulls[s] = slopes.hull();
      multiply(m_.queries, s, m_.turned_keys, tape_.k.head_dim, hull, m_.weights + row * shape::tile,
               shape::tile);
      multiply(m_.upstream, s, m_.turned_values, tape_.v.head_dim, hull, m_.slopes + row * shape::tile,
               shape::tile);
      slopes.run(m_.weights + row * shape::tile, m_.slopes + row * shape::tile, factors_,
                 {m_.shifts + row, m_.factors + row, m_.products + row});
      if (careful)
        add_visible(s, tile, slopes, sums);
      else
        add_products<A, shape::tile, 1>(
            m_.slopes + row * shape::tile + hull.first, m_.keys + hull.first * shape::width, sums.panel_size,
            hull.last - hull.first, tape_.k.head_dim, m_.strip_d_queries(s), shape::rows * shape::width);
    }
    if (careful) return;
    turn.wait(tile);
    for (Index j = 0; j < count; j += shape::rows) add_to_keys(j, sums.keys(tile), sums.values(tile));
  }

  /// Products of strip s of packed rows with the panels of transposed keys or values that `hull` touches.
  void multiply(const A* rows, Index s, const A* turned, Index depth, tile_range hull, A* products,
                Index stride) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      row_products(rows + s * shape::rows * shape::width, query_panel(), turned + n * depth, depth,
                   products + n, stride);
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
                                      query_panel(), depth, channels, sums + first * shape::width,
                                      key_sums<A>::panel_size);
    };
    add(m_.weights, m_.upstream, tape_.v.head_dim, d_values);
    add(m_.slopes, m_.queries, tape_.k.head_dim, d_keys);
  }

  /// The slow, careful sums: only pairs that see each other meet.
  void add_visible(Index s, Index tile, strip_slopes<A>& slopes, const key_sums<A>& sums) const {
    constexpr Index width = shape::width;
    for (Index r = 0; r < rows_of(s).count; ++r)
      slopes.for_each_visible(r, [&](Index j) {
        const Index row = s * shape::rows + r;
        const A weight = m_.weights[row * shape::tile + j], slope = m_.slopes[row * shape::tile + j];
        for (Index p = 0; p < m_.value_panels; ++p)
          for (Index c = 0; c < width; ++c)
            sums.values(tile)[p * sums.panel_size + j * width + c] +=
                weight * m_.upstream[p * query_panel() + row * width + c];
        for (Index p = 0; p < m_.key_panels; ++p)
          for (Index c = 0; c < width; ++c) {
            sums.keys(tile)[p * sums.panel_size + j * width + c] +=
                slope * m_.queries[p * query_panel() + row * width + c];
            m_.strip_d_queries(s)[(p * shape::rows + r) * width + c] +=
                slope * m_.keys[p * sums.panel_size + j * width + c];
          }
      });
  }

  void write_queries() const {
    for (Index row = 0; row < tokens_ * group_; ++row)
      write_panels(m_.strip_d_queries(row / shape::rows) + row % shape::rows * shape::width,
                   shape::rows * shape::width, static_cast<A>(rules_.scale()), tape_.q.head_dim,
                   tape_.d_q.at(b_, first_ + row / group_, kv_ * group_ + row % group_));
  }

  /// A sink takes part in the softmax with a value of zero: its slope is weight * (0 - g . o).
  void write_sinks(double* d_sink_logits) const {
    std::fill(d_sink_logits, d_sink_logits + group_, 0.0);
    for (Index row = 0; row < tokens_ * group_; ++row) {
      const auto logit = static_cast<double>(
          rules_.options().sink_logits[static_cast<std::size_t>(kv_ * group_ + row % group_)]);
      d_sink_logits[row % group_] -= std::exp2(logit * log2_e - static_cast<double>(m_.shifts[row])) *
                                     static_cast<double>(m_.factors[row]) *
                                     static_cast<double>(m_.products[row]);
    }
  }

  /// From one panel of packed queries, or of gradients by outputs, to the next.
  Index query_panel() const { return m_.rows * shape::width; }

  const attention_tape<T>& tape_;
  const visibility& rules_;
  bias_gradient d_bias_;
  Index b_, kv_, first_, tokens_, group_;
  score_factors factors_;
  attention_gradient_scratch<T> m_;
  bool finite_ = true;  // queries and gradients by outputs
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP
