// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_TILED_PRODUCT_HPP
#define ROPE_BLOCK_DETAIL_TILED_PRODUCT_HPP

#include <algorithm>  // std::min

#include <rope/base/parallel.hpp>
#include <rope/config.hpp>

/// Products of matrices on the caller's threads, each cut into tiles of its result by its shape alone, so
/// that the bits do not depend on how many threads there are.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// Rows [row, row + rows) and columns [col, col + cols) of a result.
struct tile {
  Index row, rows, col, cols;
};

/// A result [rows, cols] in tiles of at most [tile_rows, tile_cols].
class tiles {
 public:
  tiles(Index rows, Index cols, Index tile_rows, Index tile_cols)
      : rows_(rows), cols_(cols), tile_rows_(tile_rows), tile_cols_(tile_cols) {}

  Index count() const { return pieces(rows_, tile_rows_) * pieces(cols_, tile_cols_); }
  Index elements() const { return rows_ * cols_; }
  tile operator[](Index i) const {
    const Index down = pieces(rows_, tile_rows_), row = i % down * tile_rows_, col = i / down * tile_cols_;
    return {row, (std::min)(tile_rows_, rows_ - row), col, (std::min)(tile_cols_, cols_ - col)};
  }

 private:
  static Index pieces(Index extent, Index tile) { return (extent + tile - 1) / tile; }

  Index rows_, cols_, tile_rows_, tile_cols_;
};

/// The tiles of a result with one row per token: so large that packing the operands is a small part of the
/// work, and not so large that there are few of them. Few tokens read a matrix that no cache of a core
/// holds; 64 of its rows stay there from one use to the next, which is faster than the whole.
inline tiles token_tiles(Index tokens, Index cols) {
  return {tokens, cols, cols <= 256 ? 256 : 1024, tokens <= 64 || cols <= 1024 ? 64 : 256};
}

/// The tiles of a sum over tokens, the gradient with respect to a weight.
inline tiles weight_tiles(Index rows, Index cols) { return {rows, cols, rows <= 1024 ? 128 : 256, 1024}; }

/// One product: run(tile) finds a tile of the result, of sums of `depth` terms.
template <class Run>
struct product {
  tiles result;
  Index depth;
  Run run;

  double operations() const { return cost_of(2, depth, result.elements()); }
};
template <class Run>
product(tiles, Index, Run) -> product<Run>;

/// Runs products that do not need each other, side by side.
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

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_TILED_PRODUCT_HPP
