// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_HPP

#include <algorithm>  // std::min, std::max, std::fill_n, std::fill
#include <cstddef>
#include <optional>
#include <utility>  // std::swap

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
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

/// \tparam Operands  prefill_operands or paired_operands
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
        keys_(call.rules, block),
        strips_(pieces_of(block.rows(), shape::rows)),
        run_(rows_in_scratch<struct prefill_sums, A>(strips_ * shape::rows, shape::padded(call.v.head_dim))),
        total_(rows_in_scratch<struct prefill_totals, A>(strips_ * shape::rows, run_.channels)),
        scores_(workspace<struct prefill_scores, A>(shape::rows * shape::tile)),
        operands_(call, block, strips_) {}

  void run() {
    pack_block(operands_, block_, keys_, strips_ * shape::rows, factors_.query);
    std::fill(run_.sums, run_.state.maximum, A(0));
    begin_softmax(call_.rules, {block_, 0, block_.rows()}, run_.state);
    Index run = keys_.begin() / run_of_keys;
    keys_.for_each_tile(shape::tile, [&](Index begin, Index count) {
      if (begin / run_of_keys != run) end_run();
      run = begin / run_of_keys;
      attend_tile(count);
    });
    if (has_total_) {
      end_run();
      std::swap(run_, total_);
    }
    for (Index row = 0; row < block_.rows(); ++row) write(row);
  }

 private:
  /// The keys of a run: 32 tiles. The sums of the tiles of a run are added up, and the sums of the runs are
  /// added to a total. A plain sum of n equal terms may have n roundings. In these three stages there are at
  /// most (keys of a tile) + (tiles of a run) + (runs of the call) roundings.
  static constexpr Index run_of_keys = 32 * shape::tile;

  /// The place of the first sum of a row. The sums of the next panel are panel_size places later.
  static constexpr Index panel_size = shape::rows * shape::width;
  Index place_of(Index row) const {
    return row / shape::rows * shape::rows * run_.channels + row % shape::rows * shape::width;
  }

  /// Adds the sums of the current run to the total of the earlier runs.
  void end_run() {
    if (!has_total_) {
      std::fill(total_.sums, total_.state.maximum, A(0));
      std::fill_n(total_.state.sum, strips_ * shape::rows, A(0));
    }
    has_total_ = true;
    for (Index row = 0; row < block_.rows(); ++row) {
      if (equal(run_.state.sum[row], A(0))) continue;
      const auto [of_total, of_run] = join(total_.state.from(row), run_.state.from(row));
      for (Index c = 0, at = place_of(row); c < run_.channels; c += shape::width, at += panel_size) {
        add_shares<A>(total_.sums + at, of_total, run_.sums + at, of_run, shape::width);
        std::fill_n(run_.sums + at, Index{shape::width}, A(0));
      }
      run_.state.maximum[row] = run_.state.sum[row] = A(0);
    }
  }

  void attend_tile(Index count) {
    std::optional<bool> finite;  // whether the values of the tile are finite, if a strip needs it
    score_tile(operands_, block_, keys_, count, scores_, [&](tile_softmax<A>& softmax) {
      const weighted_rows<A> rows = run_.from(softmax.strip().first_row);
      const tile_range hull = softmax.hull();
      softmax.run(scores_, factors_, rows.state);
      const bool multiplies_hidden = softmax.hides() || operands_.exceeds(hull);
      if (multiplies_hidden && !finite) finite = operands_.finite_values(count);
      if (multiplies_hidden && !*finite)
        operands_.add_visible_values(softmax.strip().count, scores_, softmax, rows.sums);
      else
        operands_.add_values(hull, scores_, softmax.shrink(), rows.sums);
    });
  }

  void write(Index row) {
    const Index token = block_.token_of(row), head = block_.head_of(row);
    const Index channels = call_.v.head_dim;
    const A sum = run_.state.sum[row];
    const A* sums = run_.sums + place_of(row);
    A ordered[std::size_t(shape::width)];
    T* out = call_.out.at(block_.b, token, head);
    for (Index c = 0; c < channels; c += shape::width, sums += panel_size)
      write_channels(call_.rules, operands_.in_order(sums, ordered), sum,
                     (std::min)(shape::width, channels - c), out + c);
    write_log_sum_exp(call_.rules, block_.b, token, head, run_.state.maximum[row], sum);
  }

  const call_type& call_;
  query_block block_;
  score_factors factors_;
  block_keys keys_;
  Index strips_;
  weighted_rows<A> run_;    // [strips, value_panels, rows, width], of the current run of tiles
  weighted_rows<A> total_;  // of earlier runs; only written if there are any
  A* scores_;               // [rows, tile]
  Operands operands_;
  bool has_total_ = false;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_HPP
