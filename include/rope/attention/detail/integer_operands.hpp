// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP

#include <algorithm>  // std::fill, std::fill_n, std::min
#include <cstdint>
#include <utility>  // std::pair

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/paired_values.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/rounded_integers.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/token_scales.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/integer_pairs.hpp>
#include <rope/base/simd/pair_panels.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// What a block of queries multiplies as integers, as in integer_decode_operands.hpp.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class Turn>
class integer_operands {
  static_assert(!Turn::rotates, "keys that are rotated while they are read are no integers");
  using shape = panel_shape<float>;
  using call_type = attention_call<float, Turn, std::int8_t>;
  using products = integer_products<integer_floats>;
  using number = products::number;
  using values_type = paired_values<products>;

 public:
  integer_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call),
        block_(block),
        pairs_((call.k.head_dim + 1) / 2),
        queries_(memory(call, strips)),
        keys_(queries_ + 2 * strips * shape::rows * pairs_),
        weights_(keys_ + 2 * shape::tile * pairs_),
        row_(weights_ + shape::rows * shape::tile),
        values_(row_ + 2 * pairs_, call.v.head_dim) {
    struct prefill_scales {};
    const Index depth = call.q.head_dim, rows = strips * shape::rows;
    query_scales_ = workspace<prefill_scales, float>(rows + shape::tile + block.heads * depth);
    key_scales_ = query_scales_ + rows;
    wide_ = key_scales_ + shape::tile;
  }

  void pack_queries(Index t, double factor) {
    const Index depth = call_.q.head_dim;
    read_queries(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads,
                 static_cast<float>(factor), row_buffers<float>{wide_, nullptr},
                 [&](Index g) { return std::pair(wide_ + g * depth, Index{1}); });
    for (Index g = 0; g < block_.heads; ++g) {
      const Index row = t * block_.heads + g;
      query_scales_[row] = round_query(wide_ + g * depth, depth, row_);
      pack_strided_pairs(row_, depth, query(row), 2 * shape::rows);
    }
  }
  void clear_query(Index row) {
    for (Index d = 0; d < pairs_; ++d) std::fill_n(query(row) + d * 2 * shape::rows, 2, number{0});
    query_scales_[row] = 0;
  }

  void pack_tile(Index begin, Index count) {
    begin_ = begin;
    for (Index n = 0, here; n < count; n += here) {  // as in prefill_operands
      const Index column = n % shape::width;
      here = (std::min)((std::min)(shape::width - column, count - n), call_.k.run_from(begin + n));
      pack_pairs_transposed<products>(call_.k.at(block_.b, begin + n, block_.kv), call_.k.token_stride, here,
                                      shape::width - column, call_.k.head_dim,
                                      keys_ + 2 * ((n - column) * pairs_ + column));
      values_.pack(n, here, {call_.v.at(block_.b, begin + n, block_.kv), call_.v.token_stride});
    }
    std::fill(key_scales_ + count, key_scales_ + shape::tile, 0.0f);
    read_scales(call_.k, block_.b, block_.kv, begin, {0, count}, key_scales_);
  }

  void score(Index s, const tile_range& hull, float* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      score_panel_of_pairs<products>(queries_ + 2 * s * shape::rows * pairs_, keys_ + 2 * n * pairs_, pairs_,
                                     query_scales_ + s * shape::rows, key_scales_ + n, scores + n);
  }

  bool finite_values(Index count) const {
    return has_finite_scales(call_.v, block_.b, block_.kv, begin_, {0, count});
  }
  /// A neighbour outside of the hull is an integer, and its weight is 0.
  static bool exceeds(const tile_range& /*hull*/) { return false; }

  void add_values(const tile_range& hull, float* weights, const float* shrink, float* sums) {
    multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, shape::rows);
    add_scaled(hull, weights, shrink, sums);
  }

  /// The same where some scale is not a number: what a row does not see has a weight of zero. A row all of
  /// whose scales are numbers gets the bits of add_values.
  void add_visible_values(Index rows, float* weights, tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, rows);
    for (Index r = 0; r < shape::rows; ++r)
      for (Index j = hull.first; j < hull.last; ++j)
        if (r >= rows || !softmax.sees(r, j)) weights[r * shape::tile + j] = 0;
    add_scaled(hull, weights, softmax.shrink(), sums);
  }

  static const float* in_order(const float* sums, float* room) { return values_type::in_order(sums, room); }

 private:
  static number* memory(const call_type& call, Index strips) {
    struct prefill_integers {};
    const Index pairs = (call.k.head_dim + 1) / 2;
    return workspace<prefill_integers, number>(2 * pairs * (strips * shape::rows + shape::tile + 1) +
                                               shape::rows * shape::tile +
                                               values_type::size(call.v.head_dim));
  }
  number* query(Index row) const {
    return queries_ + 2 * (row / shape::rows * shape::rows * pairs_ + row % shape::rows);
  }

  /// sums = shrink * sums + weights * values of the hull, of weights that are multiplied by scales
  void add_scaled(const tile_range& hull, const float* weights, const float* shrink, float* sums) {
    float scales[std::size_t(shape::rows)];
    for (Index r = 0; r < shape::rows; ++r)
      scales[r] = round_weights(hull, weights + r * shape::tile, weights_ + r * shape::tile);
    for (Index c = 0; c < call_.v.head_dim; c += shape::width, sums += shape::rows * shape::width)
      value_panel_of_pairs<products>(weights_, values_.panel(c), hull.first / 2, (hull.last + 1) / 2, shrink,
                                     scales, sums);
  }

  const call_type& call_;
  query_block block_;
  Index pairs_, begin_ = 0;
  number* queries_;  // [strips, pairs, rows] of pairs
  number* keys_;     // [tile / width, pairs, width] of pairs
  number* weights_;  // [rows, tile]
  number* row_;      // [head_dim]
  values_type values_;
  float* query_scales_;  // [strips, rows]
  float* key_scales_;    // [tile]
  float* wide_;          // [heads, head_dim]
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP
