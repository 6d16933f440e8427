// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_PASS_HPP
#define ROPE_BLOCK_DETAIL_PASS_HPP

#include <algorithm>  // std::copy_n
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/workspace.hpp>
#include <rope/block/detail/head_norm.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>
#include <rope/positions/positions.hpp>
#include <rope/rotation/detail/rotation_checks.hpp>
#include <rope/rotation/detail/rotation_pass.hpp>
#include <rope/rotation/gradient.hpp>  // rotate_gradient
#include <rope/rotation/view.hpp>
#include <rope/tables/table.hpp>

/// The steps of an attention block that its forward and its backward pass share.

namespace rope {
inline namespace ROPE_ABI {
namespace detail {

/// The purposes that a block has scratch for, the same whatever runs it.
struct block_scratch {
  struct queries;
  struct keys;
  struct values;
  struct attended;
  struct counts;
  struct log_sums;
  // of the backward pass
  struct turned_queries;
  struct turned_keys;
  struct d_attended;
  struct d_queries;
  struct d_keys;
  struct d_values;
};

/// Where attention of queries [first, first + count) of every row, some of all queries of a call, writes its
/// log-sum-exps: their place in `all` [batch, queries, heads] if that is in one piece, else scratch.
struct log_sums_of_part {
  std::span<double> all;
  Index batch, queries, heads, first, count;

  std::span<double> span() const {
    if (all.empty()) return {};
    const auto size = static_cast<std::size_t>(batch * count * heads);
    if (in_place()) return all.subspan(static_cast<std::size_t>(first * heads), size);
    return {workspace<block_scratch::log_sums, double>(batch * count * heads), size};
  }
  /// Brings what was written to `part`, the result of span(), to its place.
  void put_back(std::span<const double> part) const {
    if (all.empty() || in_place()) return;
    for (Index b = 0; b < batch; ++b)
      std::copy_n(part.data() + b * count * heads, count * heads, all.data() + (b * queries + first) * heads);
  }

 private:
  bool in_place() const { return batch <= 1 || count == queries; }
};

/// The tokens of heads as rows [batch * tokens, heads * head_dim] of contiguous scratch.
template <class T>
token_view<T> as_rows(const head_view<T>& heads) {
  const Index numbers = heads.heads * heads.head_dim;
  return {heads.data, heads.batch * heads.tokens, numbers, numbers};
}

/// A block in pieces, each with scratch of its own.
template <class T>
struct block_pass {
  const multi_head_weights<T>& weights;
  const multi_head_options& options;
  const multi_head_shape& shape;

  static void demand(bool holds, const char* rule, Index first, Index second) {
    check_rule("multi_head_attention", holds, rule, first, second);
  }
  /// Throws:  std::invalid_argument if tokens or the output (or its gradient) have another shape
  template <class Out>
  void check_call(const token_ref<T>& x, const token_ref<T>& context, const Out& out) const {
    demand(x.cols() == shape.model_dim, "the columns of x and model_dim must be equal", x.cols(),
           shape.model_dim);
    demand(context.cols() == shape.context_dim,
           "the columns of the keys' tokens and context_dim must be equal", context.cols(),
           shape.context_dim);
    demand(out.rows() == x.rows(), "out and x must have the same rows", out.rows(), x.rows());
    demand(out.cols() == shape.out_dim, "the columns of out and out_dim must be equal", out.cols(),
           shape.out_dim);
  }
  static Index tokens_per_row(const token_ref<T>& x, Index batch) {
    demand(batch >= 0 && (batch == 0 ? x.rows() == 0 : x.rows() % batch == 0),
           "the rows of x must be a multiple of batch", x.rows(), batch);
    return batch == 0 ? 0 : x.rows() / batch;
  }
  /// What can be wrong with positions, before the first product.
  template <class Rotation>
  void check_positions(const Rotation& rotation, const token_ref<T>& x, const token_ref<T>& context,
                       Index batch) const {
    rotation.check_call(batch, tokens_per_row(x, batch), tokens_per_row(context, batch), shape.head_dim);
  }
  /// What can be wrong with the options of attention once the tokens are known, before the first product.
  template <class Rotation>
  void check_attention(const Rotation& rotation, const attention_options& attention, const token_ref<T>& x,
                       const token_ref<T>& context, Index batch) const {
    check_options(
        "multi_head_attention", attention,
        {batch, tokens_per_row(x, batch), tokens_per_row(context, batch), shape.heads, shape.head_dim});
    rotation.check_options(attention);
  }

  /// [batch, rows / batch, heads, head_dim] in scratch of one purpose; valid until the next call for the same
  /// purpose on the thread.
  template <class Purpose>
  static head_view<T> scratch_heads(Index rows, Index batch, Index heads, Index head_dim) {
    return bshd(workspace<Purpose, T>(rows * heads * head_dim), batch, batch == 0 ? 0 : rows / batch, heads,
                head_dim);
  }
  /// The heads of queries, keys and values, in scratch: projected, but neither normalised nor rotated.
  struct projected_heads {
    head_view<T> q, k, v;
  };
  template <class Threads>
  projected_heads project(const token_ref<T>& x, const token_ref<T>& context, Index batch,
                          const Threads& threads) const {
    const projected_heads to = {
        scratch_heads<block_scratch::queries>(x.rows(), batch, shape.heads, shape.head_dim),
        scratch_heads<block_scratch::keys>(context.rows(), batch, shape.kv_heads, shape.head_dim),
        scratch_heads<block_scratch::values>(context.rows(), batch, shape.kv_heads, shape.value_dim)};
    run_products(threads, projected<T>(x, weights.q, as_rows(to.q)),
                 projected<T>(context, weights.k, as_rows(to.k)),
                 projected<T>(context, weights.v, as_rows(to.v)));
    return to;
  }
  head_norm<T> q_norm() const { return norm(weights.q_norm); }
  head_norm<T> k_norm() const { return norm(weights.k_norm); }

 private:
  head_norm<T> norm(const typename multi_head_weights<T>::norm_map& weight) const {
    return {weight.size() == 0 ? nullptr : weight.data(), options.norm_epsilon, options.norm_offset};
  }
};

/// Whether positions fall into segments that must not see each other.
template <class P>
inline constexpr bool is_segmented = false;
template <class Integer>
inline constexpr bool is_segmented<segments<Integer>> = true;

/// Queries and keys that are not rotated.
struct block_without_rotation {
  void check_call(Index /*batch*/, Index /*queries*/, Index /*keys*/, Index /*head_dim*/) const {}
  template <class T, class Threads>
  void apply(const head_view<T>& /*q*/, const head_view<T>& /*k*/, const Threads& /*threads*/) const {}
  template <class T, class Threads>
  void apply_transpose(const head_view<T>& /*d_q*/, const head_view<T>& /*d_k*/,
                       const Threads& /*threads*/) const {}

  void check_options(const attention_options& /*options*/) const {}

  /// Sequences that must not see each other, the options of attention in one, and its tokens in a view of
  /// queries or of keys.
  Index segment_count() const { return 1; }
  attention_options options_of(const attention_options& options, Index /*segment*/) const { return options; }
  template <class T>
  head_view<T> query_tokens(const head_view<T>& x, Index /*segment*/) const {
    return x;
  }
  template <class T>
  head_view<T> key_tokens(const head_view<T>& x, Index /*segment*/) const {
    return x;
  }
};

/// Queries and keys that are rotated by one table, at positions of their own.
template <class Layout, class S, class PQ, class PK>
struct block_rotation {
  placed_table<S> table;
  kept_positions<PQ> query_positions;
  kept_positions<PK> key_positions;

  static_assert(pair_layout<Layout>,
                "multi_head_attention: name the layout of the channel pairs to rotate, "
                "multi_head_attention<T, interleaved> or multi_head_attention<T, half_split>");
  static_assert(
      position_form<PQ> && position_form<PK>,
      "multi_head_attention: positions are integers: a start, a list of ids, row_starts or segments");
  static_assert(is_segmented<PQ> == is_segmented<PK>,
                "multi_head_attention: queries and keys are both in segments or neither is");

  void check_call(Index batch, Index queries, Index keys, Index head_dim) const {
    check_rotation<Layout>("multi_head_attention", batch, queries, head_dim, table,
                           position_source(query_positions, queries));
    check_rotation<Layout>("multi_head_attention", batch, keys, head_dim, table,
                           position_source(key_positions, keys));
    if constexpr (is_segmented<PQ>)
      if (query_positions.offsets.size() != key_positions.offsets.size())
        ROPE_THROW(std::invalid_argument,
                   message("multi_head_attention: queries and keys must have the same segments, got ",
                           query_positions.offsets.size() - 1, " and ", key_positions.offsets.size() - 1));
  }
  /// Throws:  std::invalid_argument if the options place tokens that segments place
  void check_options(const attention_options& options) const {
    if constexpr (is_segmented<PQ>)
      if (!options.query_positions.empty() || !options.key_positions.empty() || !options.key_counts.empty() ||
          !options.query_offsets.empty())
        ROPE_THROW(std::invalid_argument,
                   message("multi_head_attention: the tokens of segments are counted from the start of each, "
                           "the options must not list positions, key_counts or offsets"));
  }
  template <class T, class Threads>
  void apply(const head_view<T>& q, const head_view<T>& k, const Threads& threads) const {
    rotate_all<Layout, false, T>(q, q, table, position_source(query_positions, q.tokens), threads);
    rotate_all<Layout, false, T>(k, k, table, position_source(key_positions, k.tokens), threads);
  }
  template <class T, class Threads>
  void apply_transpose(const head_view<T>& d_q, const head_view<T>& d_k, const Threads& threads) const {
    rotate_gradient<Layout>(d_q, table, query_positions, threads);
    rotate_gradient<Layout>(d_k, table, key_positions, threads);
  }

  Index segment_count() const {
    if constexpr (is_segmented<PQ>)
      return query_positions.offsets.size() - 1;
    else
      return 1;
  }
  /// A bias or a mask of the whole call is cut to the segment. The place of log_sum_exp is up to the caller.
  attention_options options_of(attention_options options, Index segment) const {
    if constexpr (is_segmented<PQ>) {
      options.bias = scores_of(options.bias, segment);
      options.mask = scores_of(options.mask, segment);
    }
    return options;
  }
  template <class T>
  head_view<T> query_tokens(const head_view<T>& x, Index segment) const {
    return tokens_of(x, query_positions, segment);
  }
  template <class T>
  head_view<T> key_tokens(const head_view<T>& x, Index segment) const {
    return tokens_of(x, key_positions, segment);
  }

 private:
  template <class X>
  score_view<X> scores_of(score_view<X> x, Index segment) const {
    const auto cut = [&x, segment](Index& extent, Index stride, const auto& offsets) {
      if (!x || extent == 1) return;
      const auto first = static_cast<Index>(offsets[segment]);
      x.data += first * stride;
      extent = static_cast<Index>(offsets[segment + 1]) - first;
    };
    cut(x.queries, x.query_stride, query_positions.offsets);
    cut(x.keys, x.key_stride, key_positions.offsets);
    return x;
  }
  template <class T, class P>
  static head_view<T> tokens_of(const head_view<T>& x, const P& positions, Index segment) {
    if constexpr (is_segmented<P>) {
      const auto first = static_cast<Index>(positions.offsets[segment]);
      return x.token_range(first, static_cast<Index>(positions.offsets[segment + 1]) - first);
    } else {
      return x;
    }
  }
};

}  // namespace detail
}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_DETAIL_PASS_HPP
