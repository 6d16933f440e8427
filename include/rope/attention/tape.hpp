// SPDX-License-Identifier: MIT
#ifndef ROPE_ATTENTION_TAPE_HPP
#define ROPE_ATTENTION_TAPE_HPP

#include <rope/config.hpp>
#include <rope/rotation/view.hpp>

/// What the backward pass of attention reads and writes.

namespace rope {
inline namespace ROPE_ABI {

/// The heads of a forward pass, the gradient with respect to its output, and where the gradients with respect
/// to its inputs go. Named members, because d_k and d_v often have one shape and would be exchanged unseen.
///
///     attention_gradient<half_split>(
///         attention_tape<float>{
///             .q = q, .k = k, .v = v, .out = out, .d_out = d_out, .d_q = d_q, .d_k = d_k, .d_v = d_v},
///         table, options);
///
/// \tparam T  a channel type, of all heads and gradients
template <class T>
struct attention_tape {
  head_view<const T> q;      // [batch, queries, q.heads, head_dim]
  head_view<const T> k;      // [batch, keys, k.heads, head_dim]
  head_view<const T> v;      // [batch, keys, k.heads, value_dim]
  head_view<const T> out;    // [batch, queries, q.heads, value_dim], the output of the forward pass
  head_view<const T> d_out;  // [batch, queries, q.heads, value_dim], the gradient with respect to out
  head_view<T> d_q;          // receives the gradient with respect to q, in the shape of q
  head_view<T> d_k;          // receives the gradient with respect to k, in the shape of k
  head_view<T> d_v;          // receives the gradient with respect to v, in the shape of v

  /// Query heads that share a key head.
  Index group() const { return k.heads == 0 ? 0 : q.heads / k.heads; }
};

}  // namespace ROPE_ABI
}  // namespace rope

#endif  // ROPE_ATTENTION_TAPE_HPP
