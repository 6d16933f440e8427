// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_PROJECTION_PRODUCTS_HPP
#define ROPE_DETAIL_PROJECTION_PRODUCTS_HPP

#include <rope/config.hpp>
#include <rope/detail/tiled_product.hpp>
#include <rope/multi_head_weights.hpp>

/// The products of a linear layer, forward and backward, ready to be run tile by tile.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class T>
using token_rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
/// Tokens [batch * tokens, dim] as a caller gives them: a row-major matrix, map or block, not copied.
template <class T>
using token_ref = Eigen::Ref<const token_rows<T>, 0, Eigen::OuterStride<>>;
template <class T>
using writable_token_ref = Eigen::Ref<token_rows<T>, 0, Eigen::OuterStride<>>;

/// y = x W^T + b.
///
/// Requires:  what is given lives until the product has run. The same holds below
template <class T>
auto projected(const token_ref<T>& x, const projection<const T>& by, writable_token_ref<T> y) {
  const auto run = [&x, &by, y](const tile& at) {
    // A vector times the weight reads it where it is; a matrix has it packed first, which takes longer than a
    // few passes over a tile that stays in the cache.
    constexpr Index few_tokens = 8;
    const auto weight = by.weight.middleRows(at.col, at.cols).transpose();
    writable_token_ref<T> whole = y;
    auto result = at.of(whole);
    if (at.rows <= few_tokens)
      for (Index t = 0; t < at.rows; ++t) result.row(t).noalias() = x.row(at.row + t) * weight;
    else
      result.noalias() = x.middleRows(at.row, at.rows) * weight;
    if (by.bias.size() > 0) result.rowwise() += by.bias.segment(at.col, at.cols);
  };
  return product{token_tiles(x.rows(), by.weight.rows()), x.cols(), run};
}

/// d_y and the weight W of a projection: its tokens have the gradient d_y W.
template <class T>
struct projected_back {
  token_ref<T> d_y;
  const projection<const T>& by;

  auto operator()(const tile& at) const {
    return d_y.middleRows(at.row, at.rows) * by.weight.middleCols(at.col, at.cols);
  }
};

/// The gradient by tokens that went through one or more projections: d_x = sum of d_y W.
template <class T, class... More>
auto gradient_by_tokens(writable_token_ref<T> d_x, const projected_back<T>& first, const More&... more) {
  const auto run = [d_x, &first, &more...](const tile& at) {
    writable_token_ref<T> whole = d_x;
    auto result = at.of(whole);
    result.noalias() = first(at);
    ((result.noalias() += more(at)), ...);
  };
  return product{token_tiles(d_x.rows(), d_x.cols()), (first.d_y.cols() + ... + more.d_y.cols()), run};
}

/// d_W = d_y^T x,  d_b = sum over tokens of d_y,  each where memory is given for it.
template <class T>
auto gradient_by_projection(const token_ref<T>& x, const token_ref<T>& d_y, const projection<T>& d) {
  const auto run = [&x, &d_y, &d](const tile& at) {
    const auto by = d_y.middleCols(at.row, at.rows);
    auto d_weight = d.weight;  // maps: copies of where, not of what
    auto d_bias = d.bias;
    if (d_weight.size() > 0) at.of(d_weight).noalias() = by.transpose() * x.middleCols(at.col, at.cols);
    if (d_bias.size() > 0 && at.col == 0) d_bias.segment(at.row, at.rows) = by.colwise().sum();
  };
  const Index cols = d.weight.size() > 0 ? x.cols() : d.bias.size() > 0 ? 1 : 0;
  return product{weight_tiles(d_y.cols(), cols), d_y.rows(), run};
}

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_PROJECTION_PRODUCTS_HPP
