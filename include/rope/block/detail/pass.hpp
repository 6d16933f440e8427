// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_DETAIL_PASS_HPP
#define ROPE_BLOCK_DETAIL_PASS_HPP

#include <cstddef>
#include <span>

#include <rope/attention/options.hpp>
#include <rope/base/message.hpp>
#include <rope/base/scratch.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>
#include <rope/rotation/head_norm.hpp>
#include <rope/rotation/view.hpp>

/// The steps that the forward and the backward pass of an attention block share.

namespace rope::inline ROPE_ABI::detail {

/// Tags for the scratch buffers of a block, shared by all passes.
struct block_scratch {
  struct queries;
  struct keys;
  struct values;
  struct attended;
  struct counts;
  struct log_sums;
  struct probabilities;
  // of the backward pass
  struct turned_queries;
  struct turned_keys;
  struct d_attended;
  struct d_queries;
  struct d_keys;
  struct d_values;
};

/// The tokens of contiguous heads as rows [batch * tokens, heads * head_dim].
template <class T>
token_view<T> as_rows(const head_view<T>& heads) {
  const Index numbers = heads.heads * heads.head_dim;
  return {heads.data, heads.batch * heads.tokens, numbers, numbers};
}

/// The steps of a block. Each has its own scratch.
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
    check_queries(x, out);
    check_context(context);
  }
  void check_context(const token_ref<T>& context) const {
    demand(context.cols() == shape.context_dim,
           "the columns of the keys' tokens and context_dim must be equal", context.cols(),
           shape.context_dim);
  }
  template <class Out>
  void check_queries(const token_ref<T>& x, const Out& out) const {
    demand(x.cols() == shape.model_dim, "the columns of x and model_dim must be equal", x.cols(),
           shape.model_dim);
    demand(out.rows() == x.rows(), "out and x must have the same rows", out.rows(), x.rows());
    demand(out.cols() == shape.out_dim, "the columns of out and out_dim must be equal", out.cols(),
           shape.out_dim);
  }
  static Index tokens_per_row(const token_ref<T>& x, Index batch) {
    demand(batch >= 0 && (batch == 0 ? x.rows() == 0 : x.rows() % batch == 0),
           "the rows of x must be a multiple of batch", x.rows(), batch);
    return batch == 0 ? 0 : x.rows() / batch;
  }
  /// Checks positions, before the first product.
  template <class Rotation>
  void check_positions(const Rotation& rotation, const token_ref<T>& x, const token_ref<T>& context,
                       Index batch) const {
    rotation.check_call(batch, tokens_per_row(x, batch), tokens_per_row(context, batch), shape.head_dim);
  }
  /// Checks the options of attention against the tokens, before the first product.
  template <class Rotation>
  void check_attention(const Rotation& rotation, const attention_options& attention, const token_ref<T>& x,
                       const token_ref<T>& context, Index batch) const {
    check_attention(rotation, attention, batch, tokens_per_row(x, batch), tokens_per_row(context, batch));
  }
  template <class Rotation>
  void check_attention(const Rotation& rotation, const attention_options& attention, Index batch,
                       Index queries, Index keys) const {
    check_options("multi_head_attention", attention, {batch, queries, keys, shape.heads, shape.head_dim});
    rotation.check_options(attention);
  }

  /// [batch, rows / batch, heads, head_dim] in the scratch of `Purpose`; valid until the next call with that
  /// Purpose on the thread.
  template <class Purpose>
  static head_view<T> scratch_heads(Index rows, Index batch, Index heads, Index head_dim) {
    return bshd(workspace<Purpose, T>(rows * heads * head_dim), batch, batch == 0 ? 0 : rows / batch, heads,
                head_dim);
  }
  /// The heads of queries, keys and values in scratch: projected, not yet normalised or rotated.
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
    return {
        {weight.data(), static_cast<std::size_t>(weight.size())}, options.norm_epsilon, options.norm_offset};
  }
};

}  // namespace rope::inline ROPE_ABI::detail

#endif  // ROPE_BLOCK_DETAIL_PASS_HPP
