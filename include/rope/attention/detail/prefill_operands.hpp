// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP

#include <algorithm>  // std::copy_n, std::min, std::max, std::fill_n, std::fill
#include <concepts>   // std::same_as
#include <cstddef>
#include <utility>  // std::pair

#include <rope/attention/detail/rows.hpp>
#include <rope/attention/detail/softmax.hpp>
#include <rope/base/numbers.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/config.hpp>

/// Operands of the prefill kernel: the queries of a block, packed into strips, and a tile of keys and values,
/// packed into panels. base/simd/panels.hpp defines strips and panels.

namespace rope::inline ROPE_ABI::detail {

/// Query tokens [first_token, first_token + tokens) of row b, in `heads` query heads from first_head on. All
/// of these heads use key head kv.
struct query_block {
  Index b, kv, first_head, heads, first_token, tokens;

  Index rows() const { return tokens * heads; }
};

/// Calls visit(n, keys, values) for runs of keys and values of a tile. The tokens of a run are at regular
/// strides. A run begins with key n of the tile, and fills columns of one panel from column n % width on.
/// Packing a run also writes zeros to the later columns of the panel, which the next run overwrites. Listed
/// tokens are copied first, because packing them one by one takes four times as long.
template <class T, class Turn, class C, class Visit>
void for_each_run_of_panel(const attention_call<T, Turn, C>& call, const query_block& block, Index begin,
                           Index count, const Visit& visit) {
  constexpr Index width = panel_shape<arithmetic<T>>::width;
  struct copied_keys {};
  struct copied_values {};
  const bool is_listed = call.k.is_listed();
  C* const keys = workspace<copied_keys, C>(is_listed ? width * call.k.head_dim : 0);
  C* const values = workspace<copied_values, C>(is_listed ? width * call.v.head_dim : 0);
  for (Index n = 0, here; n < count; n += here) {
    here = (std::min)({width - n % width, count - n, is_listed ? width : call.k.run_from(begin + n)});
    const auto run_of = [&](const token_source<C>& x, C* copies) {
      token_run<C> run = {block.b, block.kv, begin + n, here, x.at(block.b, begin + n, block.kv)};
      if (!is_listed) return run;
      for (Index j = 0; j < here; ++j)
        std::copy_n(x.at(block.b, begin + n + j, block.kv), x.head_dim, copies + j * x.head_dim);
      run.rows = copies;
      return run;
    };
    visit(n, run_of(call.k, keys), run_of(call.v, values));
  }
}

/// Operands of prefill_block: the queries of a block, and a tile of keys and values, packed.
///
///     pack_queries(t, factor)  the rows of the heads of token t of the block, times factor
///     clear_query(row)         zeros, for a row without visible keys, or beyond the last row
///     pack_tile(begin, count)  keys and values of the tile that begins with key `begin`
///     score(s, hull, scores)   scores [rows, tile] of strip s with the panels that hold keys of the hull
///     finite_values(count)     whether the values of the tile are finite
///     exceeds(hull)            whether values outside of the hull are multiplied too, by zero
///     add_values(hull, weights, shrink, sums)
///                              sums [value_panels, rows, width] = shrink * sums + weights * values of the
///                              hull; the weights may be overwritten
///     add_visible_values(rows, weights, softmax, sums)
///                              replaces add_values if a value is not finite: hidden values are not used;
///                              if all values are finite, the bits are those of add_values
///     in_order(sums, ordered)     the sums of a panel in the order of channels
template <class X, class A>
concept prefill_products = requires(X& x, Index n, const tile_range& hull, A* numbers, const A* shrink,
                                    tile_softmax<A>& softmax) {
  x.pack_queries(n, 1.0);
  x.clear_query(n);
  x.pack_tile(n, n);
  x.score(n, hull, numbers);
  { x.finite_values(n) } -> std::same_as<bool>;
  { x.exceeds(hull) } -> std::same_as<bool>;
  x.add_values(hull, numbers, shrink, numbers);
  x.add_visible_values(n, numbers, softmax, numbers);
  { x.in_order(shrink, numbers) } -> std::same_as<const A*>;
};

/// Products in the arithmetic type.
template <class T, class Rotation, class C>
class prefill_operands {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;

 public:
  prefill_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call), block_(block), depth_(call.k.head_dim), value_dim_(call.v.head_dim) {
    struct prefill_numbers {};
    struct prefill_rotated {};
    const Index padded_values = shape::padded(value_dim_);
    const Index copied = (std::max)(shape::width, block.heads) * (std::max)(depth_, value_dim_);
    queries_ = workspace<prefill_numbers, A>(strips * shape::rows * depth_ +
                                             shape::tile * (depth_ + padded_values) + copied);
    keys_ = queries_ + strips * shape::rows * depth_;
    values_ = keys_ + shape::tile * depth_;
    buffers_.wide = values_ + shape::tile * padded_values;
    buffers_.rotated = workspace<prefill_rotated, T>(copied);
  }

  void pack_queries(Index t, double factor) {
    read_queries(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads,
                 static_cast<A>(factor), buffers_,
                 [&](Index g) { return std::pair(query(t * block_.heads + g), Index{shape::rows}); });
  }
  void clear_query(Index row) {
    for (Index d = 0; d < depth_; ++d) query(row)[d * shape::rows] = A(0);
  }

  void pack_tile(Index begin, Index count) {
    for_each_run_of_panel(
        call_, block_, begin, count, [&](Index n, const token_run<C>& k, const token_run<C>& v) {
          const Index column = n % shape::width;
          const auto keys = read_keys<packable<typename call_type::rotated>>(call_, k, buffers_);
          pack_transposed(keys.rows, keys.stride, k.count, shape::width - column, depth_,
                          keys_ + (n - column) * depth_ + column, shape::width);
          const auto values = read_values<packable<C>>(call_, v, buffers_);
          for (Index j = 0; j < v.count; ++j)
            pack_row(values.rows + j * values.stride, value_dim_, values_ + (n + j) * shape::width,
                     shape::tile * shape::width);
        });
  }

  void score(Index s, const tile_range& hull, A* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      score_panel(queries_ + s * shape::rows * depth_, keys_ + n * depth_, depth_, scores + n);
  }

  /// Whole panels are read, because the zeros after the last channel are finite.
  bool finite_values(Index count) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      if (!all_finite(panel(c), count * shape::width)) return false;
    return true;
  }
  static bool exceeds(const tile_range& /*hull*/) { return false; }

  void add_values(const tile_range& hull, const A* weights, const A* shrink, A* sums) const {
    for (Index c = 0; c < value_dim_; c += shape::width, sums += shape::rows * shape::width)
      if (value_dim_ - c > lanes<packet<A>>)
        value_panel<A, shape::packets>(weights, panel(c), hull.first, hull.last, shrink, sums);
      else
        value_panel<A, 1>(weights, panel(c), hull.first, hull.last, shrink, sums);
  }

  void add_visible_values(Index rows, const A* weights, tile_softmax<A>& softmax, A* sums) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
        if (r < rows)
          softmax.visible_values(
              r, weights + r * shape::tile, [&](Index j) { return panel(c) + j * shape::width; },
              shape::width, [&](Index place) -> A& { return sums[place]; });
  }

  static const A* in_order(const A* sums, A* /*ordered*/) { return sums; }

 private:
  A* query(Index row) const {
    return queries_ + row / shape::rows * shape::rows * depth_ + row % shape::rows;
  }
  const A* panel(Index channel) const { return values_ + channel * shape::tile; }

  const call_type& call_;
  query_block block_;
  Index depth_, value_dim_;
  A* queries_;  // [strips, depth, rows]
  A* keys_;     // [tile / width, depth, width]
  A* values_;   // [value_panels, tile, width]
  row_buffers<T> buffers_;
};

/// The common part of bfloat16_operands and integer_operands, which multiply in pairs. Each derived class
/// converts queries and weights to its type.
template <class T, class Rotation, class C, pair_products Products>
class paired_operands {
 protected:
  using shape = panel_shape<float>;
  using call_type = attention_call<T, Rotation, C>;
  using number = typename Products::number;

 public:
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
          pack_values(n, v.count, read_values<C>(call_, v, buffers_));
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

  static const float* in_order(const float* sums, float* ordered) {
    for (Index c = 0; c < shape::width; ++c) ordered[c] = sums[place_of_channel<Products>(c)];
    return ordered;
  }

 protected:
  paired_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call), block_(block), pairs_((call.k.head_dim + 1) / 2) {
    struct prefill_pairs {};
    struct prefill_factors {};
    struct prefill_rotated {};
    const Index rows = strips * shape::rows;
    queries_ = workspace<prefill_pairs, number>(2 * pairs_ * (rows + shape::tile + 1) +
                                                shape::tile * (shape::rows + shape::padded(call.v.head_dim)));
    keys_ = queries_ + 2 * pairs_ * rows;
    row_ = keys_ + 2 * pairs_ * shape::tile;
    weights_ = row_ + 2 * pairs_;
    values_ = weights_ + shape::rows * shape::tile;
    factors_ = workspace<prefill_factors, float>(rows + shape::tile);
    key_scales_ = factors_ + rows;
    buffers_ = {workspace<prefill_rotated, T>((std::max)(shape::width, block.heads) *
                                              (std::max)(call.k.head_dim, call.v.head_dim)),
                nullptr};
  }

  number* query(Index row) const {
    return queries_ + 2 * (row / shape::rows * shape::rows * pairs_ + row % shape::rows);
  }
  /// The panel of values that begins with `channel`, [tile / 2, width] of pairs.
  const number* panel(Index channel) const { return values_ + channel * shape::tile; }

  /// sums = shrink * sums + factors * weights_ * values of the hull
  ///
  /// \param factors  [rows], or null for ones
  void multiply_values(const tile_range& hull, const float* shrink, const float* factors, float* sums) const {
    for (Index c = 0; c < call_.v.head_dim; c += shape::width, sums += shape::rows * shape::width)
      value_panel_of_pairs<Products>(weights_, panel(c), hull.first / 2, (hull.last + 1) / 2, shrink, factors,
                                     sums);
  }

  const call_type& call_;
  query_block block_;
  Index pairs_, begin_ = 0, count_ = 0;  // pairs of a query; the first key and the keys of the tile
  row_buffers<T> buffers_;
  number* row_;      // [pairs] of pairs
  number* weights_;  // [rows, tile]
  float* factors_;   // [strips, rows]: factors of the products with a query

 private:
  /// Packs values [n, n + count) of the tile in pairs. If a run of tokens begins or ends inside a pair, half
  /// of this pair is packed.
  void pack_values(Index n, Index count, const row_block<C>& rows) const {
    constexpr Index stride = shape::tile * shape::width;
    const Index channels = call_.v.head_dim;
    for (Index j = 0; j < count;) {
      const C* row = rows.rows + j * rows.stride;
      number* to = values_ + (n + j) / 2 * 2 * shape::width;
      if ((n + j) % 2 == 0 && j + 1 < count) {
        pack_rows_of_pairs<Products>(row, row + rows.stride, channels, to, stride);
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

  number* queries_;    // [strips, pairs, rows] of pairs
  number* keys_;       // [tile / width, pairs, width] of pairs
  number* values_;     // [value_panels, tile / 2, width] of pairs
  float* key_scales_;  // [tile], of quantized keys
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
