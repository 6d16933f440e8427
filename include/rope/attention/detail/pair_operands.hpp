// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PAIR_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_PAIR_OPERANDS_HPP

#include <algorithm>  // std::fill, std::fill_n, std::min, std::max, std::copy_n
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

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
#include <rope/base/simd/bfloat16_pairs.hpp>
#include <rope/base/simd/integer_pairs.hpp>
#include <rope/base/simd/packet_pairs.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Operands of products in pairs, for the prefill and decode kernels. hidden_keys.hpp defines tile and hull.
///
/// Products in bfloat16: queries and keys are not rounded. They have the bits of memory or of `rotate`, so
/// the factor of scores multiplies the products of queries and keys, not the queries. Weights are rounded to
/// bfloat16.
///
/// Integer products: keys and values are used as stored. A query is rounded to 16-bit integers with one
/// scale. Each weight is multiplied by the scale of its value, and the weights of a query in a tile are
/// rounded to 16 bits with one new scale. The integers are limited, so that a sum of products stays below
/// 2^31. Such a sum is exact.

namespace rope::inline ROPE_ABI::detail {

/// Calls visit(g, numbers, factor) for query heads `head` + g of token i. Their products with a key have the
/// given factor.
///
/// \param rounded  memory for the numbers of a query, if it is rounded
template <class T, class Rotation, class C, class Number>
void for_each_query(const attention_call<T, Rotation, C>& call, Index b, Index i, Index head, Index heads,
                    double factor, const row_buffers<T>& buffers, Number* rounded, const auto& visit) {
  const Index depth = call.q.head_dim;
  const row_block<T> rows = query_rows(call, b, i, head, heads, buffers);
  if constexpr (is_quantized<C>) {
    constexpr Index largest = (std::numeric_limits<Number>::max)(),
                    sum = (std::numeric_limits<std::int32_t>::max)();
    const auto limit =
        static_cast<std::int32_t>((std::min)(largest, sum / 128 / (std::max)(Index{1}, depth)));
    for (Index g = 0; g < heads; ++g) {
      pack_scaled(rows.at(g), depth, static_cast<float>(factor), buffers.rotated, panel_shape<float>::width);
      visit(g, rounded, quantize_channels(buffers.rotated, depth, rounded, limit));
    }
  } else {
    for (Index g = 0; g < heads; ++g) visit(g, rows.at(g), static_cast<float>(factor));
  }
}

/// to[j] = weights[j], rounded to bfloat16, for j in [0, panel width).
inline void round_panel(const float* weights, Eigen::bfloat16* to) {
  if constexpr (1 < lanes<pair_sums>) {
    const auto both = load_even_odd<pair_sums>(weights);
    store_even_odd(to, both.even, both.odd);
  } else {
    for (Index j = 0; j < panel_shape<float>::width; ++j) to[j] = rounded<Eigen::bfloat16>(weights[j]);
  }
}

/// Rounds the weights of the keys of `hull` in a row [tile], and returns their scale. Keys 2 i and 2 i + 1
/// are later multiplied as a pair. If only one of them is in the hull, the weight of the other is set to
/// zero.
template <class Number>
float round_weights(const tile_range& hull, const float* weights, Number* rounded) {
  constexpr Index width = panel_shape<float>::width, tile = panel_shape<float>::tile;
  float scale = 1;
  if constexpr (std::is_same_v<Number, Eigen::bfloat16>) {
    for (Index j = hull.first / width * width; j < hull.last; j += width)
      round_panel(weights + j, rounded + j);
  } else {
    constexpr Index largest = (std::numeric_limits<Number>::max)();
    static_assert(largest * 128 * tile < Index{(std::numeric_limits<std::int32_t>::max)()});
    scale = quantize_channels(weights + hull.first, hull.last - hull.first, rounded + hull.first,
                              std::int32_t{largest});
  }
  if (hull.first % 2 == 1) rounded[hull.first - 1] = Number{};
  if (hull.last % 2 == 1) rounded[hull.last] = Number{};
  return scale;
}

/// Operands of prefill_block.
template <class T, class Rotation, class C, pair_products Products>
class paired_operands {
  using shape = panel_shape<float>;
  using call_type = attention_call<T, Rotation, C>;
  using number = typename Products::number;

 public:
  paired_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call), block_(block), pairs_((call.k.head_dim + 1) / 2) {
    const Index rows = strips * shape::rows;
    place_arrays<struct prefill_pairs, number>({{&queries_, 2 * pairs_ * rows},
                                                {&keys_, 2 * pairs_ * shape::tile},
                                                {&rounded_, 2 * pairs_},
                                                {&weights_, shape::rows * shape::tile},
                                                {&values_, shape::tile * shape::padded(call.v.head_dim)}});
    place_arrays<struct prefill_factors, float>({{&factors_, rows}, {&key_scales_, shape::tile}});
    buffers_ = {workspace<struct prefill_rotated, T>((std::max)(shape::width, block.heads) *
                                                     (std::max)(call.k.head_dim, call.v.head_dim)),
                nullptr};
  }

  void pack_queries(Index t, double factor) {
    for_each_query(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads, factor, buffers_,
                   rounded_, [&](Index g, const number* numbers, float of_products) {
                     const Index row = t * block_.heads + g;
                     factors_[row] = of_products;
                     pack_strided_pairs(numbers, call_.q.head_dim, query(row), 2 * shape::rows);
                   });
  }
  void clear_query(Index row) {
    for (Index d = 0; d < pairs_; ++d) std::fill_n(query(row) + d * 2 * shape::rows, 2, number{});
    factors_[row] = 0;
  }

  void pack_tile(Index begin, Index count) {
    begin_ = begin;
    count_ = count;
    for_each_run_of_panel(
        call_, block_, begin, count, [&](Index n, const token_run<C>& k, const token_run<C>& v) {
          const Index column = n % shape::width;
          const auto keys = read_keys<C>(call_, k, buffers_);
          pack_pairs_transposed<Products>(keys.rows, keys.stride, k.count, shape::width - column,
                                          call_.k.head_dim, keys_ + 2 * ((n - column) * pairs_ + column));
          pack_values(n, v);
        });
    if constexpr (is_quantized<C>) {
      std::fill(key_scales_ + count, key_scales_ + shape::tile, 0.0f);
      read_scales(call_.k, block_.b, block_.kv, begin, {0, count}, key_scales_);
    }
  }

  void score(Index s, const tile_range& hull, float* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      score_panel_of_pairs<Products>(queries_ + 2 * s * shape::rows * pairs_, keys_ + 2 * n * pairs_, pairs_,
                                     factors_ + s * shape::rows, is_quantized<C> ? key_scales_ + n : nullptr,
                                     scores + n);
  }

  bool finite_values(Index count) const {
    return are_finite(call_.v, block_.b, block_.kv, begin_, {0, count});
  }
  /// Whether a pair of keys at an end of the hull has one key that is not in the hull. The product of an
  /// integer and a weight of 0 is 0.
  bool exceeds(const tile_range& hull) const {
    return !is_quantized<C> && (hull.first % 2 == 1 || (hull.last % 2 == 1 && hull.last < count_));
  }

  void add_values(const tile_range& hull, float* weights, const float* shrink, float* sums) {
    if constexpr (is_quantized<C>)
      multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, shape::rows);
    multiply_values(hull, weights, shrink, sums);
  }

  void add_visible_values(Index rows, float* weights, tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    if constexpr (is_quantized<C>) {
      multiply_by_scales(call_.v, block_.b, block_.kv, begin_, hull, weights, rows);
      for (Index r = 0; r < shape::rows; ++r)
        for (Index j = hull.first; j < hull.last; ++j)
          if (r >= rows || !softmax.sees(r, j)) weights[r * shape::tile + j] = 0;
      multiply_values(hull, weights, softmax.shrink(), sums);
    } else {
      for (Index r = 0; r < rows; ++r)
        round_weights(hull, weights + r * shape::tile, weights_ + r * shape::tile);
      for (Index c = 0; c < call_.v.head_dim; c += shape::width)
        for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
          for (Index place = 0; r < rows && place < shape::width; ++place)
            sums[place] =
                multiply_add(softmax.shrink()[r], sums[place], visible_sum(softmax, r, panel(c) + 2 * place));
    }
  }

  static const float* in_order(const float* sums, float* ordered) {
    for (Index c = 0; c < shape::width; ++c) ordered[c] = sums[place_of_channel<Products>(c)];
    return ordered;
  }

 private:
  number* query(Index row) const {
    return queries_ + 2 * (row / shape::rows * shape::rows * pairs_ + row % shape::rows);
  }
  /// The panel of values that begins with `channel`, [tile / 2, width] of pairs.
  const number* panel(Index channel) const { return values_ + channel * shape::tile; }

  /// sums = shrink * sums + weights * values of the hull
  void multiply_values(const tile_range& hull, const float* weights, const float* shrink, float* sums) {
    float scales[std::size_t(shape::rows)];
    for (Index r = 0; r < shape::rows; ++r)
      scales[r] = round_weights(hull, weights + r * shape::tile, weights_ + r * shape::tile);
    const Index first = hull.first / 2 * 2, pairs = (hull.last + 1 - first) / 2;
    for (Index c = 0; c < call_.v.head_dim; c += shape::width, sums += shape::rows * shape::width)
      add_products_of_panel<float, strip_of_pairs<Products>::packets, shape::tile, 2, Products>(
          weights_ + first, panel(c) + first * shape::width, pairs, shrink, sums,
          is_quantized<C> ? scales : nullptr);
  }

  /// The sum of weights times values of one channel, over the keys visible to row r. `values` is in a panel
  /// of pairs: each row of the panel has the values of two keys.
  float visible_sum(const tile_softmax<float>& softmax, Index r, const number* values) const {
    const tile_range hull = softmax.hull();
    const number* weights = weights_ + r * shape::tile;
    float sum = 0;
    for (Index pair = hull.first / 2; 2 * pair < hull.last; ++pair)
      for (const Index j : {2 * pair + 1, 2 * pair})  // the order of bfloat16_pairs::multiply_add
        if (softmax.sees(r, j))
          sum = multiply_add_bfloat16(weights[j], values[pair * 2 * shape::width + j % 2], sum);
    return sum;
  }

  /// Packs values of a run, which begins with key n of the tile, in pairs. If the run begins or ends inside a
  /// pair, half of this pair is packed.
  void pack_values(Index n, const token_run<C>& run) const {
    constexpr Index stride = shape::tile * shape::width;
    const Index channels = call_.v.head_dim, step = call_.v.token_stride;
    for (Index j = 0; j < run.count;) {
      const C* row = run.rows + j * step;
      number* to = values_ + (n + j) / 2 * 2 * shape::width;
      if ((n + j) % 2 == 0 && j + 1 < run.count) {
        pack_rows_of_pairs<Products>(row, row + step, channels, to, stride);
        j += 2;
      } else {
        if ((n + j) % 2 == 0)  // the other half stays zero if the tile ends here
          for (Index c = 0; c < channels; c += shape::width)
            std::fill_n(to + c * shape::tile, 2 * shape::width, number{});
        pack_row_of_pairs<Products>(row, (n + j) % 2, channels, to, stride);
        ++j;
      }
    }
  }

  const call_type& call_;
  query_block block_;
  Index pairs_, begin_ = 0, count_ = 0;  // pairs of a query; the first key and the keys of the tile
  row_buffers<T> buffers_;
  number* queries_;    // [strips, pairs, rows] of pairs
  number* keys_;       // [tile / width, pairs, width] of pairs
  number* values_;     // [value_panels, tile / 2, width] of pairs
  number* rounded_;    // [pairs] of pairs: a query
  number* weights_;    // [rows, tile]
  float* factors_;     // [strips, rows]: factors of the products with a query
  float* key_scales_;  // [tile], of quantized keys
};

/// Operands of decode_split.
template <class T, class Rotation, class C, pair_products Products>
class paired_decode_operands {
  using shape = panel_shape<float>;
  using call_type = attention_call<T, Rotation, C>;
  using number = typename Products::number;
  using real = arithmetic<C>;  // float, as a dependent type

 public:
  using sum = typename Products::sum;
  static constexpr bool scales_keys = is_quantized<C>, scales_values = scales_keys;
  static bool copies_lists(const call_type& /*call*/, Index /*rows*/) { return true; }

  paired_decode_operands(const call_type& call, const decode_queries& queries) : call_(call), of_(queries) {
    const Index depth = call.q.head_dim, channels = call.v.head_dim, rows = of_.rows * of_.heads;
    place_arrays<struct decode_pairs, number>(
        {{&queries_, rows * depth}, {&weights_, rows * shape::tile}, {&rounded_, depth}});
    place_arrays<struct decode_factors, float>(
        {{&query_factors_, rows}, {&weight_scales_, rows}, {&visible_weights_, shape::tile}});
    place_arrays<struct decode_pair_sums, sum>(
        {{&totals_, of_.rows * shape::tile}, {&visible_sums_, channels}});
    buffers_ = {
        workspace<struct decode_rotated, T>((std::max)(shape::tile, of_.rows) * (std::max)(depth, channels)),
        nullptr};
  }

  void pack_queries(Index kv, Index t, double factor) {
    const rows_of_head rows = of_.rows_at(t, call_.group());
    if (rows.count == 0) return;
    for_each_query(call_, of_.b, t, of_.head_of(kv, t, rows.first, call_.group()), rows.count, factor,
                   buffers_, rounded_, [&](Index g, const number* numbers, float of_products) {
                     const Index row = row_of(kv, rows.first + g);
                     query_factors_[row] = of_products;
                     std::copy_n(numbers, call_.q.head_dim, queries_ + row * call_.q.head_dim);
                   });
  }
  void clear_queries(Index kv, Index t) {
    const rows_of_head rows = of_.rows_at(t, call_.group());
    const Index row = row_of(kv, rows.first), depth = call_.q.head_dim;
    std::fill_n(queries_ + row * depth, rows.count * depth, number{});
    std::fill_n(query_factors_ + row, rows.count, 0.0f);
  }

  void score(key_runs<C>& keys, Index i, float* scores) {
    const token_run<C> run = keys.tokens(i);
    const Index depth = call_.q.head_dim, first = keys.run[i].first;
    const row_block<C> block = read_keys<C>(call_, run, buffers_);
    for_groups_of_rows(of_.rows, [&](auto group, Index r) {
      score_rows_of_pairs<Products, group()>(queries_ + row_of(run.head, r) * depth, block, run.count, depth,
                                             totals_ + r * shape::tile + first,
                                             r == 0 ? &keys.ahead[i] : nullptr);
    });
    for (Index r = 0; r < of_.rows; ++r)
      channels_map<real>(scores + r * shape::tile + first, run.count) =
          query_factors_[row_of(run.head, r)] * as_reals(totals_ + r * shape::tile + first, run.count);
  }

  void take_weights(Index kv, const tile_range& hull, const rows_of_head& rows, const float* weights) {
    for (Index r = 0; r < rows.count; ++r)
      round_row(row_of(kv, rows.first + r), hull, weights + r * shape::tile);
  }

  void add_values(key_runs<C>& keys, const rows_of_head& rows, const float* /*weights*/, sum* sums,
                  bool prefetches) {
    for (Index i = 0; i < keys.count; ++i) {
      const token_run<C> run = keys.tokens(i);
      const auto values =
          values_of({run.rows, call_.v.token_stride}, keys.run[i], row_of(run.head, rows.first));
      for_groups_of_rows(rows.count, [&](auto group, Index r) {
        value_rows_of_pairs<group()>(values.from_row(r), call_.v.head_dim, sums + r * call_.v.head_dim,
                                     prefetches && r == 0 ? &keys.ahead[i] : nullptr);
      });
    }
  }
  void add_sums(Index kv, Index row, const sum* sums, float* total) const {
    channels_map<real>(total, call_.v.head_dim) +=
        weight_scales_[row_of(kv, row)] * as_reals(sums, call_.v.head_dim);
  }

  /// Whether values cannot be read in place, because pages with an odd number of tokens split pairs of keys.
  /// Sums of integers do not depend on which tokens form a pair.
  bool must_gather() const { return !is_quantized<C> && call_.v.page_size() % 2 == 1; }

  /// Replaces add_values if must_gather(), or for tiles with values or scales that are not finite: for each
  /// row, the weights and the values of keys that are hidden from the row are replaced by zeros. If all
  /// values and scales are finite, the bits are those of add_values.
  void add_visible_values(Index kv, Index begin, const rows_of_head& rows, const float* weights,
                          tile_softmax<float>& softmax, float* sums) {
    const tile_range& hull = softmax.hull();
    const Index channels = call_.v.head_dim;
    C* const visible = workspace<struct decode_visible_values, C>((hull.last - hull.first) * channels);
    for (Index r = 0; r < rows.count; ++r) {
      const Index row = row_of(kv, rows.first + r);
      for (Index j = hull.first; j < hull.last; ++j) {
        C* const to = visible + (j - hull.first) * channels;
        visible_weights_[j] = softmax.sees(r, j) ? weights[r * shape::tile + j] : 0.0f;
        if (softmax.sees(r, j))
          std::copy_n(call_.v.at(of_.b, begin + j, kv), channels, to);
        else
          std::fill_n(to, channels, C{});
      }
      round_row(row, hull, visible_weights_);
      std::fill_n(visible_sums_, channels, sum{});
      value_rows_of_pairs<1>(values_of({visible, channels}, hull, row), channels, visible_sums_, nullptr);
      add_sums(kv, rows.first + r, visible_sums_, sums + r * channels);
    }
  }

 private:
  static auto as_reals(const sum* sums, Index count) {
    return Eigen::Map<const Eigen::Array<sum, Eigen::Dynamic, 1>>(sums, count).template cast<real>();
  }

  Index row_of(Index kv, Index row) const { return (kv - of_.first_head) * of_.rows + row; }

  void round_row(Index row, const tile_range& hull, const float* weights) {
    weight_scales_[row] = round_weights(hull, weights, weights_ + row * shape::tile);
  }
  /// The values of some keys of a tile, with the weights from `row` on.
  value_pairs<Products> values_of(const row_block<C>& values, const tile_range& keys, Index row) const {
    return {values, keys.first, keys.last, weights_ + row * shape::tile};
  }

  const call_type& call_;
  decode_queries of_;
  row_buffers<T> buffers_;
  number* queries_;         // [heads, rows, head_dim]
  number* weights_;         // [heads, rows, tile], of the current tile
  number* rounded_;         // [head_dim]: a query
  float* query_factors_;    // [heads, rows]: factors of the products with a query
  float* weight_scales_;    // [heads, rows], of the current tile
  float* visible_weights_;  // [tile]
  sum* totals_;             // [rows, tile]
  sum* visible_sums_;       // [value_dim]
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PAIR_OPERANDS_HPP
