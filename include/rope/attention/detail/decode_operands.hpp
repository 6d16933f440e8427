// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_DECODE_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_DECODE_OPERANDS_HPP

#include <algorithm>  // std::max, std::min, std::fill_n
#include <span>
#include <type_traits>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Operands of decoding in the arithmetic type: a copy of the queries, and keys and values in place.

namespace rope::inline ROPE_ABI::detail {

/// Rows [first, first + count) of the query rows of a task in one key head.
struct rows_of_head {
  Index first, count;
};

/// Query rows [first_row, first_row + rows) of each of key heads [first_head, first_head + heads) of row b.
/// Row t * group + g of a key head is query head g of the group at token t.
struct decode_queries {
  Index b, first_head, heads, first_row, rows;

  /// The rows of token t among these rows.
  rows_of_head rows_at(Index t, Index group) const {
    const Index first = (std::max)(Index{0}, t * group - first_row),
                last = (std::min)(rows, (t + 1) * group - first_row);
    return {first, (std::max)(Index{0}, last - first)};
  }
  /// The query head of row `row` of key head kv, which is at token t.
  Index head_of(Index kv, Index t, Index row, Index group) const {
    return (kv - t) * group + first_row + row;
  }
};

template <class T, class Rotation, class C>
class decode_operands {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;
  using key_type = loadable<typename call_type::rotated>;
  using value_type = loadable<C>;

 public:
  using sum = A;  // of weighted values
  /// Whether integers are multiplied in place, so that their scales multiply scores and weights.
  static constexpr bool scales_keys = is_quantized<key_type>, scales_values = is_quantized<value_type>;

  decode_operands(const call_type& call, const decode_queries& queries) : call_(call), of_(queries) {
    const Index depth = call.q.head_dim, widest = (std::max)(depth, call.v.head_dim);
    const Index copied = (std::max)(shape::tile, of_.rows) * widest;
    place_arrays<struct decode_numbers, A>(
        {{&queries_, of_.rows * of_.heads * depth}, {&buffers_.wide, copied}});
    buffers_.rotated = workspace<struct decode_rotated, T>(copied);
  }

  /// Packs the query heads of key head kv at token t, multiplied by `factor`.
  void pack_queries(Index kv, Index t, double factor) {
    const rows_of_head rows = of_.rows_at(t, call_.group());
    if (rows.count == 0) return;
    const row_block<T> heads =
        query_rows(call_, of_.b, t, of_.head_of(kv, t, rows.first, call_.group()), rows.count, buffers_);
    for (Index g = 0; g < rows.count; ++g)
      pack_scaled(heads.at(g), call_.q.head_dim, static_cast<A>(factor), query(kv, rows.first + g),
                  shape::width);
  }
  /// Packs zeros for token t, which has no visible key.
  void clear_queries(Index kv, Index t) {
    const rows_of_head rows = of_.rows_at(t, call_.group());
    std::fill_n(query(kv, rows.first), rows.count * call_.q.head_dim, A(0));
  }

  /// Computes scores [rows, tile] of `count` keys.
  void score_keys(Index kv, const auto& keys, Index count, A* scores, stream_ahead* ahead) const {
    const Index depth = call_.q.head_dim;
    for_groups_of_rows(of_.rows, [&](auto group, Index r) {
      score_rows<A, group()>(query(kv, r), depth, keys, count, depth, scores + r * shape::tile,
                             r == 0 ? ahead : nullptr);
    });
  }
  /// sums [rows, value_dim] += weights [rows, tile] * values
  void add_rows(const auto& values, Index rows, const A* weights, A* sums, bool prefetches) const {
    const Index channels = call_.v.head_dim;
    for_groups_of_rows(rows, [&](auto group, Index r) {
      value_rows<A, group()>(weights + r * shape::tile, values, channels, sums + r * channels, channels,
                             prefetches && r == 0);
    });
  }

  /// Whether listed keys are copied before they are multiplied. Many rows read a copy faster. For few rows
  /// the copy takes longer than it saves.
  static bool copies_lists(const call_type& call, Index rows) {
    return call.rotation.is_given() || rows > shape::rows;
  }
  /// Computes scores [rows, tile] of run i of a batch. The first group of rows reads the keys from memory,
  /// the other groups from a cache.
  void score(key_runs<C>& keys, Index i, A* scores) {
    const Index kv = keys.head, first = keys.run[i].first, count = keys.run[i].last - first;
    const auto score_with = [&](const auto& rows) {
      score_keys(kv, rows, count, scores + first, &keys.ahead[i]);
    };
    if (widens_once())
      score_with(read_keys<wide_type<key_type>>(call_, keys.tokens(i), buffers_));
    else if (copies_lists(call_, of_.rows) || !reads_list<key_type>(keys, score_with))
      score_with(read_keys<key_type>(call_, keys.tokens(i), buffers_));
  }

  /// Prepares the weights of a strip for add_values.
  static void take_weights(Index /*kv*/, const tile_range& /*hull*/, const rows_of_head&, const A*) {}

  /// sums [rows, value_dim] += weights [rows, tile] * values of the runs of a batch
  void add_values(key_runs<C>& keys, const rows_of_head& rows, const A* weights, A* sums, bool prefetches) {
    const Index channels = call_.v.head_dim;
    const auto add_with = [&](const auto& runs) {
      add_rows(runs, rows.count, weights + keys.first(), sums, prefetches);
    };
    const auto add_runs = [&]<class Storage>(std::type_identity<Storage>) {
      value_run<row_block<Storage>> runs[key_runs<C>::most];
      for (Index i = 0; i < keys.count; ++i) {
        const token_run<C> run = keys.tokens(i);
        A* const wide = buffers_.wide + (keys.run[i].first - keys.first()) * channels;
        const row_block<Storage> values = stored_rows<Storage>(call_.v, run, wide);
        runs[i] = {values, run.count, &keys.ahead[i], keys.ahead[i].again(values, run.count)};
      }
      add_with(std::span<const value_run<row_block<Storage>>>(runs, static_cast<std::size_t>(keys.count)));
    };
    if (widens_once())
      add_runs(std::type_identity<wide_type<value_type>>{});
    else if (!reads_list<value_type>(keys, [&](const listed_rows<C>& values) {
               const value_run<listed_rows<C>> run = {values, keys.last() - keys.first(), nullptr, {}};
               add_with(std::span(&run, std::size_t{1}));
             }))
      add_runs(std::type_identity<value_type>{});
  }

  /// total [value_dim] += the sums of add_values for a row
  void add_sums(Index /*kv*/, Index /*row*/, const A* sums, A* total) const {
    channels_map<A>(total, call_.v.head_dim) += const_channels_map<A>(sums, call_.v.head_dim);
  }

  /// Whether values cannot be read in place.
  static bool must_gather() { return false; }

  /// sums [rows, value_dim] += weights * visible values. Needed if hidden values are not finite, because 0
  /// times such a value is NaN.
  void add_visible_values(Index kv, Index begin, const rows_of_head& rows, const A* weights,
                          tile_softmax<A>& softmax, A* sums) {
    const Index channels = call_.v.head_dim;
    for (Index r = 0; r < rows.count; ++r, sums += channels)
      softmax.visible_values(
          r, weights + r * shape::tile,
          [&](Index j) {
            const token_run<C> run = {of_.b, kv, begin + j, 1, call_.v.at(of_.b, begin + j, kv)};
            return stored_rows<value_type>(call_.v, run, buffers_.wide).rows;
          },
          channels, [&](Index c, A added) { sums[c] += added; });
  }

 private:
  /// The type that keys and values are widened to. Integers are not widened, because their scales multiply
  /// scores and weights instead.
  template <class X>
  using wide_type = std::conditional_t<is_quantized<C>, X, A>;
  /// Whether channels are widened once, into a copy, instead of again for every four rows. Widening is exact,
  /// but -ffast-math may change the order of sums. The choice therefore depends on all rows of a head, not on
  /// the rows that one thread has.
  bool widens_once() const {
    return !std::is_same_v<key_type, A> && call_.q.tokens * call_.group() > shape::rows;
  }

  /// Calls body(rows) with listed keys or values if they are read as `Storage` in place, and returns whether
  /// they are.
  template <class Storage>
  static bool reads_list(const key_runs<C>& keys, const auto& body) {
    if constexpr (std::is_same_v<Storage, C>)
      if (keys.is_listed()) return body(keys.list), true;
    return false;
  }

  A* query(Index kv, Index row) const {
    return queries_ + ((kv - of_.first_head) * of_.rows + row) * call_.q.head_dim;
  }

  const call_type& call_;
  decode_queries of_;
  A* queries_;  // [heads, rows, head_dim]
  row_buffers<T> buffers_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_DECODE_OPERANDS_HPP
