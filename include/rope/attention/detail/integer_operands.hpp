// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP

#include <algorithm>  // std::max, std::min, std::fill, std::fill_n
#include <cstdint>
#include <limits>
#include <utility>  // std::pair

#include <rope/attention/detail/block_keys.hpp>
#include <rope/attention/detail/decode_batches.hpp>
#include <rope/attention/detail/decode_operands.hpp>
#include <rope/attention/detail/hidden_keys.hpp>
#include <rope/attention/detail/pair_streams.hpp>
#include <rope/attention/detail/prefill_operands.hpp>
#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/attention/detail/streams.hpp>
#include <rope/attention/detail/token_source.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/quantized_channels.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/integer_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Operands of integer products, for the prefill kernel and the decode kernel.

namespace rope::inline ROPE_ABI::detail {

// A query is rounded to 16-bit integers with one scale, and so are its weights of a tile. These integers
// multiply int8 keys and values. Their magnitude is limited, so that a sum of products stays below 2^31.

/// Rounds the channels of a query and returns their scale.
inline float round_query(const float* channels, Index head_dim, std::int16_t* rounded) {
  constexpr Index largest = (std::numeric_limits<std::int16_t>::max)(),
                  sum = (std::numeric_limits<std::int32_t>::max)();
  return quantize_channels(
      channels, head_dim, rounded,
      static_cast<std::int32_t>((std::min)(largest, sum / 128 / (std::max)(Index{1}, head_dim))));
}

/// Rounds the weights of the keys of `hull` in a row [tile], and returns their scale. Keys 2 i and 2 i + 1
/// are later multiplied as a pair. If only one of them is in the hull, the weight of the other is set to
/// zero.
inline float round_weights(const tile_range& hull, const float* weights, std::int16_t* rounded) {
  constexpr Index largest = (std::numeric_limits<std::int16_t>::max)(), tile = panel_shape<float>::tile;
  static_assert(largest * 128 * tile < Index{(std::numeric_limits<std::int32_t>::max)()});
  if (hull.first % 2 == 1) rounded[hull.first - 1] = 0;
  if (hull.last % 2 == 1) rounded[hull.last] = 0;
  return quantize_channels(weights + hull.first, hull.last - hull.first, rounded + hull.first,
                           std::int32_t{largest});
}

template <class Rotation>
class integer_operands
    : public paired_operands<float, Rotation, std::int8_t, integer_products<integer_floats>> {
  static_assert(!Rotation::rotates, "keys that are rotated while they are read are no integers");
  using base = paired_operands<float, Rotation, std::int8_t, integer_products<integer_floats>>;
  using typename base::shape;

 public:
  integer_operands(const typename base::call_type& call, const query_block& block, Index strips)
      : base(call, block, strips) {}

  void pack_queries(Index t, double factor) {
    const Index depth = call_.q.head_dim;
    float* const wide = buffers_.rotated;  // [heads, head_dim]
    read_queries(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads,
                 static_cast<float>(factor), buffers_,
                 [&](Index g) { return std::pair(wide + g * depth, Index{1}); });
    for (Index g = 0; g < block_.heads; ++g) {
      const Index row = t * block_.heads + g;
      factors_[row] = round_query(wide + g * depth, depth, row_);
      pack_strided_pairs(row_, depth, this->query(row), 2 * shape::rows);
    }
  }

  /// False: values outside the hull are integers, so their products with a weight of 0 are 0.
  static bool exceeds(const tile_range& /*hull*/) { return false; }

  void add_values(const tile_range& hull, float* weights, const float* shrink, float* sums) {
    multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, shape::rows);
    add_scaled(hull, weights, shrink, sums);
  }

  /// Replaces add_values if a scale of the tile is not finite: for each row, the weights of keys that are
  /// hidden from the row are set to zero.
  void add_visible_values(Index rows, float* weights, tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, rows);
    for (Index r = 0; r < shape::rows; ++r)
      for (Index j = hull.first; j < hull.last; ++j)
        if (r >= rows || !softmax.sees(r, j)) weights[r * shape::tile + j] = 0;
    add_scaled(hull, weights, softmax.shrink(), sums);
  }

 private:
  using base::begin_;
  using base::block_;
  using base::buffers_;
  using base::call_;
  using base::factors_;
  using base::row_;
  using base::weights_;

  /// sums = shrink * sums + weights * values of the hull. The weights already contain the scales of the
  /// values.
  void add_scaled(const tile_range& hull, const float* weights, const float* shrink, float* sums) {
    float scales[std::size_t(shape::rows)];
    for (Index r = 0; r < shape::rows; ++r)
      scales[r] = round_weights(hull, weights + r * shape::tile, weights_ + r * shape::tile);
    this->multiply_values(hull, shrink, scales, sums);
  }
};

// Operands of integer products in decoding. Keys and values are used as stored. Queries are rounded to 16
// bits, with one scale per query. Each weight is multiplied by the scale of its value. The products are
// rounded to 16 bits, with one new scale per query and tile of keys. Sums of products of integers are exact.

template <class Rotation>
class integer_decode_operands {
  static_assert(!Rotation::rotates, "keys that are rotated while they are read are no integers");
  using shape = panel_shape<float>;
  using call_type = attention_call<float, Rotation, std::int8_t>;
  using products = integer_products<integer_floats>;
  using number = products::number;
  using real = arithmetic<typename call_type::stored>;  // float, as a dependent type

 public:
  using sum = std::int32_t;

  integer_decode_operands(const call_type& call, const decode_queries& queries) : call_(call), of_(queries) {
    struct decode_integers {};
    struct decode_integer_scales {};
    struct decode_totals {};
    const Index depth = call.q.head_dim, rows = of_.rows * of_.heads;
    queries_ = workspace<decode_integers, number>(rows * (depth + shape::tile));
    weights_ = queries_ + rows * depth;
    query_scales_ = workspace<decode_integer_scales, float>(2 * rows + call.group() * depth + shape::tile);
    weight_scales_ = query_scales_ + rows;
    wide_ = weight_scales_ + rows;
    visible_weights_ = wide_ + call.group() * depth;
    totals_ = workspace<decode_totals, sum>(of_.rows * shape::tile + call.v.head_dim);
    visible_sums_ = totals_ + of_.rows * shape::tile;
  }

  void pack_queries(Index kv, Index t, double factor) {
    const Index group = call_.group(), depth = call_.q.head_dim;
    const tile_range heads = of_.heads_of(t, group);
    if (heads.empty()) return;
    read_queries(call_, of_.b, t, kv * group + heads.first, heads.last - heads.first,
                 static_cast<float>(factor), row_buffers<float>{wide_, nullptr},
                 [&](Index g) { return std::pair(wide_ + g * depth, Index{1}); });
    for (Index g = heads.first; g < heads.last; ++g) {
      const Index row = row_of(kv, t * group + g - of_.first_row);
      query_scales_[row] = round_query(wide_ + (g - heads.first) * depth, depth, queries_ + row * depth);
    }
  }
  /// Sets queries without visible keys to 0, so that their scores are 0.
  void clear_queries(Index kv, Index t) {
    const tile_range heads = of_.heads_of(t, call_.group());
    for (Index g = heads.first; g < heads.last; ++g) {
      const Index row = row_of(kv, t * call_.group() + g - of_.first_row);
      std::fill_n(queries_ + row * call_.q.head_dim, call_.q.head_dim, number{0});
      query_scales_[row] = 0;
    }
  }

  void score(key_runs<std::int8_t>& keys, Index i, float* scores) {
    const token_run<std::int8_t> run = keys.tokens(i);
    const Index depth = call_.q.head_dim, kv = run.head, first = keys.run[i].first;
    const row_block<std::int8_t> block = {run.rows, call_.k.token_stride};
    for_groups_of_rows(of_.rows, [&](auto group, Index r) {
      score_rows_of_pairs<products, group()>(queries_ + row_of(kv, r) * depth, block, run.count, depth,
                                             totals_ + r * shape::tile + first,
                                             r == 0 ? &keys.ahead[i] : nullptr);
    });
    for (Index r = 0; r < of_.rows; ++r)
      channels_map<real>(scores + r * shape::tile + first, run.count) =
          query_scales_[row_of(kv, r)] * as_floats(totals_ + r * shape::tile + first, run.count);
    multiply_by_scales(call_.k, of_.b, kv, keys.begin, keys.run[i], scores, of_.rows);
  }

  void scale_weights(Index kv, Index begin, const tile_range& hull, const rows_of_head& rows,
                     float* weights) {
    multiply_by_scales(call_.v, of_.b, kv, begin, hull, weights, rows.count);
    for (Index r = 0; r < rows.count; ++r)
      round_row(row_of(kv, rows.first + r), hull, weights + r * shape::tile);
  }

  void add_values(key_runs<std::int8_t>& keys, const rows_of_head& rows, const float* /*weights*/, sum* sums,
                  bool asks) {
    for (Index i = 0; i < keys.count; ++i)
      add_run(keys.tokens(i), keys.run[i], rows, sums, asks ? &keys.ahead[i] : nullptr);
  }
  void add_sums(Index kv, Index row, const sum* sums, float* total) const {
    channels_map<real>(total, call_.v.head_dim) +=
        weight_scales_[row_of(kv, row)] * as_floats(sums, call_.v.head_dim);
  }

  /// False: integer sums do not depend on which tokens form a pair.
  static bool must_gather() { return false; }
  bool finite_values(Index kv, Index begin, const tile_range& hull) const {
    return has_finite_scales(call_.v, of_.b, kv, begin, hull);
  }

  /// Replaces add_values if a scale of the tile is not finite: for each row, the weights of keys that are
  /// hidden from the row are set to zero. If all scales are finite, the bits are those of add_values.
  void add_visible_values(Index kv, Index begin, const rows_of_head& rows, const float* weights,
                          tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    const Index channels = call_.v.head_dim;
    for (Index r = 0; r < rows.count; ++r) {
      for (Index j = hull.first; j < hull.last; ++j)
        visible_weights_[j] = softmax.sees(r, j) ? weights[r * shape::tile + j] : 0.0f;
      round_row(row_of(kv, rows.first + r), hull, visible_weights_);
      std::fill_n(visible_sums_, channels, sum{0});
      for (Index j = hull.first, next; j < hull.last; j = next) {
        next = j + (std::min)(hull.last - j, call_.v.run_from(begin + j));
        add_run({of_.b, kv, begin + j, next - j, call_.v.at(of_.b, begin + j, kv)}, {j, next},
                {rows.first + r, 1}, visible_sums_, nullptr);
      }
      if (!equal(softmax.shrink()[r], 1.0f))
        channels_map<real>(sums + r * channels, channels) *= softmax.shrink()[r];
      add_sums(kv, rows.first + r, visible_sums_, sums + r * channels);
    }
  }

 private:
  template <class Integer>
  static auto as_floats(const Integer* sums, Index count) {
    return Eigen::Map<const Eigen::Array<Integer, Eigen::Dynamic, 1>>(sums, count).template cast<real>();
  }

  Index row_of(Index kv, Index row) const { return (kv - of_.first_head) * of_.rows + row; }

  void round_row(Index row, const tile_range& hull, const float* weights) {
    weight_scales_[row] = round_weights(hull, weights, weights_ + row * shape::tile);
  }

  /// sums += weights * values of keys at regular strides
  void add_run(const token_run<std::int8_t>& run, const tile_range& keys, const rows_of_head& rows, sum* sums,
               stream_ahead* ahead) const {
    const value_pairs<products> values = {{run.rows, call_.v.token_stride},
                                          keys.first,
                                          keys.last,
                                          weights_ + row_of(run.head, rows.first) * shape::tile,
                                          shape::tile};
    for_groups_of_rows(rows.count, [&](auto group, Index r) {
      value_rows_of_pairs<group()>(values.from_row(r), call_.v.head_dim, sums + r * call_.v.head_dim,
                                   r == 0 ? ahead : nullptr);
    });
  }

  const call_type& call_;
  decode_queries of_;
  number* queries_;         // [heads, rows, head_dim]
  number* weights_;         // [heads, rows, tile]
  float* query_scales_;     // [heads, rows]
  float* weight_scales_;    // [heads, rows], of the current tile
  float* wide_;             // [group, head_dim]
  float* visible_weights_;  // [tile]
  sum* totals_;             // [rows, tile]
  sum* visible_sums_;       // [value_dim]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_INTEGER_OPERANDS_HPP
