// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PLAIN_DECODE_HPP
#define ROPE_ATTENTION_DETAIL_PLAIN_DECODE_HPP

#include <algorithm>  // std::max, std::min, std::fill_n
#include <span>
#include <type_traits>

#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/decode_kernel.hpp>
#include <rope/attention/detail/decode_operands.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/visibility.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// The most frequent decoding: one query token sees one range of keys, and keys and values are in a view or
/// in long pages and are read in place. Results have the bits of decode_split, which serves all other calls
/// with few queries. With few keys, the lookups of decode_split (hidden keys, options, runs of tokens) take
/// longer than the products (benchmark row bhsd/1x16x32+32x64).

namespace rope::inline ROPE_ABI::detail {

/// Whether kernels can read keys and values of type C in place.
template <class C>
inline constexpr bool is_read_in_place = std::is_same_v<loadable<C>, C> && !is_quantized<C>;

/// Whether plain_split serves a call. If a key head has more query rows than a strip, decode_split first
/// widens 16-bit channels into a copy, so such calls are not plain.
template <class T, class Rotation, class C>
bool is_plain(const attention_call<T, Rotation, C>& call) {
  const attention_options& options = call.rules.options();
  const bool one_range = call.rules.in_ranges() && (options.window == 0 || options.sinks == 0),
             only_products = !options.mask && !options.bias && equal(options.softcap, 0) &&
                             equal(options.dropout, 0) && options.products == product_precision::full;
  constexpr Index longest_batch = 64;  // of tokens at regular strides, as in a view or one page
  return call.q.tokens == 1 && one_range && only_products && !call.rotation.is_given() &&
         !call.k.is_listed() && (call.k.page_size() == 0 || call.k.page_size() >= longest_batch) &&
         (std::is_same_v<C, arithmetic<T>> || call.group() <= panel_shape<arithmetic<T>>::rows);
}

template <class T, class Rotation, class C>
class plain_split {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;
  using batches = decode_batches<C>;

 public:
  /// \param results  where to write the results of the split. Null if the split has all keys: its results are
  ///                 the outputs
  plain_split(const call_type& call, const decode_results<A>* results, const key_split& part)
      : call_(call),
        results_(results),
        part_(part),
        of_(part.queries),
        contiguous_(call.k.head_stride <= call.k.token_stride ? of_.heads : 1),
        heads_(of_.rows == 1 && call.k.tokens <= few_keys ? of_.heads : contiguous_),
        tokens_(batches::tokens_of_batch(contiguous_, batches::bytes_of(call.k, call.v))),
        again_(batches::repeats_before(contiguous_, tokens_)),
        operands_(call, of_),
        scores_(workspace<struct decode_scores, A>(rows() * shape::tile)),
        tile_sums_(workspace<struct decode_tile_sums, A>(rows() * call.v.head_dim)),
        sums_(rows_in_scratch<struct decode_split_sums, A>(rows(), call.v.head_dim)) {}

  void run() {
    constexpr Index size = decode_results<A>::split;
    const key_set keys = call_.rules.keys_of(of_.b, 0);
    const score_factors factors(call_.rules);
    const Index begin = (std::max)(keys.hull_begin(), part_.split * size),
                end = (std::min)(keys.hull_end(), (part_.split + 1) * size),
                end_of_heads = of_.first_head + of_.heads;
    for (Index kv = of_.first_head; kv < end_of_heads; kv += heads_) {
      start(kv);
      for (Index n = 0; n < heads_ && begin < end; ++n) operands_.pack_queries(kv + n, 0, factors.query);
      const Index next_head = kv + heads_ < end_of_heads ? kv + heads_ : kv;
      for (Index first = begin, last; first < end; first = last) {
        last = (std::min)(end, (first / shape::tile + 1) * shape::tile);
        attend_tile(kv, {first, last}, first == begin,
                    last < end ? key_place{kv, last, end} : key_place{next_head, begin, end});
      }
      for (Index n = 0; n < heads_; ++n) finish(kv + n, sums_.from(n * of_.rows));
    }
  }

 private:
  /// For one query of each head and at most this many keys, the scores of all heads are computed first, then
  /// all weights, then all sums of values. In one head, each of these steps waits for the one before, which
  /// takes longer than its instructions (benchmark row bhsd/1x16x32+32x64). With more keys or queries, one
  /// head at a time is as fast.
  static constexpr Index few_keys = 16;

  Index rows() const { return heads_ * of_.rows; }
  A* scores_of(Index n) const { return scores_ + n * of_.rows * shape::tile; }

  void start(Index kv) const {
    std::fill_n(sums_.sums, rows() * sums_.channels, A(0));
    std::fill_n(sums_.state.maximum, rows(), A(0));
    std::fill_n(sums_.state.sum, rows(), A(0));
    for (Index n = 0; n < heads_ && part_.split == 0; ++n) {
      const query_block block = {of_.b, kv + n, (kv + n) * call_.group(), call_.group(), 0, 1};
      begin_softmax(call_.rules, {block, of_.first_row, of_.rows}, sums_.state.from(n * of_.rows));
    }
  }

  /// Softmax and weighted sums of some keys, which are in one tile. Each tile has sums of its own, for the
  /// reason given at add_products_of_panel; those of the first tile become the total.
  void attend_tile(Index kv, const tile_range& keys, bool is_first, const key_place& after) {
    const Index begin = keys.first / shape::tile * shape::tile, channels = call_.v.head_dim;
    const key_place here = {kv, keys.first, keys.last};
    for_each_batch(call_.k, here, call_.v, here,
                   [&](const row_block<C>& rows, Index j, Index count, Index n, stream_ahead& ahead) {
                     operands_.score_keys(kv + n, rows, count, scores_of(n) + (j - begin), &ahead);
                   });
    for (Index r = 0; r < rows(); ++r) {
      const weighted_rows<A> row = sums_.from(r);
      const A shrink =
          weigh_visible_keys(scores_ + r * shape::tile, {keys.first - begin, keys.last - begin}, row.state);
      if (!equal(shrink, A(1))) channels_map<A>(row.sums, channels) *= shrink;
    }
    A* const sums = is_first ? sums_.sums : tile_sums_;
    if (!is_first) std::fill_n(sums, rows() * channels, A(0));
    for_each_batch(call_.v, here, call_.k, after,
                   [&](const row_block<C>& rows, Index j, Index count, Index n, stream_ahead& ahead) {
                     const value_run<row_block<C>> run = {rows, count, &ahead, ahead.again(rows, count)};
                     operands_.add_rows(std::span(&run, std::size_t{1}), of_.rows, scores_of(n) + (j - begin),
                                        sums + n * of_.rows * channels, true);
                   });
    if (!is_first)
      channels_map<A>(sums_.sums, rows() * channels) += const_channels_map<A>(sums, rows() * channels);
  }

  /// Divides the keys or values x of a tile into batches, and calls batch(rows, j, count, n, ahead) for each
  /// head kv + n with tokens [j, j + count) of each batch. `ahead` prefetches the next batch: the next one of
  /// x or, after the last one, the one of y at `after`.
  void for_each_batch(const token_source<C>& x, const key_place& tile, const token_source<C>& y,
                      const key_place& after, const auto& batch) const {
    const C* row = x.at(of_.b, tile.token, tile.kv);
    for (Index j = tile.token, count; j < tile.end; j += count) {
      count = (std::min)({tokens_, x.run_from(j), tile.end - j});
      const bool last = j + count == tile.end;
      const token_source<C>& source = last ? y : x;
      const C* const next = last ? y.at(of_.b, after.token, after.kv) : x.at(of_.b, j + count, tile.kv);
      stream_ahead ahead;
      for (Index n = 0; n < heads_; ++n) {
        if (contiguous_ == 1 && n + 1 < heads_)
          ahead = batches::ahead_from(x, row + (n + 1) * x.head_stride, 1, again_);
        else if (contiguous_ == 1 || n == 0)
          ahead = batches::ahead_from(source, next, contiguous_, again_);
        else
          ahead.continues_with(next + n * source.head_stride);
        batch(row_block<C>{row + n * x.head_stride, x.token_stride}, j, count, n, ahead);
      }
      row = next;
    }
  }

  void finish(Index kv, const weighted_rows<A>& rows) const {
    const Index head = kv * call_.group() + of_.first_row;
    if (results_ != nullptr) return results_->set(part_.place, head, of_.rows, rows);
    for (Index r = 0; r < of_.rows; ++r) write_output(call_, of_.b, 0, head + r, rows.from(r));
  }

  const call_type& call_;
  const decode_results<A>* results_;
  key_split part_;
  decode_queries of_;
  Index contiguous_;  // heads of a token that are adjacent in memory, and prefetched together
  Index heads_;       // whose batches alternate
  Index tokens_;      // of a batch
  Index again_;       // a cache line is prefetched again this many tokens before its use
  decode_operands<T, Rotation, C> operands_;
  A* scores_;              // [heads, rows, tile]
  A* tile_sums_;           // [heads, rows, value_dim]
  weighted_rows<A> sums_;  // [heads, rows]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PLAIN_DECODE_HPP
