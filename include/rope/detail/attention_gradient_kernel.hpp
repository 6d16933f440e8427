// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP
#define ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP

#include <algorithm>  // std::min, std::max
#include <cmath>
#include <cstdint>

#include <rope/attention_options.hpp>
#include <rope/config.hpp>
#include <rope/detail/attention_gradient_scratch.hpp>
#include <rope/detail/packet.hpp>  // arithmetic
#include <rope/detail/visibility.hpp>
#include <rope/dropout.hpp>
#include <rope/softmax.hpp>
#include <rope/view.hpp>

/// The backward pass of attention, tile by tile. A block of queries of one key head (every query head of its
/// group, a few tokens) meets one tile of keys at a time and forms its weights again from the log-sum-exp of
/// each query, so nothing of size tokens x tokens exists. With weights w, upstream gradient g and output o:
///
///     dv_j = sum_i w_ij g_i
///     ds_ij = w_ij (g_i . v_j - g_i . o_i) ds/dscore        (the softmax, and the softcap)
///     dq_i = scale sum_j ds_ij k_j,   dk_j = scale sum_i ds_ij q_i
///
/// Queries of one key head run in one order on one thread, so sums are the same whatever the threads.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Query tokens [first, first + count) of row b, in the heads that share key head `kv`. Row r of a block is
/// token first + r / group, query head kv * group + r % group.
template <class T>
class attention_gradient_block {
  using A = arithmetic<T>;

 public:
  attention_gradient_block(const attention_tape<T>& tape, const visibility& rule,
                           const attention_gradient_scratch<A>& scratch, Index b, Index kv, Index first,
                           Index count)
      : tape_(tape),
        rule_(rule),
        scratch_(scratch),
        b_(b),
        kv_(kv),
        first_(first),
        group_(tape.q.heads / tape.k.heads),
        rows_(count * group_),
        queries_(map(scratch.queries, rows_, tape.q.head_dim)),
        upstream_(map(scratch.upstream, rows_, tape.v.head_dim)),
        d_queries_(map(scratch.d_queries, rows_, tape.q.head_dim)) {
    for (Index r = 0; r < rows_; ++r) {
      scratch_.sets[r] = rule_.keys_of(b_, token(r));
      queries_.row(r).array() = channels(tape_.q, r).template cast<A>() * static_cast<A>(rule_.scale());
      upstream_.row(r).array() = channels(tape_.d_out, r).template cast<A>();
      scratch_.products[r] = static_cast<A>(
          (channels(tape_.out, r).template cast<double>() * channels(tape_.d_out, r).template cast<double>())
              .sum());
      d_queries_.row(r).setZero();
    }
  }

  void run() {
    find_softmax();
    for_each_tile([&](Index begin, Index keys) { add_tile(begin, keys); });
    for (Index r = 0; r < rows_; ++r)
      head_map<T>(tape_.d_q.at(b_, token(r), head(r)), tape_.q.head_dim) =
          (d_queries_.row(r).array() * static_cast<A>(rule_.scale())).template cast<T>();
    if (!tape_.d_sink_logits.empty()) add_sinks();
  }

 private:
  static rows_map<A> map(A* data, Index rows, Index columns, Index stride = -1) {
    return {data, rows, columns, Eigen::OuterStride<>(stride < 0 ? columns : stride)};
  }
  Index token(Index r) const { return first_ + r / group_; }
  Index head(Index r) const { return kv_ * group_ + r % group_; }
  auto channels(const head_view<const T>& x, Index r) const {
    return const_head_map<T>(x.at(b_, token(r), head(r)), x.head_dim);
  }

  /// Calls tile(begin, keys) for every tile in which a query may see a key.
  template <class Tile>
  void for_each_tile(const Tile& tile) const {
    Index begin = tape_.k.tokens, gap_begin = 0, gap_end = tape_.k.tokens, end = 0;
    for (Index r = 0; r < rows_; ++r) {
      const key_set& set = scratch_.sets[r];
      if (set.empty()) continue;
      begin = (std::min)(begin, set.begin);
      end = (std::max)(end, set.end);
      gap_begin = (std::max)(gap_begin, set.gap_begin);
      gap_end = (std::min)(gap_end, set.gap_end);
    }
    while (begin < end) {
      // Nothing is seen between the sinks and the window.
      if (begin >= gap_begin && begin < gap_end) begin = gap_end;
      if (begin >= end) break;
      const Index keys = (std::min)(scratch_.keys, end - begin);
      tile(begin, keys);
      begin += keys;
    }
  }

  /// The keys of a tile that row r sees, as runs; returns their number.
  Index runs_of(Index r, Index begin, Index keys) const {
    const key_set& set = scratch_.sets[r];
    Index count = 0;
    const auto add = [&](Index from, Index to) {
      from = (std::max)(from - begin, Index{0});
      to = (std::min)(to - begin, keys);
      if (from >= to) return;
      if (!rule_.by_key()) {
        scratch_.runs[count++] = {from, to};
        return;
      }
      for (Index j = from; j < to; ++j) {
        if (!rule_.sees_key(b_, head(r), token(r), begin + j)) continue;
        if (count > 0 && scratch_.runs[count - 1].to == j)
          ++scratch_.runs[count - 1].to;
        else
          scratch_.runs[count++] = {j, j + 1};
      }
    };
    add(set.begin, set.gap_begin);
    add(set.gap_end, set.end);
    return count;
  }

  /// Turns the products of a row's run into scores: softcap, then bias. Writes the slope of the softcap.
  void finish_scores(Index r, Index begin, key_run run, A* scores) const {
    Eigen::Map<Eigen::Array<A, 1, Eigen::Dynamic>> score(scores + run.from, run.to - run.from),
        bend(scratch_.bends + run.from, run.to - run.from);
    if (rule_.options().softcap > 0) {
      const A cap = static_cast<A>(rule_.options().softcap);
      bend = (score / cap).tanh();
      score = cap * bend;
      bend = 1 - bend.square();
    }
    if (rule_.options().bias) {
      const float* bias = rule_.options().bias.at(b_, head(r), token(r));
      for (Index j = run.from; j < run.to; ++j)
        scores[j] += static_cast<A>(bias[(begin + j) * rule_.options().bias.key_step()]);
    }
  }

  /// shift and factor of every row, so that its weights are exp(score - shift) * factor.
  void find_softmax() {
    const attention_options& options = rule_.options();
    if (!options.log_sum_exp.empty()) {
      for (Index r = 0; r < rows_; ++r) {
        const double sum = options.log_sum_exp[static_cast<std::size_t>(
            (b_ * tape_.q.tokens + token(r)) * tape_.q.heads + head(r))];
        scratch_.shifts[r] = sum == attention_options::no_keys ? A(0) : static_cast<A>(sum);
        scratch_.factors[r] = sum == attention_options::no_keys
                                  ? A(0)
                                  : static_cast<A>(std::exp(static_cast<double>(scratch_.shifts[r]) - sum));
      }
      return;
    }
    for (Index r = 0; r < rows_; ++r) scratch_.states[r] = {};
    for_each_tile([&](Index begin, Index keys) {
      rows_map<A> scores = map(scratch_.weights, rows_, keys, scratch_.keys);
      scores.noalias() =
          queries_ * widened_rows(tape_.k, b_, begin, keys, kv_, scratch_.key_tile).transpose();
      for (Index r = 0; r < rows_; ++r)
        for (Index n = 0, count = runs_of(r, begin, keys); n < count; ++n) {
          const key_run run = scratch_.runs[n];
          finish_scores(r, begin, run, &scores(r, 0));
          scratch_.states[r].add(scores.row(r).segment(run.from, run.to - run.from).array());
        }
    });
    for (Index r = 0; r < rows_; ++r) {
      if (!options.sink_logits.empty()) {
        Eigen::Array<A, 1, 1> sink(static_cast<A>(options.sink_logits[static_cast<std::size_t>(head(r))]));
        scratch_.states[r].add(sink);
      }
      scratch_.shifts[r] = scratch_.states[r].maximum;
      scratch_.factors[r] = scratch_.states[r].empty() ? A(0) : 1 / scratch_.states[r].sum;
    }
  }

  void add_tile(Index begin, Index keys) {
    const const_rows_map<A> key_rows = widened_rows(tape_.k, b_, begin, keys, kv_, scratch_.key_tile);
    const const_rows_map<A> value_rows = widened_rows(tape_.v, b_, begin, keys, kv_, scratch_.value_tile);
    rows_map<A> weights = map(scratch_.weights, rows_, keys, scratch_.keys),
                slopes = map(scratch_.slopes, rows_, keys, scratch_.keys),
                d_keys = map(scratch_.d_keys + begin * tape_.k.head_dim, keys, tape_.k.head_dim),
                d_values = map(scratch_.d_values + begin * tape_.v.head_dim, keys, tape_.v.head_dim);
    weights.noalias() = queries_ * key_rows.transpose();
    slopes.noalias() = upstream_ * value_rows.transpose();
    bool all_visible = true;
    for (Index r = 0; r < rows_; ++r) {
      const Index count = runs_of(r, begin, keys);
      Index done = 0;
      for (Index n = 0; n < count; ++n) {
        const key_run run = scratch_.runs[n];
        hide(weights, slopes, r, done, run.from);
        differentiate(r, begin, run, &weights(r, 0), &slopes(r, 0));
        done = run.to;
      }
      hide(weights, slopes, r, done, keys);
      all_visible = all_visible && count == 1 && scratch_.runs[0].to - scratch_.runs[0].from == keys;
    }
    // A hidden pair has a weight and a slope of 0, which leaves products alone unless it meets 0 * NaN.
    if (all_visible || (are_finite(key_rows) && are_finite(queries_) && are_finite(upstream_))) {
      d_values.noalias() += weights.transpose() * upstream_;
      d_keys.noalias() += slopes.transpose() * queries_;
      d_queries_.noalias() += slopes * key_rows;
      return;
    }
    for (Index r = 0; r < rows_; ++r)
      for (Index n = 0, count = runs_of(r, begin, keys); n < count; ++n) {
        const Index from = scratch_.runs[n].from, length = scratch_.runs[n].to - from;
        const auto weight = weights.row(r).segment(from, length), slope = slopes.row(r).segment(from, length);
        d_values.middleRows(from, length).noalias() += weight.transpose() * upstream_.row(r);
        d_keys.middleRows(from, length).noalias() += slope.transpose() * queries_.row(r);
        d_queries_.row(r).noalias() += slope * key_rows.middleRows(from, length);
      }
  }

  /// Row r does not see keys [from, to) of a tile.
  static void hide(rows_map<A>& weights, rows_map<A>& slopes, Index r, Index from, Index to) {
    weights.row(r).segment(from, to - from).setZero();
    slopes.row(r).segment(from, to - from).setZero();
  }

  /// One run of a row: products q . k become the weights that multiply values, and products g . v the
  /// gradients by q . k.
  void differentiate(Index r, Index begin, key_run run, A* scores, A* products) {
    finish_scores(r, begin, run, scores);
    const Index length = run.to - run.from;
    Eigen::Map<Eigen::Array<A, 1, Eigen::Dynamic>> weight(scores + run.from, length),
        slope(products + run.from, length), bend(scratch_.bends + run.from, length);
    weight = (weight - scratch_.shifts[r]).exp() * scratch_.factors[r];
    const attention_options& options = rule_.options();
    if (options.dropout > 0) {
      // The softmax is of all keys, kept or not; only what multiplies values changes.
      const auto kept = dropout_mask(options.dropout, options.dropout_seed)
                            .row_of(b_, head(r), rule_.query_position(b_, token(r)));
      const A gain = static_cast<A>(1 / (1 - options.dropout));
      for (Index j = 0; j < length; ++j) {
        const A kept_gain = kept.keeps(rule_.key_position(b_, begin + run.from + j)) ? gain : A(0);
        slope(j) = weight(j) * (slope(j) * kept_gain - scratch_.products[r]);
        weight(j) *= kept_gain;
      }
    } else {
      slope = weight * (slope - scratch_.products[r]);
    }
    if (tape_.d_bias != nullptr) {
      const score_view<float>& bias = options.bias;
      double* d_bias = tape_.d_bias + (bias.at(b_, head(r), token(r)) - bias.data);
      for (Index j = 0; j < length; ++j)
        d_bias[(begin + run.from + j) * bias.key_step()] += static_cast<double>(slope(j));
    }
    if (options.softcap > 0) slope *= bend;
  }

  /// A sink takes part in the softmax with a value of zero: its slope is weight * (0 - g . o).
  void add_sinks() {
    for (Index r = 0; r < rows_; ++r) {
      const auto logit = static_cast<double>(rule_.options().sink_logits[static_cast<std::size_t>(head(r))]);
      tape_.d_sink_logits[static_cast<std::size_t>(b_ * tape_.q.heads + head(r))] -=
          std::exp(logit - static_cast<double>(scratch_.shifts[r])) *
          static_cast<double>(scratch_.factors[r]) * static_cast<double>(scratch_.products[r]);
    }
  }

  const attention_tape<T>& tape_;
  const visibility& rule_;
  const attention_gradient_scratch<A>& scratch_;
  Index b_, kv_, first_, group_, rows_;
  rows_map<A> queries_, upstream_, d_queries_;
};

/// Every gradient of the keys of head `kv` of row b, and of the queries that share it.
template <class T>
void differentiate_attention(const attention_tape<T>& tape, const visibility& rule, Index b, Index kv) {
  using A = arithmetic<T>;
  const Index group = tape.q.heads / tape.k.heads, keys = tape.k.tokens;
  const Index block = (std::max)(Index{1}, attention_gradient_scratch<A>::rows / (std::max)(Index{1}, group));
  const attention_gradient_scratch<A> scratch(block * group, keys, tape.q.head_dim, tape.v.head_dim);
  std::fill_n(scratch.d_keys, keys * (tape.q.head_dim + tape.v.head_dim), A(0));
  for (Index t = 0; t < tape.q.tokens && group > 0; t += block)
    attention_gradient_block<T>(tape, rule, scratch, b, kv, t, (std::min)(block, tape.q.tokens - t)).run();
  const auto write = [&](const A* sums, const head_view<T>& to) {
    for (Index j = 0; j < keys; ++j)
      head_map<T>(to.at(b, j, kv), to.head_dim) =
          const_head_map<A>(sums + j * to.head_dim, to.head_dim).template cast<T>();
  };
  write(scratch.d_keys, tape.d_k);
  write(scratch.d_values, tape.d_v);
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_GRADIENT_KERNEL_HPP
