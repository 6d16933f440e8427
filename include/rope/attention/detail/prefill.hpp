// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_HPP

#include <algorithm>  // std::min, std::max, std::fill_n, std::fill
#include <cstddef>
#include <utility>  // std::swap

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The prefill kernel: attention of many queries. base/simd/panels.hpp defines strips and panels.

namespace rope::inline ROPE_ABI::detail {

// A block is consecutive query tokens, in all or some of the query heads of one key head. Its queries are
// packed into strips once. Each tile of keys and values is rotated and packed once per block, for all strips.
// Between tiles a strip keeps only its softmax and its weighted sums, so memory does not depend on the number
// of tokens.

/// The state that strips keep between tiles, in scratch memory of the thread.
template <class A>
struct prefill_state {
  using shape = panel_shape<A>;

  Index strips, value_panels;
  A* sums;                // [strips, value_panels, rows, width]
  softmax_rows<A> state;  // [strips, rows]
  A* total_sums;          // sums and state of earlier runs of tiles; only written if there are any
  softmax_rows<A> total;
  A* scores;  // [rows, tile]

  prefill_state(Index strip_count, Index value_dim)
      : strips(strip_count), value_panels(shape::padded(value_dim) / shape::width) {
    struct prefill_sums {};
    const Index all_rows = strips * shape::rows, padded_values = value_panels * shape::width;
    sums = workspace<prefill_sums, A>(2 * all_rows * (padded_values + 2) + shape::rows * shape::tile);
    state.maximum = sums + all_rows * padded_values;
    state.sum = state.maximum + all_rows;
    total_sums = state.sum + all_rows;
    total.maximum = total_sums + all_rows * padded_values;
    total.sum = total.maximum + all_rows;
    scores = total.sum + all_rows;
  }

  A* strip_sums(Index s) const { return sums + s * shape::rows * value_panels * shape::width; }
  softmax_rows<A> strip_state(Index s) const {
    return {state.maximum + s * shape::rows, state.sum + s * shape::rows};
  }
};

/// \tparam Operands  prefill_operands, bfloat16_operands or integer_operands
template <class T, class Rotation, class C, class Operands = prefill_operands<T, Rotation, C>>
requires prefill_products<Operands, arithmetic<T>>
class prefill_block {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;

 public:
  /// The number of tokens of a block. With 512 rows the queries, the sums and a tile fit in L2, and packing
  /// is a hundredth of the work.
  static Index tokens_of(Index group) { return (std::max)(Index{1}, Index{512} / group); }

  prefill_block(const call_type& call, const query_block& block)
      : call_(call),
        block_(block),
        factors_(call.rules),
        keys_(call.rules, block.b, block.first_token, block.tokens, block.first_head, block.heads),
        m_((block.rows() + shape::rows - 1) / shape::rows, call.v.head_dim),
        operands_(call, block, m_.strips) {}

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
  /// The keys of a run: 32 tiles. The sums of the tiles of a run are added up, and the sums of the runs are
  /// added to a total. A plain sum of n equal terms may have n roundings. In these three stages there are at
  /// most (keys of a tile) + (tiles of a run) + (runs of the call) roundings.
  static constexpr Index run_of_keys = 32 * shape::tile;

  /// Adds the sums of the current run to the total of the earlier runs.
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
    const Index heads = block_.heads;
    for (Index t = 0; t < block_.tokens; ++t)
      if (!keys_.of(block_.first_token + t).empty())
        operands_.pack_queries(t, factors_.query);
      else
        for (Index row = t * heads; row < (t + 1) * heads; ++row) operands_.clear_query(row);
    for (Index row = block_.rows(); row < m_.strips * shape::rows; ++row) operands_.clear_query(row);
    std::fill(m_.sums, m_.state.maximum, A(0));
    for (Index s = 0; s < m_.strips; ++s) begin_softmax(call_.rules, rows_of(s), m_.strip_state(s));
  }

  void attend_tile(Index begin, Index count) {
    operands_.pack_tile(begin, count);
    bool known = false, finite = true;
    for (Index s = 0; s < m_.strips; ++s) {
      const strip_rows rows = rows_of(s);
      tile_softmax<A> softmax(keys_, rows);
      const tile_range hull = softmax.hull();
      if (hull.empty()) continue;
      operands_.score(s, hull, m_.scores);
      softmax.run(m_.scores, factors_, m_.strip_state(s));
      const bool multiplies_hidden = softmax.hides() || operands_.exceeds(hull);
      if (multiplies_hidden && !known) {
        known = true;
        finite = operands_.finite_values(count);
      }
      if (multiplies_hidden && !finite)
        operands_.add_visible_values(rows.count, m_.scores, softmax, m_.strip_sums(s));
      else
        operands_.add_values(hull, m_.scores, softmax.shrink(), m_.strip_sums(s));
    }
  }

  void write(Index s) {
    const strip_rows rows = rows_of(s);
    const softmax_rows<A> state = m_.strip_state(s);
    const Index channels = call_.v.head_dim;
    A ordered[std::size_t(shape::width)];
    for (Index r = 0; r < rows.count; ++r) {
      const A* sums = m_.strip_sums(s) + r * shape::width;
      T* out = call_.out.at(block_.b, rows.token_of(r), rows.head_of(r));
      for (Index c = 0; c < channels; c += shape::width, sums += shape::rows * shape::width)
        write_channels(call_.rules, operands_.in_order(sums, ordered), state.sum[r],
                       (std::min)(shape::width, channels - c), out + c);
      write_log_sum_exp(call_.rules, block_.b, rows.token_of(r), rows.head_of(r), state.maximum[r],
                        state.sum[r]);
    }
  }

  const call_type& call_;
  query_block block_;
  score_factors factors_;
  block_keys keys_;
  prefill_state<A> m_;
  Operands operands_;
  bool has_total_ = false;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_HPP
