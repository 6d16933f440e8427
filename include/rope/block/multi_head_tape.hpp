// SPDX-License-Identifier: MIT
#ifndef ROPE_BLOCK_MULTI_HEAD_TAPE_HPP
#define ROPE_BLOCK_MULTI_HEAD_TAPE_HPP

#include <rope/attention/gradient.hpp>
#include <rope/block/detail/projection_products.hpp>
#include <rope/block/weights.hpp>
#include <rope/config.hpp>

/// What the backward pass of an attention block takes, and where it writes.

namespace rope {
inline namespace ROPE_ABI {

/// A forward pass of a block, and the gradient with respect to its output.
///
///     cross_attention_gradient(
///         block, {.x = x, .context = context, .batch = batch, .d_out = d_out}, gradients);
template <class T>
struct multi_head_tape {
  detail::token_ref<T> x;                          // [batch * tokens, model_dim], as in the forward pass
  detail::token_ref<T> context{nullptr, 0, 0, 0};  // [batch * keys, context_dim], of cross-attention
  Index batch;                                     // rows of the batch
  detail::token_ref<T> d_out;                      // [batch * tokens, out_dim]
};

/// Where the gradients of a block go, each in the shape of what it is taken with respect to; those without
/// memory are left out.
///
///     multi_head_gradients<float> gradients = {.x = {d_x.data(), d_x.rows(), d_x.cols()}};
///     multi_head_attention_gradient(block, {.x = x, .batch = batch, .d_out = d_out}, gradients);
template <class T>
struct multi_head_gradients {
  using token_map = typename projection<T>::weight_map;  // row-major [rows, columns], written to
  /// With respect to the tokens, [batch * tokens, model_dim]: in self-attention through queries, keys and
  /// values, in cross-attention through the queries.
  token_map x{nullptr, 0, 0};
  /// With respect to the context of cross-attention, [batch * keys, context_dim].
  token_map context{nullptr, 0, 0};
  /// With respect to the weights, each in the shape of the weight.
  multi_head_parameters<T> weights = {};
  /// With respect to sink_logits and bias of the attention options; not with more than one segment.
  option_gradients options = {};
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_BLOCK_MULTI_HEAD_TAPE_HPP
