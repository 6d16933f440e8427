// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP
#define ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP

#include <algorithm>  // std::max, std::min, std::fill, std::copy_n
#include <atomic>
#include <cstdint>
#include <new>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/decode_operands.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
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

/// The splits to process. These are the first split of every row, which includes the learned sink, and all
/// other splits with a key that is visible to some query of their row. They are ordered by row, then by key.
struct seen_splits {
  struct split_of_row {
    Index b, split;
  };
  split_of_row* list;
  Index count;
};

template <class T, class Rotation, class C>
seen_splits splits_of(const attention_call<T, Rotation, C>& call, Index size) {
  struct decode_splits {};
  const Index most = (std::max)(Index{1}, (call.k.tokens + size - 1) / size);
  seen_splits splits = {workspace<decode_splits, seen_splits::split_of_row>(call.q.batch * most), 0};
  for (Index b = 0; b < call.q.batch; ++b) {
    splits.list[splits.count++] = {b, 0};
    block_keys(call.rules, b, 0, call.q.tokens, 0, call.q.heads)
        .for_each_tile(size, [&](Index begin, Index /*count*/) {
          if (begin > 0) splits.list[splits.count++] = {b, begin / size};
        });
  }
  return splits;
}

/// The splits of row b of the batch: elements [first, first + count) of seen_splits::list.
struct split_places {
  Index b, first, count;
};

/// The number of incomplete splits of each row. The heads and queries of a row are divided into pieces, and
/// each piece has its own number. The thread that completes the last split of a piece merges the splits of
/// this piece, so no thread waits.
class pending_splits {
 public:
  pending_splits(const seen_splits& splits, Index batch, Index pieces) : pieces_(pieces) {
    struct pending_places {};
    struct pending_counts {};
    places_ = workspace<pending_places, split_places>(batch);
    counts_ = workspace<pending_counts, std::atomic<Index>>(batch * pieces);
    for (Index place = 0, next; place < splits.count; place = next) {
      const Index b = splits.list[place].b;
      for (next = place; next < splits.count && splits.list[next].b == b;) ++next;
      places_[b] = {b, place, next - place};
      for (Index piece = 0; piece < pieces; ++piece)
        ::new (static_cast<void*>(counts_ + b * pieces + piece)) std::atomic<Index>(next - place);
    }
  }

  const split_places& places_of(Index b) const { return places_[b]; }
  /// Marks one split of a piece of row b as complete, and returns whether it was the last one.
  bool complete(Index b, Index piece) const {
    return counts_[b * pieces_ + piece].fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  Index pieces_;
  split_places* places_;        // [batch]
  std::atomic<Index>* counts_;  // [batch, pieces]
};

/// The results of all splits: a weighted sum and a softmax for each query row of every key head. The place of
/// a split is its index in seen_splits::list.
template <class A>
struct decode_results {
  static constexpr Index split = 1024;  // keys

  Index rows, channels;   // rows of all key heads, channels of a row
  A* sums;                // [places, rows, channels]
  softmax_rows<A> state;  // [places, rows]

  /// Allocates in scratch memory of the calling thread.
  decode_results(Index places, Index rows_of_place, Index channels_of_row)
      : rows(rows_of_place), channels(channels_of_row) {
    struct decode_sums {};
    sums = workspace<decode_sums, A>(places * rows * (channels + 2));
    state.maximum = sums + places * rows * channels;
    state.sum = state.maximum + places * rows;
  }

  A* sums_of(Index place, Index row) const { return sums + (place * rows + row) * channels; }
  softmax_rows<A> state_of(Index place, Index row) const {
    return {state.maximum + place * rows + row, state.sum + place * rows + row};
  }
};

/// The work of one task: split `split` of the keys of row b, for query rows [first_row, first_row + rows) of
/// each key head in [first_head, first_head + heads). The results are written at `place`.
struct key_split {
  Index b, split, place, first_head, heads, first_row, rows;
};

/// \tparam Operands  decode_operands, bfloat16_decode_operands or integer_decode_operands
template <class T, class Rotation, class C, class Operands = decode_operands<T, Rotation, C>>
class decode_split {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;
  using sum_type = typename Operands::sum;

 public:
  decode_split(const call_type& call, const decode_results<A>& results, const key_split& part)
      : call_(call),
        b_(part.b),
        results_(results),
        split_(part.split),
        place_(part.place),
        first_head_(part.first_head),
        heads_(part.heads),
        factors_(call.rules),
        first_row_(part.first_row),
        rows_(part.rows),
        batches_(call.k, call.v, part.b, part.heads, part.rows, copies_lists(call, part.rows)),
        operands_(call, {part.b, part.first_head, part.heads, part.first_row, part.rows}) {
    struct decode_scores {};
    struct decode_tile_sums {};
    struct decode_care {};
    struct decode_split_sums {};
    scores_ = workspace<decode_scores, A>(rows_ * heads_ * shape::tile);
    tile_sums_ = workspace<decode_tile_sums, sum_type>(rows_ * heads_ * call.v.head_dim);
    careful_ = workspace<decode_care, char>(heads_ * strips());
    sums_ = workspace<decode_split_sums, A>(rows_ * heads_ * (results_.channels + 2));
    state_.maximum = sums_ + rows_ * heads_ * results_.channels;
    state_.sum = state_.maximum + rows_ * heads_;
  }

  void run() {
    // Keys are read in memory order. Either the tokens of a head are adjacent, or the heads of a token or of
    // a short page. In the second case the heads alternate, with a few tokens each.
    const Index per_pass = batches_.heads_per_pass(), last_head = first_head_ + heads_;
    const auto keys_of = [&](Index kv) {
      return block_keys(call_.rules, b_, 0, call_.q.tokens, kv * call_.group(), per_pass * call_.group());
    };
    const auto attend_heads = [&](block_keys& keys, Index kv) {
      for (Index head = kv; head < kv + per_pass; ++head) start(head, keys);
      const Index begin = (std::max)(keys.begin() / shape::tile * shape::tile, split_ * results_.split),
                  end = (std::min)(keys.end(), (split_ + 1) * results_.split);
      for (Index tile = begin; tile < end; tile += shape::tile) {
        const bool last_tile = tile + shape::tile >= end, last = kv + per_pass >= last_head;
        const key_place after = last_tile ? key_place{last ? kv : kv + per_pass, begin, end}
                                          : key_place{kv, tile + shape::tile, end};
        if (keys.enter_tile(tile, (std::min)(shape::tile, end - tile)))
          attend_tile(keys, kv, per_pass, after);
      }
    };
    block_keys keys = keys_of(first_head_);
    const bool alike = !block_keys::differs_by_head(call_.rules.options());
    for (Index kv = first_head_; kv < last_head; kv += per_pass)
      if (alike || kv == first_head_) {
        attend_heads(keys, kv);
      } else {
        block_keys own = keys_of(kv);
        attend_heads(own, kv);
      }
    for (Index kv = first_head_; kv < last_head; ++kv) leave_results(kv);
  }

 private:
  /// Whether listed keys are copied before they are multiplied, see decode_operands::score.
  static bool copies_lists(const call_type& call, Index rows) {
    return call.rotation.is_given() || rows > shape::rows ||
           call.rules.options().products != product_precision::full;
  }
  /// The number of strips of a head (see block_keys.hpp).
  Index strips() const { return (rows_ + shape::rows - 1) / shape::rows; }
  rows_of_head rows_in(Index strip) const {
    const Index first = strip * shape::rows;
    return {first, (std::min)(Index{shape::rows}, rows_ - first)};
  }
  strip_rows rows_of(Index kv, Index strip) const {
    const auto [first, count] = rows_in(strip);
    return {b_, 0, kv * call_.group(), call_.group(), first_row_ + first, count};
  }
  A* scores_of(Index kv, Index strip = 0) const {
    return scores_ + ((kv - first_head_) * rows_ + strip * shape::rows) * shape::tile;
  }
  sum_type* tile_sums_of(Index kv, Index strip = 0) const {
    return tile_sums_ + ((kv - first_head_) * rows_ + strip * shape::rows) * call_.v.head_dim;
  }
  char& careful(Index kv, Index strip) { return careful_[(kv - first_head_) * strips() + strip]; }
  A* sums_of(Index kv, Index strip = 0) const {
    return sums_ + ((kv - first_head_) * rows_ + strip * shape::rows) * results_.channels;
  }
  softmax_rows<A> state_of(Index kv, Index strip = 0) const {
    const Index row = (kv - first_head_) * rows_ + strip * shape::rows;
    return {state_.maximum + row, state_.sum + row};
  }
  /// Calls body(kv, strip) for every strip of heads [head, head + heads).
  void for_each_strip(Index head, Index heads, const auto& body) const {
    for (Index kv = head; kv < head + heads; ++kv)
      for (Index strip = 0; strip < strips(); ++strip) body(kv, strip);
  }

  void start(Index kv, const block_keys& keys) {
    const softmax_rows<A> state = state_of(kv);
    std::fill(sums_of(kv), sums_of(kv) + rows_ * results_.channels, A(0));
    std::fill(state.maximum, state.maximum + rows_, A(0));
    std::fill(state.sum, state.sum + rows_, A(0));
    for (Index strip = 0; split_ == 0 && strip < strips(); ++strip)
      begin_softmax(call_.rules, rows_of(kv, strip), state_of(kv, strip));
    for (Index t = 0; t < call_.q.tokens; ++t)
      if (keys.of(t).empty())
        operands_.clear_queries(kv, t);
      else
        operands_.pack_queries(kv, t, factors_.query);
  }

  /// Copies the results of a head to the memory in which splits are merged. Results are computed in memory of
  /// this thread. If the results of several threads were adjacent, one core would prefetch cache lines that
  /// another core writes for every tile.
  void leave_results(Index kv) const {
    const Index row = kv * call_.q.tokens * call_.group() + first_row_;
    const softmax_rows<A> from = state_of(kv), to = results_.state_of(place_, row);
    std::copy_n(sums_of(kv), rows_ * results_.channels, results_.sums_of(place_, row));
    std::copy_n(from.maximum, rows_, to.maximum);
    std::copy_n(from.sum, rows_, to.sum);
  }

  /// \param after  the keys to read after this tile
  void attend_tile(const block_keys& keys, Index head, Index heads, const key_place& after) {
    const Index begin = keys.begin_of_tile();
    const tile_range hull = keys.hull();
    for (Index j = hull.first; j < hull.last;) {
      key_runs<C> batch = batches_.batch_from(call_.k, head, begin, j, hull);
      j = batch.last();
      const token_source<C>& x = j == hull.last ? call_.v : call_.k;
      const key_place place = {head, begin + (j == hull.last ? hull.first : j), begin + hull.last};
      batches_.prefetch_next(batch, x, place);
      for (Index kv = head; kv < head + heads; ++kv) {
        batches_.go_to(batch, call_.k, head, kv - head);
        for (Index i = 0; i < batch.count; ++i) operands_.score(batch, i, scores_of(kv));
      }
    }
    for (Index kv = head; kv < head + heads; ++kv) find_weights(keys, kv);
    for (Index j = hull.first; j < hull.last;) {
      key_runs<C> batch = batches_.batch_from(call_.v, head, begin, j, hull);
      j = batch.last();
      const token_source<C>& x = j == hull.last ? call_.k : call_.v;
      const key_place place = j == hull.last ? after : key_place{head, begin + j, begin + hull.last};
      batches_.prefetch_next(batch, x, place);
      for (Index kv = head; kv < head + heads; ++kv) {
        batches_.go_to(batch, call_.v, head, kv - head);
        for (Index strip = 0; strip < strips(); ++strip)  // the first one prefetches
          if (!careful(kv, strip))
            operands_.add_values(batch, rows_in(strip), scores_of(kv, strip), tile_sums_of(kv, strip),
                                 strip == 0);
      }
    }
    for_each_strip(head, heads, [&](Index kv, Index strip) {
      if (!careful(kv, strip)) add_tile_sums(kv, strip);
    });
  }

  /// Replaces the scores of a head by weights. For careful strips, also adds the weighted values (see
  /// careful_).
  void find_weights(const block_keys& keys, Index kv) {
    const Index begin = keys.begin_of_tile();
    const tile_range hull = keys.hull();
    bool known = false, finite = true;
    for (Index strip = 0; strip < strips(); ++strip) {
      const strip_rows rows = rows_of(kv, strip);
      tile_softmax<A> softmax(keys, rows, hull);
      softmax.run(scores_of(kv, strip), factors_, state_of(kv, strip));
      operands_.scale_weights(kv, begin, hull, rows_in(strip), scores_of(kv, strip));
      if (softmax.hides() && !known) {
        known = true;
        finite = operands_.finite_values(kv, begin, hull);
      }
      careful(kv, strip) = operands_.must_gather() || (softmax.hides() && !finite);
      if (careful(kv, strip))
        operands_.add_visible_values(kv, begin, rows_in(strip), scores_of(kv, strip), softmax,
                                     sums_of(kv, strip));
      else
        shrink(kv, strip, softmax.shrink());
    }
  }

  /// Multiplies the sums of a strip by `factor`, and sets the sums of the current tile to zero. Each tile has
  /// sums of its own, for the reason given at value_panel.
  void shrink(Index kv, Index strip, const A* factor) {
    const Index channels = call_.v.head_dim, rows = rows_in(strip).count;
    std::fill_n(tile_sums_of(kv, strip), rows * channels, sum_type(0));
    for (Index r = 0; r < rows; ++r)
      if (!equal(factor[r], A(1)))
        channels_map<A>(sums_of(kv, strip) + r * results_.channels, channels) *= factor[r];
  }
  void add_tile_sums(Index kv, Index strip) {
    const auto [first, count] = rows_in(strip);
    for (Index r = 0; r < count; ++r)
      operands_.add_sums(kv, first + r, tile_sums_of(kv, strip) + r * call_.v.head_dim,
                         sums_of(kv, strip) + r * results_.channels);
  }

  const call_type& call_;
  Index b_;
  decode_results<A> results_;
  Index split_, place_, first_head_, heads_;
  score_factors factors_;
  Index first_row_, rows_;
  decode_batches<C> batches_;
  A* scores_;              // [heads, rows, tile]
  sum_type* tile_sums_;    // [heads, rows, value_dim]
  A* sums_;                // [heads, rows, value_dim]
  softmax_rows<A> state_;  // [heads, rows]
  Operands operands_;
  char* careful_;  // [heads, strips]: whether values are added key by key in this tile
};

/// Merges the splits s of one query row and writes the output of this row. Split s has the maximum m_s, the
/// sum of weights sum_s and the weighted sums sums_s.
///
///     m = max_s m_s,   out = sum_s 2^(m_s - m) sums_s / sum_s 2^(m_s - m) sum_s
template <class T, class Rotation, class C>
void merge_splits(const attention_call<T, Rotation, C>& call, const decode_results<arithmetic<T>>& results,
                  const split_places& places, Index row) {
  using A = arithmetic<T>;
  A* sums = results.sums_of(places.first, row);
  const softmax_rows<A> total = results.state_of(places.first, row);
  for (Index place = places.first + 1; place < places.first + places.count; ++place) {
    const softmax_rows<A> part = results.state_of(place, row);
    if (equal(*part.sum, A(0))) continue;
    const joined_factors<A> factors = join(total, part);
    add_shares<A>(sums, factors.total, results.sums_of(place, row), factors.part, call.v.head_dim);
  }
  const Index group = call.group(), rows = call.q.tokens * group;
  const Index i = row % rows / group, h = row / rows * group + row % group;
  write_channels(call.rules, sums, *total.sum, call.v.head_dim, call.out.at(places.b, i, h));
  write_log_sum_exp(call.rules, places.b, i, h, *total.maximum, *total.sum);
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_DECODE_KERNEL_HPP
