// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
#define ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP

#include <algorithm>  // std::copy_n, std::fill_n, std::min, std::max
#include <concepts>   // std::same_as

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

/// Calls visit(n, keys, values) for runs of keys and values of a tile. The tokens of a run are at regular
/// strides. A run begins with key n of the tile, and fills columns of one panel from column n % width on.
/// Packing a run also writes zeros to the later columns of the panel, which the next run overwrites. Listed
/// tokens are copied first, because packing them one by one takes four times as long.
template <class T, class Rotation, class C, class Visit>
void for_each_run_of_panel(const attention_call<T, Rotation, C>& call, const query_block& block, Index begin,
                           Index count, const Visit& visit) {
  constexpr Index width = panel_shape<arithmetic<T>>::width;
  const bool is_listed = call.k.is_listed();
  C* const keys = workspace<struct copied_keys, C>(is_listed ? width * call.k.head_dim : 0);
  C* const values = workspace<struct copied_values, C>(is_listed ? width * call.v.head_dim : 0);
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

/// Packs the queries of a block. Rows without visible keys, and rows after the last one, become zeros.
template <class Operands>
void pack_block(Operands& operands, const query_block& block, const block_keys& keys, Index packed_rows,
                double factor) {
  for (Index t = 0; t < block.tokens; ++t)
    if (!keys.of(block.first_token + t).empty())
      operands.pack_queries(t, factor);
    else
      for (Index row = t * block.heads; row < (t + 1) * block.heads; ++row) operands.clear_query(row);
  for (Index row = block.rows(); row < packed_rows; ++row) operands.clear_query(row);
}

/// Packs the current tile of `keys`. Then calls visit(softmax) for every strip of the block to which a key of
/// the tile may be visible, with the scores of the strip in `scores`.
template <class A, class Operands>
void score_tile(Operands& operands, const query_block& block, const block_keys& keys, Index count, A* scores,
                const auto& visit) {
  constexpr Index rows = panel_shape<A>::rows;
  operands.pack_tile(keys.begin_of_tile(), count);
  for (Index s = 0; s * rows < block.rows(); ++s) {
    tile_softmax<A> softmax(keys, strip_of(block, s, rows));
    if (softmax.hull().empty()) continue;
    operands.score(s, softmax.hull(), scores);
    visit(softmax);
  }
}

/// Products in the arithmetic type.
template <class T, class Rotation, class C>
class prefill_operands {
  using A = arithmetic<T>;
  using shape = panel_shape<A>;
  using call_type = attention_call<T, Rotation, C>;

 public:
  prefill_operands(const call_type& call, const query_block& block, Index strips)
      : call_(call), block_(block), depth_(call.k.head_dim), value_dim_(call.v.head_dim) {
    const Index copied = (std::max)(shape::width, block.heads) * (std::max)(depth_, value_dim_);
    place_arrays<struct prefill_numbers, A>({{&queries_, strips * shape::rows * shape::padded(depth_)},
                                             {&keys_, shape::tile * depth_},
                                             {&values_, shape::tile * shape::padded(value_dim_)},
                                             {&buffers_.wide, copied}});
    buffers_.rotated = workspace<struct prefill_rotated, T>(copied);
  }

  void pack_queries(Index t, double factor) {
    const row_block<T> rows =
        query_rows(call_, block_.b, block_.first_token + t, block_.first_head, block_.heads, buffers_);
    for (Index g = 0; g < block_.heads; ++g)
      pack_scaled(rows.at(g), depth_, static_cast<A>(factor), query(t * block_.heads + g), panel_size);
  }
  void clear_query(Index row) {
    for (Index d = 0; d < depth_; d += shape::width)
      std::fill_n(query(row) + d * shape::rows, shape::width, A(0));
  }

  void pack_tile(Index begin, Index count) {
    for_each_run_of_panel(
        call_, block_, begin, count, [&](Index n, const token_run<C>& k, const token_run<C>& v) {
          const Index column = n % shape::width;
          const auto keys = read_keys<packable<typename call_type::rotated>>(call_, k, buffers_);
          pack_transposed(keys.rows, keys.stride, k.count, shape::width - column, depth_,
                          keys_ + (n - column) * depth_ + column, shape::width);
          const auto values = stored_rows<packable<C>>(call_.v, v, buffers_.wide);
          for (Index j = 0; j < v.count; ++j)
            pack_row(values.rows + j * values.stride, value_dim_, values_ + (n + j) * shape::width,
                     shape::tile * shape::width);
        });
  }

  void score(Index s, const tile_range& hull, A* scores) const {
    for (Index n = hull.first / shape::width * shape::width; n < hull.last; n += shape::width)
      row_products(query(s * shape::rows), panel_size, keys_ + n * depth_, depth_, scores + n, shape::tile);
  }

  /// Whole panels are read, because the zeros after the last channel are finite.
  bool finite_values(Index count) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      if (!all_finite(panel(c), count * shape::width)) return false;
    return true;
  }
  static bool exceeds(const tile_range& /*hull*/) { return false; }

  void add_values(const tile_range& hull, const A* weights, const A* shrink, A* sums) const {
    add_products<A, shape::tile, 1>(weights + hull.first, values_ + hull.first * shape::width,
                                    shape::tile * shape::width, hull.last - hull.first, value_dim_, shrink,
                                    sums, panel_size);
  }

  void add_visible_values(Index rows, const A* weights, tile_softmax<A>& softmax, A* sums) const {
    for (Index c = 0; c < value_dim_; c += shape::width)
      for (Index r = 0; r < shape::rows; ++r, sums += shape::width)
        if (r < rows)
          softmax.visible_values(
              r, weights + r * shape::tile, [&](Index j) { return panel(c) + j * shape::width; },
              shape::width,
              [&](Index n, A sum) { sums[n] = multiply_add(softmax.shrink()[r], sums[n], sum); });
  }

  static const A* in_order(const A* sums, A* /*ordered*/) { return sums; }

 private:
  static constexpr Index panel_size = shape::rows * shape::width;

  A* query(Index row) const {
    return queries_ + row / shape::rows * shape::rows * shape::padded(depth_) +
           row % shape::rows * shape::width;
  }
  const A* panel(Index channel) const { return values_ + channel * shape::tile; }

  const call_type& call_;
  query_block block_;
  Index depth_, value_dim_;
  A* queries_;  // [strips, panels, rows, width]
  A* keys_;     // [tile / width, depth, width]
  A* values_;   // [value_panels, tile, width]
  row_buffers<T> buffers_;
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_ATTENTION_DETAIL_PREFILL_OPERANDS_HPP
