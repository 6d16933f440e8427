// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP
#define ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP

#include <algorithm>  // std::max, std::min, std::fill_n, std::copy_n
#include <atomic>
#include <new>
#include <optional>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/decode_operands.hpp>
#include <rope/attention/detail/rows.hpp>  // are_finite
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/token_source.hpp>  // multiply_by_scales
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Decoding: attention of a few queries to many keys. Keys and values are read from memory once for all query
/// heads of their group, in the order of memory, and nothing is packed. Keys are divided into splits of fixed
/// size, each with its own softmax. Splits are merged in order at the end, so results do not depend on the
/// threads.

namespace rope::inline ROPE_ABI::detail {

/// The splits to process, ordered by row, then by key. These are the first split of every row, which includes
/// the learned sink, and all other splits with a key that is visible to some query of their row.
///
/// The heads and queries of a row are divided into pieces. The thread that completes the last split of a
/// piece merges the splits of this piece, so no thread waits.
class seen_splits {
 public:
  struct split_of_row {
    Index b, split;
  };

  /// \param size  keys of a split
  seen_splits(const visibility& rules, Index size) {
    const auto [batch, queries, keys, heads, head_dim] = rules.shape();
    list_ =
        workspace<struct decode_splits, split_of_row>(batch * (std::max)(Index{1}, pieces_of(keys, size)));
    first_ = workspace<struct decode_places, Index>(batch + 1);
    for (Index b = 0; b < batch; ++b) {
      first_[b] = count_;
      list_[count_++] = {b, 0};
      block_keys(rules, {b, 0, 0, heads, 0, queries}).for_each_tile(size, [&](Index begin, Index /*count*/) {
        if (begin > 0) list_[count_++] = {b, begin / size};
      });
    }
    first_[batch] = count_;
    batch_ = batch;
  }

  Index count() const { return count_; }
  const split_of_row& operator[](Index place) const { return list_[place]; }
  /// The splits of row b are those at the places [first_of(b), first_of(b + 1)).
  Index first_of(Index b) const { return first_[b]; }

  /// Divides each row into `pieces`, which have no complete split yet.
  void divide(Index pieces) {
    pieces_ = pieces;
    pending_ = workspace<struct pending_splits, std::atomic<Index>>(batch_ * pieces);
    for (Index n = 0; n < batch_ * pieces; ++n)
      ::new (static_cast<void*>(pending_ + n))
          std::atomic<Index>(first_[n / pieces + 1] - first_[n / pieces]);
  }
  /// Marks one split of a piece of row b as complete, and returns whether it was the last one.
  bool complete(Index b, Index piece) const {
    return pending_[b * pieces_ + piece].fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  split_of_row* list_;
  Index* first_;  // [batch + 1]
  Index count_ = 0, batch_, pieces_ = 0;
  std::atomic<Index>* pending_ = nullptr;  // [batch, pieces]: incomplete splits
};

/// The results of all splits: a weighted sum and a softmax for each query row of every key head. The place of
/// a split is its index in seen_splits.
template <class A>
struct decode_results {
  static constexpr Index split = 1024;  // keys

  Index rows;            // of all key heads
  weighted_rows<A> all;  // [places, rows]

  /// Allocates in scratch memory of the calling thread.
  decode_results(Index places, Index rows_of_place, Index channels)
      : rows(rows_of_place), all(rows_in_scratch<struct decode_sums, A>(places * rows_of_place, channels)) {}

  weighted_rows<A> of(Index place, Index row) const { return all.from(place * rows + row); }

  /// Copies the results of rows [row, row + count) to where merge_splits reads them. A thread computes in its
  /// own memory: if the results of several threads were adjacent, one core would prefetch cache lines that
  /// another core writes for every tile.
  void set(Index place, Index row, Index count, const weighted_rows<A>& from) const {
    const weighted_rows<A> to = of(place, row);
    std::copy_n(from.sums, count * from.channels, to.sums);
    std::copy_n(from.state.maximum, count, to.state.maximum);
    std::copy_n(from.state.sum, count, to.state.sum);
  }
};

/// The work of one task: the keys of split `split`, for some query rows. The results are written at `place`,
/// or by plain_split without results to the outputs.
struct key_split {
  decode_queries queries;
  Index split, place;
};

/// \tparam Operands  decode_operands or paired_decode_operands
template <class T, class Rotation, class C, class Operands = decode_operands<T, Rotation, C>>
class decode_split {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;
  using sum_type = typename Operands::sum;

 public:
  decode_split(const call_type& call, const decode_results<A>& results, const key_split& part)
      : call_(call),
        results_(results),
        part_(part),
        of_(part.queries),
        factors_(call.rules),
        batches_(call.k, call.v, of_.b, of_.heads, of_.rows, Operands::copies_lists(call, of_.rows)),
        scores_(workspace<struct decode_scores, A>(of_.rows * of_.heads * shape::tile)),
        tile_sums_(workspace<struct decode_tile_sums, sum_type>(of_.rows * of_.heads * call.v.head_dim)),
        all_(rows_in_scratch<struct decode_split_sums, A>(of_.rows * of_.heads, call.v.head_dim)),
        operands_(call, of_),
        careful_(workspace<struct decode_care, char>(of_.heads * strips())) {}

  void run() {
    // Keys are read in memory order. Either the tokens of a head are adjacent, or the heads of a token or of
    // a short page. In the second case the heads alternate, with a few tokens each.
    const Index per_pass = batches_.heads_per_pass(), last_head = of_.first_head + of_.heads;
    std::optional<block_keys> keys;
    for (Index kv = of_.first_head; kv < last_head; kv += per_pass) {
      if (!keys || block_keys::differs_by_head(call_.rules.options()))
        keys.emplace(call_.rules, queries_of(kv, per_pass));
      for (Index head = kv; head < kv + per_pass; ++head) start(head, *keys);
      const Index split = results_.split,
                  begin = (std::max)(keys->begin() / shape::tile * shape::tile, part_.split * split),
                  end = (std::min)(keys->end(), (part_.split + 1) * split);
      for (Index tile = begin; tile < end; tile += shape::tile) {
        const bool last_tile = tile + shape::tile >= end, last = kv + per_pass >= last_head;
        const key_place after = last_tile ? key_place{last ? kv : kv + per_pass, begin, end}
                                          : key_place{kv, tile + shape::tile, end};
        if (keys->enter_tile(tile, (std::min)(shape::tile, end - tile)))
          attend_tile(*keys, kv, per_pass, after);
      }
    }
    for (Index kv = of_.first_head; kv < last_head; ++kv)
      results_.set(part_.place, kv * call_.q.tokens * call_.group() + of_.first_row, of_.rows, rows_of(kv));
  }

 private:
  /// All queries of key heads [kv, kv + heads).
  query_block queries_of(Index kv, Index heads = 1) const {
    return {of_.b, kv, kv * call_.group(), heads * call_.group(), 0, call_.q.tokens};
  }
  /// The number of strips of a head (see block_keys.hpp).
  Index strips() const { return pieces_of(of_.rows, shape::rows); }
  rows_of_head rows_in(Index strip) const {
    const Index first = strip * shape::rows;
    return {first, (std::min)(Index{shape::rows}, of_.rows - first)};
  }
  /// The index of the first row of a strip among the rows of all heads of the task.
  Index row_of(Index kv, Index strip) const { return (kv - of_.first_head) * of_.rows + strip * shape::rows; }
  A* scores_of(Index kv, Index strip = 0) const { return scores_ + row_of(kv, strip) * shape::tile; }
  sum_type* tile_sums_of(Index kv, Index strip) const {
    return tile_sums_ + row_of(kv, strip) * call_.v.head_dim;
  }
  weighted_rows<A> rows_of(Index kv, Index strip = 0) const { return all_.from(row_of(kv, strip)); }
  char& careful(Index kv, Index strip) { return careful_[(kv - of_.first_head) * strips() + strip]; }

  void start(Index kv, const block_keys& keys) {
    const weighted_rows<A> rows = rows_of(kv);
    std::fill_n(rows.sums, of_.rows * rows.channels, A(0));
    std::fill_n(rows.state.maximum, of_.rows, A(0));
    std::fill_n(rows.state.sum, of_.rows, A(0));
    if (part_.split == 0) begin_softmax(call_.rules, {queries_of(kv), of_.first_row, of_.rows}, rows.state);
    for (Index t = 0; t < call_.q.tokens; ++t)
      if (keys.of(t).empty())
        operands_.clear_queries(kv, t);
      else
        operands_.pack_queries(kv, t, factors_.query);
  }

  /// \param after  the keys to read after this tile
  void attend_tile(const block_keys& keys, Index head, Index heads, const key_place& after) {
    const Index begin = keys.begin_of_tile();
    const key_place here = {head, begin + keys.hull().first, begin + keys.hull().last};
    for_each_batch(keys, call_.k, head, heads, call_.v, here, [&](key_runs<C>& batch, Index kv) {
      for (Index i = 0; i < batch.count; ++i) operands_.score(batch, i, scores_of(kv));
    });
    for (Index kv = head; kv < head + heads; ++kv) find_weights(keys, kv);
    for_each_batch(keys, call_.v, head, heads, call_.k, after, [&](key_runs<C>& batch, Index kv) {
      for (Index strip = 0; strip < strips(); ++strip)  // the first one prefetches
        if (!careful(kv, strip))
          operands_.add_values(batch, rows_in(strip), scores_of(kv, strip), tile_sums_of(kv, strip),
                               strip == 0);
    });
    for (Index kv = head; kv < head + heads; ++kv)
      for (Index strip = 0; strip < strips(); ++strip)
        if (!careful(kv, strip)) add_tile_sums(kv, strip);
  }

  /// Divides the keys or values x of a tile into batches, and calls body(batch, kv) for each batch and head.
  /// A batch prefetches the next one of x or, after the last one, the one of y at `after`.
  void for_each_batch(const block_keys& keys, const token_source<C>& x, Index head, Index heads,
                      const token_source<C>& y, const key_place& after, const auto& body) {
    const Index begin = keys.begin_of_tile();
    const tile_range hull = keys.hull();
    for (Index j = hull.first; j < hull.last;) {
      key_runs<C> batch = batches_.batch_from(x, head, begin, j, hull);
      j = batch.last();
      const bool last = j == hull.last;
      batches_.prefetch_next(batch, last ? y : x,
                             last ? after : key_place{head, begin + j, begin + hull.last});
      for (Index kv = head; kv < head + heads; ++kv) {
        batches_.go_to(batch, x, head, kv - head);
        body(batch, kv);
      }
    }
  }

  /// Replaces the scores of a head by weights. Scores are multiplied by the scales of integer keys, and
  /// weights by those of integer values. For careful strips, also adds the weighted values (see careful_).
  void find_weights(const block_keys& keys, Index kv) {
    const Index begin = keys.begin_of_tile();
    const tile_range hull = keys.hull();
    std::optional<bool> finite;  // whether the values of the tile are finite, if a strip needs it
    for (Index strip = 0; strip < strips(); ++strip) {
      const rows_of_head in_strip = rows_in(strip);
      const weighted_rows<A> rows = rows_of(kv, strip);
      A* const scores = scores_of(kv, strip);
      tile_softmax<A> softmax(keys, {queries_of(kv), of_.first_row + in_strip.first, in_strip.count}, hull);
      if constexpr (Operands::scales_keys)
        multiply_by_scales(call_.k, of_.b, kv, begin, hull, scores, in_strip.count);
      softmax.run(scores, factors_, rows.state);
      if constexpr (Operands::scales_values)
        multiply_by_scales(call_.v, of_.b, kv, begin, hull, scores, in_strip.count);
      operands_.take_weights(kv, hull, in_strip, scores);
      if (softmax.hides() && !finite) finite = are_finite(call_.v, of_.b, kv, begin, hull);
      careful(kv, strip) = operands_.must_gather() || (softmax.hides() && !*finite);
      shrink(kv, strip, softmax.shrink());
      if (careful(kv, strip)) operands_.add_visible_values(kv, begin, in_strip, scores, softmax, rows.sums);
    }
  }

  /// Multiplies the sums of a strip by `factor`, and sets the sums of the current tile to zero. Each tile has
  /// sums of its own, for the reason given at add_products_of_panel.
  void shrink(Index kv, Index strip, const A* factor) {
    const Index channels = call_.v.head_dim, rows = rows_in(strip).count;
    std::fill_n(tile_sums_of(kv, strip), rows * channels, sum_type(0));
    for (Index r = 0; r < rows; ++r)
      if (!equal(factor[r], A(1))) channels_map<A>(rows_of(kv, strip).from(r).sums, channels) *= factor[r];
  }
  void add_tile_sums(Index kv, Index strip) {
    const auto [first, count] = rows_in(strip);
    for (Index r = 0; r < count; ++r)
      operands_.add_sums(kv, first + r, tile_sums_of(kv, strip) + r * call_.v.head_dim,
                         rows_of(kv, strip).from(r).sums);
  }

  const call_type& call_;
  decode_results<A> results_;
  key_split part_;
  decode_queries of_;
  score_factors factors_;
  decode_batches<C> batches_;
  A* scores_;             // [heads, rows, tile]
  sum_type* tile_sums_;   // [heads, rows, value_dim]
  weighted_rows<A> all_;  // [heads, rows]
  Operands operands_;
  char* careful_;  // [heads, strips]: whether values are added key by key in this tile
};

/// Writes the output of query i of row b in head h, and its log-sum-exp.
template <class T, class Rotation, class C>
void write_output(const attention_call<T, Rotation, C>& call, Index b, Index i, Index h,
                  const weighted_rows<arithmetic<T>>& row) {
  write_channels(call.rules, row.sums, *row.state.sum, call.v.head_dim, call.out.at(b, i, h));
  write_log_sum_exp(call.rules, b, i, h, *row.state.maximum, *row.state.sum);
}

/// Merges the splits s of one query row of row b and writes the output. Split s has the maximum m_s, the
/// sum of weights sum_s and the weighted sums sums_s.
///
///     m = max_s m_s,   out = sum_s 2^(m_s - m) sums_s / sum_s 2^(m_s - m) sum_s
template <class T, class Rotation, class C>
void merge_splits(const attention_call<T, Rotation, C>& call, const decode_results<arithmetic<T>>& results,
                  const seen_splits& splits, Index b, Index row) {
  using A = arithmetic<T>;
  const weighted_rows<A> total = results.of(splits.first_of(b), row);
  for (Index place = splits.first_of(b) + 1; place < splits.first_of(b + 1); ++place) {
    const weighted_rows<A> part = results.of(place, row);
    if (equal(*part.state.sum, A(0))) continue;
    const auto [of_total, of_part] = join(total.state, part.state);
    add_shares<A>(total.sums, of_total, part.sums, of_part, call.v.head_dim);
  }
  const Index group = call.group(), rows = call.q.tokens * group;
  write_output(call, b, row % rows / group, row / rows * group + row % group, total);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP
