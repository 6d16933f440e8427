// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP

#include <algorithm>  // std::fill, std::fill_n, std::min, std::max
#include <cstddef>

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/paired_values.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/rounded_weights.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/pair_panels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// What a block of queries multiplies as bfloat16. Queries and keys are not rounded: they have the bits that
/// they have in memory or after `rotate`, and their sums are multiplied by the factor of scores. Weights are
/// rounded.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class Turn>
class bfloat16_operands {
  using T = Eigen::bfloat16;
  using shape = panel_shape<float>;
  using call_type = attention_call<T, Turn, T>;
  using products = bfloat16_products;
  using values_type = paired_values<products>;

 public:
  bfloat16_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call),
        block_(block),
        pairs_((call.k.head_dim + 1) / 2),
        queries_(memory(call, strips)),
        keys_(queries_ + 2 * strips * shape::rows * pairs_),
        weights_(keys_ + 2 * shape::tile * pairs_),
        values_(weights_ + shape::rows * shape::tile, call.v.head_dim) {
    struct prefill_turned {};
    buffers_ = {workspace<prefill_turned, T>((std::max)(shape::width, block.heads) *
                                             (std::max)(call.k.head_dim, call.v.head_dim)),
                nullptr};
  }

  void pack_queries(Index t, double factor) {
    std::fill(factors_, factors_ + shape::rows, static_cast<float>(factor));
    const row_block<T> rows =
        query_rows(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads, buffers_);
    for (Index g = 0; g < block_.heads; ++g)
      pack_strided_pairs(rows.rows + g * rows.stride, call_.q.head_dim, query(t * block_.heads + g),
                         2 * shape::rows);
  }
  void clear_query(Index row) {
    for (Index d = 0; d < pairs_; ++d) std::fill_n(query(row) + d * 2 * shape::rows, 2, T(0.0f));
  }

  void pack_tile(Index begin, Index count) {
    for (Index n = 0, here; n < count; n += here) {  // as in prefill_operands
      const Index column = n % shape::width;
      here = (std::min)((std::min)(shape::width - column, count - n), call_.k.run_from(begin + n));
      const auto run_of = [&](const token_source<T>& x) {
        return token_run<T>{block_.b, block_.kv, begin + n, here, x.at(block_.b, begin + n, block_.kv)};
      };
      const auto keys = read_keys<T>(call_, run_of(call_.k), buffers_);
      pack_pairs_transposed<products>(keys.rows, keys.stride, here, shape::width - column, call_.k.head_dim,
                                      keys_ + 2 * ((n - column) * pairs_ + column));
      values_.pack(n, here, read_values<T>(call_, run_of(call_.v), buffers_));
    }
    begin_ = begin;
    count_ = count;
  }

  void score(Index s, const tile_range& hull, float* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      score_panel_of_pairs<products>(queries_ + 2 * s * shape::rows * pairs_, keys_ + 2 * n * pairs_, pairs_,
                                     factors_, nullptr, scores + n);
  }

  bool finite_values(Index count) const {
    return are_finite(call_.v, block_.b, block_.kv, begin_, {0, count});
  }
  /// Whether a pair at an end of the hull has a key outside of it, whose value is multiplied by a weight of
  /// 0.
  bool exceeds(const tile_range& hull) const {
    return hull.first % 2 == 1 || (hull.last % 2 == 1 && hull.last < count_);
  }

  void add_values(const tile_range& hull, const float* weights, const float* shrink, float* sums) {
    round_weights(hull, shape::rows, weights, weights_);
    for (Index c = 0; c < call_.v.head_dim; c += shape::width, sums += shape::rows * shape::width)
      value_panel_of_pairs<products>(weights_, values_.panel(c), hull.first / 2, (hull.last + 1) / 2, shrink,
                                     nullptr, sums);
  }

  /// The same over the keys that each row sees, for values that are not all numbers. A row all of whose
  /// values are numbers gets the bits of add_values.
  void add_visible_values(Index rows, const float* weights, tile_softmax<float>& softmax, float* sums) {
    round_weights(softmax.hull(), shape::rows, weights, weights_);
    for (Index c = 0; c < call_.v.head_dim; c += shape::width)
      for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
        for (Index place = 0; r < rows && place < shape::width; ++place)
          sums[place] = multiply_add(softmax.shrink()[r], sums[place],
                                     visible_sum(softmax, r, values_.panel(c) + 2 * place));
  }

  static const float* in_order(const float* sums, float* room) { return values_type::in_order(sums, room); }

 private:
  static T* memory(const call_type& call, Index strips) {
    struct prefill_pairs {};
    const Index pairs = (call.k.head_dim + 1) / 2;
    return workspace<prefill_pairs, T>(2 * pairs * (strips * shape::rows + shape::tile) +
                                       shape::rows * shape::tile + values_type::size(call.v.head_dim));
  }
  T* query(Index row) const {
    return queries_ + 2 * (row / shape::rows * shape::rows * pairs_ + row % shape::rows);
  }
  /// The sum of weights times values, which are a row of pairs apart, over the keys that row r sees.
  float visible_sum(const tile_softmax<float>& softmax, Index r, const T* values) const {
    const tile_range hull = softmax.hull();
    const T* weights = weights_ + r * shape::tile;
    float sum = 0;
    for (Index pair = hull.first / 2; 2 * pair < hull.last; ++pair)
      for (const Index j : {2 * pair + 1, 2 * pair})  // as multiply_add_pairs
        if (softmax.sees(r, j))
          sum = multiply_add_bfloat16(weights[j], values[pair * 2 * shape::width + j % 2], sum);
    return sum;
  }

  const call_type& call_;
  query_block block_;
  Index pairs_, begin_ = 0, count_ = 0;
  float factors_[std::size_t(shape::rows)] = {};
  T* queries_;  // [strips, pairs, rows] of pairs
  T* keys_;     // [tile / width, pairs, width] of pairs
  T* weights_;  // [rows, tile]
  values_type values_;
  row_buffers<T> buffers_;
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_BFLOAT16_OPERANDS_HPP
