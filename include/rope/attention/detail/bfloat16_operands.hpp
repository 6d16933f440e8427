// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP

#include <algorithm>  // std::fill, std::fill_n, std::min, std::max, std::copy_n
#include <cstddef>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/decode_operands.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/pair_streams.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Operands of products in bfloat16 for the prefill and decode kernels. Queries and keys are not rounded:
/// they have the bits of memory or of `rotate`. The factor of scores therefore multiplies the products of
/// queries and keys, not the queries. Weights are rounded to bfloat16. hidden_keys.hpp defines tile and hull.

namespace rope::inline ROPE_ABI::detail {

/// to[j] = weights[j], rounded to bfloat16, for j in [0, panel width).
inline void round_panel(const float* weights, Eigen::bfloat16* to) {
  if constexpr (lanes < pair_sums >> 1) {
    const auto both = load_even_odd<pair_sums>(weights);
    store_even_odd(to, both.even, both.odd);
  } else {
    for (Index j = 0; j < panel_shape<float>::width; ++j) to[j] = rounded<Eigen::bfloat16>(weights[j]);
  }
}

/// Rounds weights [rows, tile] of the keys of `hull`. Keys 2 i and 2 i + 1 are later multiplied as a pair. If
/// only one of them is in the hull, the weight of the other is set to zero.
inline void round_weights(const tile_range& hull, Index rows, const float* weights,
                          Eigen::bfloat16* rounded) {
  using shape = panel_shape<float>;
  for (Index r = 0; r < rows; ++r) {
    Eigen::bfloat16* row = rounded + r * shape::tile;
    for (Index j = hull.first / shape::width * shape::width; j < hull.last; j += shape::width)
      round_panel(weights + r * shape::tile + j, row + j);
    if (hull.first % 2 == 1) row[hull.first - 1] = Eigen::bfloat16(0.0f);
    if (hull.last % 2 == 1) row[hull.last] = Eigen::bfloat16(0.0f);
  }
}

template <class Rotation>
class bfloat16_operands
    : public paired_operands<Eigen::bfloat16, Rotation, Eigen::bfloat16, bfloat16_products> {
  using T = Eigen::bfloat16;
  using base = paired_operands<T, Rotation, T, bfloat16_products>;
  using typename base::shape;

 public:
  bfloat16_operands(const typename base::call_type& call, const query_block& block, Index strips)
      : base(call, block, strips) {}

  void pack_queries(Index t, double factor) {
    const row_block<T> rows =
        query_rows(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads, buffers_);
    for (Index g = 0; g < block_.heads; ++g) {
      const Index row = t * block_.heads + g;
      factors_[row] = static_cast<float>(factor);
      pack_strided_pairs(rows.rows + g * rows.stride, call_.q.head_dim, this->query(row), 2 * shape::rows);
    }
  }

  /// Whether a pair of keys at an end of the hull has one key that is not in the hull.
  bool exceeds(const tile_range& hull) const {
    return hull.first % 2 == 1 || (hull.last % 2 == 1 && hull.last < count_);
  }

  void add_values(const tile_range& hull, const float* weights, const float* shrink, float* sums) {
    round_weights(hull, shape::rows, weights, weights_);
    this->multiply_values(hull, shrink, nullptr, sums);
  }

  void add_visible_values(Index rows, const float* weights, tile_softmax<float>& softmax, float* sums) {
    round_weights(softmax.hull(), shape::rows, weights, weights_);
    for (Index c = 0; c < call_.v.head_dim; c += shape::width)
      for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
        for (Index place = 0; r < rows && place < shape::width; ++place)
          sums[place] = multiply_add(softmax.shrink()[r], sums[place],
                                     visible_sum(softmax, r, this->panel(c) + 2 * place));
  }

 private:
  using base::block_;
  using base::buffers_;
  using base::call_;
  using base::count_;
  using base::factors_;
  using base::weights_;

  /// The sum of weights times values of one channel, over the keys visible to row r. `values` is in a panel
  /// of pairs: each row of the panel has the values of two keys.
  float visible_sum(const tile_softmax<float>& softmax, Index r, const T* values) const {
    const tile_range hull = softmax.hull();
    const T* weights = weights_ + r * shape::tile;
    float sum = 0;
    for (Index pair = hull.first / 2; 2 * pair < hull.last; ++pair)
      for (const Index j : {2 * pair + 1, 2 * pair})  // the order of multiply_add_pairs
        if (softmax.sees(r, j))
          sum = multiply_add_bfloat16(weights[j], values[pair * 2 * shape::width + j % 2], sum);
    return sum;
  }
};

template <class Rotation>
class bfloat16_decode_operands {
  using T = Eigen::bfloat16;
  using shape = panel_shape<float>;
  using call_type = attention_call<T, Rotation, T>;
  using pairs_of_values = value_pairs<bfloat16_products>;

 public:
  using sum = arithmetic<typename call_type::stored>;

  bfloat16_decode_operands(const call_type& call, const decode_queries& queries) : call_(call), of_(queries) {
    struct decode_pairs {};
    struct decode_visible_sums {};
    struct decode_rotated {};
    const Index depth = call.q.head_dim, widest = (std::max)(depth, call.v.head_dim);
    queries_ = workspace<decode_pairs, T>(of_.rows * (of_.heads * depth + shape::tile));
    weights_ = queries_ + of_.rows * of_.heads * depth;
    visible_sums_ = workspace<decode_visible_sums, float>(call.v.head_dim);
    buffers_ = {workspace<decode_rotated, T>((std::max)(shape::tile, of_.rows) * widest), nullptr};
  }

  void pack_queries(Index kv, Index t, double factor) {
    factor_ = static_cast<float>(factor);
    const Index group = call_.group(), depth = call_.q.head_dim;
    const tile_range heads = of_.heads_of(t, group);
    if (heads.empty()) return;
    const row_block<T> rows =
        query_rows(call_, of_.b, t, kv * group + heads.first, heads.last - heads.first, buffers_);
    for (Index g = heads.first; g < heads.last; ++g)
      std::copy_n(rows.rows + (g - heads.first) * rows.stride, depth,
                  query(kv, t * group + g - of_.first_row));
  }
  void clear_queries(Index kv, Index t) {
    const tile_range heads = of_.heads_of(t, call_.group());
    for (Index g = heads.first; g < heads.last; ++g)
      std::fill_n(query(kv, t * call_.group() + g - of_.first_row), call_.q.head_dim, T(0.0f));
  }

  void score(key_runs<T>& keys, Index i, float* scores) {
    const token_run<T> run = keys.tokens(i);
    const Index first = keys.run[i].first;
    const auto block = read_keys<T>(call_, run, buffers_);
    for_groups_of_rows(of_.rows, [&](auto group, Index r) {
      score_rows_of_pairs<bfloat16_products, group()>(query(run.head, r), block, run.count, call_.q.head_dim,
                                                      scores + r * shape::tile + first,
                                                      r == 0 ? &keys.ahead[i] : nullptr);
    });
    for (Index r = 0; r < of_.rows; ++r)
      channels_map<sum>(scores + r * shape::tile + first, run.count) *= factor_;
  }

  static void scale_weights(Index /*kv*/, Index /*begin*/, const tile_range& /*hull*/,
                            const rows_of_head& /*rows*/, float* /*weights*/) {}

  void add_values(key_runs<T>& keys, const rows_of_head& rows, const float* weights, float* sums, bool asks) {
    for (Index i = 0; i < keys.count; ++i) {
      const pairs_of_values values =
          pairs_with(keys.run[i], rows.count, weights, read_values<T>(call_, keys.tokens(i), buffers_));
      for_groups_of_rows(rows.count, [&](auto group, Index r) {
        value_rows_of_pairs<group()>(values.from_row(r), call_.v.head_dim, sums + r * call_.v.head_dim,
                                     asks && r == 0 ? &keys.ahead[i] : nullptr);
      });
    }
  }

  void add_sums(Index /*kv*/, Index /*row*/, const float* sums, float* total) const {
    channels_map<sum>(total, call_.v.head_dim) += const_channels_map<sum>(sums, call_.v.head_dim);
  }

  /// Whether values cannot be read in place, because pages with an odd number of tokens split pairs of keys.
  bool must_gather() const { return call_.v.page_size() % 2 == 1; }

  bool finite_values(Index kv, Index begin, const tile_range& hull) const {
    return are_finite(call_.v, of_.b, kv, begin, hull);
  }

  /// Replaces add_values for tiles with values that are not finite: for each row, the values of keys that are
  /// hidden from the row are replaced by zeros. If all values are finite, the bits are those of add_values.
  void add_visible_values(Index kv, Index begin, const rows_of_head& rows, const float* weights,
                          tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    const Index channels = call_.v.head_dim;
    const pairs_of_values values = pairs_with(hull, rows.count, weights, {buffers_.rotated, channels});
    for (Index r = 0; r < rows.count; ++r) {
      for (Index j = hull.first; j < hull.last; ++j) {
        T* to = buffers_.rotated + (j - hull.first) * channels;
        if (softmax.sees(r, j))
          std::copy_n(call_.v.at(of_.b, begin + j, kv), channels, to);
        else
          std::fill_n(to, channels, T(0.0f));
      }
      std::fill_n(visible_sums_, channels, 0.0f);
      value_rows_of_pairs<1>(values.from_row(r), channels, visible_sums_, nullptr);
      channels_map<sum> of_row(sums + r * channels, channels);
      if (!equal(softmax.shrink()[r], 1.0f)) of_row *= softmax.shrink()[r];
      of_row += const_channels_map<sum>(visible_sums_, channels);
    }
  }

 private:
  T* query(Index kv, Index row) const {
    return queries_ + ((kv - of_.first_head) * of_.rows + row) * call_.q.head_dim;
  }

  /// Rounds the weights of `rows` rows for keys [keys.first, keys.last), and returns them together with
  /// `values`.
  pairs_of_values pairs_with(const tile_range& keys, Index rows, const float* weights,
                             const row_block<T>& values) {
    round_weights(keys, rows, weights, weights_);
    return {values, keys.first, keys.last, weights_, shape::tile};
  }

  const call_type& call_;
  decode_queries of_;
  float factor_ = 0;
  T* queries_;           // [heads, rows, head_dim]
  T* weights_;           // [rows, tile], of the current keys
  float* visible_sums_;  // [value_dim]
  row_buffers<T> buffers_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP
