// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP
#define ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP

#include <algorithm>  // std::min

#include <rope/base/scratch.hpp>
#include <rope/block/detail/tile_product.hpp>
#include <rope/block/detail/tiled_product.hpp>
#include <rope/block/detail/token_view.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>

/// The products of a linear layer, forward and backward, ready to be run tile by tile.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Tokens [batch * tokens, dim] as a caller gives them.
template <class T>
using token_ref = token_view<const T>;
template <class T>
using writable_token_ref = token_view<T>;

/// A map of n numbers, to be added to.
template <class T>
Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>> numbers(T* data, Index n) {
  return {data, n};
}
template <class T>
Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>> numbers(const T* data, Index n) {
  return {data, n};
}

/// y = x W^T + b.
///
/// Requires:  what is given lives until the product has run. The same holds below
template <class T>
auto projected(const token_ref<T>& x, const projection<const T>& by, const writable_token_ref<T>& y) {
  const auto run = [x, &by, y](const tile& at) {
    // Few tokens meet the weight where it is; for more it is packed first, which takes longer than a few
    // passes over a tile that stays in the cache.
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
        numbers(out + t * y.stride(), at.cols) += numbers(by.bias.data() + at.col, at.cols);
  };
  return product{token_tiles(x.rows(), by.weight.rows()), x.cols(), run};
}

/// d_y and the weight W of a projection: its tokens have the gradient d_y W.
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

/// The gradient with respect to tokens that went through one or more projections: d_x = sum of d_y W.
template <class T, class... More>
auto gradient_by_tokens(const writable_token_ref<T>& d_x, const projected_back<T>& first,
                        const More&... more) {
  const auto run = [d_x, &first, &more...](const tile& at) {
    first.write(at, false, d_x);
    (more.write(at, true, d_x), ...);
  };
  return product{token_tiles(d_x.rows(), d_x.cols()), (first.d_y.cols() + ... + more.d_y.cols()), run};
}

/// d_W = d_y^T x,  d_b = sum over tokens of d_y,  each where memory is given for it.
template <class T>
auto gradient_by_projection(const token_ref<T>& x, const token_ref<T>& d_y, const projection<T>& d) {
  const auto run = [x, d_y, &d](const tile& at) {
    const T* const by = d_y.data() + at.row;
    if (d.weight.size() > 0) {
      const Index stride = d.weight.outerStride();
      T* const to = const_cast<T*>(d.weight.data()) + at.row * stride + at.col;  // a map of what is written
      multiply_tile<T>({by, 1, d_y.stride()}, {x.data() + at.col, x.stride(), 1}, at.rows, x.rows(), at.cols,
                       false, to, stride);
    }
    if (d.bias.size() > 0 && at.col == 0) {
      // As in multiply_tile: sums of some tokens are formed and then added, which many tokens lose no digits
      // in.
      struct sums_of_some_tokens {};
      auto some = numbers(workspace<sums_of_some_tokens, T>(at.rows), at.rows);
      auto sums = numbers(const_cast<T*>(d.bias.data()) + at.row, at.rows);
      sums.setZero();
      for (Index first = 0; first < d_y.rows(); first += terms_at_once) {
        some.setZero();
        for (Index t = first; t < (std::min)(first + terms_at_once, d_y.rows()); ++t)
          some += numbers(by + t * d_y.stride(), at.rows);
        sums += some;
      }
    }
  };
  const Index cols = d.weight.size() > 0 ? x.cols() : d.bias.size() > 0 ? 1 : 0;
  return product{weight_tiles(d_y.cols(), cols), d_y.rows(), run};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_PROJECTION_PRODUCTS_HPP
