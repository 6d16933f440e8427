// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP
#define ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP

#include <algorithm>  // std::min, std::fill_n
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>  // std::declval

#include <rope/base/integer_list.hpp>  // dense_of
#include <rope/base/numbers.hpp>       // channels_map
#include <rope/base/parallel.hpp>
#include <rope/base/parallel_tasks.hpp>
#include <rope/base/scratch.hpp>
#include <rope/base/simd/channel_rows.hpp>  // load of narrow channels
#include <rope/base/simd/packet.hpp>
#include <rope/base/simd/packet_math.hpp>
#include <rope/base/simd/panels.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>
#include <rope/rotation/view.hpp>  // dense

/// The matrix products of a linear layer, forward and backward, as tiles that can run in parallel.

namespace rope::inline ROPE_ABI::detail {

/// A row-major matrix [rows, cols] in memory, with `stride` numbers from one row to the next. It is made from
/// a row-major Eigen matrix, map or block without a copy. Eigen::Ref<const ...> is not used, because it
/// copies objects of other types.
///
/// \tparam T  float or double, const if it is only read
template <class T>
class token_view {
 public:
  token_view(T* data, Index rows, Index cols, Index stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {}

  template <dense Matrix, class Expression = std::remove_cvref_t<decltype(dense_of(std::declval<Matrix&>()))>>
  token_view(Matrix&& matrix)
      : data_(const_cast<T*>(matrix.data())),  // also of a const map of writable numbers
        rows_(matrix.rows()),
        cols_(matrix.cols()),
        stride_(matrix.outerStride()) {
    static_assert(std::is_same_v<typename Expression::Scalar, std::remove_const_t<T>>,
                  "multi_head_attention: tokens are of the type of the block, float or double");
    static_assert(matrix_in_memory<Matrix, true>,
                  "multi_head_attention: tokens are a row-major Eigen matrix, map or block");
    constexpr bool owns = std::is_base_of_v<Eigen::PlainObjectBase<Expression>, Expression>;
    static_assert(std::is_const_v<T> || (bool(Expression::Flags & Eigen::LvalueBit) &&
                                         (!owns || (std::is_lvalue_reference_v<Matrix> &&
                                                    !std::is_const_v<std::remove_reference_t<Matrix>>))),
                  "multi_head_attention: the output is read-only");
  }

  operator token_view<const T>() const requires(!std::is_const_v<T>) {
    return {data_, rows_, cols_, stride_};
  }

  T* data() const { return data_; }
  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  Index size() const { return rows_ * cols_; }
  /// The distance between adjacent rows, in numbers.
  Index stride() const { return stride_; }

 private:
  T* data_;
  Index rows_, cols_, stride_;
};

// The product of two matrices for one tile of the result. Its scratch memory is that of this library. Eigen's
// product is not used, because it allocates, and because it packs its operands in functions whose symbols are
// shared with translation units for other instruction sets. Operands could then be packed or aligned for
// another instruction set.

/// Element (r, c) of an operand is data[r * row_stride + c * col_stride]; one of the strides is 1.
template <class A>
struct operand {
  const A* data;
  Index row_stride, col_stride;

  /// The part of the operand that starts at element (r, c).
  operand from(Index r, Index c) const {
    return {data + r * row_stride + c * col_stride, row_stride, col_stride};
  }
};

/// The number of terms of a sum for which operands are packed at a time. With this number, a strip fits L1,
/// and the panels of a tile fit L2. (base/simd/panels.hpp defines strips and panels.)
inline constexpr Index terms_per_pass = 256;

/// row_products for a strip with fewer rows or a panel with fewer columns. Only rows [0, rows) and columns
/// [0, cols) of the result are written, or added to if `add`.
template <class A>
void multiply_edge(const A* strip, Index panel_stride, const A* panel, Index terms, bool add, A* out,
                   Index stride, Index rows, Index cols) {
  using shape = panel_shape<A>;
  A whole[std::size_t(shape::rows * shape::width)];
  row_products(strip, panel_stride, panel, terms, whole, shape::width);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) {
      A& to = out[r * stride + c];
      to = add ? to + whole[r * shape::width + c] : whole[r * shape::width + c];
    }
}

/// Packs x [rows, cols] into panels of `width` columns: packed[c / width * panel_stride + r * width +
/// c % width] = x(r, c), with zeros after the last column.
template <class A>
void pack_panels(const operand<A>& x, Index rows, Index cols, A* packed, Index panel_stride) {
  if (x.col_stride != 1)
    return pack_transposed_panels(x.data, x.col_stride, cols, rows, packed, panel_stride);
  // Rows may have a large stride. Processors prefetch only addresses near the last read.
  constexpr Index ahead = 4;
  for (Index r = 0; r < rows; ++r) {
    const A* const row = x.data + r * x.row_stride;
    for (Index c = 0; c < cols; c += 64 / Index(sizeof(A)))
      prefetch_after(row, static_cast<std::uintptr_t>((ahead * x.row_stride + c) * Index(sizeof(A))));
    pack_row(row, cols, packed + r * panel_shape<A>::width, panel_stride);
  }
}

/// out(r, c) = sum_d a(r, d) b(d, c), or += if `add`: [rows, depth] times [depth, cols]. Partial sums of
/// terms_per_pass terms are added to the result.
template <class A>
void multiply_tile(const operand<A>& a, const operand<A>& b, Index rows, Index depth, Index cols, bool add,
                   A* out, Index stride) {
  using shape = panel_shape<A>;
  // The number of rows of `a` that are packed at a time: whole strips, and a multiple of the packet size, so
  // that transposed rows are packed in whole packets.
  constexpr Index strip_rows = shape::rows, width = shape::width, block = 4 * strip_rows;
  if (depth == 0 && !add)
    for (Index r = 0; r < rows; ++r) std::fill_n(out + r * stride, cols, A(0));
  struct product_numbers {};
  const Index most = (std::min)(depth, terms_per_pass), size_of_strips = shape::padded(most) * block;
  A* const strips = workspace<product_numbers, A>(size_of_strips + most * shape::padded(cols));
  A* const panels = strips + size_of_strips;
  for (Index first = 0; first < depth; first += terms_per_pass) {
    const Index terms = (std::min)(terms_per_pass, depth - first);
    const bool adds = add || first > 0;
    const auto multiply = adds ? row_products<true, A> : row_products<false, A>;
    pack_panels(b.from(first, 0), terms, cols, panels, terms * width);
    for (Index r = 0; r < rows; r += block) {
      const Index packed = (std::min)(block, rows - r);
      if (packed % strip_rows != 0)
        std::fill_n(strips, size_of_strips, A(0));  // multiply_edge reads whole strips
      pack_panels(a.from(r, first), packed, terms, strips, block * width);
      for (Index s = 0; s < packed; s += strip_rows)
        for (Index c = 0; c < cols; c += width) {
          const Index here = (std::min)(strip_rows, packed - s), there = (std::min)(width, cols - c);
          const A *const strip = strips + s * width, *const panel = panels + c * terms;
          A* const to = out + (r + s) * stride + c;
          if (here == strip_rows && there == width)
            multiply(strip, block * width, panel, terms, to, stride);
          else
            multiply_edge(strip, block * width, panel, terms, adds, to, stride, here, there);
        }
    }
  }
}

/// out[t * out_stride + c] = sum_d x[t * x_stride + d] w[c * w_stride + d] for `tokens` tokens and c in [0,
/// cols). Both operands are read in place. The bits of a sum do not depend on `tokens` or `cols`.
///
/// Weights usually come from memory, so the rows that are read after the current ones are prefetched to L2
/// (attention's prefetch.hpp says why not to L1).
template <std::size_t tokens, class A>
EIGEN_DONT_INLINE void multiply_few(const A* x, Index x_stride, const A* w, Index w_stride, Index depth,
                                    Index cols, A* out, Index out_stride) {
  using P = packet<A>;
  constexpr Index L = lanes<P>, line = 64 / Index(sizeof(A));
  constexpr std::size_t rows = tokens == 1 ? 8 : 4;  // of the weight, at a time
  const auto next = static_cast<std::uintptr_t>(Index(rows) * w_stride * Index(sizeof(A)));
  for (Index c = 0; c < cols; c += Index(rows)) {
    const A* weights[rows];
    unrolled<rows>([&](auto i) { weights[i] = w + (std::min)(c + Index(i), cols - 1) * w_stride; });
    P sums[tokens * rows];
    unrolled<tokens * rows>([&](auto n) { sums[n] = fill<P>(A(0)); });
    Index d = 0;
    for (; d + L <= depth; d += L) {
      P numbers[tokens];
      unrolled<tokens>([&](auto t) { numbers[t] = in_register(load<P>(x + Index(t) * x_stride + d)); });
      if (L == line || d % line == 0)
        unrolled<rows>([&](auto i) { prefetch_after<2>(weights[i] + d, next); });
      unrolled<rows>([&](auto i) {
        const P weight = in_register(load<P>(weights[i] + d));
        unrolled<tokens>([&](auto t) {
          P& sum = sums[t * rows + i];
          sum = multiply_add(numbers[t], weight, sum);
        });
      });
    }
    unrolled<tokens * rows>([&](auto n) {
      const auto t = Index(n / rows), i = Index(n % rows);
      if (c + i >= cols) return;
      A sum = sum_of_lanes(sums[n]);
      for (Index rest = d; rest < depth; ++rest)
        sum = multiply_add(x[t * x_stride + rest], weights[i][rest], sum);
      out[t * out_stride + c + i] = sum;
    });
  }
}

/// multiply_few for any number of tokens. For few tokens this is faster than packing.
template <class A>
void multiply_few(Index tokens, const A* x, Index x_stride, const A* w, Index w_stride, Index depth,
                  Index cols, A* out, Index out_stride) {
  constexpr int per_pass = registers >= 32 ? 4 : 2;
  // A few rows of the weight stay in L1 while all tokens are multiplied by these rows.
  constexpr Index weights_per_pass = 8;
  for (Index c = 0; c < cols; c += weights_per_pass) {
    const Index here = (std::min)(weights_per_pass, cols - c);
    Index t = 0;
    const auto run = [&]<int count>(std::integral_constant<int, count>) {
      for (; t + count <= tokens; t += count)
        multiply_few<std::size_t(count)>(x + t * x_stride, x_stride, w + c * w_stride, w_stride, depth, here,
                                         out + t * out_stride + c, out_stride);
    };
    run(std::integral_constant<int, per_pass>{});
    run(std::integral_constant<int, 2>{});
    run(std::integral_constant<int, 1>{});
  }
}

// Products of matrices on the caller's threads. The tiles of a result depend on its shape only, so the bits
// do not depend on the number of threads.

/// Rows [row, row + rows) and columns [col, col + cols) of a result.
struct tile {
  Index row, rows, col, cols;
};

/// A result [rows, cols] in tiles of at most [tile_rows, tile_cols].
struct tiles {
  Index rows, cols, tile_rows, tile_cols;

  Index count() const { return pieces_of(rows, tile_rows) * pieces_of(cols, tile_cols); }
  Index elements() const { return rows * cols; }
  tile operator[](Index i) const {
    const Index down = pieces_of(rows, tile_rows), row = i % down * tile_rows, col = i / down * tile_cols;
    return {row, (std::min)(tile_rows, rows - row), col, (std::min)(tile_cols, cols - col)};
  }
};

/// The tiles of a result with one row per token. They are large enough that packing the operands is a small
/// part of the work, and small enough to give every thread a tile. For few tokens, a tile uses only 64 rows
/// of the weight. These stay in the cache while all tokens are multiplied by them, but a whole weight would
/// exceed L2.
inline tiles token_tiles(Index tokens, Index cols) {
  return {tokens, cols, cols <= 256 ? 256 : 1024, tokens <= 64 || cols <= 1024 ? 64 : 256};
}

/// The tiles of a sum over tokens: the gradient with respect to a weight.
inline tiles weight_tiles(Index rows, Index cols) { return {rows, cols, rows <= 1024 ? 128 : 256, 1024}; }

/// One product. run(tile) computes a tile of the result; each element is a sum of `depth` terms.
template <class Run>
struct product {
  tiles result;
  Index depth;
  Run run;

  double operations() const { return cost_of(2, depth, result.elements()); }
};
template <class Run>
product(tiles, Index, Run) -> product<Run>;

/// Runs independent products in parallel.
template <class Threads, class... Run>
void run_products(const Threads& threads, const product<Run>&... products) {
  const Index tasks = (products.result.count() + ...);
  if (tasks == 0) return;
  parallel_tasks(threads, tasks, (products.operations() + ...) / static_cast<double>(tasks), [&](Index task) {
    const auto runs = [&task](const auto& product) {
      const bool here = task >= 0 && task < product.result.count();
      if (here) product.run(product.result[task]);
      task -= product.result.count();
      return here;
    };
    (void)(runs(products) || ...);
  });
}

/// The caller's tokens [batch * tokens, dim].
template <class T>
using token_ref = token_view<const T>;
template <class T>
using writable_token_ref = token_view<T>;

/// y = x W^T + b.
///
/// Requires:  arguments outlive the product, here and in the functions below
template <class T>
auto projected(const token_ref<T>& x, const projection<const T>& by, const writable_token_ref<T>& y) {
  const auto run = [x, &by, y](const tile& at) {
    // For few tokens the weight is read in place. Packing it first would cost more than a few passes over a
    // tile that stays in the cache. For more tokens the weight is packed.
    constexpr Index few_tokens = 32;
    const Index depth = x.cols(), w_stride = by.weight.outerStride();
    const T *tokens = x.data() + at.row * x.stride(), *weight = by.weight.data() + at.col * w_stride;
    T* const out = y.data() + at.row * y.stride() + at.col;
    if (x.rows() <= few_tokens)
      multiply_few(at.rows, tokens, x.stride(), weight, w_stride, depth, at.cols, out, y.stride());
    else
      multiply_tile<T>({tokens, x.stride(), 1}, {weight, 1, w_stride}, at.rows, depth, at.cols, false, out,
                       y.stride());
    if (by.bias.size() > 0)
      for (Index t = 0; t < at.rows; ++t)
        channels_map<T>(out + t * y.stride(), at.cols) +=
            const_channels_map<T>(by.bias.data() + at.col, at.cols);
  };
  return product{token_tiles(x.rows(), by.weight.rows()), x.cols(), run};
}

/// d_y and the weight W of a projection. The gradient with respect to the input tokens of the projection is
/// d_y W.
template <class T>
struct projected_back {
  token_ref<T> d_y;
  const projection<const T>& by;

  void write(const tile& at, bool add, const writable_token_ref<T>& d_x) const {
    const Index w_stride = by.weight.outerStride();
    multiply_tile<T>({d_y.data() + at.row * d_y.stride(), d_y.stride(), 1},
                     {by.weight.data() + at.col, w_stride, 1}, at.rows, d_y.cols(), at.cols, add,
                     d_x.data() + at.row * d_x.stride() + at.col, d_x.stride());
  }
};

/// The gradient with respect to the input tokens of one or more projections: d_x = sum of d_y W.
template <class T, class... More>
auto gradient_by_tokens(const writable_token_ref<T>& d_x, const projected_back<T>& first,
                        const More&... more) {
  const auto run = [d_x, &first, &more...](const tile& at) {
    first.write(at, false, d_x);
    (more.write(at, true, d_x), ...);
  };
  return product{token_tiles(d_x.rows(), d_x.cols()), (first.d_y.cols() + ... + more.d_y.cols()), run};
}

/// d_W = d_y^T x and d_b = sum over tokens of d_y. A gradient without memory is not computed.
template <class T>
auto gradient_by_projection(const token_ref<T>& x, const token_ref<T>& d_y, const projection<T>& d) {
  const auto run = [x, d_y, &d](const tile& at) {
    const T* const by = d_y.data() + at.row;
    if (d.weight.size() > 0) {
      const Index stride = d.weight.outerStride();
      T* const to = const_cast<T*>(d.weight.data()) + at.row * stride + at.col;  // a map of writable numbers
      multiply_tile<T>({by, 1, d_y.stride()}, {x.data() + at.col, x.stride(), 1}, at.rows, x.rows(), at.cols,
                       false, to, stride);
    }
    if (d.bias.size() > 0 && at.col == 0) {
      // As in multiply_tile, partial sums over some tokens are added up, to keep precision with many tokens.
      struct sums_of_some_tokens {};
      channels_map<T> some(workspace<sums_of_some_tokens, T>(at.rows), at.rows);
      channels_map<T> sums(const_cast<T*>(d.bias.data()) + at.row, at.rows);
      sums.setZero();
      for (Index first = 0; first < d_y.rows(); first += terms_per_pass) {
        some.setZero();
        for (Index t = first; t < (std::min)(first + terms_per_pass, d_y.rows()); ++t)
          some += const_channels_map<T>(by + t * d_y.stride(), at.rows);
        sums += some;
      }
    }
  };
  const Index cols = d.weight.size() > 0 ? x.cols() : d.bias.size() > 0 ? 1 : 0;
  return product{weight_tiles(d_y.cols(), cols), d_y.rows(), run};
}

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP
