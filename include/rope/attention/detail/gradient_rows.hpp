// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_GRADIENT_ROWS_HPP
#define ROPE_ATTENTION_DETAIL_GRADIENT_ROWS_HPP

#include <algorithm>  // std::fill
#include <cmath>
#include <cstddef>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/gradient_scratch.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>  // begin_softmax, sink_score
#include <rope/attention/detail/visibility.hpp>
#include <rope/attention/options.hpp>
#include <rope/attention/tape.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/simd/channel_rows.hpp>
#include <rope/base/simd/packet.hpp>  // multiply_add
#include <rope/base/simd/packet_math.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// The queries of a block in the backward pass of attention. They are packed once, with the softmax of each
/// query and its product g . o, where o is the output and g the gradient with respect to o. At the end, the
/// gradients with respect to the queries are written.

namespace rope::inline ROPE_ABI::detail {

/// A block of the queries that share one key head.
template <class T>
struct attention_gradient_rows {
  using A = arithmetic<T>;
  using shape = gradient_shape<A>;

  const attention_tape<T>& tape;
  const visibility& rules;
  query_block block;
  score_factors factors;
  attention_gradient_scratch<A> m;
  block_keys keys;
  bool finite = true;  // whether queries and gradients with respect to outputs are finite

  attention_gradient_rows(const attention_tape<T>& of, const visibility& rule, const query_block& queries)
      : tape(of),
        rules(rule),
        block(queries),
        factors(rule),
        m(queries.rows(), of.k.head_dim, of.v.head_dim),
        keys(rule, queries) {
    pack_queries();
    find_softmax();
  }

  strip_rows strip(Index s) const { return strip_of(block, s, shape::rows); }
  /// The distance between two panels of packed queries, or of packed gradients with respect to outputs.
  Index panel_stride() const { return m.rows * shape::width; }

  void pack_keys(Index begin, Index count) {
    const row_block<A> rows = pack_transposed_rows(tape.k, begin, count, m.transposed_keys);
    for (Index j = 0; j < count; ++j)
      pack_row(rows.rows + j * rows.stride, tape.k.head_dim, m.keys + j * shape::width,
               key_sums<A>::panel_size);
  }
  void pack_values(Index begin, Index count) {
    pack_transposed_rows(tape.v, begin, count, m.transposed_values);
  }

  /// Computes the products of strip s of packed rows with panels of transposed keys or values. Only panels
  /// that contain a key of `hull` are used.
  void multiply(const A* rows, Index s, const A* transposed, Index depth, tile_range hull, A* products,
                Index stride) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      row_products(rows + s * shape::rows * shape::width, panel_stride(), transposed + n * depth, depth,
                   products + n, stride);
  }

  void write_queries() const {
    for (Index row = 0; row < block.rows(); ++row)
      write_panels(m.strip_d_queries(row / shape::rows) + row % shape::rows * shape::width,
                   shape::rows * shape::width, static_cast<A>(rules.scale()), tape.q.head_dim,
                   tape.d_q.at(block.b, block.token_of(row), block.head_of(row)));
  }

  /// Writes the gradients with respect to the sink logits. A sink has a weight in the softmax and a value of
  /// zero, so its slope is weight * (0 - g . o). This is 0 if no key is visible, whatever g and o contain.
  void write_sinks(double* d_sink_logits) const {
    std::fill(d_sink_logits, d_sink_logits + block.heads, 0.0);
    for (Index row = 0; row < block.rows(); ++row) {
      if (equal(m.seen[row], A(0))) continue;
      const double score =
          sink_score<A>(rules.options().sink_logits[static_cast<std::size_t>(block.head_of(row))]);
      const double weight =
          std::exp2(score - static_cast<double>(m.shifts[row])) * static_cast<double>(m.factors[row]);
      double& sum = d_sink_logits[row % block.heads];
      sum = multiply_add(-weight, static_cast<double>(m.products[row]), sum);
    }
  }

 private:
  /// Packs tokens [first_key, first_key + keys) of the key head, transposed, and returns them as rows. If x
  /// has only one token, its token_stride may be arbitrary, so 0 replaces it.
  row_block<A> pack_transposed_rows(const head_view<const T>& x, Index first_key, Index keys_of_tile,
                                    A* packed) {
    const row_block<T> stored = {x.at(block.b, first_key, block.kv), x.tokens == 1 ? 0 : x.token_stride};
    const row_block<A> rows = rows_as<A>(stored, keys_of_tile, x.head_dim, m.wide);
    pack_transposed_panels(rows.rows, rows.stride, keys_of_tile, x.head_dim, packed,
                           x.head_dim * shape::width);
    return rows;
  }

  void pack_queries() {
    std::fill(m.queries, m.queries + m.rows * m.key_panels * shape::width, A(0));
    std::fill(m.upstream, m.upstream + m.rows * m.value_panels * shape::width, A(0));
    std::fill(m.d_queries, m.d_queries + m.rows * m.key_panels * shape::width, A(0));
    std::fill(m.products, m.products + m.rows, A(0));
    std::fill(m.seen, m.seen + m.rows, A(0));
    const A factor = static_cast<A>(factors.query);
    for (Index row = 0; row < block.rows(); ++row) {
      const Index token = block.token_of(row), head = block.head_of(row);
      if (keys.of(token).empty()) continue;  // such a query may have any content
      const T* const d_out = tape.d_out.at(block.b, token, head);
      pack_scaled(tape.q.at(block.b, token, head), tape.q.head_dim, factor, m.queries + row * shape::width,
                  panel_stride());
      pack_scaled(d_out, tape.v.head_dim, A(1), m.upstream + row * shape::width, panel_stride());
      m.products[row] =
          static_cast<A>(sum_of_products(tape.out.at(block.b, token, head), d_out, tape.v.head_dim));
    }
    finite = all_finite(m.queries, m.rows * m.key_panels * shape::width) &&
             all_finite(m.upstream, m.rows * m.value_panels * shape::width);
  }

  /// Finds the shift and the factor of every row. A weight of the row is 2^(score - shift) * factor. They
  /// follow from the given log-sum-exps if these have a resolution of 2^-24, as doubles up to 2^28 have.
  void find_softmax() {
    if (rules.options().log_sum_exp.empty()) return find_softmax_of_scores();
    for (Index row = 0; row < block.rows(); ++row) {
      const double sum = rules.log_sum_exp(block.b, block.token_of(row), block.head_of(row));
      const bool none = equal(sum, attention_options::no_keys);
      if (!none && (std::abs)(sum) > 0x1p28) return find_softmax_of_scores();
      m.shifts[row] = none ? A(0) : static_cast<A>(sum * log2_e);
      m.factors[row] =
          none ? A(0) : static_cast<A>(std::exp2(static_cast<double>(m.shifts[row]) - sum * log2_e));
    }
  }

  /// Recomputes the softmax from the scores. Each run of tiles has its own softmax, and these are joined, for
  /// the reason given at run_of_keys of prefill_block.
  void find_softmax_of_scores() {
    constexpr Index run_of_keys = 32 * shape::tile;
    std::fill(m.runs.sum, m.runs.sum + m.rows, A(0));
    const softmax_rows<A> of_run = {m.shifts, m.factors};
    const auto end_run = [&] {
      for (Index row = 0; row < block.rows(); ++row) {
        if (equal(m.factors[row], A(0))) continue;
        join(m.runs.from(row), of_run.from(row));
        m.shifts[row] = m.factors[row] = A(0);
      }
    };
    begin_softmax(rules, {block, 0, block.rows()}, of_run);
    Index run = 0;
    keys.for_each_tile(shape::tile, [&](Index begin, Index count) {
      if (begin / run_of_keys != run) end_run();
      run = begin / run_of_keys;
      pack_keys(begin, count);
      for (Index s = 0; s < m.strips; ++s) {
        tile_softmax<A> softmax(keys, strip(s));
        if (softmax.hull().empty()) continue;
        multiply(m.queries, s, m.transposed_keys, tape.k.head_dim, softmax.hull(), m.scores,
                 panel_shape<A>::tile);
        softmax.run(m.scores, factors, of_run.from(s * shape::rows));
      }
    });
    end_run();
    for (Index row = 0; row < block.rows(); ++row) {
      m.shifts[row] = equal(m.runs.sum[row], A(0)) ? A(0) : m.runs.maximum[row];
      m.factors[row] = equal(m.runs.sum[row], A(0)) ? A(0) : 1 / m.runs.sum[row];
    }
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_GRADIENT_ROWS_HPP
