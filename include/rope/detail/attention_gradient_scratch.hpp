// SPDX-License-Identifier: MIT
#ifndef ROPE_DETAIL_ATTENTION_GRADIENT_SCRATCH_HPP
#define ROPE_DETAIL_ATTENTION_GRADIENT_SCRATCH_HPP

#include <span>
#include <type_traits>

#include <rope/config.hpp>
#include <rope/detail/packet.hpp>  // arithmetic
#include <rope/detail/visibility.hpp>
#include <rope/detail/workspace.hpp>
#include <rope/frequencies.hpp>  // is_finite
#include <rope/softmax.hpp>
#include <rope/view.hpp>

/// What the backward pass of attention works on: heads as matrices, and the scratch memory of a thread.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

template <class A>
using rows_matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using rows_map = Eigen::Map<rows_matrix<A>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class A>
using const_rows_map = Eigen::Map<const rows_matrix<A>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using head_map = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_head_map = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

/// Tokens [first, first + count) of one head as a matrix [count, head_dim] of the arithmetic type: the memory
/// itself where the types agree, else widened into `buffer`.
template <class T>
const_rows_map<arithmetic<T>> widened_rows(const head_view<const T>& x, Index b, Index first, Index count,
                                           Index h, arithmetic<T>* buffer) {
  using A = arithmetic<T>;
  if constexpr (std::is_same_v<T, A>) {
    return {x.at(b, first, h), count, x.head_dim, Eigen::OuterStride<>(x.token_stride)};
  } else {
    for (Index t = 0; t < count; ++t)
      head_map<A>(buffer + t * x.head_dim, x.head_dim) =
          const_head_map<T>(x.at(b, first + t, h), x.head_dim).template cast<A>();
    return {buffer, count, x.head_dim, Eigen::OuterStride<>(x.head_dim)};
  }
}

/// Read from the bits, so that it also holds under -ffast-math.
template <class Rows>
bool are_finite(const Rows& x) {
  for (Index r = 0; r < x.rows(); ++r) {
    bool finite = true;
    for (Index c = 0; c < x.cols(); ++c) finite = finite && is_finite(static_cast<double>(x(r, c)));
    if (!finite) return false;
  }
  return true;
}

/// The heads of a call; already checked.
template <class T>
struct attention_tape {
  head_view<const T> q, k, v, out, d_out;
  head_view<T> d_q, d_k, d_v;
  std::span<double> d_sink_logits;  // [batch, q.heads] or empty
  double* d_bias;                   // laid out as the bias, or null
};

/// Keys [from, to) of a tile that a query sees.
struct key_run {
  Index from, to;
};

/// Scratch of one key head: sizes in elements, cut from one block of memory.
template <class A>
struct attention_gradient_scratch {
  static constexpr Index rows = 64;  // queries of a block
  static constexpr Index keys = 64;  // keys of a tile

  A* queries;    // [rows, head_dim], multiplied by the scale
  A* upstream;   // [rows, value_dim]: gradients by the output
  A* d_queries;  // [rows, head_dim]
  A* weights;    // [rows, keys]: scores, then weights
  A* slopes;     // [rows, keys]: gradients by the weights, then by the scores
  A* shifts;     // [rows]: a weight is exp(score - shift) * factor
  A* factors;    // [rows]
  A* products;   // [rows]: upstream . out
  A* bends;      // [keys]: slope of the softcap
  A* key_tile;   // [keys, head_dim], for 16-bit keys
  A* value_tile;
  A* d_keys;                 // [all keys, head_dim]
  A* d_values;               // [all keys, value_dim]
  key_set* sets;             // [rows]
  key_run* runs;             // [keys]
  softmax_state<A>* states;  // [rows]

  attention_gradient_scratch(Index block_rows, Index all_keys, Index head_dim, Index value_dim) {
    struct numbers {};
    struct key_sets {};
    struct key_runs {};
    struct softmaxes {};
    A* next = workspace<numbers, A>(block_rows * (2 * head_dim + value_dim + 2 * keys + 3) + keys +
                                    (keys + all_keys) * (head_dim + value_dim));
    const auto take = [&next](Index count) {
      A* const taken = next;
      next += count;
      return taken;
    };
    queries = take(block_rows * head_dim);
    upstream = take(block_rows * value_dim);
    d_queries = take(block_rows * head_dim);
    weights = take(block_rows * keys);
    slopes = take(block_rows * keys);
    shifts = take(block_rows);
    factors = take(block_rows);
    products = take(block_rows);
    bends = take(keys);
    key_tile = take(keys * head_dim);
    value_tile = take(keys * value_dim);
    d_keys = take(all_keys * head_dim);
    d_values = take(all_keys * value_dim);
    sets = workspace<key_sets, key_set>(block_rows);
    runs = workspace<key_runs, key_run>(keys);
    states = workspace<softmaxes, softmax_state<A>>(block_rows);
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_DETAIL_ATTENTION_GRADIENT_SCRATCH_HPP
